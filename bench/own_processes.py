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
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from bench.children import child
from bench.direct import direct
from bench.errors import TargetUnreachableError

HOST = "127.0.0.1"
READY_S_MAX = 120.0
POLL_S = 0.1
_LISTEN = "0A"  # a state in /proc/net/tcp


@contextmanager
def running(words: Sequence[str], log: Path, ready_url: str | None, *, module: str = "gateway") -> Iterator[None]:
    """`gateway WORDS…` until the end of the context. Raises TargetUnreachableError where it does not come up.

    ready_url: what of its own port answers once it is up; None: nobody waits for that. module: run in gateway's place.
    """
    command = [sys.executable, "-m", module, *words]
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
        # Somebody else may have taken the port since it was free, and answers in the place of ours.
        if listens(process.pid, urlsplit(url).port or 0):
            try:
                with direct.open(url, timeout=2):
                    return
            except (urllib.error.URLError, OSError):
                pass
        time.sleep(POLL_S)
    raise TargetUnreachableError(f"`gateway {name}` does not come up: {log} says why")


def listens(pid: int, port: int) -> bool:
    """Whether this process is the one that listens on that port of this machine, as Linux tells."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]]
    sockets = {f"socket:[{row[9]}]" for row in rows if row[3] == _LISTEN and int(row[1].rpartition(":")[2], 16) == port}
    return not sockets.isdisjoint(_open_files(pid))


def _open_files(pid: int) -> Iterator[str]:
    with suppress(FileNotFoundError, PermissionError):  # it has ended, or is another user's
        for each in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # it was closed in this moment
                yield str(each.readlink())
