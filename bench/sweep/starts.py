"""The engines of a sweep, one at a time: which start a run is measured on, and what each start came to.

Owns the folder `engine/`: for each start its log, and what was asked, what is in force and who tells it. An engine that
runs with other values than asked is not measured, nor a cell whose flags the installed version does not have, nor one
whose engine did not come up several times in a row.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from bench.campaign import UnmeasurableError
from bench.errors import TargetUnreachableError
from bench.order import Cell
from bench.records.store import RunFolder
from bench.sweep.engine import Started, StartError, UnfitError, started, warmed
from bench.sweep.flags import Help, Value, stated
from bench.sweep.readback import WATCHED, Effective, differences, effective
from bench.sweep.settings import EngineCommand

FOLDER = "engine"
Before = Callable[[str, Mapping[str, Value]], AbstractContextManager[None]]


def nothing_before(_cell: str, _effective: Mapping[str, Value]) -> AbstractContextManager[None]:
    """Requests go to the engine itself."""
    return nullcontext()


@dataclass(frozen=True, slots=True)
class Commands:
    """by_cell: the whole command of each cell, run in folder. unknown: by cell, flags that the engine does not have."""

    engine: EngineCommand
    by_cell: Mapping[str, Sequence[str]]
    flags: Mapping[str, Mapping[str, Value]]
    unknown: Mapping[str, Sequence[str]]
    printed: Help
    model: str
    key: str | None
    folder: Path


@dataclass(slots=True)
class _Current:
    """The engine that runs now, and who may be measured on it."""

    shared_by: tuple[str, int]
    engine: Started
    told: Mapping[str, Any]
    end: ExitStack


class Starts:
    """A context: no engine outlives it. before: what stands between the load and the engine, with its settings."""

    def __init__(self, folder: Path, commands: Commands, *, before: Before, say: Callable[[str], None]) -> None:
        self._commands = commands
        self._folder = folder / FOLDER
        self._before = before
        self._say = say
        self._failed: dict[str, list[str]] = {}
        self._unfit: dict[str, tuple[str, Mapping[str, Any]]] = {}
        self._current: _Current | None = None
        versions = (told.get("engine_version") for told in all_of(folder) if "failed" not in told)
        self._version: str | None = next((each for each in versions if each is not None), None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    @contextmanager
    def ready(self, cell: Cell) -> Iterator[Mapping[str, Any]]:
        """For one run. Raises UnmeasurableError, and UsageError where somebody else answers on the engine's port."""
        with self.running(cell.arm.name, cell.block.repeat) as told:
            try:
                with self._before(cell.arm.name, told["effective"]):
                    yield told
            except TargetUnreachableError as error:
                raise UnmeasurableError(str(error), engine_start=told) from error

    @contextmanager
    def running(self, cell: str, repeat: int) -> Iterator[Mapping[str, Any]]:
        """A cell's engine itself."""
        current = self._of(cell, repeat)
        try:
            yield current.told
        finally:
            is_gone = not current.engine.serves
            if is_gone:
                self._say(f"{cell}: the engine is gone{current.engine.last_words()}")
            if is_gone or self._commands.engine.restart == "run":
                self._end()

    def _of(self, cell: str, repeat: int) -> _Current:
        if self._current is not None and self._current.shared_by == (cell, repeat) and self._answers(cell):
            return self._current
        self._end()
        self._refuse(cell)
        self._current = self._started(cell, repeat)
        return self._current

    def _answers(self, cell: str) -> bool:
        """Whether the engine of the last run still computes: one that hangs says at /health that it is well."""
        try:
            warmed(self._commands.engine, self._commands.model, self._commands.key)
        except StartError as error:
            self._say(f"{cell}: {error}: the next run has a fresh one")
            return False
        return True

    def _refuse(self, cell: str) -> None:
        unknown = self._commands.unknown.get(cell, ())
        if unknown:
            raise UnmeasurableError(f"the installed engine does not have {', '.join(unknown)}")
        if cell in self._unfit:
            reason, told = self._unfit[cell]
            raise UnmeasurableError(reason, engine_start=told)
        failed = self._failed.get(cell, [])
        if len(failed) >= self._commands.engine.starts_max:
            raise UnmeasurableError(f"given up after {len(failed)} starts that failed; the last one: {failed[-1]}")

    def _started(self, cell: str, repeat: int) -> _Current:
        name = self._next_name(cell)
        told: dict[str, Any] = {
            "id": name,
            "cell": cell,
            "shared_by": "one run" if self._commands.engine.restart == "run" else f"the cell's runs of repeat {repeat}",
            "command": list(self._commands.by_cell[cell]),
            "asked": self._asked(cell),
        }
        log = self._folder / f"{name}.log"
        end = ExitStack()
        self._say(f"{cell}: starting the engine ({log})")
        try:
            engine = end.enter_context(self._engine(cell, log))
            found = effective(self._names(), engine.heard, self._commands.printed)
            told |= _told(engine, found)
            self._refuse_another(told["asked"], found, engine.version)
        except (StartError, UnfitError) as error:
            end.close()
            self._say(f"{cell}: {error}")
            reason = str(error).partition("\n")[0]
            told |= {"failed": str(error)}
            self._write(name, told)
            if isinstance(error, UnfitError):
                self._unfit[cell] = (reason, told)
            else:
                self._failed.setdefault(cell, []).append(reason)
            raise UnmeasurableError(reason, engine_start=told) from error
        except BaseException:
            end.close()
            raise
        self._failed.pop(cell, None)
        self._write(name, told)
        self._say(f"{cell}: ready after {engine.ready_s:.0f} s: {_shown(told['effective'])}")
        return _Current((cell, repeat), engine, told, end)

    def _engine(self, cell: str, log: Path) -> AbstractContextManager[Started]:
        commands = self._commands
        engine = commands.engine.model_copy(update={"command": list(commands.by_cell[cell])})
        return started(engine, log, commands.model, commands.key, commands.folder)

    def _asked(self, cell: str) -> dict[str, Value]:
        """Of the settings that are read back, what the cell's command states."""
        said = {name: stated(self._commands.by_cell[cell], name) for name in self._names()}
        return {name: value for name, value in said.items() if value is not None}

    def _names(self) -> list[str]:
        """The settings that are read back of each engine: all that any cell changes, and the usual ones."""
        changed = (name for flags in self._commands.flags.values() for name in flags)
        return list(dict.fromkeys([*changed, *WATCHED]))

    def _refuse_another(self, asked: Mapping[str, Value], found: Effective, version: str | None) -> None:
        """Raise UnfitError where it runs with other values than asked, or is of another version than those before."""
        if said := differences(asked, found):
            raise UnfitError("; ".join(said))
        if self._version not in (None, version):
            raise UnfitError(f"the engine is of version {version}, those before were of {self._version}")
        self._version = version

    def _next_name(self, cell: str) -> str:
        """Numbered on from the starts of an earlier session."""
        self._folder.mkdir(parents=True, exist_ok=True)
        return f"{len(list(self._folder.glob('*.log'))) + 1:03}-{cell}"

    def _write(self, name: str, told: Mapping[str, Any]) -> None:
        RunFolder(self._folder.parent, self._folder.name, again=True).write_json(f"{name}.json", told)

    def _end(self) -> None:
        current, self._current = self._current, None
        if current is not None:
            current.end.close()


def all_of(folder: Path) -> list[dict[str, Any]]:
    """What each start of a sweep came to, of all its sessions."""
    return [json.loads(each.read_text(encoding="utf-8")) for each in sorted((folder / FOLDER).glob("*.json"))]


def _told(engine: Started, found: Effective) -> dict[str, Any]:
    said: dict[str, Any] = {
        "effective": dict(found.values),
        "told_by": dict(found.told_by),
        "cache_config": dict(engine.heard.cache_config),
        "ready_s": round(engine.ready_s, 2),
        "warm_up": dict(engine.warm_up),
    }
    return said if engine.version is None else {**said, "engine_version": engine.version}


def _shown(settings: Mapping[str, Value]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items())
