"""A manifest's file: its first line is the hash of all bytes after it. Written once, never changed.

Owns the file's form and its name. Knows nothing of what a manifest is for.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from bench.errors import UsageError
from bench.manifest.schema import Manifest
from bench.strict_yaml import read, validated

_FIRST_LINE = re.compile(rb"sha256: ([0-9a-f]{64})\n")
_OTHER_BREAKS = re.compile("[\x85\u2028\u2029]")
_NAME_CHARS = 12


class ChangedError(Exception):
    """The file is not what was written: its bytes do not have the hash that it bears."""


def sealed(fields: Mapping[str, Any]) -> bytes:
    """The file of these fields, `sha256` apart. Raises UsageError where they are no whole manifest."""
    body = yaml.dump(dict(fields), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120).encode()
    digest = hashlib.sha256(body).hexdigest()
    validated({"sha256": digest, **fields}, Manifest, "manifest")
    return f"sha256: {digest}\n".encode() + body


def write(folder: Path, raw: bytes, name: str) -> Path:
    """Keep it under a name that its hash stands in, for reading alone. Raises UsageError."""
    path = folder / f"{name}-{sha256_in(raw)[:_NAME_CHARS]}.yaml"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o444), "wb") as file:
            file.write(raw)
    except FileExistsError:
        if path.read_bytes() != raw:
            raise UsageError(f"{path}: is there, and is another file. Move it away.") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror}). Choose another --out.") from error
    return path


def load(path: Path) -> Manifest:
    """Raises ChangedError where a byte is another than was written, UsageError where it is no manifest at all."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}). Correct the path.") from error
    first = _FIRST_LINE.match(raw)
    if first is None:
        raise ChangedError(
            f"{path}: no manifest, or its first line was changed: that is `sha256: ` and the file's hash."
        )
    found = hashlib.sha256(raw[first.end() :]).hexdigest()
    if found != first[1].decode():
        raise ChangedError(
            f"{path}: changed since it was written: it bears {first[1].decode()}, and what follows is {found}."
        )
    return read(path, Manifest)


def sha256_in(raw: bytes) -> str:
    """Of what `sealed` gave."""
    return raw.partition(b"\n")[0].decode().removeprefix("sha256: ")


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as they are read, small things on one line."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    if _OTHER_BREAKS.search(value):
        style = '"'  # YAML takes these for ends of lines, and reads them as others
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


def _mapping(dumper: yaml.SafeDumper, value: dict[str, Any]) -> yaml.MappingNode:
    is_small = all(not isinstance(each, dict | list) for each in value.values()) and len(value) <= 2
    return dumper.represent_mapping("tag:yaml.org,2002:map", value, flow_style=is_small)


_Dumper.add_representer(str, _text)
_Dumper.add_representer(dict, _mapping)
