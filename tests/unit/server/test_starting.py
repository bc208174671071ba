"""What is said at the start about what the system does not give."""

from __future__ import annotations

import errno
import resource
import socket

import pytest
from structlog.testing import capture_logs

from gateway.server import app, open_files
from gateway.settings import Ops


@pytest.fixture
def file_limit(monkeypatch):
    """Pretend a limit of open files; a list of what it was set to."""
    set_to = []

    def pretend(soft, hard):
        monkeypatch.setattr(resource, "getrlimit", lambda _kind: set_to[-1] if set_to else (soft, hard))
        monkeypatch.setattr(resource, "setrlimit", lambda _kind, limit: set_to.append(limit))
        return set_to

    return pretend


def fitting(*, stated):
    open_files.raise_limit(10_000)
    return open_files.connections_that_fit(10_000, is_stated=stated)


@pytest.mark.parametrize(("hard", "stated"), [(1024, False), (1024, True), (20_000, True)])
def test_few_open_files_come_with_what_to_do(file_limit, hard, stated):
    set_to = file_limit(256, hard)
    with capture_logs() as logged:
        fits = fitting(stated=stated)
    (line,) = logged
    assert fits == (hard - 256) // 2
    assert (line["event"], line["log_level"], line["connections_max"]) == ("few_open_files", "warning", fits)
    assert line["fix"] == f"Start with `ulimit -n 20256`, or set limits.connections_max to {fits}"
    assert set_to == [(hard, hard)]


def test_a_default_that_is_missed_by_a_little_is_lowered_without_a_word(file_limit):
    file_limit(1024, 20_000)
    with capture_logs() as logged:
        assert fitting(stated=False) == 9872
    assert logged == []


@pytest.mark.parametrize("hard", [20_256, 65_536, resource.RLIM_INFINITY])
def test_as_many_open_files_as_the_system_gives_are_taken_without_a_word(file_limit, hard):
    set_to = file_limit(256, hard)
    with capture_logs() as logged:
        assert fitting(stated=True) == 10_000
    assert logged == []
    assert set_to == [(20_256 if hard == resource.RLIM_INFINITY else hard, hard)]


@pytest.mark.parametrize(
    ("cause", "setting", "words"),
    [
        (OSError(errno.EADDRINUSE, "bind on ('here', 1): in use"), "ops.port", "Address already in use"),
        (OSError(errno.EACCES, "bind on ('here', 1): denied"), "ops.port", "Permission denied"),
        (OSError(errno.EADDRNOTAVAIL, "bind on ('here', 1)"), "ops.host", "Cannot assign requested address"),
        (socket.gaierror(socket.EAI_NONAME, "name not known"), "ops.host", "name not known"),
    ],
)
def test_a_place_that_cannot_be_listened_at_is_named_by_its_setting_and_in_plain_words(cause, setting, words):
    error = app.CannotListen("ops", Ops(host="here", port=1), cause)
    assert (error.setting, error.problem) == (setting, f"here:1: {words}")
