"""Runs one cell. Owns the order of things: engine idle, sockets warm, scrape, load, scrape, records.

Records are written whatever happened, an interruption included; only a target that does not answer leaves none.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import uvloop

from bench.cell import CellPlan, CellResult, Seen
from bench.cell_records import write_down
from bench.engine.around import Around
from bench.engine.samples import placed
from bench.engine.sampling import read_lines, sampled
from bench.engine.session import open_session
from bench.engine.speed_probe import probe_all
from bench.engine.watch import engine_version, model_revision, policy_sha256, scrape, wait_until_idle
from bench.errors import TargetUnreachableError
from bench.load.bodies import BodyStyle, prepare
from bench.load.flight import Flight
from bench.load.processes import ClientProcesses, processes_for
from bench.load.tally import Tally
from bench.load.target import PATHS, Target
from bench.reach import answers, reach
from bench.records.run import new_run_id
from bench.records.store import RunFolder
from bench.told_to_end import ToldToEnd

LEAD_IN_S = 0.2


# Something that goes on beside the load, from its start to its end; it keeps what goes wrong with it to itself.
Beside = Callable[[Seen], Coroutine[Any, Any, None]]


def run_cell(
    plan: CellPlan,
    result_dir: Path,
    echo: Callable[[str], None],
    watched: Callable[[Tally], None] | None = None,
    beside: Beside | None = None,
) -> CellResult:
    """Run it to its end, or until it is told to end; raises TargetUnreachableError before anything was sent.

    watched: gets what the requests come to, as it begins. Raises KeyboardInterrupt where it was told while the records
    of a whole run were written: they are there.
    """
    run_id = new_run_id()
    folder = RunFolder(result_dir, run_id)
    clock = time.perf_counter
    seen = Seen(_flights(plan, run_id))
    tally = Tally(seen.flights, plan.windows.span_s, clock)
    if watched is not None:
        watched(tally)
    interrupted = False
    with sampled(plan.target.metrics_urls) as samples, ToldToEnd() as told:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            try:
                runner.run(told.cancels(_drive(plan, seen, clock, echo, tally, beside=beside)))
            except TargetUnreachableError:
                folder.discard()
                raise
            except (asyncio.CancelledError, KeyboardInterrupt):
                interrupted = True
        if seen.started_at:
            seen.samples = placed(read_lines(samples), seen.started_at)
            seen.sampled_until_ms = (clock() - seen.started_at) * 1000
        result = write_down(plan, run_id, folder, seen, interrupted=interrupted)
    if told.heard and not interrupted:
        raise KeyboardInterrupt
    return result


def unmeasured(plan: CellPlan, result_dir: Path, reasons: Sequence[str]) -> CellResult:
    """The records of a cell whose engine could not be measured: INVALID, and every request unsent."""
    run_id = new_run_id()
    folder = RunFolder(result_dir, run_id)
    return write_down(plan, run_id, folder, Seen(_flights(plan, run_id), unsent_because=reasons), interrupted=False)


def _flights(plan: CellPlan, run_id: str) -> list[Flight]:
    style = BodyStyle(plan.form, plan.model, run_id if plan.cache_salted else None)
    requests = prepare(plan.trace, plan.corpus, style=style, target=plan.target, windows=plan.windows, run_id=run_id)
    return [Flight(request, planned_at=request.arrival.at_s) for request in requests]


async def _drive(
    plan: CellPlan,
    seen: Seen,
    clock: Callable[[], float],
    echo: Callable[[str], None],
    tally: Tally,
    *,
    beside: Beside | None,
) -> None:
    target = plan.target
    seen.processes = processes_for(seen.flights, plan.windows.span_s, len(os.sched_getaffinity(0)))
    async with (
        open_session() as session,
        ClientProcesses(seen.flights, seen.processes, target.base_url, PATHS[plan.form], tally) as processes,
    ):
        # What the processes tell is there at an interruption too.
        seen.loop_lags_s, seen.client_faults = processes.lags_s, processes.faults
        for url in plan.idle_urls:
            if not await wait_until_idle(session, url, wait_s_max=plan.idle_wait_s_max, clock=clock):
                seen.busy_engines.append(url)
        await reach(session, target)
        is_timed = plan.speed_probe and bool(target.metrics_urls)
        if is_timed:
            seen.speed["before"] = await probe_all(target.metrics_urls.values(), plan.model, clock)
        await _read_before(session, target, seen)
        echo(f"{target.name}: {len(seen.flights)} requests over {plan.windows.span_s:g} s")
        await processes.warm()
        seen.started_at = clock() + LEAD_IN_S
        for flight in seen.flights:
            flight.planned_at = seen.started_at + flight.request.arrival.at_s
        await _load(plan, seen, processes, beside)
        await _read_after(session, target, seen)
        seen.target_gone = not await answers(session, target)
        if is_timed and not seen.target_gone:
            for url in target.metrics_urls.values():
                await wait_until_idle(session, url, wait_s_max=plan.idle_wait_s_max, clock=clock)
            seen.speed["after"] = await probe_all(target.metrics_urls.values(), plan.model, clock)


async def _load(plan: CellPlan, seen: Seen, processes: ClientProcesses, beside: Beside | None) -> None:
    load = processes.run(seen.started_at, seen.started_at + plan.windows.cut_s)
    if beside is None:
        await load
        return
    async with asyncio.TaskGroup() as group:
        group.create_task(beside(seen))
        await load


async def _read_before(session: aiohttp.ClientSession, target: Target, seen: Seen) -> None:
    for name, url in target.metrics_urls.items():
        reading, version = await scrape(session, url), await engine_version(session, url)
        seen.engines[name] = Around(reading, version=version, model_revision=await model_revision(session, url))
    await _read_policy(session, target, seen)


async def _read_after(session: aiohttp.ClientSession, target: Target, seen: Seen) -> None:
    for name, url in target.metrics_urls.items():
        seen.engines[name].after = await scrape(session, url)
    await _read_policy(session, target, seen)


async def _read_policy(session: aiohttp.ClientSession, target: Target, seen: Seen) -> None:
    if target.ops_url is not None:
        seen.policies.append(await policy_sha256(session, target.ops_url))
