"""Gateways and engines that the bench starts itself: a process, its log, its end. Speaks to them over HTTP alone.

None outlives the context that started it. What they are to do stands in their own files; nothing is measured here.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.error
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.children import child
from bench.direct import direct
from bench.errors import TargetUnreachableError

HOST = "127.0.0.1"
READY_S_MAX = 120.0
POLL_S = 0.1


@contextmanager
def running(words: Sequence[str], log: Path, ready_url: str | None) -> Iterator[None]:
    """`gateway WORDS…` until the end of the context. Raises TargetUnreachableError where it does not come up.

    ready_url: what answers once it is up; None: nobody waits for that.
    """
    command = [sys.executable, "-m", "gateway", *words]
    with (
        log.open("ab") as file,
        child(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT) as process,
    ):
        if ready_url is not None:
            _wait_until_ready(process, words[0], ready_url, log)
        yield


def free_ports(number: int) -> list[int]:
    """Ports that are free now. All are held until all are known, so that no two are the same."""
    with ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in held:
            each.bind((HOST, 0))
        return [int(each.getsockname()[1]) for each in held]


def _wait_until_ready(process: subprocess.Popen[bytes], name: str, url: str, log: Path) -> None:
    give_up_at = time.monotonic() + READY_S_MAX
    while process.poll() is None and time.monotonic() < give_up_at:
        try:
            with direct.open(url, timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(POLL_S)
    raise TargetUnreachableError(f"`gateway {name}` does not come up: {log} says why")
