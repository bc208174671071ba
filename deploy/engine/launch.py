"""Starts engines, waits until they serve, proves what they run with, and ends the ones it started.

Owns the engine processes. Several may run at once under different names and ports. Ends a process only by the id that
it noted when it started it, and only while that id still is that process.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from dataclasses import replace
from pathlib import Path

from bench.engine import start_log
from deploy.engine import home as homes
from deploy.engine import install, readback, running
from deploy.engine.flags import EngineFlags
from deploy.engine.home import EngineError, Home
from deploy.engine.locking import locked
from deploy.engine.running import Engine
from deploy.engine.words import say, tail

HOST = "127.0.0.1"
DEFAULT_NAME, DEFAULT_PORT = "default", 8000
READY_S_MAX = 900.0  # about a minute on two idle cores, many on busy ones
STOP_S_MAX = 15.0
POLL_S = 0.25
KV_GIB = 2
LOG_LINES_SHOWN = 25

_children: dict[int, subprocess.Popen[bytes]] = {}  # kept so that one that ends is reaped by who asks after it


def start(
    name: str = DEFAULT_NAME,
    port: int = DEFAULT_PORT,
    flags: EngineFlags | None = None,
    *,
    owner_pid: int | None = None,
    home: Home | None = None,
    ready_s_max: float = READY_S_MAX,
) -> Engine:
    """Start an engine and return once it serves with the flags asked for, or find the one of this name that does.

    Installs nothing: install.ensure comes first. Raises EngineError, with the log's tail, where the port is taken, the
    name runs with other flags, the process ends, is not ready in time, or runs with other values than asked.
    """
    home = home or homes.find()
    flags = flags or EngineFlags()
    if not (install.installed(home) and home.model.is_dir()):
        raise EngineError("the engine is not installed: run `make engine`")
    with locked(running.folder(home, name) / "lock", f"starting the engine `{name}`"):
        present = running.read(home, name)
        if present is not None and present.alive:
            if present.effective:
                return _as_asked(present, home, port, flags)
            say(f"`{name}` (pid {present.pid}) was never seen ready: its start was cut off")
            _end(present)
        return _start(home, name, port, flags, owner_pid=owner_pid, ready_s_max=ready_s_max)


def stop(name: str = DEFAULT_NAME, *, home: Home | None = None) -> bool:
    """End the engine of this name and wait for its end: first asked, then killed. False where none runs."""
    home = home or homes.find()
    engine = running.read(home, name)
    if engine is None:
        return False
    was_alive = engine.alive
    if was_alive:
        say(f"stopping `{name}` (pid {engine.pid})")
        _end(engine)
    running.forget(home, name)
    return was_alive


def stop_ownerless(home: Home) -> None:
    """End the engines whose owner is gone: what a test run that was killed has left."""
    for engine in running.noted(home):
        if engine.owner_pid is not None and not running.process_lives(engine.owner_pid):
            stop(engine.name, home=home)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
    return port


def dtype() -> str:
    """bfloat16 where this CPU multiplies it in hardware, else float32: emulated bf16 is ten times slower there."""
    words = set(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split())
    return "bfloat16" if words & {"avx512_bf16", "amx_bf16", "bf16"} else "float32"


def _as_asked(engine: Engine, home: Home, port: int, flags: EngineFlags) -> Engine:
    """The running engine, where it is what a start would make; EngineError where it is another."""
    if (engine.port, engine.flags, engine.tokenizer_path) != (port, flags, home.model):
        raise EngineError(
            f"`{engine.name}` already runs on port {engine.port} with {' '.join(engine.flags.argv())} and the model "
            f"{engine.tokenizer_path}: {_how_to_end(engine)}, or start this one under another name"
        )
    if not readback.healthy(engine.base_url):
        raise EngineError(
            f"`{engine.name}` (pid {engine.pid}) runs and does not answer: {_how_to_end(engine)} ({engine.log})"
        )
    say(f"`{engine.name}` already runs at {engine.base_url}")
    return engine


def _how_to_end(engine: Engine) -> str:
    if engine.owner_pid is not None and running.process_lives(engine.owner_pid):
        return f"end the test run that it belongs to (pid {engine.owner_pid}) first"
    return "stop it first (`make engine-stop`)"


def _start(
    home: Home, name: str, port: int, flags: EngineFlags, *, owner_pid: int | None, ready_s_max: float
) -> Engine:
    refuse_taken_port(port)
    log = running.folder(home, name) / "log"
    say(f"starting `{name}` on port {port} (about a minute; {log})")
    began_s = time.monotonic()
    child = _spawn(home, port, flags, log)
    ticks = running.start_ticks(child.pid)
    engine = Engine(
        name, child.pid, ticks or 0, port, homes.MODEL_NAME, home.model, log, flags, owner_pid, effective={}
    )
    running.write(home, engine)
    try:
        _wait_until_healthy(engine, child, began_s + ready_s_max)
        engine = _proved(engine, home)
    except BaseException:
        _end(engine)
        running.forget(home, name)
        raise
    running.write(home, engine)
    say(f"`{name}` serves at {engine.base_url} after {time.monotonic() - began_s:.0f} s: {engine.effective}")
    return engine


def _spawn(home: Home, port: int, flags: EngineFlags, log: Path) -> subprocess.Popen[bytes]:
    """A detached process in a session of its own, so that Ctrl-C in a terminal does not reach it."""
    command = [
        str(home.python), "-P", "-m", "vllm.entrypoints.openai.api_server",
        "--host", HOST, "--port", str(port),
        "--model", str(home.model), "--served-model-name", homes.MODEL_NAME, "--dtype", dtype(),
        "--enforce-eager",  # compiled steps need a C++ compiler and a minute more at the first start
        "--enable-prompt-tokens-details", "--disable-uvicorn-access-log",
        *flags.argv(),
    ]  # fmt: skip
    with log.open("wb") as file:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=log.parent,
            env=_environment(home),
            start_new_session=True,
        )
    _children[child.pid] = child
    return child


def _environment(home: Home) -> dict[str, str]:
    """The caller's, but vLLM's variables are the kit's alone: a stray VLLM_API_KEY would lock everybody out."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    return inherited | {
        "VLLM_CPU_KVCACHE_SPACE": str(KV_GIB),
        "VLLM_CACHE_ROOT": str(home.root / "vllm-cache"),
        "VLLM_NO_USAGE_STATS": "1",  # nothing leaves the machine
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
    }


def refuse_taken_port(port: int) -> None:
    """Raise EngineError where something listens there already."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the engine binds it
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise EngineError(
                f"port {port} cannot be used ({error.strerror}): name another in ENGINE_PORT; "
                f"to use what serves there, give ENGINE_URL=http://{HOST}:{port} to `make run`"
            ) from None


def _wait_until_healthy(engine: Engine, child: subprocess.Popen[bytes], deadline_s: float) -> None:
    while not readback.healthy(engine.base_url):
        if child.poll() is not None:
            raise EngineError(f"`{engine.name}` ended with code {child.returncode}{_reason(engine.log)}")
        if time.monotonic() > deadline_s:
            raise EngineError(f"`{engine.name}` is not ready in time{_reason(engine.log)}")
        time.sleep(POLL_S)


def _proved(engine: Engine, home: Home) -> Engine:
    """The engine with what it says about itself, or EngineError where that is not what was asked."""
    card = readback.served_model(engine.base_url)
    if not engine.alive or card["root"] != str(home.model):
        raise EngineError(f"another server answers on port {engine.port}{_reason(engine.log)}")
    try:
        said = start_log.last_start(engine.log)
        effective = readback.effective_flags(said, readback.fetch(engine.base_url + "/metrics"))
    except ValueError as error:
        raise EngineError(f"`{engine.name}` does not tell its flags: {error} ({engine.log})") from error
    differences = engine.flags.differences(effective)
    if differences:
        raise EngineError(f"`{engine.name}` runs with other values than asked: {'; '.join(differences)}")
    effective |= {"max_model_len": card["max_model_len"], "dtype": dtype()}
    return replace(engine, effective=effective)


def _end(engine: Engine) -> None:
    """Ask, then kill its whole session, and return when that is gone. EngineError where even that does not end it."""
    if engine.alive:
        os.kill(engine.pid, signal.SIGTERM)
    if _gone_within(engine, STOP_S_MAX):
        return
    os.killpg(engine.pid, signal.SIGKILL)
    if not _gone_within(engine, STOP_S_MAX) and engine.alive:
        raise EngineError(f"`{engine.name}` (pid {engine.pid}) does not end")


def _gone_within(engine: Engine, wait_s: float) -> bool:
    deadline_s = time.monotonic() + wait_s
    while _session_lives(engine):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(POLL_S)
    return True


def _session_lives(engine: Engine) -> bool:
    """Whether any process of the engine's session is left. Its id stays taken until the last one is gone."""
    child = _children.get(engine.pid)
    if child is not None and child.poll() is not None:
        del _children[engine.pid]
    try:
        os.killpg(engine.pid, 0)
    except ProcessLookupError:
        return False
    return True


def _reason(log: Path) -> str:
    return f" ({log}):\n{tail(log, LOG_LINES_SHOWN)}"
