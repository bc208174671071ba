"""A gateway or an engine of the bench's own is up when it itself answers, not when anybody does."""

import os
import signal
import socket
import subprocess
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from bench.children import guarded, lives, members
from bench.errors import TargetUnreachableError
from bench.own_processes import HOST, free_ports, heard_by, running


def test_who_listens_on_a_port_is_told() -> None:
    (port,) = free_ports(1)
    assert not heard_by([os.getpid()], port)
    with socket.create_server((HOST, port)):
        assert heard_by([os.getpid()], port)
        assert not heard_by([os.getppid()], port)
    with socket.create_server((HOST, port)) as server, socket.create_connection(server.getsockname()) as client:
        assert not heard_by([os.getpid()], client.getsockname()[1])


def test_another_ones_server_on_the_port_is_not_taken_for_what_was_started(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with ThreadingHTTPServer((HOST, 0), SimpleHTTPRequestHandler) as server:
        answering = threading.Thread(target=server.serve_forever, args=(0.01,))
        answering.start()
        try:
            with (
                pytest.raises(TargetUnreachableError, match=str(log)),
                running(["policies"], log, f"http://{HOST}:{server.server_port}/"),
            ):
                pytest.fail("what was started has no port at all")
        finally:
            server.shutdown()
            answering.join()


TWO = ["sh", "-c", "sleep 600 & exec sleep 600"]
STARTER = f"""
import signal, sys
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
from bench.children import guarded
with guarded({TWO!r}) as process:
    print(process.pid, flush=True)
    signal.pause()
"""


def all_are_there(group: int) -> None:
    """The guard, and the two that it is asked for."""
    while len(members(group)) < 3:
        pass


def test_all_that_was_started_ends_with_its_context() -> None:
    with guarded(TWO) as process:
        all_are_there(process.pid)
        assert lives(process)
    assert not lives(process) and members(process.pid) == []


def test_all_that_was_started_ends_with_who_started_it_also_where_that_one_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", STARTER], stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        group = int(starter.stdout.readline())
        all_are_there(group)
        starter.send_signal(signal.SIGKILL)
        starter.wait()
        while members(group):
            pass


def test_how_a_command_ended_is_told_as_it_is_and_one_that_is_not_there_is_named(tmp_path: Path) -> None:
    log = tmp_path / "log"
    codes = []
    for command in (["sh", "-c", "exit 7"], ["sh", "-c", "kill -9 $$"], ["nowhere-to-be-found"]):
        with log.open("ab") as file, guarded(command, stderr=file) as process:
            ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            codes.append(None if ended is None else ended.si_status)
    assert codes == [7, 128 + signal.SIGKILL, 127]
    assert log.read_text() == "nowhere-to-be-found: No such file or directory\n"
