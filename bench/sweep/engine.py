"""One engine from its start to its end, and all that it says of itself in between.

Owns the process, its log and the questions that it is asked. Ends its own process group alone, and measures nothing.
"""

from __future__ import annotations

import asyncio
import http.client
import os
import socket
import subprocess
import time
import urllib.error
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import uvloop

from bench.children import guarded, lives, members, wait_until_gone
from bench.direct import ASK_S_MAX, direct, page, page_object
from bench.engine.metrics import Reading, parse
from bench.engine.speed_probe import probe
from bench.errors import UsageError
from bench.load.target import Target
from bench.own_processes import listeners, sockets_of
from bench.sweep.readback import Heard, has_arguments
from bench.sweep.settings import EngineCommand

LOG_LINES_SHOWN = 15
LOG_BYTES_READ = 16 * 1024 * 1024
MARK_BYTES = 4096
GROUP_SUFFIX = ".group"
POLL_S = 0.25
CLOCK_S_TOLERATED = 5.0  # its own note of its start is of whole seconds, and of another clock in a container


class StartError(Exception):
    """The engine does not come up. The message has the end of its log."""


class UnfitError(Exception):
    """What answers is not the engine that was to be measured. No further try would change that."""


@dataclass(frozen=True, slots=True)
class _Log:
    """What an engine writes. before: the last of what lay there at its start, which a log that begins anew has not."""

    path: Path
    from_byte: int = 0
    before: bytes = b""

    def said(self) -> str:
        """Of this start, or the last of it."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.from_byte - len(self.before))
                begin = self.from_byte if file.read(len(self.before)) == self.before else 0
                size = file.seek(0, os.SEEK_END)
                file.seek(max(begin, size - LOG_BYTES_READ))
                return file.read().decode("utf-8", errors="replace")
        except OSError:
            return ""


@dataclass(frozen=True, slots=True)
class Started:
    """ready_s: from its start to its first answer. warm_up: lone requests, before anything is measured."""

    process: subprocess.Popen[bytes]
    heard: Heard
    version: str | None
    ready_s: float
    warm_up: Mapping[str, Any]
    _ready_url: str
    _log: _Log

    @property
    def serves(self) -> bool:
        """Whether it is still there: an engine that dies stops answering before its process has ended."""
        return lives(self.process) and _is_ready(self._ready_url)

    def last_words(self) -> str:
        return _tail(self._log.said())


@contextmanager
def started(engine: EngineCommand, log: Path, model: str, key: str | None, folder: Path) -> Iterator[Started]:
    """A fresh engine that serves and is warm, until the end of the context. folder: that its command is run in.

    Raises UsageError where somebody else answers already, StartError and UnfitError.
    """
    _wait_for_left_behind(log.parent)
    refuse_taken(engine)
    said_in = _Log(log) if engine.log_file is None else _as_it_lies(engine.log_file)
    environment = {**os.environ, **engine.environment}
    with (
        log.open("wb") as file,
        _forgotten_at_its_end(log.with_suffix(GROUP_SUFFIX)) as note,
        guarded(engine.command, stdout=file, stderr=subprocess.STDOUT, env=environment, cwd=folder) as process,
    ):
        note.write_text(str(process.pid), encoding="ascii")
        began_at, began_s = time.time_ns() / 1e9, time.monotonic()
        _wait_until_ready(engine, process, said_in)
        ready_s = time.monotonic() - began_s
        _refuse_another(engine, process)
        heard, version, started_at = _heard(engine, model, key, said_in.said())
        if started_at is not None and started_at < began_at - CLOCK_S_TOLERATED:
            raise UnfitError(f"what answers at {engine.base_url} was started before the engine: it is another one")
        warm_up = warmed(engine, model, key)
        yield Started(process, heard, version, ready_s, warm_up, _ready_url(engine), said_in)


@contextmanager
def _forgotten_at_its_end(note: Path) -> Iterator[Path]:
    """A note of an engine's process group, which stays where this process is killed and cannot end the engine."""
    try:
        yield note
    finally:
        note.unlink(missing_ok=True)


def _wait_for_left_behind(folder: Path) -> None:
    """Engines of a killed session have their port, and their device's memory, until their guards have ended them."""
    for note in folder.glob(f"*{GROUP_SUFFIX}"):
        group = note.read_text(encoding="ascii")
        if group.isdigit():  # else it was cut as it was written
            wait_until_gone(int(group))
        note.unlink()


def refuse_taken(engine: EngineCommand) -> None:
    """Raise UsageError where something answers already: it would be measured in the engine's place."""
    for url in dict.fromkeys((engine.base_url, _ready_url(engine))):
        parts = urlsplit(url)
        address = (parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))
        try:
            socket.create_connection(address, timeout=ASK_S_MAX).close()
        except OSError:
            continue
        raise UsageError(f"engine.base_url: something answers at {url} already. End it, or give another port.")


def _wait_until_ready(engine: EngineCommand, process: subprocess.Popen[bytes], log: _Log) -> None:
    give_up_at = time.monotonic() + engine.ready_s_max
    while True:
        if not lives(process):
            ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            code = "" if ended is None else f" with code {ended.si_status}"
            raise StartError(f"the engine ended{code} at its start{_tail(log.said())}")
        if _is_ready(_ready_url(engine)):
            return
        if time.monotonic() > give_up_at:
            waited = f"the engine was not ready within {engine.ready_s_max:g} s"
            raise StartError(f"{waited}{_tail(log.said())}")
        time.sleep(POLL_S)


def _ready_url(engine: EngineCommand) -> str:
    return engine.ready_url or f"{engine.base_url}/health"


def _is_ready(url: str) -> bool:
    try:
        with direct.open(url, timeout=ASK_S_MAX):
            return True
    except (urllib.error.URLError, http.client.HTTPException, OSError):
        return False


def _refuse_another(engine: EngineCommand, process: subprocess.Popen[bytes]) -> None:
    """Engines share a port without a word where both ask for that (SO_REUSEPORT), and each gets some of the requests.

    Where none of the listeners is the process group's, as in a container, nobody can tell from here.
    """
    found = listeners(urlsplit(engine.base_url).port or 0)
    ours = found & sockets_of(members(process.pid))
    if ours and found - ours:
        raise UnfitError(f"another server listens at {engine.base_url} beside the engine")


def _heard(engine: EngineCommand, model: str, key: str | None, log: str) -> tuple[Heard, str | None, float | None]:
    if not has_arguments(log):
        raise UnfitError("the engine's log has no `non-default args` line: is engine.log_file right?")
    url = engine.base_url
    listed = page_object(f"{url}/v1/models", key).get("data") or []
    card = next((each for each in listed if isinstance(each, dict) and each.get("id") == model), None)
    if card is None:
        raise UnfitError(f"the engine does not serve the model {model}")
    reading = _reading(f"{url}/metrics", key)
    config = page_object(f"{url}/server_info?config_format=json", key).get("vllm_config")
    context, version = card.get("max_model_len"), page_object(f"{url}/version", key).get("version")
    return (
        Heard(
            log=log,
            cache_config=reading.cache_config,
            context_tokens=context if isinstance(context, int) else None,
            server_info=config if isinstance(config, dict) else {},  # text, of an engine that knows no such format
        ),
        version if isinstance(version, str) else None,
        reading.started_at,
    )


def _reading(url: str, key: str | None) -> Reading:
    said = page(url, key)
    if said is None:
        raise StartError(f"the engine's {url} does not come, or not whole")
    try:
        return parse(said)
    except ValueError as error:
        raise StartError(f"the engine's {url} cannot be read ({error})") from error


def warmed(engine: EngineCommand, model: str, key: str | None) -> Mapping[str, Any]:
    """Lone requests through all that an engine does the first time it is asked. Raises StartError."""
    keys = {} if key is None else {"lone": key}
    target = Target("engine", engine.base_url, {}, {}, keys=keys)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        said = runner.run(probe(target, model, time.perf_counter))
    if "failed" in said:
        raise StartError(f"the engine does not answer a lone request: {said['failed']}")
    return said


def _as_it_lies(path: Path) -> _Log:
    """A log of the engine's own, before it writes there again."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - MARK_BYTES))
            return _Log(path, size, file.read())
    except OSError:
        return _Log(path)


def _tail(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()][-LOG_LINES_SHOWN:]
    return "\n" + "\n".join(f"  {line}" for line in lines) if lines else ""
