"""A gateway or an engine of the bench's own is up when it itself answers, not when anybody does."""

import os
import socket
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

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
