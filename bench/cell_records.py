"""From what was seen of a cell to its verdict and its five files. Sends and reads nothing over the network."""

from __future__ import annotations

from typing import Any

from bench.analysis.cost import cost
from bench.analysis.measurements import put_together
from bench.analysis.validity import judge
from bench.cell import CellPlan, CellResult, Seen
from bench.engine.metrics import UNKNOWN, Reading, delta, restarted
from bench.engine.samples import GAP_S_TOLERATED, during, longest_gap_s, restarts
from bench.engine.watch import Unreadable
from bench.load.lag import PERIOD_S
from bench.records.run import RunConfig
from bench.records.store import ENGINE_FILE, RunFolder
from bench.records.vllm_flat import flat
from bench.trace.jsonl import sha256 as trace_sha256


def write_down(plan: CellPlan, run_id: str, folder: RunFolder, seen: Seen, *, interrupted: bool) -> CellResult:
    """Measure, judge and keep one cell; `seen` may be anything from nothing sent to all answered."""
    records = [flight.record(seen.started_at) for flight in seen.flights]
    measured = put_together(
        records,
        window_s=plan.windows.observation_s,
        limits=plan.limits,
        loop_lags_s=seen.loop_lags_s,
        loop_period_s=PERIOD_S,
        lag_tolerance_ms=plan.lag_tolerance_ms,
    )
    reasons, notes = _engine_said(seen)
    verdict = judge(
        measured,
        lag_tolerance_ms=plan.lag_tolerance_ms,
        interrupted=interrupted,
        engine_reasons=reasons,
        engine_notes=notes,
    )
    effective_args = seen.before.cache_config if isinstance(seen.before, Reading) else {}
    run = _config(plan, run_id, seen.processes).to_json(engine_version=seen.version, effective_args=effective_args)
    folder.write_json("run.json", run)
    folder.write_requests(records)
    if seen.samples:
        folder.write_lines(ENGINE_FILE, seen.samples)
    said = measured.to_json() | _engine_json(seen)
    if plan.engine_cost_per_hour is not None:
        said["cost"] = cost(measured.classes["all"], plan.engine_cost_per_hour).to_json()
    if seen.speed:
        said["engine_speed"] = seen.speed
    folder.write_json("measurements.json", said)
    folder.write_json("verdict.json", verdict.to_json())
    tokenizer = str(plan.tokenizer.folder)
    folder.write_json("vllm_bench.json", flat(records, measured, model=plan.model, tokenizer=tokenizer, run=run))
    return CellResult(plan, run_id, folder.path, records, measured, verdict, interrupted)


def _engine_said(seen: Seen) -> tuple[list[str], list[str]]:
    """What voids the run beside its requests, and what is only worth a note."""
    reasons = [f"the engine at {url} was not idle at the start" for url in seen.busy_engines]
    reasons += seen.client_faults
    if _restarted(seen):
        reasons.append("the engine restarted during the run")
    notes = [
        f"engine metrics {when} the run: {reading.reason}"
        for when, reading in (("before", seen.before), ("after", seen.after))
        if isinstance(reading, Unreadable)
    ]
    if isinstance(seen.before, Reading) and seen.before.idle is False:
        notes.append("the engine was serving other requests at the start")
    gap_s = longest_gap_s(seen.samples, seen.sampled_until_ms)
    if gap_s is not None and gap_s > GAP_S_TOLERATED:
        notes.append(f"engine metrics during the run: {gap_s:.0f} s without a reading")
    return reasons, notes


def _config(plan: CellPlan, run_id: str, processes: int) -> RunConfig:
    return RunConfig(
        run_id=run_id,
        cell_id=plan.cell_id,
        repeat=plan.repeat,
        command=plan.command,
        target=plan.target.public(),
        model=plan.model,
        endpoint=str(plan.form),
        load="open loop",
        trace_sha256=trace_sha256(plan.trace),
        trace_origin=plan.trace.origin,
        corpus_sha256=plan.corpus.sha256,
        tokenizer_sha256=plan.tokenizer.sha256,
        warmup_s=plan.windows.warmup_s,
        observation_s=plan.windows.observation_s,
        drain_deadline_s=plan.windows.drain_deadline_s,
        seeds=plan.seeds,
        goodput=plan.goodput,
        lag_tolerance_ms=plan.lag_tolerance_ms,
        cache_salted=plan.cache_salted,
        engine_cost_per_hour=plan.engine_cost_per_hour,
        metadata=plan.metadata,
        client_processes=processes,
    )


def _restarted(seen: Seen) -> bool:
    if restarts(seen.samples):
        return True
    return isinstance(seen.before, Reading) and isinstance(seen.after, Reading) and restarted(seen.before, seen.after)


def _engine_json(seen: Seen) -> dict[str, Any]:
    before, after = seen.before, seen.after
    if before is None and after is None:
        return {}
    said: dict[str, Any] = {}
    for when, reading in (("before", before), ("after", after)):
        if isinstance(reading, Reading):
            said[when] = reading.to_json()
        elif isinstance(reading, Unreadable):
            said[when] = {"unreadable": reading.reason}
    if during_it := during(seen.samples, seen.sampled_until_ms):
        said["during"] = during_it
    if isinstance(before, Reading) and isinstance(after, Reading):
        said["delta"] = dict.fromkeys(before.counters, UNKNOWN) if _restarted(seen) else delta(before, after)
    return {"engine": said}
