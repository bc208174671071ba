"""The figures that the table of changes looks at, by arm, load and class; none where it is not known. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bench.analysis.comparison import Load
from bench.analysis.scores import BROKEN, REFUSALS, RUN_REQUESTS_MIN, answered_share, p95_of, planned
from bench.decision.acceptance import ArmStanding
from bench.decision.changes import Failure, seen
from bench.decision.evidence import Evidence, Run
from bench.decision.interference import company
from bench.decision.words import Standing


def failures(evidence: Evidence, standing: ArmStanding, *, disturb: bool) -> list[tuple[Failure, Load, str]]:
    """Of each class that the arm fails, where: rows of the table whose signs are there."""
    return [
        (failure, load, name)
        for load in evidence.agreed
        for name in evidence.class_names
        if standing.of(load, name) is Standing.FAILS
        for failure in seen(figures(evidence, standing, load, name, disturb=disturb))
    ]


def figures(evidence: Evidence, standing: ArmStanding, load: Load, name: str, *, disturb: bool) -> dict[str, float]:
    runs = evidence.of(standing.arm, load)
    by_run = [[each for each in run.stored.records if planned(each) and each.class_name == name] for run in runs]
    asked = [each for records in by_run for each in records]
    found: dict[str, float] = {"classes disturb each other": float(disturb)}
    if asked:
        found["refused"] = sum(each.outcome in REFUSALS for each in asked) / len(asked)
        found["errors"] = sum(each.outcome in BROKEN for each in asked) / len(asked)
    for rule, figure in (("first token", "first token over limit"), ("streaming", "stall over limit")):
        own = (each for each in standing.checks if (each.load, each.class_name, each.rule.name) == (load, name, rule))
        margin = next((each.margin for each in own), None)
        if margin is not None:
            found[figure] = margin
    queue = p95_of(by_run, "gateway_queue_ms", unanswered=False)
    limit = next((each.at_most_ms for each in evidence.limits.get(name, ()) if each.metric == "ttft_ms"), None)
    if queue is not None and limit is not None:
        found["gateway queue over limit"] = queue.value / limit
    found |= _answered(runs) | _company(evidence, runs, name) | engine(runs)
    if limit is not None and "engine wait ms" in found:
        found["engine wait over limit"] = found["engine wait ms"] / limit
    return found


def engine(runs: Sequence[Run]) -> dict[str, float]:
    """What the engines said during these runs; nothing where one of them did not."""
    said = [run.stored.measurements.get("engine", {}) for run in runs]
    found = {}
    used = _numbers(each.get("during", {}).get("kv_usage_max") for each in said)
    if used and len(used) == len(said):
        found["KV used"] = max(used)
    waited_s = _numbers(each.get("delta", {}).get("queue_seconds") for each in said)
    waits = _numbers(each.get("delta", {}).get("queue_observations") for each in said)
    if len(waited_s) == len(said) and len(waits) == len(said) and any(waits):
        found["engine wait ms"] = sum(waited_s) / sum(waits) * 1000
    preempted = _numbers(each.get("delta", {}).get("preemptions") for each in said)
    offered = sum(len(run.stored.records) for run in runs)
    if offered and len(preempted) == len(said):
        found["preemptions"] = sum(preempted)
        found["preemptions a request"] = sum(preempted) / offered
    return found


def _answered(runs: Sequence[Run]) -> dict[str, float]:
    share = answered_share((run.stored.window, run.stored.records) for run in runs)
    return {} if share is None else {"answered of offered": share}


def _company(evidence: Evidence, runs: Sequence[Run], name: str) -> dict[str, float]:
    each = company([run.stored.records for run in runs], name, evidence)
    found = {}
    if each.alone >= RUN_REQUESTS_MIN:
        found["late alone"] = 1 - each.alone_in_time / each.alone
    if each.together >= RUN_REQUESTS_MIN:
        found["late together"] = 1 - each.together_in_time / each.together
    if len(found) == 2:
        found["late together − late alone"] = found["late together"] - found["late alone"]
    return found


def _numbers(values: Iterable[object]) -> list[float]:
    return [float(value) for value in values if isinstance(value, int | float)]
