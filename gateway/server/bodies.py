"""The memory for request bodies, of all requests together.

Owns one number: how many bytes of bodies are held. What is over the bound is refused while it arrives, so that many
callers with large bodies cannot take the memory of the process. Holds no body itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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
