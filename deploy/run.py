"""`make run`: an engine, a configuration, a key, and the gateway in front, until Ctrl-C.

Owns the order of these and their end: the first Ctrl-C (or SIGTERM) drains the gateway, a second one cuts it, and an
engine that was started here ends with it. An engine of `make engine` was not started here and stays.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
from http.client import HTTPException
from pathlib import Path

from deploy import first_files
from deploy.engine import home as homes
from deploy.engine import install, launch, readback, running
from deploy.engine.flags import EngineFlags
from deploy.engine.home import EngineError
from deploy.engine.running import Engine
from deploy.first_files import FilesError, Upstream
from deploy.welcome import Served, welcome

VAR = homes.REPOSITORY / "var"
READY_S_MAX = 30.0
POLL_S = 0.2

_FIXES = {
    401: "set ENGINE_API_KEY to its key",
    403: "set ENGINE_API_KEY to its key",
    404: "give scheme, host and port alone",
}


class UpstreamError(Exception):
    """ENGINE_URL leads to no engine. The message says why."""


def main() -> int:
    url = os.environ.get("ENGINE_URL", "").rstrip("/")
    try:
        if url:
            return _serve(_given(url))
        return _with_own_engine()
    except (EngineError, FilesError, UpstreamError) as error:
        print(f"run: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _with_own_engine() -> int:
    home = homes.find()
    port = _engine_port()
    stated_flags = os.environ.get("ENGINE_FLAGS", "")
    # Prefix caching is vLLM's default, and what policy `sliced` lives on.
    flags = EngineFlags.parse(["--enable-prefix-caching", *shlex.split(stated_flags)])
    install.ensure(home)
    launch.stop_ownerless(home)
    present = running.read(home, launch.DEFAULT_NAME)
    was_there = present is not None and present.alive
    if present is not None and was_there and not stated_flags:  # what runs is what is meant, however it was started
        port, flags = present.port, present.flags
    engine = launch.start(launch.DEFAULT_NAME, port, flags, owner_pid=os.getpid(), home=home)
    try:
        return _serve(
            Upstream(
                url=engine.base_url,
                models=(engine.model,),
                tokenizer_path=engine.tokenizer_path,
                scheduling=flags.scheduling_policy,
                limits={
                    "max_num_batched_tokens": flags.max_num_batched_tokens,
                    "long_prefill_token_threshold": flags.long_prefill_token_threshold,
                    "max_num_seqs": flags.max_num_seqs,
                },
                api_key_env=None,
            )
        )
    finally:
        if present is not None and was_there:
            print(f"run: {whose_end(present)}", file=sys.stderr)
        else:
            launch.stop(engine.name, home=home)


def whose_end(engine: Engine) -> str:
    """What becomes of an engine that was there before: it is not this run's to end."""
    if engine.owner_pid is not None and running.process_lives(engine.owner_pid):
        return f"the engine belongs to another `make run` (pid {engine.owner_pid}) and ends with it"
    return "the engine was there before and stays: `make engine-stop` ends it"


def _engine_port() -> int:
    stated = os.environ.get("ENGINE_PORT") or str(launch.DEFAULT_PORT)
    if not (stated.isascii() and stated.isdigit() and 0 < int(stated) < 65536):
        raise EngineError(f"ENGINE_PORT={stated} is no port: give a number from 1 to 65535")
    return int(stated)


def _given(url: str) -> Upstream:
    """An engine of the user's own: asked for its models, and for its token counts later."""
    key = os.environ.get("ENGINE_API_KEY", "")
    try:
        answer = json.loads(readback.fetch(url + "/v1/models", bearer=key or None))
        models = tuple(card["id"] for card in answer["data"])
    except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
        raise UpstreamError(f"ENGINE_URL={url} {_in_words(error)}") from error
    if not models:
        raise UpstreamError(f"ENGINE_URL={url} serves no model")
    return Upstream(
        url=url,
        models=models,
        tokenizer_path=None,
        scheduling=None,
        limits={},
        api_key_env="ENGINE_API_KEY" if key else None,
    )


def _in_words(error: Exception) -> str:
    """What an engine did that gave no list of models, and what may help."""
    if isinstance(error, urllib.error.HTTPError):
        fix = _FIXES.get(error.code, "is it a vLLM server, and is it ready?")
        return f"answers /v1/models with {error.code}: {fix}"
    match error.reason if isinstance(error, urllib.error.URLError) else error:
        case ConnectionRefusedError():
            return "refuses the connection: is the engine started, and is this its port?"
        case socket.gaierror():
            return "names a host that is not known: correct it"
        case TimeoutError():
            return "does not answer in time: is the engine started, and can it be reached from here?"
        case OSError() as reason:
            return f"cannot be reached: {reason.strerror or reason}"
        case _:
            return "does not answer /v1/models as vLLM does: is it the address of a vLLM server, like http://host:8000?"


def _serve(upstream: Upstream) -> int:
    """Run the gateway to its end and return its exit status."""
    VAR.mkdir(exist_ok=True)
    configuration = VAR / "gateway.yaml"
    if first_files.write_configuration(configuration, upstream):
        print(f"run: wrote {configuration}", file=sys.stderr)
    keys = first_files.write_keys(VAR / "keys.yaml")
    # A session of its own: the terminal's Ctrl-C reaches this process alone, which passes it on once.
    gateway = subprocess.Popen(
        [sys.executable, "-m", "gateway", "serve", "--config", str(configuration)], start_new_session=True
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: gateway.send_signal(signal.SIGTERM))
    if _serves(configuration, gateway):
        served = Served(
            addresses=first_files.addresses(configuration),
            upstream=upstream,
            configuration=configuration,
            keys_file=VAR / "keys.yaml",
            keys=keys,
            command=Path(sys.executable).with_name("gateway"),
            has_limits=first_files.states_limits(configuration),
        )
        print(welcome(served), file=sys.stderr, flush=True)
    return gateway.wait()


def _serves(configuration: Path, gateway: subprocess.Popen[bytes]) -> bool:
    """Whether the ops port says ready in time; False where the gateway ended, which has then said why."""
    ops = first_files.addresses(configuration).ops
    deadline_s = time.monotonic() + READY_S_MAX
    while time.monotonic() < deadline_s and gateway.poll() is None:
        try:
            readback.fetch(ops + "/readyz", timeout_s=2)
        except OSError:
            time.sleep(POLL_S)
        else:
            return True
    return False


if __name__ == "__main__":
    sys.exit(main())
