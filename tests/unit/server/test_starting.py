"""What is said at the start about what the system does not give."""

from __future__ import annotations

import errno
import resource
import socket

import pytest
from structlog.testing import capture_logs

from gateway.server import app


@pytest.fixture
def file_limit(monkeypatch):
    """Pretend a limit of open files; a list of what it was set to."""
    set_to = []

    def pretend(soft, hard):
        monkeypatch.setattr(resource, "getrlimit", lambda _kind: (soft, hard))
        monkeypatch.setattr(resource, "setrlimit", lambda _kind, limit: set_to.append(limit))
        return set_to

    return pretend


def test_few_open_files_come_with_what_to_do(file_limit):
    set_to = file_limit(256, 1024)
    with capture_logs() as logged:
        app._raise_file_limit(10_000)
    (line,) = logged
    assert (line["event"], line["log_level"]) == ("few_open_files", "warning")
    assert line["fix"] == "Start with `ulimit -n 20256`, or set limits.connections_max to 384"
    assert set_to == [(1024, 1024)]


@pytest.mark.parametrize("hard", [65_536, resource.RLIM_INFINITY])
def test_as_many_open_files_as_are_wanted_are_taken_without_a_word(file_limit, hard):
    set_to = file_limit(256, hard)
    with capture_logs() as logged:
        app._raise_file_limit(10_000)
    assert logged == []
    assert set_to == [(20_256, hard)]


@pytest.mark.parametrize(
    ("cause", "setting"),
    [
        (OSError(errno.EADDRINUSE, "address already in use"), "ops.port"),
        (OSError(errno.EACCES, "permission denied"), "ops.port"),
        (OSError(errno.EADDRNOTAVAIL, "cannot assign requested address"), "ops.host"),
        (socket.gaierror(socket.EAI_NONAME, "name not known"), "ops.host"),
    ],
)
def test_a_place_that_cannot_be_listened_at_is_named_by_its_setting(cause, setting):
    error = app.CannotListen("ops", cause)
    assert (error.setting, error.problem) == (setting, cause.strerror)
