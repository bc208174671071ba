"""The gateway as a process: start, serve, end.

Owns the order of starting and ending, both ports, and the background tasks. Wires rooms together and decides nothing.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import resource
import signal
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

import aiohttp
import structlog
from aiohttp import web

from gateway.core.plan import Plan
from gateway.core.types import Snapshot
from gateway.identity.keyring import Keyring
from gateway.observe import logs
from gateway.observe.gauges import EngineReading, GaugeSources
from gateway.observe.metrics import Observer
from gateway.server import state, wiring
from gateway.server.calibrations import Calibrations
from gateway.server.clock import LoopClock
from gateway.server.connector import engine_session
from gateway.server.counters import Counters
from gateway.server.ending import Ending, Stage
from gateway.server.front import Front
from gateway.server.handlers import Handlers
from gateway.server.intake import IntakeBounds
from gateway.server.kept_responses import KeptResponses
from gateway.server.keys_watch import KeysWatch
from gateway.server.ops import Ops as OpsPort
from gateway.server.questions import Questions
from gateway.server.rooms import Rooms
from gateway.server.tasks import spawn
from gateway.server.upstream import Upstream
from gateway.settings import Listen, Ops, Settings

BACKLOG = 2048
CUT_S_MAX = 10.0
STOP_S_MAX = 1.0
OPS_SILENT_S_MAX = 75.0  # above any scrape interval: a scraper keeps its connection
ONLY_REQUEST_S_MAX = 75.0  # how long a connection may be open before its only request, where keepalive_s is 0
OWN_FILES = 256  # open files that are no request's
_FAULTS_OF_THE_PORT = frozenset({errno.EADDRINUSE, errno.EACCES})


class CannotListen(Exception):  # noqa: N818 - the state that it names
    """A port or an address cannot be had. setting: the one that names it, by its key path."""

    def __init__(self, section: str, cause: OSError) -> None:
        self.setting = f"{section}.{'port' if cause.errno in _FAULTS_OF_THE_PORT else 'host'}"
        self.problem = cause.strerror or str(cause)
        super().__init__(f"{self.setting}: {self.problem}")


class Gateway:
    """A running gateway: `async with Gateway(settings, plan, keyring) as gateway`. Raises CannotListen.

    Must be made inside a running event loop.
    """

    def __init__(self, settings: Settings, plan: Plan, keyring: Keyring) -> None:
        self._settings = settings
        clock = LoopClock()
        self._request_log = logs.RequestLog(clock.now)
        observer = Observer(clock.now, self._request_log.ended)
        self._session: aiohttp.ClientSession = engine_session()
        upstream = Upstream(self._session, lambda engine: observer.families.resends.at(engine).inc())
        questions = Questions(upstream)
        pools = wiring.pools(settings)
        gates = wiring.gates(pools, plan, clock, observer)
        self._news = wiring.engine_news(pools, gates, lambda: self.rooms.plan, questions, clock)
        self._counters = Counters(settings, self._news.watches, questions)
        self._calibrations = Calibrations(settings, gates, self._news.watches, clock)
        limits = settings.limits
        self.rooms = Rooms(
            plan=plan,
            keyring=keyring,
            pools=pools,
            counters=self._counters.by_pool,
            gates=gates,
            watches=self._news.watches,
            upstream=upstream,
            observer=observer,
            clock=clock,
            ending=Ending(),
            kept_responses=KeptResponses(),
            intake=IntakeBounds(
                limits.body_bytes_max, limits.inflated_bytes_max, limits.header_bytes_max, limits.body_read_s
            ),
            allowed_engine_fields=settings.engine_fields.allow,
            client_stall_s=limits.client_stall_s,
            one_request_a_connection=limits.keepalive_s == 0,
        )
        observer.scrape_from(GaugeSources(lambda: self.rooms.plan, self._snapshots, self._readings))
        observer.scrape_counting_from(self._counters.readings)
        self._front = Front(
            Handlers(self.rooms).handle,
            observer,
            connections_max=limits.connections_max,
            header_bytes_max=limits.header_bytes_max,
            keepalive_s=limits.keepalive_s or ONLY_REQUEST_S_MAX,
        )
        self._runners = (
            web.ServerRunner(self._front, shutdown_timeout=STOP_S_MAX),
            web.AppRunner(
                OpsPort(self.rooms).application(),
                handler_cancellation=True,
                access_log=None,
                keepalive_timeout=OPS_SILENT_S_MAX,
                shutdown_timeout=STOP_S_MAX,
            ),
        )
        self._tasks: list[asyncio.Task[None]] = []
        self.port = 0
        self.ops_port = 0

    async def __aenter__(self) -> Self:
        try:
            await self._counters.load()
            await self._calibrations.load()
            public, ops = self._runners
            self.ops_port = await _listen(ops, "ops", self._settings.ops)
            self.port = await _listen(public, "listen", self._settings.listen)
        except BaseException:
            await self._stop()
            raise
        self._tasks = [spawn(watch.run(), name=f"watch {name}") for name, watch in self.rooms.watches.items()]
        self._tasks += [
            spawn(each.run(), name=f"calibrate {name}") for name, each in self._calibrations.probing.items()
        ]
        self._tasks.append(spawn(self._summarise(), name="refusal summaries"))
        keys_file = self._settings.auth.keys_file
        if keys_file is not None:
            self._tasks.append(spawn(KeysWatch(keys_file, self._keyring, self._admit_by).run(), name="keys"))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def end(self, cut_now: asyncio.Event) -> bool:
        """Drain as the contract's "Ending" says; True where every request ended by itself. `cut_now` ends the wait."""
        rooms, drain = self.rooms, self._settings.drain
        loop = asyncio.get_running_loop()
        deadline_at = loop.time() + drain.deadline_s
        rooms.ending.stage = Stage.SETTLING
        structlog.get_logger().info(
            "draining", open_requests=len(rooms.ending), settle_s=drain.settle_s, deadline_s=drain.deadline_s
        )
        self._front.close_idle()
        await _first_of(cut_now, seconds=min(drain.settle_s, drain.deadline_s))
        rooms.ending.stage = Stage.DRAINING
        for gate in rooms.gates.values():
            gate.drain(max(0.0, deadline_at - loop.time()))
        await _first_of(cut_now, rooms.ending.idle, seconds=max(0.0, deadline_at - loop.time()))
        for gate in rooms.gates.values():
            gate.drain(0.0)
        cut = rooms.ending.cut_all()
        if cut:
            await _first_of(rooms.ending.idle, seconds=CUT_S_MAX)
        structlog.get_logger().info("ended", cut=cut)
        return cut == 0

    async def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for runner in self._runners:
            await runner.cleanup()
        await self._session.close()
        self._counters.close()
        self._request_log.summarise()

    async def _summarise(self) -> None:
        while True:
            await asyncio.sleep(logs.REFUSAL_INTERVAL_S)
            self._request_log.summarise()

    def _keyring(self) -> Keyring:
        return wiring.keyring(self._settings, self.rooms.plan)

    def _admit_by(self, keyring: Keyring) -> None:
        self.rooms.keyring = keyring

    def _snapshots(self) -> Mapping[str, Snapshot]:
        return {name: gate.snapshot() for name, gate in self.rooms.gates.items()}

    def _readings(self) -> Mapping[str, EngineReading]:
        now = self.rooms.clock.now()
        return {name: state.reading(watch, now) for name, watch in self.rooms.watches.items()}


async def serve(settings: Settings, plan: Plan) -> int:
    """Serve until SIGTERM or SIGINT; return the exit status: 0 clean, 1 where requests were cut or a port is taken."""
    writer = logs.LineWriter(sys.stdout)
    logs.configure(writer)
    log = structlog.get_logger()
    told_to_end, cut_now = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (cut_now if told_to_end.is_set() else told_to_end).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    loop.add_signal_handler(signal.SIGHUP, log.warning, "reload_not_supported")  # by default it would kill us
    _raise_file_limit(settings.limits.connections_max)
    try:
        keyring = await asyncio.to_thread(wiring.keyring, settings, plan)
        async with AsyncExitStack() as stack:
            try:
                gateway = await stack.enter_async_context(Gateway(settings, plan, keyring))
            except CannotListen as error:
                fix = f"Change {error.setting}, or end what has it"
                log.error("cannot_start", setting=error.setting, problem=error.problem, fix=fix)  # noqa: TRY400 - the system's own words say it
                return 1
            writer.dropped = gateway.rooms.observer.families.log_lines_dropped.at().inc
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
        raise CannotListen(section, error) from error
    return site.port


async def _first_of(*events: asyncio.Event, seconds: float) -> None:
    """Return at the first event, or after `seconds`."""
    waits = [spawn(event.wait(), name="wait for the end") for event in events]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


def _raise_file_limit(connections_max: int) -> None:
    """Allow as many open files as the system lets us: each request holds a client's and an engine's socket."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * connections_max + OWN_FILES
    if soft >= wanted:
        return
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        fits = max(1, (allowed - OWN_FILES) // 2)
        fix = f"Start with `ulimit -n {wanted}`, or set limits.connections_max to {fits}"
        structlog.get_logger().warning("few_open_files", allowed=allowed, wanted=wanted, fix=fix)
