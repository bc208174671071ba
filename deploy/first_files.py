"""The configuration and the keys that a first `make run` needs: var/gateway.yaml and var/keys.yaml.

Owns those two files. A configuration that a person has changed is never written over; a key is shown once and only its
hash is kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

TENANT = "me"
SERVICE_CLASSES = {"KEY": "interactive", "KEY_BATCH": "batch"}  # by the variable that a key is shown for
POOL = "default"
HEADER = re.compile(r"\A# Written by `make run` \((\w{12})\): edit it freely, it is then left alone\.\n")


class FilesError(Exception):
    """The files at hand do not fit what is asked. The message says what to do."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """The engine to write a configuration for. tokenizer_path: a local tokenizer's folder, None: the engine counts.

    scheduling, limits: as known, None and empty where the engine has to be asked. api_key_env: None for no key.
    """

    url: str
    models: tuple[str, ...]
    tokenizer_path: Path | None
    scheduling: str | None
    limits: dict[str, int]
    api_key_env: str | None


@dataclass(frozen=True, slots=True)
class Addresses:
    """Base URLs of the public and of the ops port."""

    public: str
    ops: str


def configuration(upstream: Upstream) -> str:
    """gateway.yaml for one engine, with a header that tells whether somebody has changed it since."""
    engine: dict[str, object] = {"name": "a", "url": upstream.url, "pool": POOL}
    if upstream.api_key_env is not None:
        engine["api_key_env"] = upstream.api_key_env
    if upstream.scheduling is not None:
        engine["scheduling"] = upstream.scheduling
    if upstream.limits:
        engine["limits"] = upstream.limits
    tokenizer = {"kind": "engine"}
    if upstream.tokenizer_path is not None:
        tokenizer = {"kind": "local", "path": str(upstream.tokenizer_path)}
    pool = {"models": upstream.models, "tokenizer": tokenizer}
    # Values from outside are written as JSON: quoted, so that a model named 1e3 stays text. The engine has a line for
    # each setting: another one can be pasted below.
    settings = "\n    ".join(f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in engine.items())
    text = f"""\
listen: {{host: 127.0.0.1, port: 8080}}
ops: {{host: 127.0.0.1, port: 9090}}
policy: short-first
auth: {{keys_file: keys.yaml}}
engines:
  - {settings}
pools:
  {POOL}: {json.dumps(pool, ensure_ascii=False)}
drain: {{settle_s: 0}}
"""
    return f"# Written by `make run` ({_digest(text)}): edit it freely, it is then left alone.\n{text}"


def write_configuration(path: Path, upstream: Upstream) -> bool:
    """Write gateway.yaml where there is none, or only one of ours that nobody changed; True where it was written.

    Raises FilesError where a person's own file does not name the engine.
    """
    wanted = configuration(upstream)
    present = path.read_text(encoding="utf-8") if path.exists() else None
    if present == wanted:
        return False
    if present is not None and not _untouched(present):
        if upstream.url in present:
            return False
        raise FilesError(f"{path} was edited and does not name {upstream.url}: name it there, or remove the file")
    path.write_text(wanted, encoding="utf-8")
    return True


def write_keys(path: Path) -> dict[str, str]:
    """Write keys.yaml with a fresh key of each of SERVICE_CLASSES where there is none.

    Returns the keys, which are stored nowhere, by their variables; none where the file is there already.
    """
    if path.exists():
        return {}
    made = {name: _new_key(service_class) for name, service_class in SERVICE_CLASSES.items()}
    text = "keys:\n" + "".join(f"  - {json.dumps(each['entry'])}\n" for each in made.values())
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    return {name: each["key"] for name, each in made.items()}


def states_limits(path: Path) -> bool:
    """Whether this configuration says what any of its engines was started with."""
    stated = yaml.safe_load(path.read_text(encoding="utf-8"))
    return any(engine.get("limits") for engine in stated["engines"])


def _new_key(service_class: str) -> Any:
    command = [sys.executable, "-m", "gateway", "keys", "new", "--service-class", service_class, "--tenant", TENANT]
    return yaml.safe_load(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def addresses(path: Path) -> Addresses:
    """Where a gateway with this configuration can be reached from here."""
    stated = yaml.safe_load(path.read_text(encoding="utf-8"))
    listen, ops = stated.get("listen") or {}, stated.get("ops") or {}
    host = listen.get("host", "127.0.0.1").replace("0.0.0.0", "127.0.0.1")  # noqa: S104 - read, not bound
    return Addresses(
        public=f"http://{host}:{listen.get('port', 8080)}",
        ops=f"http://{ops.get('host', '127.0.0.1')}:{ops.get('port', 9090)}",
    )


def _untouched(text: str) -> bool:
    header = HEADER.match(text)
    return header is not None and header.group(1) == _digest(text[header.end() :])


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
