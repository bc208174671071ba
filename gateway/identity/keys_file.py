"""Adding an entry to keys.yaml without touching what else stands in it.

Owns the writing of that file: it is written whole or not at all, and only its owner may read a new one.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gateway.identity.keys import KeyEntry, KeysFile, unheaded
from gateway.strict_yaml import ConfigError, parse, read_bytes

NEW_FILE_MODE = 0o600


def as_yaml(entry: KeyEntry) -> str:
    """The entry in one line. Quoted throughout: a tenant such as 007 must stay text."""
    members = entry.model_dump(exclude_none=True)
    return f"{{{', '.join(f'{name}: {json.dumps(value)}' for name, value in members.items())}}}"


def append(path: Path, entry: KeyEntry) -> None:
    """Add `entry` to the file, which is made where there is none. Comments and layout stay as they are.

    Raises ConfigError where the file is not right as it stands, has a layout that nothing can be added to, or cannot
    be written. An entry has no list of models and no end here: `gateway keys new` makes none.
    """
    target = path.resolve()
    if not target.exists():
        _write(path, target, f"keys:\n  - {as_yaml(entry)}\n", NEW_FILE_MODE)
        return
    raw = read_bytes(path)
    present = parse(raw, file=str(path), model=KeysFile, misreading=unheaded).keys
    text = raw.decode("utf-8-sig")
    for candidate in _candidates(text, as_yaml(entry)):
        if _entries(candidate) == (*present, entry):
            _write(path, target, candidate, target.stat().st_mode & 0o777)
            return
    raise ConfigError(
        str(path), "keys", "is laid out so that no entry can be added to it", "Write each entry as a line `- {id: …}`"
    )


def _candidates(text: str, line: str) -> Iterator[str]:
    """Texts that may be the file with the entry added; whether one is, reading it tells."""
    items = re.findall(r"^( *)-(?: |$)", text, re.MULTILINE)
    ended = text if text.endswith("\n") else f"{text}\n"
    if items:
        yield f"{ended}{items[0]}- {line}\n"
    yield re.sub(r"^keys:[ ]*\[[ ]*\]", lambda _: f"keys:\n  - {line}", text, count=1, flags=re.MULTILINE)
    before, bracket, after = text.rpartition("]")
    if bracket:
        yield f"{before.rstrip()}{'' if before.rstrip().endswith(',') else ','} {line}]{after}"


def _entries(text: str) -> tuple[KeyEntry, ...] | None:
    try:
        return parse(text.encode(), file="", model=KeysFile).keys
    except ConfigError:
        return None


def _write(path: Path, target: Path, text: str, mode: int) -> None:
    """Put a whole new file in the place of the old one, so that no reader sees half of it."""
    try:
        descriptor, draft = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                os.fchmod(file.fileno(), mode)
            Path(draft).replace(target)
        except BaseException:
            Path(draft).unlink()
            raise
    except OSError as error:
        raise ConfigError(
            str(path), "", f"cannot be written ({error.strerror})", "Correct the path, or give this user permission"
        ) from error
