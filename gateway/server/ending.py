"""The end of the process, and the requests that live until it (CONTRACT "Ending").

Owns which of three stages the gateway is in, and every request that is being served: how many there are, and how they
are cut when time is up. Closes no socket itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from types import TracebackType

from gateway.core.types import Outcome, Refusal


class Stage(StrEnum):
    """SERVING; SETTLING: serving, not ready, connections end with their answer; DRAINING: new requests get 503."""

    SERVING = "serving"
    SETTLING = "settling"
    DRAINING = "draining"


class Service:
    """One request that is being served, which can be cut inside `async with service`.

    Outside of it nothing is left to cut: the request was never begun, or only its last words are being written.
    """

    def __init__(self) -> None:
        self._scope = asyncio.timeout(None)
        self._is_inside = False
        self.is_cut = False
        self.cut_because: Refusal | None = None

    async def __aenter__(self) -> None:
        await self._scope.__aenter__()
        self._is_inside = True

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raise TimeoutError in place of the cancellation where the request was cut."""
        self._is_inside = False
        await self._scope.__aexit__(kind, error, trace)

    def cut(self, because: Refusal | None = None) -> None:
        """End the request now, wherever it is; does nothing to one that has ended or was cut before.

        because: what its caller is told; None: that the gateway ends.
        """
        if self._is_inside and not self.is_cut:
            self.is_cut, self.cut_because = True, because
            self._scope.reschedule(asyncio.get_running_loop().time())

    @property
    def outcome_if_cancelled(self) -> Outcome:
        return Outcome.ENGINE_ERROR if self.is_cut else Outcome.CLIENT_GONE


class Ending:
    """Stage of the process and the living requests. idle: set while none is being served."""

    def __init__(self) -> None:
        self.stage = Stage.SERVING
        self._services: set[Service] = set()
        self.idle = asyncio.Event()
        self.idle.set()

    @property
    def is_serving(self) -> bool:
        return self.stage is Stage.SERVING

    @property
    def refuses(self) -> bool:
        return self.stage is Stage.DRAINING

    def __len__(self) -> int:
        return len(self._services)

    @contextmanager
    def serving(self) -> Iterator[Service]:
        """Hold one request among the living."""
        service = Service()
        self._services.add(service)
        self.idle.clear()
        try:
            yield service
        finally:
            self._services.discard(service)
            if not self._services:
                self.idle.set()

    def cut_all(self) -> int:
        """Cut every living request; return how many did not end by themselves."""
        for service in self._services:
            service.cut()
        return sum(service.is_cut for service in self._services)
