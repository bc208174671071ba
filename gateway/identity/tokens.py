"""Signed tokens (JWT): whom the issuer says is calling.

Owns what a token must say to be believed. The signature, issuer and audience are checked by PyJWT, with a key of the
set in force and that key's algorithm; no key, address or certificate inside a token is looked at. Knows no policy.
"""

from __future__ import annotations

import binascii
import hashlib
import math
import re
from base64 import urlsafe_b64decode
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jwt

from gateway.core.types import Identity
from gateway.identity.credentials import CredentialRefused, not_allowed, unauthenticated
from gateway.identity.signing_keys import KeySet
from gateway.wire import strict_json
from gateway.wire.json_flaws import Malformed

LEEWAY_S = 30.0  # between the issuer's clock and this one
MODELS_MAX = 1000
_TOKEN = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_TENANT = re.compile(r"[ -~]{1,255}")
_ID_DIGITS = 12
_NOT_VALID = "This token is not valid."
_SAID_OF: Mapping[type[jwt.PyJWTError], str] = {
    jwt.InvalidIssuerError: "This token is from another issuer.",
    jwt.InvalidAudienceError: "This token is for another audience.",
    jwt.MissingRequiredClaimError: "This token lacks one of the claims exp, iss and aud.",
}


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What is asked of a token, and which of its claims say who is calling. models_claim: None where none does."""

    issuer: str
    audience: str
    service_class_claim: str
    tenant_claim: str
    models_claim: str | None = None


class SignerUnknown(CredentialRefused):
    """The token names a key that is not in the set in force; a newer set may have it."""


class _StrictJwt(jwt.PyJWT):
    """Reads the claims as strictly as a request's body: no claim twice, no number out of range."""

    def _decode_payload(self, decoded: dict[str, Any]) -> dict[str, Any]:
        try:
            return strict_json.parse(decoded["payload"])
        except Malformed as error:
            raise jwt.DecodeError from error


# Times are judged by the gateway's clock, below.
_JWT = _StrictJwt({"require": ["exp", "iss", "aud"], "verify_exp": False, "verify_nbf": False, "verify_iat": False})


class Tokens:
    """Judges tokens by the signing keys in force. look_again: looks for newer keys; True where there may be some."""

    def __init__(self, rules: TokenRules, look_again: Callable[[], Awaitable[bool]]) -> None:
        self._rules = rules
        self._look_again = look_again
        self._keys: Mapping[str, jwt.PyJWK] = {}
        self._believed_until = -math.inf

    def put_in_force(self, key_set: KeySet, believed_until: float = math.inf) -> None:
        """Replace the signing keys. believed_until: when they are too old to believe, in seconds since the epoch."""
        self._keys, self._believed_until = key_set.keys, believed_until

    async def identify(self, token: str, now: Callable[[], float]) -> Identity:
        """Who is calling with this token; raises CredentialRefused and nothing else."""
        try:
            return self.judge(token, now())
        except SignerUnknown:
            if not await self._look_again():
                raise
        return self.judge(token, now())

    def judge(self, token: str, now: float) -> Identity:
        """Who is calling, by the keys in force; raises CredentialRefused. now: in seconds since the epoch."""
        header = _header(token)
        name = header.get("kid")
        if not isinstance(name, str):
            raise unauthenticated("This token does not name its signing key (kid).")
        if now >= self._believed_until:
            raise SignerUnknown(unauthenticated("Tokens cannot be checked: there are no signing keys now.").refusal)
        key = self._keys.get(name)
        if key is None:
            raise SignerUnknown(unauthenticated("This token's signing key is not known.").refusal)
        claims = self._checked(token, key)
        _check_times(claims, now)
        return self._identity(claims, name)

    def _checked(self, token: str, key: jwt.PyJWK) -> dict[str, Any]:
        rules, algorithms = self._rules, [key.algorithm_name]
        try:
            claims: dict[str, Any] = _JWT.decode(token, key, algorithms, audience=rules.audience, issuer=rules.issuer)
        except jwt.PyJWTError as error:
            raise unauthenticated(_SAID_OF.get(type(error), _NOT_VALID)) from None
        return claims

    def _identity(self, claims: Mapping[str, Any], key_name: str) -> Identity:
        rules = self._rules
        tenant = claims.get(rules.tenant_claim)
        if not isinstance(tenant, str) or not _TENANT.fullmatch(tenant):
            message = f"The token's claim {rules.tenant_claim} is not 1 to 255 printable ASCII characters."
            raise unauthenticated(message)
        service_class = claims.get(rules.service_class_claim)
        if not isinstance(service_class, str):
            raise not_allowed(f"The token names no service class in its claim {rules.service_class_claim}.")
        return Identity(_key_id(key_name, claims.get("sub")), service_class, tenant, self._models(claims))

    def _models(self, claims: Mapping[str, Any]) -> frozenset[str] | None:
        name = self._rules.models_claim
        if name is None:
            return None
        models = claims.get(name)
        if (
            not isinstance(models, list)
            or len(models) > MODELS_MAX
            or not all(isinstance(each, str) for each in models)
        ):
            return frozenset()
        return frozenset(models)


def _header(token: str) -> dict[str, Any]:
    if not _TOKEN.fullmatch(token):
        raise unauthenticated(_NOT_VALID)
    encoded = token.partition(".")[0]
    try:
        header = strict_json.parse(urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
    except (Malformed, binascii.Error):
        raise unauthenticated(_NOT_VALID) from None
    # A critical extension would change what the token means in a way that is not understood here.
    if "crit" in header or "b64" in header:
        raise unauthenticated(_NOT_VALID)
    return header


def _check_times(claims: Mapping[str, Any], now: float) -> None:
    moments = [claims["exp"], claims.get("nbf", -math.inf)]
    if not all(type(moment) in {int, float} for moment in moments):
        raise unauthenticated("The token's exp or nbf is not a number.")
    expires_at, begins_at = moments
    if now >= expires_at + LEEWAY_S:
        raise unauthenticated("This token has expired.")
    if now < begins_at - LEEWAY_S:
        raise unauthenticated("This token is not valid yet.")


def _key_id(key_name: str, subject: str | None) -> str:
    """Tell log lines of one subject and key apart from others', without anything that the issuer wrote."""
    digest = hashlib.sha256(f"{key_name}\n{subject or ''}".encode()).hexdigest()
    return f"jwt-{digest[:_ID_DIGITS]}"
