"""Credentials of a request → Identity.

Owns the judgement of Authorization and x-api-key. Fails closed: whatever is presented and not known is refused,
also where anonymous callers are let in. No part of a presented key is kept, shown or logged.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gateway.core.types import Identity, Reason, Refusal
from gateway.identity.keys import KeyEntry

KEY_CHARS_MAX = 1024
_NO_DIGEST = bytes(hashlib.sha256().digest_size)


class Unauthenticated(Exception):  # noqa: N818 - the word of the protocol
    """The request's credentials let nobody in."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


@dataclass(frozen=True, slots=True)
class _Held:
    digest: bytes
    identity: Identity
    not_after_epoch_s: float | None


class Keyring:
    """The keys in force. Replaced as a whole when the file changes."""

    def __init__(self, entries: Iterable[KeyEntry], anonymous: Identity | None) -> None:
        self._anonymous = anonymous
        self._held = {held.digest: held for held in map(_held, entries)}

    def __len__(self) -> int:
        return len(self._held)

    def tenants(self) -> dict[str, int]:
        """Count the distinct tenants that may send, by service class, callers without a key included."""
        identities = [held.identity for held in self._held.values()]
        if self._anonymous is not None:
            identities.append(self._anonymous)
        return Counter(service_class for service_class, _ in {(each.service_class, each.tenant) for each in identities})

    def identify(self, authorization: Sequence[str], x_api_key: Sequence[str], now_epoch_s: float) -> Identity:
        """Who is calling, from all values of the two headers; raises Unauthenticated and nothing else."""
        if len(authorization) > 1 or len(x_api_key) > 1:
            raise _unauthenticated("A credential header appears more than once.")
        presented = [_bearer(value) for value in authorization] + [value.strip(" \t") for value in x_api_key]
        if not presented:
            if self._anonymous is None:
                raise _unauthenticated("No API key given. Send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'.")
            return self._anonymous
        digests = [_digest(key) for key in presented]
        if not hmac.compare_digest(digests[0], digests[-1]):
            raise _unauthenticated("Authorization and x-api-key hold different credentials.")
        return self._known(digests[0], now_epoch_s)

    def _known(self, digest: bytes, now_epoch_s: float) -> Identity:
        # What is looked up is a hash of the key, so the time of the look-up tells nothing about any key that is
        # held; the comparison takes the same time whether one was found or not.
        held = self._held.get(digest)
        matches = hmac.compare_digest(digest, _NO_DIGEST if held is None else held.digest)
        if held is None or not matches:
            raise _unauthenticated("This API key is not known.")
        if held.not_after_epoch_s is not None and now_epoch_s >= held.not_after_epoch_s:
            raise _unauthenticated("This API key has expired.")
        return held.identity


def _held(entry: KeyEntry) -> _Held:
    identity = Identity(key_id=entry.id, service_class=entry.service_class, tenant=entry.tenant, models=entry.models)
    return _Held(bytes.fromhex(entry.sha256), identity, entry.not_after_epoch_s)


def _bearer(value: str) -> str:
    scheme, _, key = value.strip(" \t").partition(" ")
    if scheme.lower() != "bearer":
        raise _unauthenticated("The Authorization header must be 'Bearer KEY'.")
    return key.strip(" \t")


def _digest(key: str) -> bytes:
    if not key:
        raise _unauthenticated("The API key is empty.")
    if len(key) > KEY_CHARS_MAX:
        raise _unauthenticated("This API key is not known.")
    # Header bytes that are no UTF-8 arrive as lone surrogates; they must lead to a refusal, not to an error.
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def _unauthenticated(message: str) -> Unauthenticated:
    return Unauthenticated(Refusal(Reason.UNAUTHENTICATED, message))
