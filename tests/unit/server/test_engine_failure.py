"""What the HTTP client raises, as the contract's three words."""

from __future__ import annotations

import errno
import socket
from types import SimpleNamespace

import aiohttp
import pytest
from aiohttp.http_exceptions import BadHttpMessage

from gateway.core.types import Outcome, Reason
from gateway.server import engine_failure
from gateway.testing.open_files import no_file_left

KEY = SimpleNamespace(host="h", port=1, ssl=False, is_ssl=False)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (aiohttp.ClientConnectorError(KEY, OSError(111, "refused")), Reason.ENGINE_UNREACHABLE),
        (aiohttp.ConnectionTimeoutError(), Reason.ENGINE_UNREACHABLE),
        (aiohttp.ServerDisconnectedError(), Reason.ENGINE_BROKEN),
        (aiohttp.ClientPayloadError(), Reason.ENGINE_BROKEN),
        (BadHttpMessage("odd"), Reason.ENGINE_BROKEN),
        (aiohttp.ClientOSError(104, "reset"), Reason.ENGINE_BROKEN),
        (ConnectionResetError(), Reason.ENGINE_BROKEN),
    ],
)
def test_each_error_has_one_reason(error, reason):
    failure = engine_failure.of(error)
    assert failure.reason is reason
    assert failure.outcome is Outcome.ENGINE_ERROR


def of_resolver(number):
    return engine_failure.of(aiohttp.ClientConnectorDNSError(KEY, socket.gaierror(number, "no address")))


RESOLVER_FAILS = [socket.EAI_AGAIN, socket.EAI_FAIL, socket.EAI_NONAME, socket.EAI_SYSTEM]


@pytest.mark.parametrize("number", RESOLVER_FAILS)
def test_a_name_that_cannot_be_looked_up_for_want_of_a_file_is_no_fault_of_the_engine(number):
    with no_file_left():
        failure = of_resolver(number)
    assert (failure.reason, failure.outcome) == (Reason.OVERLOADED, Outcome.REFUSED)


@pytest.mark.parametrize("number", RESOLVER_FAILS)
def test_a_name_that_nobody_knows_is_an_engine_that_cannot_be_reached(number):
    assert of_resolver(number).reason is Reason.ENGINE_UNREACHABLE


@pytest.mark.parametrize(
    "number",
    [errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM, socket.EAI_MEMORY],
)
def test_want_of_a_socket_here_is_no_fault_of_the_engine(number):
    failure = engine_failure.of(aiohttp.ClientConnectorError(KEY, OSError(number, "none left")))
    assert (failure.reason, failure.outcome) == (Reason.OVERLOADED, Outcome.REFUSED)


def test_a_limit_that_ran_out_is_named_and_is_an_outcome_of_its_own():
    failure = engine_failure.timed_out("idle_s", 60)
    assert (failure.reason, failure.outcome) == (Reason.ENGINE_TIMEOUT, Outcome.TIMED_OUT)
    assert "idle_s" in failure.refusal.message
    assert failure.refusal.limit == 60


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (aiohttp.ServerDisconnectedError(), True),
        (aiohttp.ClientOSError(104, "reset"), True),
        (aiohttp.ClientPayloadError(), False),
        (BadHttpMessage("odd"), False),
    ],
)
def test_only_a_lost_connection_may_have_been_a_stale_one(error, lost):
    assert engine_failure.is_no_answer(error) is lost
