"""The public keys that sign tokens: a JSON Web Key Set, read strictly.

Owns which keys count: RSA for RS256, P-256 for ES256 and Ed25519 for EdDSA, each with a name of its own, and no private
one. The algorithm belongs to the key; no token chooses it. Fetches nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt

from gateway.strict_yaml import ConfigError, read_bytes
from gateway.wire import strict_json
from gateway.wire.json_flaws import Malformed

KEY_SET_BYTES_MAX = 1 << 18
KEYS_MAX = 100
RSA_BITS_MIN, RSA_BITS_MAX = 2048, 8192
PRIVATE_MEMBERS = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth", "k"})

_KEY_NAME = re.compile(r"[!-~]{1,256}")
_ALGORITHMS = {("RSA", None): "RS256", ("EC", "P-256"): "ES256", ("OKP", "Ed25519"): "EdDSA"}


class KeySetUnusable(Exception):  # noqa: N818 - the state that it names
    """Nothing can be checked with these bytes. problem: why, without a full stop; nothing of a key in it."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


@dataclass(frozen=True, slots=True)
class KeySet:
    """Keys by name (`kid`). passed_over: the other entries of the set, each with the reason, in words."""

    keys: Mapping[str, jwt.PyJWK]
    passed_over: tuple[str, ...] = ()


def load_key_set(path: Path) -> KeySet:
    """The key set in a file; raises ConfigError."""
    try:
        return read_key_set(read_bytes(path))
    except KeySetUnusable as error:
        fix = "Give the issuer's JSON Web Key Set, with an RSA, P-256 or Ed25519 public key that has a kid"
        raise ConfigError(str(path), "", error.problem, fix) from None


def read_key_set(raw: bytes) -> KeySet:
    """The key set; raises KeySetUnusable where it has no key that can be used, or one name twice."""
    if len(raw) > KEY_SET_BYTES_MAX:
        raise KeySetUnusable(f"is larger than {KEY_SET_BYTES_MAX} bytes")
    try:
        entries = strict_json.parse(raw).get("keys")
    except Malformed:
        raise KeySetUnusable("is not one JSON object") from None
    if not isinstance(entries, list) or not entries:
        raise KeySetUnusable("has no list of keys")
    if len(entries) > KEYS_MAX:
        raise KeySetUnusable(f"has more than {KEYS_MAX} keys")
    keys: dict[str, jwt.PyJWK] = {}
    passed_over = []
    for index, entry in enumerate(entries):
        usable = _usable(entry)
        if isinstance(usable, str):
            passed_over.append(f"keys[{index}] {usable}")
            continue
        name, key = usable
        if name in keys:
            raise KeySetUnusable(f"has the kid of keys[{index}] twice")
        keys[name] = key
    if not keys:
        raise KeySetUnusable(f"has no key that can be used: {passed_over[0]}")
    return KeySet(keys, tuple(passed_over))


def _usable(entry: Any) -> tuple[str, jwt.PyJWK] | str:
    """The name and the key; or, in words, why it is none to check tokens with."""
    flaw = _flaw(entry)
    if flaw is not None:
        return flaw
    algorithm = _ALGORITHMS[entry["kty"], entry.get("crv")]
    try:
        key = jwt.PyJWK(entry, algorithm)
    except (jwt.PyJWTError, LookupError, TypeError, ValueError):
        return "is not a whole key"
    if algorithm == "RS256" and not RSA_BITS_MIN <= key.key.key_size <= RSA_BITS_MAX:
        return f"has {key.key.key_size} bits; {RSA_BITS_MIN} to {RSA_BITS_MAX} are accepted"
    return entry["kid"], key


def _flaw(entry: Any) -> str | None:
    """Why an entry cannot be used, as far as its members say it."""
    if not isinstance(entry, dict):
        return "is not a JSON object"
    if PRIVATE_MEMBERS & entry.keys():
        return "is a private or a shared key: whoever reads this set can sign with it"
    kind, curve, name = entry.get("kty"), entry.get("crv"), entry.get("kid")
    algorithm = _ALGORITHMS.get((kind, curve)) if isinstance(kind, str) and isinstance(curve, str | None) else None
    if algorithm is None or entry.get("alg", algorithm) != algorithm:
        return "is for another algorithm than RS256, ES256 and EdDSA"
    if entry.get("use", "sig") != "sig" or not _may_verify(entry.get("key_ops")):
        return "is not for checking signatures"
    if not isinstance(name, str) or not _KEY_NAME.fullmatch(name):
        return "has no kid of 1 to 256 printable ASCII characters"
    return None


def _may_verify(operations: Any) -> bool:
    return operations is None or (isinstance(operations, list) and "verify" in operations)
