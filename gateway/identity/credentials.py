"""The one credential that a request presents, and the refusal of it.

Owns the reading of Authorization and x-api-key. Fails closed: two credentials that differ are none. No part of what is
presented is kept, shown or logged.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from gateway.core.types import Reason, Refusal

CREDENTIAL_CHARS_MAX = 8192


class CredentialRefused(Exception):  # noqa: N818 - the state that it names
    """The request's credential lets nobody in (unauthenticated), or not into a class (not_allowed)."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


def presented(authorization: Sequence[str], x_api_key: Sequence[str]) -> str | None:
    """The credential in all values of the two headers; None where there is none. Raises CredentialRefused."""
    if len(authorization) > 1 or len(x_api_key) > 1:
        raise unauthenticated("A credential header appears more than once.")
    found = [_bearer(value) for value in authorization] + [value.strip(" \t") for value in x_api_key]
    if not found:
        return None
    if not all(found):
        raise unauthenticated("The API key is empty.")
    if max(map(len, found)) > CREDENTIAL_CHARS_MAX:
        raise unauthenticated("This API key is not known.")
    if not hmac.compare_digest(as_bytes(found[0]), as_bytes(found[-1])):
        raise unauthenticated("Authorization and x-api-key hold different credentials.")
    return found[0]


def as_bytes(credential: str) -> bytes:
    # Header bytes that are no UTF-8 arrive as lone surrogates; they must lead to a refusal, not to an error.
    return credential.encode("utf-8", "surrogatepass")


def unauthenticated(message: str) -> CredentialRefused:
    return CredentialRefused(Refusal(Reason.UNAUTHENTICATED, message))


def not_allowed(message: str) -> CredentialRefused:
    """The refusal of a caller who is known, but has no service class here."""
    return CredentialRefused(Refusal(Reason.NOT_ALLOWED, message, code="service_class_not_allowed"))


def _bearer(value: str) -> str:
    scheme, _, credential = value.strip(" \t").partition(" ")
    if scheme.lower() != "bearer":
        raise unauthenticated("The Authorization header must be 'Bearer KEY'.")
    return credential.strip(" \t")
