"""An emulator from its first socket to its last, with the faults that it was told to commit.

Owns the lives of the engine: one after the other on the same port, a restart between two of them.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from bench.errors import UsageError
from bench.simulation.emulator.face import Face
from bench.simulation.emulator.faults import Fault, FaultKind, FaultPlan
from bench.simulation.emulator.flags import EmulatorSettings
from bench.simulation.emulator.life import Life

KEEPALIVE_S = 5.0  # vLLM's server closes an idle connection after so long
DIES_AFTER_S = 0.5  # how long vLLM's API server outlives its engine
LOOK_S_MAX = 1.0
CUT_S = 0.1  # what is open then has so long; 0 would be for ever


@dataclass(slots=True)
class Ending:
    """Why a life ended. again_after_s: a new one is to follow, so much later."""

    status: int
    again_after_s: float | None = None


@dataclass(slots=True)
class _Due:
    """What waits to be committed, and what is to be taken back when."""

    faults: list[Fault] = field(default_factory=list)
    reversals: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class Emulator:
    """say: told what a person should know. serving: told the address, at each start."""

    def __init__(self, settings: EmulatorSettings, say: Callable[[str], None], serving: Callable[[str], None]) -> None:
        self._settings = settings
        self._say = say
        self._serving = serving
        self._faults = FaultPlan(settings.faults)
        self._due = _Due()
        self._clock = time.perf_counter
        self._port = settings.port
        self._began_at = self._clock()
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        self._stopped.set()
        self._due.changed.set()

    async def run(self) -> int:
        """Serve until `stop`, or until a fault ends it; return the exit status."""
        await self._pause(self._faults.slow_start_s)
        while not self._stopped.is_set():
            ending = await self._live()
            if ending.again_after_s is None:
                return ending.status
            await self._pause(ending.again_after_s)
        return 0

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopped.wait()

    async def _live(self) -> Ending:
        life = Life(self._settings, self._clock, self._say)
        face = Face(self._settings, life, self._count)
        # A client that leaves has to cancel its handler: that is how the engine hears of it.
        runner = web.AppRunner(
            face.app(),
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=KEEPALIVE_S,
            shutdown_timeout=CUT_S,
        )
        await runner.setup()
        try:
            await self._listen(runner)
            async with asyncio.TaskGroup() as group:
                steps = group.create_task(life.engine.run(), name="steps of the engine")
                ending = await self._until_the_end(face, life)
                steps.cancel()
        finally:
            await runner.cleanup()
        return ending

    async def _listen(self, runner: web.AppRunner) -> None:
        site = web.TCPSite(runner, self._settings.host, self._port, reuse_address=True)
        try:
            await site.start()
        except OSError as error:
            number = error.errno or 0
            if number <= 0:  # a resolver's, not the system's
                raise UsageError(f"--host: {self._settings.host} is not known here. Give another.") from error
            said = f"{self._settings.host}:{self._port} cannot be used ({os.strerror(number)})"
            raise UsageError(f"--port: {said}. Give another, or 0.") from error
        self._port = runner.addresses[0][1]
        self._serving(f"http://{self._settings.host}:{self._port}")

    def _count(self) -> None:
        if due := self._faults.asked():
            self._due.faults += due
            self._due.changed.set()

    async def _until_the_end(self, face: Face, life: Life) -> Ending:
        while not self._stopped.is_set():
            self._due.faults += self._faults.due(self._clock() - self._began_at)
            while self._due.faults:
                ending = await self._commit(self._due.faults.pop(0), face, life)
                if ending is not None:
                    return ending
            self._take_back()
            await self._wait()
        return Ending(0)

    async def _wait(self) -> None:
        """Until something is to be done, as far as it is known when."""
        now = self._clock()
        times = [at for at, _ in self._due.reversals]
        times += [self._began_at + (fault.after_s or 0) for fault in self._faults.timed]
        pause_s = min([LOOK_S_MAX, *(max(0.0, at - now) for at in times)])
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._due.changed.wait()
        self._due.changed.clear()

    async def _commit(self, fault: Fault, face: Face, life: Life) -> Ending | None:
        self._say(f"fault: {fault.kind}")
        match fault.kind:
            case FaultKind.DIE:
                life.die()
                await self._pause(DIES_AFTER_S)
                return Ending(1)
            case FaultKind.RESTART:
                self._due.reversals.clear()
                return Ending(0, again_after_s=fault.lasts_s or 0.0)
            case FaultKind.HANG:
                life.engine.freeze()
                self._later(fault, life.engine.thaw)
            case FaultKind.STALE_METRICS:
                face.still_metrics = _still(life)
                self._later(fault, lambda: setattr(face, "still_metrics", None))
            case FaultKind.IN_BAND_ERROR:
                life.break_next = True
            case FaultKind.SLOW_START:
                raise AssertionError("a slow start is no fault of a life that has begun")
        return None

    def _later(self, fault: Fault, reversal: Callable[[], None]) -> None:
        if fault.lasts_s is not None:
            self._due.reversals.append((self._clock() + fault.lasts_s, reversal))

    def _take_back(self) -> None:
        now = self._clock()
        for at, reversal in list(self._due.reversals):
            if at <= now:
                reversal()
                self._due.reversals.remove((at, reversal))


class _Kept(Collector):
    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return self._metrics


def _still(life: Life) -> Callable[[list[str]], bytes]:
    """The metrics as they are now, for ever."""
    registry = CollectorRegistry(auto_describe=True)
    registry.register(_Kept(list(life.accounts.collect())))
    return lambda names: generate_latest(registry.restricted_registry(names) if names else registry)
