"""API keys in force, and who may call without one.

Owns the look-up by hash and the moment at which a key ends. Holds no key, only what a key hashes to.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from gateway.core.types import Identity
from gateway.identity.credentials import as_bytes, unauthenticated
from gateway.identity.keys import KeyEntry

KEY_CHARS_MAX = 1024
_NO_DIGEST = bytes(hashlib.sha256().digest_size)


@dataclass(frozen=True, slots=True)
class _Held:
    digest: bytes
    identity: Identity
    not_after_epoch_s: float | None


class Keyring:
    """The keys in force. Replaced as a whole when the file changes. Both methods raise CredentialRefused."""

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

    def of_nobody(self) -> Identity:
        """Who is calling where no credential is presented."""
        if self._anonymous is None:
            raise unauthenticated("No API key given. Send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'.")
        return self._anonymous

    def of_key(self, key: str, now_epoch_s: float) -> Identity:
        """Who is calling with this key."""
        if len(key) > KEY_CHARS_MAX:
            raise unauthenticated("This API key is not known.")
        # What is looked up is a hash of the key, so the time of the look-up tells nothing about any key that is
        # held; the comparison takes the same time whether one was found or not.
        digest = hashlib.sha256(as_bytes(key)).digest()
        held = self._held.get(digest)
        matches = hmac.compare_digest(digest, _NO_DIGEST if held is None else held.digest)
        if held is None or not matches:
            raise unauthenticated("This API key is not known.")
        if held.not_after_epoch_s is not None and now_epoch_s >= held.not_after_epoch_s:
            raise unauthenticated("This API key has expired.")
        return held.identity


def tenants(keyring: Keyring, service_classes: Collection[str], *, takes_tokens: bool) -> Mapping[str, int | None]:
    """Count the distinct tenants of each class that may send; None where an issuer of tokens may name any."""
    return dict.fromkeys(service_classes) if takes_tokens else keyring.tenants()


def _held(entry: KeyEntry) -> _Held:
    identity = Identity(key_id=entry.id, service_class=entry.service_class, tenant=entry.tenant, models=entry.models)
    return _Held(bytes.fromhex(entry.sha256), identity, entry.not_after_epoch_s)
