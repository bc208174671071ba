"""A decision as Markdown and as a record: the verdict first, then what it stands on, stage by stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.analysis.comparison import Load
from bench.decision.acceptance import ArmStanding, Check
from bench.decision.changes import FAILURES, Failure
from bench.decision.evidence import Evidence
from bench.decision.questions import Answer, ways
from bench.decision.verdict import Decision
from bench.decision.words import NOT_ANEW, Finding, Stage, Standing, Verdict
from bench.tables import NOTHING, milliseconds, table

SCHEMA_VERSION = 1
_CHECKS = (
    "arm", "load", "mix", "class", "rule", "stands", "share", "lowest run", "wanted", "requests", "runs", "p95 ms",
    "limit ms",
)  # fmt: skip
_WHY_SHOWN = 4
_COSTS = ("arm", "every class", "cost of an answer", "less than the baseline", "fullest limit")


def describe(evidence: Evidence, decision: Decision, answers: Sequence[Answer]) -> str:
    parts = [
        f"# {headline(decision)}",
        _said(evidence, decision),
        *(_stage(decision, stage) for stage in Stage),
        _checks(decision),
        _costs(evidence, decision),
        _table(decision.table),
        _answers(answers),
        _todo(ways(evidence, decision, answers)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def headline(decision: Decision) -> str:
    if decision.verdict is Verdict.RETUNE:
        return f"{decision.verdict} to {decision.arm}"
    measured = decision.standing(decision.arm).standing is Standing.HOLDS
    return (
        f"{decision.verdict}: {decision.arm}"
        if decision.verdict is Verdict.ISOLATE and measured
        else str(decision.verdict)
    )


def to_json(evidence: Evidence, decision: Decision, answers: Sequence[Answer], terms: dict[str, Any]) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": str(decision.verdict),
        "serves": decision.arm,
        "on_load_alone": {"verdict": str(decision.on_load_alone), "arm": decision.on_load_alone_arm},
        "terms": terms,
        "records": [str(record.folder) for record in evidence.records],
        "without": list(evidence.without),
        "agreed": [_load(load) for load in evidence.agreed],
        "findings": [each.to_json() for each in decision.findings],
        "arms": [_arm(each) for each in decision.standings],
        "failures": [_failure(*each) for each in decision.table],
        "questions": [each.to_json() for each in answers],
        "todo": ways(evidence, decision, answers),
    }


def _said(evidence: Evidence, decision: Decision) -> str:
    lines = [f"baseline {evidence.baseline}; measured beside it: {', '.join(evidence.candidates) or 'nothing'}"]
    lines += [f"left out: {', '.join(evidence.without)}"] if evidence.without else []
    lines.append(f"agreed load: {'; '.join(f'{load.label}, {load.mix}' for load in evidence.agreed)}")
    if decision.verdict is not decision.on_load_alone:
        arm = "" if decision.on_load_alone_arm == evidence.baseline else f", {decision.on_load_alone_arm}"
        lines.append(f"the measured load alone says: {decision.on_load_alone}{arm}")
    why = decision.why()
    lines += [f"{each.standing}: {_one(each)}" for each in why[:_WHY_SHOWN]]
    lines += [f"and {len(why) - _WHY_SHOWN} more, below"] if len(why) > _WHY_SHOWN else []
    return "\n".join(f"- {line}" for line in lines)


def _stage(decision: Decision, stage: Stage) -> str:
    title = f"## {str(stage).capitalize()}"
    found = decision.stage(stage)
    if not found:
        return f"{title}\n\nNot looked at: {_why_not(decision, stage)}."
    return "\n\n".join(
        [title, "\n".join(f"- {each.standing}: {_one(each)} {_ids(each.runs)}".rstrip() for each in found)]
    )


def _one(each: Finding) -> str:
    where = ", ".join(word for word in (each.arm, each.load, each.class_name) if word)
    return f"{each.rule}{f' ({where})' if where else ''}: {each.says}"


def _why_not(decision: Decision, stage: Stage) -> str:
    if decision.on_load_alone is Verdict.MISSING:
        return "what is measured does not get so far"
    if decision.on_load_alone is Verdict.KEEP:
        return "nothing changes that would have to be taken back" if stage is Stage.RECOVERY else "it is not wanted"
    return "it is for what is built then"


def _ids(runs: Sequence[str]) -> str:
    """All of them are in decision.json."""
    return "" if not runs else f"[{runs[0]}]" if len(runs) == 1 else f"[{runs[0]} and {len(runs) - 1} more]"


def _checks(decision: Decision) -> str:
    rows = [
        _check(check)
        for each in decision.standings
        for check in each.checks
        if check.limit_ms is not None or check.standing is Standing.FAILS
    ]
    said = (
        "Of the requests of a class, those that the rule calls good: over all runs, and in the lowest run that can "
        "show such a share. p95 with the lowest and highest run; who got no answer came never. Completion, errors and "
        "quality are named where they fail; decision.json has all."
    )
    return f"### Limits\n\n{said}\n\n{table(_CHECKS, rows)}" if rows else ""


def _check(each: Check) -> list[str]:
    p95 = NOTHING
    if each.figure is not None and each.limit_ms is not None:
        value, low, high = (milliseconds(one) for one in (each.figure.value, each.figure.low, each.figure.high))
        p95 = f"{value} ({low}–{high})".replace("inf", "never")
    return [
        each.arm,
        each.load.label,
        each.load.mix,
        each.class_name,
        each.rule.name,
        str(each.standing),
        f"{each.share:.1%}",
        f"{each.lowest:.1%}",
        f"{100 * each.at_least:g}%",
        str(each.requests),
        str(len(each.runs)),
        p95,
        NOTHING if each.limit_ms is None else milliseconds(each.limit_ms),
    ]


def _costs(evidence: Evidence, decision: Decision) -> str:
    known = evidence.has_prices
    rows = []
    for each in decision.standings:
        saving = NOTHING if each.saving is None or each.arm == evidence.baseline else f"{each.saving.mean:.1%}"
        price = NOTHING if each.price is None else f"{each.price:.4g}{'' if known else ' s'}"
        rows.append([each.arm, str(each.standing), price, saving, f"{each.margin:.0%}".replace("inf%", "never")])
    said = "" if known else "No price is known: an answer costs the engine's time.\n\n"
    return f"### Cost of an accepted response\n\n{said}{table(_COSTS, rows)}"


def _table(found: Sequence[tuple[Failure, Load, str]]) -> str:
    if not found:
        return ""
    places: dict[str, list[str]] = {}
    for failure, load, name in found:
        places.setdefault(failure.name, []).append(f"{name} at {load.label}, {load.mix}")
    rows = [
        [
            failure.name,
            "; ".join(places[failure.name]),
            ", ".join(failure.justifies),
            "; ".join(f"{change} ({why})" for change, why in failure.does_not.items()),
        ]
        for failure in FAILURES
        if failure.name in places
    ]
    head = ("failure of the baseline", "seen of", "justifies", "does not justify")
    return f"### Which failure justifies which change\n\n{table(head, rows)}"


def _answers(answers: Sequence[Answer]) -> str:
    parts = ["## The five questions"]
    for number, each in enumerate(answers, 1):
        lines = [*each.says, *(f"run: {way}" for way in each.todo)]
        lines += ["run: see the end"] if each.anew != NOT_ANEW else []
        parts.append(f"### {number}. {each.question}")
        parts.append(f"{each.answer[0].upper()}{each.answer[1:]}.")
        parts += ["\n".join(f"- {line}" for line in lines)] if lines else []
    return "\n\n".join(parts)


def _todo(commands: Sequence[str]) -> str:
    return "## To show what is not shown\n\n" + "\n".join(f"- {each}" for each in commands) if commands else ""


def _load(load: Load) -> dict[str, Any]:
    return {"load": load.label, "rate_per_s": round(load.rate_per_s, 6), "mix": load.mix}


def _arm(each: ArmStanding) -> dict[str, Any]:
    said: dict[str, Any] = {"arm": each.arm, "standing": str(each.standing)}
    if each.price is not None:
        said["price_of_an_answer"] = float(f"{each.price:.6g}")
    if each.saving is not None:
        said["saving"] = each.saving.to_json()
    return {**said, "checks": [check.to_json() for check in each.checks]}


def _failure(failure: Failure, load: Load, name: str) -> dict[str, Any]:
    return {
        "failure": failure.name,
        **_load(load),
        "class": name,
        "justifies": [str(change) for change in failure.justifies],
        "does_not_justify": {str(change): why for change, why in failure.does_not.items()},
    }
