"""What can go wrong between the gateway and an engine, mapped once: to a refusal and to an outcome.

Owns the three words engine_unreachable, engine_broken and engine_timeout, and what is no fault of an engine's. Messages
name the phase and the limit, and never what the engine or the caller sent.
"""

from __future__ import annotations

import errno
import socket

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from gateway.core.types import Outcome, Reason, Refusal
from gateway.server import open_files

# This machine's own limits, of which no engine knows: open files, local ports, memory for sockets or for a name.
_OUT_OF_SOCKETS = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM, socket.EAI_MEMORY}
)


class EngineFailure(Exception):  # noqa: N818 - the domain's word
    """An engine did not answer as an engine should; `refusal` is what the caller is told."""

    def __init__(self, refusal: Refusal, outcome: Outcome) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal
        self.outcome = outcome

    @property
    def reason(self) -> Reason:
        return self.refusal.reason


def unreachable() -> EngineFailure:
    message = "The engine could not be connected to. Nothing was sent; the request can be tried again."
    return EngineFailure(Refusal(Reason.ENGINE_UNREACHABLE, message), Outcome.ENGINE_ERROR)


def out_of_sockets() -> EngineFailure:
    message = "This gateway has no socket left for a connection to the engine. Nothing was sent."
    return EngineFailure(Refusal(Reason.OVERLOADED, message), Outcome.REFUSED)


def broken(what: str) -> EngineFailure:
    """`what` completes the sentence "The engine …"."""
    return EngineFailure(Refusal(Reason.ENGINE_BROKEN, f"The engine {what}."), Outcome.ENGINE_ERROR)


def timed_out(limit: str, limit_s: float) -> EngineFailure:
    """`limit`: the name of the setting whose time ran out."""
    message = f"The engine sent nothing for {limit_s:g} s ({limit})."
    return EngineFailure(Refusal(Reason.ENGINE_TIMEOUT, message, limit=limit_s), Outcome.TIMED_OUT)


def of(error: aiohttp.ClientError | HttpProcessingError | OSError) -> EngineFailure:
    """Map whatever the HTTP client raises, but for the gateway's own time limits."""
    if isinstance(error, aiohttp.ClientConnectorError) and _is_want_of_sockets(error):
        return out_of_sockets()
    if isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)):
        return unreachable()
    if isinstance(error, aiohttp.ClientPayloadError):
        return broken("broke off its answer")
    if isinstance(error, HttpProcessingError):
        return broken("answered with something that is not HTTP")
    return broken("closed the connection before it answered")


def _is_want_of_sockets(error: aiohttp.ClientConnectorError) -> bool:
    """The system's resolver, with no file left to ask by, calls a name unknown or its servers silent."""
    is_of_resolver = isinstance(error.os_error, socket.gaierror)
    return error.errno in _OUT_OF_SOCKETS or (is_of_resolver and open_files.are_used_up())


def is_no_answer(error: aiohttp.ClientError | HttpProcessingError | OSError) -> bool:
    """Whether a connection that had been made was lost, as a kept one is when the engine closed it meanwhile."""
    return isinstance(error, (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, ConnectionError))
