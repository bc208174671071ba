"""keys.yaml: who may call, by the hash of a key. New keys are made here too.

Owns the file's format and the key's, and writes nothing. A key itself is never stored, and never named in an error.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from gateway.strict_yaml import ConfigError, Fault, Name, Strict, problem, read

KEYS_MAX = 20_000
KEY_PREFIX = "gw-"
_RANDOM_BYTES = 32


def _checked_hash(text: str) -> str:
    if text.startswith(KEY_PREFIX):
        raise problem(
            "holds a key, not its hash", fix="Give the entry that `gateway keys new` printed; change this key"
        )
    if not re.fullmatch(r"[0-9a-f]{64}", text):
        raise problem(
            "is not a SHA-256", fix="Give 64 lower-case hexadecimal digits, as `gateway keys new` prints them"
        )
    return text


def _checked_moment(text: str) -> str:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise problem("is not a time", fix="Write it like 2030-01-31T00:00:00Z") from None
    if moment.tzinfo is None:
        raise problem("has no time zone", fix="Write it like 2030-01-31T00:00:00Z")
    return text


class KeyEntry(Strict):
    """One key. models: None for every model of the gateway. not_after: from this moment on the key is refused."""

    id: Name
    sha256: Annotated[str, AfterValidator(_checked_hash)]
    service_class: Name
    tenant: Name
    models: Annotated[frozenset[Annotated[str, Field(min_length=1, max_length=256)]], Field(min_length=1)] | None = None
    not_after: Annotated[str, AfterValidator(_checked_moment)] | None = None

    @property
    def not_after_epoch_s(self) -> float | None:
        if self.not_after is None:
            return None
        return (datetime.fromisoformat(self.not_after) - _EPOCH) / timedelta(seconds=1)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class KeysFile(Strict):
    """The whole of keys.yaml."""

    keys: Annotated[tuple[KeyEntry, ...], Field(max_length=KEYS_MAX)]

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        ids: dict[str, int] = {}
        hashes: dict[str, int] = {}
        for index, entry in enumerate(self.keys):
            for seen, value, name in ((ids, entry.id, "id"), (hashes, entry.sha256, "sha256")):
                if value in seen:
                    raise problem(
                        f"is the same as keys[{seen[value]}].{name}",
                        fix="Remove one of the two entries",
                        at=f"keys[{index}].{name}",
                    )
                seen[value] = index
        return self


def load_keys(path: Path, service_classes: Collection[str]) -> tuple[KeyEntry, ...]:
    """The entries of the file; raises ConfigError, also for a class that is not among `service_classes`."""
    entries = read(path, KeysFile, misreading=unheaded).keys
    for index, entry in enumerate(entries):
        if entry.service_class not in service_classes:
            raise ConfigError(
                str(path),
                f"keys[{index}].service_class",
                f"is {entry.service_class}, which the policy does not have",
                f"Use one of {', '.join(sorted(service_classes))}, or add the class to the policy",
            )
    return entries


def unheaded(document: object) -> Fault | None:
    """What to say of entries that stand in the file without `keys:` above them."""
    fix = "Start it with `keys:` and list the entries under it"
    if isinstance(document, list):
        return Fault("", "is a list", fix)
    if isinstance(document, dict) and "keys" not in document and document.keys() & {"entry", *KeyEntry.model_fields}:
        return Fault("", "is an entry", fix)
    return None


def new_key(service_class: str, tenant: str) -> tuple[str, KeyEntry]:
    """A fresh key and the entry that lets it in."""
    key = KEY_PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
    entry = KeyEntry(
        id=f"k-{secrets.token_hex(4)}",
        sha256=hashlib.sha256(key.encode()).hexdigest(),
        service_class=service_class,
        tenant=tenant,
    )
    return key, entry
