"""Whether a client takes what is written for it: one that is slow does, one that stalls or has vanished does not.

Owns the one measure of it: bytes that it has not acknowledged, those in the kernel included. That holds megabytes for a
slow client, and lets the transport write again only once it is rid of a third of them. Ends no connection itself.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from fcntl import ioctl
from termios import TIOCOUTQ

_COUNT = struct.Struct("i")
_KEEPALIVE_S_MAX = 32_767  # the system's own bound


def have_absence_noticed(transport: asyncio.Transport, stall_s: float) -> None:
    """Have the system end the connection of a client that acknowledges nothing for so long, bytes or a probe.

    A client whose machine or network is gone says nothing, and while it waits nothing is written that could fail. TCP
    keep-alive is on; by default its first probe is two hours away, and unacknowledged bytes are sent again for minutes.
    """
    sock = transport.get_extra_info("socket")
    for option, seconds in ((socket.TCP_KEEPIDLE, stall_s / 2), (socket.TCP_KEEPINTVL, stall_s / 6)):
        sock.setsockopt(socket.IPPROTO_TCP, option, min(max(1, int(seconds)), _KEEPALIVE_S_MAX))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, int(stall_s * 1000)))


class Taking:
    """Watches a client to which nothing new is written, until cancelled.

    stalled: called once, when the client has taken nothing for `stall_s`.
    """

    def __init__(self, transport: asyncio.Transport, stall_s: float, stalled: Callable[[], object]) -> None:
        self._transport = transport
        self._stall_s = stall_s
        self._stalled = stalled
        self._look_again(_untaken_bytes(transport))

    def cancel(self) -> None:
        self._timer.cancel()

    def _look_again(self, left: int) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._stall_s, self._look, left)

    def _look(self, left_before: int) -> None:
        left = _untaken_bytes(self._transport)
        if left < left_before:
            self._look_again(left)
        else:
            self._stalled()


def _untaken_bytes(transport: asyncio.Transport) -> int:
    sock = transport.get_extra_info("socket")
    if sock is None or (number := sock.fileno()) < 0:
        return 0
    (in_kernel,) = _COUNT.unpack(ioctl(number, TIOCOUTQ, bytes(_COUNT.size)))
    return transport.get_write_buffer_size() + int(in_kernel)
