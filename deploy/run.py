"""`make run`: an engine, a configuration, a key, and the gateway in front, until Ctrl-C.

Owns the order of these and their end: the first Ctrl-C (or SIGTERM) drains the gateway, a second one cuts it, and the
embedded engine that was started here ends with it. What ENGINE_URL names was not started here and stays.
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

from bench.children import child
from bench.simulation.emulator.flags import MODEL
from bench.simulation.emulator.vocabulary import FOLDER
from deploy import first_files
from deploy.engine import launch, readback
from deploy.engine.flags import EngineFlags
from deploy.engine.home import REPOSITORY, EngineError
from deploy.first_files import FilesError, Upstream
from deploy.welcome import Served, welcome

VAR = REPOSITORY / "var"
READY_S_MAX = 60.0
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
        return _with_embedded_engine()
    except (EngineError, FilesError, UpstreamError) as error:
        print(f"run: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _with_embedded_engine() -> int:
    """The gateway before `gateway emulate`, with the flags that the default policy wants."""
    port = _engine_port()
    # Prefix caching is vLLM's default, and what policy `sliced` lives on.
    flags = EngineFlags.parse(["--enable-prefix-caching", *shlex.split(os.environ.get("ENGINE_FLAGS", ""))])
    command = ["emulate", "--port", str(port), "--enable-prompt-tokens-details", *flags.argv()]
    launch.refuse_taken_port(port)
    # Its session is its own, and so it outlives the drain.
    with child([sys.executable, "-m", "gateway", *command], stdout=sys.stderr) as engine:
        url = f"http://127.0.0.1:{port}"
        _wait_until_healthy(engine, url)
        return _serve(
            Upstream(
                url=url,
                models=(MODEL,),
                tokenizer_path=FOLDER,
                scheduling=flags.scheduling_policy,
                limits={
                    "max_num_batched_tokens": flags.max_num_batched_tokens,
                    "long_prefill_token_threshold": flags.long_prefill_token_threshold,
                    "max_num_seqs": flags.max_num_seqs,
                },
                api_key_env=None,
            ),
            is_embedded=True,
        )


def _wait_until_healthy(engine: subprocess.Popen[bytes], url: str) -> None:
    deadline_s = time.monotonic() + READY_S_MAX
    while engine.poll() is None and time.monotonic() < deadline_s:
        if readback.healthy(url):
            return
        time.sleep(POLL_S)
    raise EngineError(f"the embedded engine does not serve at {url}: it has said why, or see ENGINE_FLAGS")


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


def _serve(upstream: Upstream, *, is_embedded: bool = False) -> int:
    """Run the gateway to its end and return its exit status."""
    VAR.mkdir(exist_ok=True)
    configuration = VAR / "gateway.yaml"
    if first_files.write_configuration(configuration, upstream):
        print(f"run: wrote {configuration}", file=sys.stderr)
    keys = first_files.write_keys(VAR / "keys.yaml")
    with child([sys.executable, "-m", "gateway", "serve", "--config", str(configuration)]) as gateway:
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
                is_embedded=is_embedded,
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
