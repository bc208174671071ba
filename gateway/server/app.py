"""The gateway as a process: start, serve, end.

Owns the order of starting and ending, both ports, and the background tasks. Wires rooms together and decides nothing.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

import structlog
from aiohttp import web

from gateway.core.types import Snapshot
from gateway.engines.canary import Canary
from gateway.identity.keyring import Keyring
from gateway.observe import logs
from gateway.observe.gauges import EngineReading, GaugeSources
from gateway.observe.metrics import Observer
from gateway.server import open_files, state, wiring
from gateway.server.calibrations import Calibrations
from gateway.server.clock import LoopClock
from gateway.server.connector import EngineConnections
from gateway.server.counters import Counters
from gateway.server.draining import Draining
from gateway.server.ending import Ending
from gateway.server.front import HAS_COMPILED_PARSER, Front, PortBounds
from gateway.server.handlers import Handlers
from gateway.server.in_force import InForce
from gateway.server.intake import IntakeBounds
from gateway.server.kept_responses import KeptResponses
from gateway.server.keys_watch import KeysWatch
from gateway.server.loop_lag import measure_lag
from gateway.server.ops import OPS_BOUNDS
from gateway.server.ops import Ops as OpsPort
from gateway.server.ops_acts import Acts, OpsActs
from gateway.server.questions import Questions
from gateway.server.reload import Configured, Read, Reload
from gateway.server.rooms import Rooms
from gateway.server.shadows import Shadows
from gateway.server.tasks import spawn
from gateway.server.token_keys import TokenKeys
from gateway.server.traces import CannotTrace, Traces
from gateway.server.upstream import Upstream
from gateway.settings import Listen, Ops

BACKLOG = 2048
STOP_S_MAX = 1.0
ONLY_REQUEST_S_MAX = 75.0  # how long a connection may be open before its only request, where keepalive_s is 0
_FAULTS_OF_THE_PORT = frozenset({errno.EADDRINUSE, errno.EACCES})


class CannotListen(Exception):  # noqa: N818 - the state that it names
    """A port or an address cannot be had. setting: the one that names it, by its key path."""

    def __init__(self, section: str, place: Listen | Ops, cause: OSError) -> None:
        self.setting = f"{section}.{'port' if cause.errno in _FAULTS_OF_THE_PORT else 'host'}"
        # The event loop's own words hold a tuple; a resolver's numbers are below 0, and only it has words for them.
        number = cause.errno or 0
        words = os.strerror(number) if number > 0 else cause.strerror or str(cause)
        self.problem = f"{place.host}:{place.port}: {words}"
        super().__init__(f"{self.setting}: {self.problem}")


class Gateway:
    """A running gateway: `async with Gateway(configured, keyring, read) as gateway`. Raises CannotListen, CannotTrace.

    read: reads the configuration anew. Must be made inside a running event loop.
    """

    def __init__(self, configured: Configured, keyring: Keyring, read: Read) -> None:
        settings, plan = configured.settings, configured.plan
        self._places = settings.listen, settings.ops
        clock = LoopClock()
        self._request_log = logs.RequestLog(clock.now)
        observer = Observer(clock.now, self._request_log.ended, self._request_log.dividing_changed)
        self._connections = EngineConnections()
        upstream = Upstream(self._connections, lambda engine: observer.families.resends.at(engine).inc())
        questions = Questions(upstream)
        pools = wiring.pools(settings)
        canary = Canary(pools)
        gates = {pool.name: wiring.gate(pool, plan, canary, clock, observer) for pool in pools}
        self._news = wiring.engine_news(pools, gates, lambda: self.rooms.plan, questions, clock, canary=canary)
        self._counters = Counters(settings, self._news.watches, questions, canary)
        jwt, limits = settings.auth.jwt, settings.limits
        self._token_keys = None if jwt is None else TokenKeys(jwt, clock, observer)
        self.rooms = Rooms(
            plan=plan,
            keyring=keyring,
            tokens=None if self._token_keys is None else self._token_keys.tokens,
            pools=pools,
            counters=self._counters.by_pool,
            gates=gates,
            canary=canary,
            watches=self._news.watches,
            upstream=upstream,
            observer=observer,
            clock=clock,
            ending=Ending(),
            kept_responses=KeptResponses(),
            shadows=Shadows(observer),
            intake=IntakeBounds(
                limits.body_bytes_max, limits.inflated_bytes_max, limits.header_bytes_max, limits.body_read_s
            ),
            allowed_engine_fields=settings.engine_fields.allow,
            client_stall_s=limits.client_stall_s,
            one_request_a_connection=limits.keepalive_s == 0,
        )
        self._traces = Traces(observer) if settings.tracing else None
        self._calibrations = Calibrations(lambda: self._reload.settings, self.rooms)
        in_force = InForce(self.rooms, self._news, questions, self._calibrations.keep, self._counters.forget)
        self._in_force = in_force
        self._reload = Reload(configured, read, self.rooms, in_force, self._counters)
        self._draining = Draining(self.rooms, lambda: self._reload.settings.drain)
        self.rooms.shadows.put(plan, configured.shadow, gates, clock.now())
        observer.scrape_from(
            GaugeSources(lambda: self.rooms.plan, self._snapshots, self._readings, lambda: self.rooms.shadows.plan)
        )
        observer.scrape_counting_from(self._counters.readings)
        refused = observer.families.connections_refused.at().inc
        connections_max = open_files.connections_that_fit(
            limits.connections_max, is_stated="connections_max" in limits.model_fields_set
        )
        self._front = Front(
            Handlers(self.rooms).handle,
            PortBounds(
                connections_max,
                limits.header_bytes_max,
                limits.keepalive_s or ONLY_REQUEST_S_MAX,
                limits.client_stall_s,
            ),
            refused=refused,
            answered=lambda status: observer.answered(None, status),
        )
        acts = Acts(self._reload.apply, self._drain, self._draining.undo, in_force.route, in_force.end)
        ops = OpsPort(self.rooms, OpsActs(acts, self.rooms.ending, canary, settings.ops), settings.ops)
        self._ops_front = Front(ops.handle, OPS_BOUNDS, refused=refused, answered=lambda _status: None)
        self._runners = tuple(
            web.ServerRunner(front, shutdown_timeout=STOP_S_MAX) for front in (self._front, self._ops_front)
        )
        self._tasks: list[asyncio.Task[None]] = []
        self.port = 0
        self.ops_port = 0

    async def __aenter__(self) -> Self:
        try:
            await self._counters.load()
            if self._token_keys is not None:
                await self._token_keys.load()
            await self._calibrations.load()
            if self._traces is not None:
                self.rooms.tracing = await self._traces.begin()
            public, ops = self._runners
            listen_at, ops_at = self._places
            self.ops_port = await _listen(ops, "ops", ops_at)
            self.port = await _listen(public, "listen", listen_at)
        except BaseException:
            await self._stop()
            raise
        self._in_force.start()
        keys = KeysWatch(
            lambda: self._reload.settings.auth.keys_file,
            self._keyring,
            self._admit_by,
            self.rooms.observer.reloaded,
            self._reload.one_at_a_time,
        )
        self._tasks = [
            spawn(self._summarise(), name="refusal summaries"),
            spawn(self._look(), name="history"),
            spawn(self._reload.run(), name="reload"),
            spawn(measure_lag(self.rooms.observer.loop_lagged), name="loop lag"),
            spawn(keys.run(), name="keys"),
        ]
        if self._token_keys is not None:
            self._tasks.append(spawn(self._token_keys.run(self._reload.one_at_a_time), name="signing keys"))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def end(self, cut_now: asyncio.Event) -> bool:
        """Drain as the contract's "Ending" says; True where every request ended by itself. `cut_now` ends the wait."""
        return await self._draining.end_for_good(self._front, cut_now)

    def reload_soon(self) -> None:
        self._reload.soon()

    async def _stop(self) -> None:
        self._draining.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._in_force.stop()
        for runner in self._runners:
            await runner.cleanup()
        await self._connections.close()
        if self._traces is not None:
            await self._traces.end(self._draining.left_s)
        self._counters.close()
        self._request_log.summarise()

    async def _summarise(self) -> None:
        while True:
            await asyncio.sleep(logs.REFUSAL_INTERVAL_S)
            self._request_log.summarise()

    async def _look(self) -> None:
        observer = self.rooms.observer
        while True:
            await asyncio.sleep(observer.history.next_look_in_s())
            observer.look()

    def _keyring(self) -> Keyring:
        return wiring.keyring(self._reload.settings, self.rooms.plan)

    def _drain(self) -> None:
        self._draining.begin(self._front)

    def _admit_by(self, keyring: Keyring) -> None:
        self.rooms.keyring = keyring

    def _snapshots(self) -> Mapping[str, Snapshot]:
        return {name: gate.snapshot() for name, gate in self.rooms.gates.items()}

    def _readings(self) -> Mapping[str, EngineReading]:
        now = self.rooms.clock.now()
        return {name: state.reading(watch, now) for name, watch in self.rooms.watches.items()}


async def serve(configured: Configured, read: Read) -> int:
    """Serve until SIGTERM or SIGINT; return the exit status: 0 clean, 1 requests were cut, 2 a port is taken.

    Until it listens these signals are left to its caller. read: reads the configuration anew, at SIGHUP and when a file
    changes. Raises PoolTokenizerUnusable.
    """
    settings = configured.settings
    writer = logs.LineWriter(sys.stdout)
    logs.configure(writer)
    log = structlog.get_logger()
    told_to_end, cut_now = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (cut_now if told_to_end.is_set() else told_to_end).set()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, log.warning, "not_serving_yet")  # by default it would kill us
    open_files.raise_limit(settings.limits.connections_max)
    try:
        if not HAS_COMPILED_PARSER:
            fix = "Install aiohttp with its compiled part, and leave AIOHTTP_NO_EXTENSIONS unset"
            log.error("cannot_start", problem="aiohttp has no compiled HTTP parser here", fix=fix)
            return 1
        keyring = await asyncio.to_thread(wiring.keyring, settings, configured.plan)
        async with AsyncExitStack() as stack:
            try:
                gateway = await stack.enter_async_context(Gateway(configured, keyring, read))
            except CannotListen as error:
                fix, file = f"Change {error.setting}, or end what has it", str(configured.path)
                log.error("cannot_start", file=file, setting=error.setting, problem=error.problem, fix=fix)  # noqa: TRY400 - the system's own words say it
                return 2
            except CannotTrace as error:
                log.error("cannot_start", problem=str(error), fix="Correct the OTEL_* environment variables")  # noqa: TRY400 - the library's own words say it
                return 1
            writer.dropped = gateway.rooms.observer.families.log_lines_dropped.at().inc
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, on_signal)
            loop.add_signal_handler(signal.SIGHUP, gateway.reload_soon)
            log.info("listening", host=settings.listen.host, port=gateway.port, ops_port=gateway.ops_port)
            await told_to_end.wait()
            return 0 if await gateway.end(cut_now) else 1
    finally:
        writer.close()
        # The interpreter would search all that is alive for garbage before it ends: most of the time that an end takes.
        gc.freeze()


async def _listen(runner: web.BaseRunner, section: str, place: Listen | Ops) -> int:
    await runner.setup()
    site = web.TCPSite(runner, place.host, place.port, backlog=BACKLOG)
    try:
        await site.start()
    except OSError as error:
        raise CannotListen(section, place, error) from error
    return site.port
