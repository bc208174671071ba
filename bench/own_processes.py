"""Gateways and engines that the bench starts itself: a process, its log, its end. Speaks to them over HTTP alone.

None outlives the context that started it. What they are to do stands in their own files; nothing is measured here.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.error
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from bench.children import guarded, lives, members
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
    with log.open("ab") as file, guarded(command, stdout=file, stderr=subprocess.STDOUT) as process:
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
    while lives(process) and time.monotonic() < give_up_at:
        # Somebody else may have taken the port since it was free, and answers in the place of ours.
        if heard_by(members(process.pid), urlsplit(url).port or 0):
            try:
                with direct.open(url, timeout=2):
                    return
            except (urllib.error.URLError, OSError):
                pass
        time.sleep(POLL_S)
    raise TargetUnreachableError(f"`gateway {name}` does not come up: {log} says why")


def heard_by(pids: Iterable[int], port: int) -> bool:
    """Whether one of these processes listens on that port of this machine, as Linux tells."""
    return not listeners(port).isdisjoint(sockets_of(pids))


def listeners(port: int) -> set[str]:
    """The sockets that listen on a port of this machine."""
    tables = [Path("/proc/net/tcp"), Path("/proc/net/tcp6")]
    lines = [line for table in tables if table.is_file() for line in table.read_text(encoding="ascii").splitlines()[1:]]
    rows = [line.split() for line in lines]
    return {f"socket:[{row[9]}]" for row in rows if row[3] == _LISTEN and int(row[1].rpartition(":")[2], 16) == port}


def sockets_of(pids: Iterable[int]) -> set[str]:
    """Everything that these processes have open, sockets by the names that `listeners` has for them."""
    return {each for pid in pids for each in _open_files(pid)}


def _open_files(pid: int) -> Iterator[str]:
    with suppress(FileNotFoundError, PermissionError):  # it has ended, or is another user's
        for each in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # it was closed in this moment
                yield str(each.readlink())
