"""From what was seen of a cell to its verdict and its five files. Sends and reads nothing over the network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench import cell_identity
from bench.analysis.cost import cost
from bench.analysis.measurements import Measurements, put_together
from bench.analysis.validity import Verdict, judge, warm_cache
from bench.cell import CellPlan, CellResult, Seen
from bench.engine import around
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
        window=plan.window,
        limits=plan.limits,
        loop_lags_s=seen.loop_lags_s,
        loop_period_s=PERIOD_S,
        lag_tolerance_ms=plan.lag_tolerance_ms,
    )
    engines = around.to_json(seen.engines, seen.samples, seen.sampled_until_ms)
    verdict = Verdict(tuple(seen.unsent_because), ())
    if verdict.valid:
        verdict = _judged(plan, seen, measured, engines, interrupted=interrupted)
    run = _config(plan, run_id, seen.processes).to_json(cell_identity.identity(plan, seen))
    folder.write_json("run.json", run)
    folder.write_requests(records)
    if seen.samples:
        folder.write_lines(ENGINE_FILE, seen.samples)
    said = measured.to_json() | engines
    if plan.engine_cost_per_hour is not None:
        said["cost"] = cost(measured.classes["all"], plan.engine_cost_per_hour).to_json()
    if seen.speed:
        said["engine_speed"] = seen.speed
    folder.write_json("measurements.json", said)
    folder.write_json("verdict.json", verdict.to_json())
    tokenizer = str(plan.tokenizer.folder)
    folder.write_json("vllm_bench.json", flat(records, measured, model=plan.model, tokenizer=tokenizer, run=run))
    return CellResult(plan, run_id, folder.path, records, measured, verdict, interrupted)


def _judged(
    plan: CellPlan, seen: Seen, measured: Measurements, engines: Mapping[str, Any], *, interrupted: bool
) -> Verdict:
    reasons = [f"the engine at {url} was not idle at the start" for url in seen.busy_engines]
    reasons += [*seen.client_faults, *around.faults(seen.engines, seen.samples, seen.sampled_until_ms)]
    if len(cell_identity.policies(seen)) > 1:
        reasons.append("the gateway's policy was replaced during the run")
    if seen.target_gone:
        reasons.append(f"the target went away during the run: nothing answers at {plan.target.base_url} any more")
    notes = around.notes(seen.engines)
    if plan.trace.prefix_block_tokens is None:
        notes += warm_cache(measured.cached_share, around.cached_share(engines))
    return judge(
        measured,
        lag_tolerance_ms=plan.lag_tolerance_ms,
        interrupted=interrupted,
        engine_reasons=reasons,
        engine_notes=notes,
    )


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
        engine_start=plan.engine_start,
    )
