"""The note that each started engine leaves on disk, and whether the process behind it is still the one it names.

Owns the engine's record file. A process id alone proves nothing, since ids are used again: the start time goes with it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from deploy.engine.flags import EngineFlags
from deploy.engine.home import EngineError, Home


@dataclass(frozen=True, slots=True)
class Engine:
    """A started engine. start_ticks: the kernel's start time of pid. owner_pid: who stops it, None for a person.

    effective: what readback found, with `max_model_len` and `dtype`.
    """

    name: str
    pid: int
    start_ticks: int
    port: int
    model: str
    tokenizer_path: Path
    log: Path
    flags: EngineFlags
    owner_pid: int | None
    effective: dict[str, Any]

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def alive(self) -> bool:
        return start_ticks(self.pid) == self.start_ticks


def folder(home: Home, name: str) -> Path:
    return home.engines / name


def write(home: Home, engine: Engine) -> None:
    record = asdict(engine) | {"tokenizer_path": str(engine.tokenizer_path), "log": str(engine.log)}
    path = folder(home, engine.name) / "engine.json"
    half_written = path.with_suffix(".partial")
    half_written.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    half_written.replace(path)
    (folder(home, engine.name) / "pid").write_text(f"{engine.pid}\n")


def read(home: Home, name: str) -> Engine | None:
    """The noted engine, whether it lives or not; None where none is noted. EngineError for a note of another form."""
    path = folder(home, name) / "engine.json"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    try:
        record["flags"] = EngineFlags(**record["flags"] | {"extra": tuple(record["flags"]["extra"])})
        return Engine(**record | {"tokenizer_path": Path(record["tokenizer_path"]), "log": Path(record["log"])})
    except (KeyError, TypeError) as error:
        pid = record.get("pid") if isinstance(record, dict) else None
        raise EngineError(
            f"{path} is another version's: end process {pid}, if it is an engine, and remove it"
        ) from error


def forget(home: Home, name: str) -> None:
    """Drop the note; the log stays."""
    (folder(home, name) / "engine.json").unlink(missing_ok=True)
    (folder(home, name) / "pid").unlink(missing_ok=True)


def noted(home: Home) -> Iterator[Engine]:
    """Every noted engine, by name."""
    for path in sorted(home.engines.glob("*/engine.json")):
        engine = read(home, path.parent.name)
        if engine is not None:
            yield engine


def start_ticks(pid: int) -> int | None:
    """When a live process started, in the kernel's ticks; None where there is none, or only its remains."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *rest = stat.rpartition(")")[2].split()
    return None if state in "ZX" else int(rest[18])


def process_lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True
