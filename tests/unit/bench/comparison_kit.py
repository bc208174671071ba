"""Whole comparisons on disk, as the bench leaves them: real plans, traces, verdicts and files; the answers are a test's.

Nothing is sent: what became of each planned request is what `answer` says.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench import campaign_plan
from bench.analysis.classes import Window
from bench.analysis.limits import parse_limits
from bench.analysis.measurements import put_together
from bench.analysis.validity import judge
from bench.campaign_plan import CampaignPlan, Gateways, PoliciesPlan
from bench.cell import CellRun
from bench.engine import around
from bench.engine.around import Around
from bench.engine.metrics import Reading
from bench.load.lag import PERIOD_S
from bench.manifest import sealed
from bench.manifest.schema import Manifest
from bench.order import Cell, cells
from bench.plans import trace_of
from bench.records import comparison
from bench.records.request import TIME_DIGITS, Outcome, Phase, RequestRecord
from bench.records.run import RunConfig
from bench.records.store import RunFolder
from bench.records.vllm_flat import flat
from bench.scenario import Scenario, price_of
from bench.trace.arrivals import Arrival, Trace
from bench.trace.jsonl import sha256

COMMAND = ["gateway", "bench", "compare", "scenario.yaml"]
GOODPUT = ("short:ttft:500", "short:e2e:4000", "long:ttft:9000")


@dataclass(frozen=True, slots=True)
class Planned:
    """One request of a cell, before it was sent. number: among those of its run."""

    cell: Cell
    number: int
    arrival: Arrival
    phase: Phase

    @property
    def class_name(self) -> str:
        return self.arrival.class_name

    @property
    def planned_ms(self) -> float:
        return round(self.arrival.at_s * 1000, TIME_DIGITS)


Answer = Callable[[Planned], RequestRecord]


@dataclass(frozen=True, slots=True)
class Facts:
    """What a run's record says beside its requests. identity: keys of run.json; None takes one away."""

    late_ms: float = 0.0
    preemptions: float | None = 0.0
    kv_usage_max: float = 0.4
    running_max: float = 8.0
    identity: Mapping[str, Any] | None = None


def a_scenario(**changes: Any) -> Scenario:
    """Two arms at 2 requests/s, 80/20, on three traces of 100 s."""
    words: dict[str, Any] = {
        "version": 1,
        "name": "made-up",
        "model": "tiny",
        "tokenizer": "/tok",
        "arms": [
            {"name": "first", "base_url": "http://127.0.0.1:1"},
            {"name": "second", "base_url": "http://127.0.0.1:2"},
        ],
        "rates_per_s": [2.0],
        "num_prompts": 200,
        "seeds": [1, 2, 3],
        "goodput": list(GOODPUT),
    }
    return Scenario.model_validate(words | changes)


def completed(planned: Planned, *, ttft_ms: float, decode_ms: float = 1000.0, **changes: Any) -> RequestRecord:
    """The whole answer, its first token after so many milliseconds."""
    last_ms = planned.planned_ms + ttft_ms + decode_ms
    values = {
        "outcome": Outcome.COMPLETED,
        "status": 200,
        "first_token_ms": round(planned.planned_ms + ttft_ms, TIME_DIGITS),
        "last_token_ms": round(last_ms, TIME_DIGITS),
        "ended_ms": round(last_ms, TIME_DIGITS),
        "prompt_tokens": planned.arrival.prompt_tokens,
        "output_tokens": planned.arrival.output_tokens,
        "finish_reason": "length",
        "longest_stall_ms": 100.0,
    }
    return _record(planned, values | changes)


def refused(planned: Planned, reason: str = "queue_full") -> RequestRecord:
    values = {"outcome": Outcome.REFUSED, "reason": reason, "status": 429}
    return _record(planned, {**values, "ended_ms": round(planned.planned_ms + 5.0, TIME_DIGITS)})


def prompt(planned: Planned) -> RequestRecord:
    """Every limit of GOODPUT is met."""
    return completed(planned, ttft_ms=200.0 if planned.class_name == "short" else 3000.0)


def a_comparison(
    result_dir: Path,
    scenario: Scenario,
    answer: Answer,
    *,
    facts: Callable[[Cell], Facts] = lambda _: Facts(),
    policies: Sequence[str] = (),
) -> Path:
    """The folder of a comparison of which every planned cell was run. policies: the command that compared these."""
    plan = CampaignPlan(kind="compare", command=COMMAND, scenario=scenario)
    if policies:
        arms = [arm.name for arm in scenario.arms]
        gateways = Gateways(policies={arm: arm for arm in arms}, bases={arm: {} for arm in arms})
        plan = PoliciesPlan(
            kind="policies", command=list(policies), scenario=scenario, service_classes={}, gateway=gateways
        )
    number = len(list(result_dir.glob(f"{scenario.name}-*"))) if result_dir.is_dir() else 0
    folder = campaign_plan.begun(result_dir, f"{scenario.name}-{number}", plan)
    runs = [
        a_cell_run(folder, scenario, cell, answer, facts=facts(cell), number=number)
        for number, cell in enumerate(cells(scenario))
    ]
    comparison.write(folder, scenario, runs, loads=[])  # what reads it computes them anew
    return folder


def a_cell_run(folder: Path, scenario: Scenario, cell: Cell, answer: Answer, *, facts: Facts, number: int) -> CellRun:
    trace = trace_of(scenario, cell.block)
    window = Window(scenario.warmup_s, round(trace.span_s - scenario.warmup_s, 6))
    records = [
        answer(Planned(cell, index, each, Phase.WARMUP if each.at_s < window.from_s else Phase.WINDOW))
        for index, each in enumerate(trace.arrivals)
    ]
    if facts.late_ms:
        records[0] = replace(records[0], dispatched_ms=records[0].planned_ms + facts.late_ms)
    run_id = f"{folder.name}-run-{number:03}"
    kept = RunFolder(folder, run_id)
    measured = put_together(
        records,
        window=window,
        limits=parse_limits(scenario.goodput, "goodput"),
        loop_lags_s=[0.001],
        loop_period_s=PERIOD_S,
        lag_tolerance_ms=scenario.lag_tolerance_ms,
    )
    verdict = judge(measured, lag_tolerance_ms=scenario.lag_tolerance_ms, interrupted=False)
    run = _run_json(run_id, scenario, cell, trace, facts)
    kept.write_json("run.json", run)
    kept.write_requests(records)
    kept.write_json("measurements.json", measured.to_json() | _engine(facts))
    kept.write_json("verdict.json", verdict.to_json())
    kept.write_json("vllm_bench.json", flat(records, measured, model=scenario.model, tokenizer="/tok", run=run))
    return CellRun(cell, run_id, verdict.valid, interrupted=False, window=window, records=records)


def _run_json(run_id: str, scenario: Scenario, cell: Cell, trace: Trace, facts: Facts) -> dict[str, Any]:
    config = RunConfig(
        run_id=run_id,
        cell_id=cell.cell_id,
        repeat=cell.block.repeat,
        command=COMMAND,
        target={"name": cell.arm.name, "base_url": cell.arm.base_url},
        model=scenario.model,
        endpoint=str(scenario.endpoint),
        load="open loop",
        trace_sha256=sha256(trace),
        trace_origin=trace.origin,
        corpus_sha256=f"corpus of {sha256(trace)}",
        tokenizer_sha256="0" * 64,
        warmup_s=scenario.warmup_s,
        observation_s=round(trace.span_s - scenario.warmup_s, 6),
        drain_deadline_s=scenario.drain_deadline_s,
        seeds={"trace": cell.block.seed, "corpus": cell.block.seed, "order": scenario.order_seed},
        goodput=scenario.goodput,
        lag_tolerance_ms=scenario.lag_tolerance_ms,
        cache_salted=scenario.cache_salt,
        engine_cost_per_hour=price_of(scenario.engine_cost_per_hour, cell.arm.name),
        metadata=scenario.metadata,
        client_processes=1,
    )
    identity = {
        "hardware": {"cpu": "a processor", "cores": 2, "memory_gib": 8, "gpus": ["a GPU, 80 GiB"]},
        "hardware_id": "hw-1",
        "model_revision": "rev-1",
        "tokenizer_revision": "sha256:0",
        "engine_version": "0.32.0",
        "effective_args": {"block_size": "16"},
    }
    identity |= dict(facts.identity or {})
    return config.to_json({name: value for name, value in identity.items() if value is not None})


def _engine(facts: Facts) -> dict[str, Any]:
    """An engine that was read every second."""
    if facts.preemptions is None:
        return {}
    gauges = {"running": 0.0, "waiting": 0.0, "kv_usage_max": 0.0}
    before, after = (Reading(gauges, {"preemptions": value}, 1.0, {}) for value in (0.0, facts.preemptions))
    lines: Sequence[dict[str, Any]] = [
        {"at_ms": at * 1000.0, "running": facts.running_max, "waiting": 0.0, "kv_usage_max": facts.kv_usage_max}
        for at in range(3)
    ]
    return around.to_json({"engine": Around(before, after, "0.32.0")}, lines, 2000.0)


def _record(planned: Planned, values: Mapping[str, Any]) -> RequestRecord:
    arrival = planned.arrival
    usual: dict[str, Any] = {
        "index": planned.number,
        "request_id": f"r-{planned.number}",
        "class_name": arrival.class_name,
        "phase": planned.phase,
        "planned_ms": planned.planned_ms,
        "dispatched_ms": planned.planned_ms,
        "prompt_tokens_planned": arrival.prompt_tokens,
        "output_tokens_planned": arrival.output_tokens,
    }
    return RequestRecord(**(usual | dict(values)))


def a_manifest(folder: Path, name: str, *, policy_sha256: str = "a" * 64, baseline: Manifest | None = None) -> Path:
    """A sealed manifest of one engine behind a gateway with this policy."""
    config = "policy: mine\n"
    fields: dict[str, Any] = {
        "version": 1,
        "name": name,
        "made_at": "2026-01-01T00:00:00Z",
        "owner": "the platform",
        "deployment_revision": "r1",
        "image_digest": f"sha256:{'b' * 64}",
        "model": {"name": "tiny", "revision": "rev-1", "tokenizer_revision": "sha256:0"},
        "engines": {
            "a": {
                "url": "http://127.0.0.1:1",
                "version": "0.32.0",
                "args": {"max_num_seqs": {"value": 16, "from": "log"}},
            }
        },
        "prefix_caching": False,
        "speculation": "off",
        "routing": {"pool": "chat", "weights": {"a": 1}, "target": ["a"]},
        "health_probe": {"path": "/health", "within_s": 1},
        "capacity": {"requests_per_s": 2, "evidence": "a run"},
        "drain_deadline_s": 30,
        "abort": {"error_share_max": 0.01},
        "gateway": {
            "version": "1",
            "ops_url": "http://127.0.0.1:2",
            "file": "/etc/gateway.yaml",
            "config_sha256": hashlib.sha256(config.encode()).hexdigest(),
            "config": config,
            "policy": {"name": "mine", "sha256": policy_sha256},
        },
        "sources": {},
    }
    if baseline is not None:
        fields["baseline_sha256"] = baseline.sha256
    return sealed.write(folder, sealed.sealed(fields), name)
