"""The memory for request bodies: of all requests together, and of one while it arrives.

Owns how many bytes of bodies are held. What is over the bound is refused while it arrives, so that many callers with
large bodies cannot take the memory of the process. Keeps no body once it is whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO

from gateway.core.types import Reason, Refusal, Resource
from gateway.server.refusing import Refusing


class Bodies:
    """The bound over all bodies, in bytes, and what of it is taken now."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_held = 0

    @contextmanager
    def holding(self) -> Iterator[HeldBody]:
        """Give one request's share back at its end."""
        held = HeldBody(self)
        try:
            yield held
        finally:
            self.bytes_held -= held.bytes_held


class HeldBody:
    """One request's share."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self.bytes_held = 0

    def grow(self, by: int) -> None:
        """Take `by` bytes more. Raises Refusing where all requests together would hold too many."""
        bodies = self._bodies
        wanted = bodies.bytes_held + by
        if wanted > bodies.bytes_max:
            message = "This gateway holds as many bytes of requests as it may."
            refusal = Refusal(
                Reason.OVERLOADED, message, resource=Resource.BYTES, limit=bodies.bytes_max, observed=wanted
            )
            raise Refusing(refusal, closes=True)
        bodies.bytes_held = wanted
        self.bytes_held += by


class Gathered:
    """One body as it arrives. It grows in place: to join its pieces at the end would be one long step of the loop's."""

    def __init__(self) -> None:
        self._first = b""
        self._buffer: BytesIO | None = None

    def add(self, piece: bytes) -> None:
        if self._buffer is not None:
            self._buffer.write(piece)
        elif self._first:
            self._buffer = BytesIO()
            self._buffer.write(self._first)
            self._buffer.write(piece)
        else:
            self._first = piece

    def whole(self) -> bytes:
        """The body; nothing is added to it any more."""
        return self._first if self._buffer is None else self._buffer.getvalue()
