"""A gateway of the bench's own: its configuration, its process, its end. Speaks to it over HTTP alone.

Owns the files in its folder and the process: none outlives the context that started it. Measures nothing.
"""

from __future__ import annotations

import hashlib
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from bench.errors import TargetUnreachableError, UsageError

HOST = "127.0.0.1"
READY_S_MAX = 120.0
END_S_MAX = 30.0
POLL_S = 0.1
KEY_VARIABLE = "GATEWAY_BENCH_KEY_"
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback, whatever the proxy variables say


@dataclass(frozen=True, slots=True)
class Callers:
    """Who the requests of each class come as. keys: class to the key; service_classes: class to what it is entitled to."""

    service_classes: Mapping[str, str]
    keys: Mapping[str, str] = field(repr=False)

    def variables(self) -> dict[str, str]:
        """Class name to the environment variable that holds its key."""
        return {name: f"{KEY_VARIABLE}{name.upper().replace('-', '_')}" for name in self.keys}

    def environment(self) -> dict[str, str]:
        return {variable: self.keys[name] for name, variable in self.variables().items()}

    def entries(self) -> list[dict[str, str]]:
        return [
            {
                "id": f"bench-{name}",
                "sha256": hashlib.sha256(key.encode()).hexdigest(),
                "service_class": self.service_classes[name],
                "tenant": f"bench-{name}",
            }
            for name, key in self.keys.items()
        ]


def fresh_callers(service_classes: Mapping[str, str]) -> Callers:
    return Callers(service_classes, {name: f"gw-{secrets.token_urlsafe(32)}" for name in service_classes})


class LocalGateway:
    """One policy at a time, always at the same address. `base`: the configuration but for what is the bench's to say."""

    def __init__(self, folder: Path, base: Mapping[str, Any], callers: Callers) -> None:
        self._folder = folder
        self._base = base
        self._callers = callers
        self._port, self._ops_port = free_ports(2)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._port}"

    @contextmanager
    def serving(self, name: str, policy: str) -> Iterator[None]:
        """A gateway with that policy, a fresh process each time. Raises TargetUnreachableError where none comes up."""
        config = self._written(name, policy)
        log = config.with_suffix(".log")
        with log.open("ab") as file:
            # A session of its own: the terminal's Ctrl-C reaches the bench alone, which ends the gateway.
            process = subprocess.Popen(  # noqa: S603  our own program, with words of our own
                [sys.executable, "-m", "gateway", "serve", "--config", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self._wait_until_ready(process, log)
            yield
        finally:
            _end(process)

    def _written(self, name: str, policy: str) -> Path:
        said = {
            **self._base,
            "listen": {"host": HOST, "port": self._port},
            "ops": {"host": HOST, "port": self._ops_port},
            "policy": policy,
            "auth": {"keys_file": "keys.yaml"},
            "drain": {"settle_s": 0, "deadline_s": 5},
        }
        path = self._folder / f"{name}.yaml"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            _dump(self._folder / "keys.yaml", {"keys": self._callers.entries()})
            _dump(path, said)
        except OSError as error:
            raise UsageError(f"{path}: cannot be written ({error.strerror}). Choose another --result-dir.") from error
        return path

    def _wait_until_ready(self, process: subprocess.Popen[bytes], log: Path) -> None:
        give_up_at = time.monotonic() + READY_S_MAX
        while process.poll() is None and time.monotonic() < give_up_at:
            try:
                with _direct.open(f"http://{HOST}:{self._ops_port}/readyz", timeout=2):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(POLL_S)
        raise TargetUnreachableError(f"the gateway does not come up: {log} says why")


def free_ports(number: int) -> list[int]:
    """Ports that are free now. All are held until all are known, so that no two are the same."""
    with ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in held:
            each.bind((HOST, 0))
        return [int(each.getsockname()[1]) for each in held]


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(END_S_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _dump(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(yaml.safe_dump(value, sort_keys=False), encoding="utf-8")
