"""Admission that is too open shows between two arms alone: as much was answered, but later, and more requests were in
the engine without a first token. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.analysis.measurements import ALL, by_class
from bench.diagnosis.advice import ADVICE
from bench.diagnosis.figures import Figures
from bench.diagnosis.findings import Certainty, Evidence, Finding, shown
from bench.diagnosis.rules import Constraint, Show
from bench.records.stored import StoredRun

ANSWERED_AT_LEAST = 0.98  # of what the other arm answers
LATER_TIMES = 1.25
EARLIER_TIMES = 0.8
HELD_MORE_MS = 10.0
TRACES_SURE = 3


@dataclass(frozen=True, slots=True)
class Seen:
    """One VALID run."""

    run: StoredRun
    figures: Figures


def too_open(
    own: Mapping[str, Seen], others: Mapping[str, Mapping[str, Seen]], words: Mapping[str, str]
) -> Finding | None:
    """own: an arm's runs by trace, at one load; others: the same of each other arm. The clearest pair, or None."""
    found = [_against(own, name, other, words) for name, other in others.items()]
    return max((each for each in found if each is not None), key=lambda each: each.weight, default=None)


def _against(own: Mapping[str, Seen], name: str, other: Mapping[str, Seen], words: Mapping[str, str]) -> Finding | None:
    """It has to hold on every trace that both had."""
    pairs = [(own[trace], other[trace]) for trace in own if trace in other]
    if not pairs:
        return None
    for figure in ("prefilling_mean", "completed_per_s"):
        if any(not each.figures.get(figure) for pair in pairs for each in pair):
            return None
    answered = [_ratio(mine, theirs, "completed_per_s") for mine, theirs in pairs]
    unanswered = [_ratio(mine, theirs, "prefilling_mean") for mine, theirs in pairs]
    times = _times(pairs)
    later = {of: each for of, each in times.items() if min(each) >= LATER_TIMES}
    if min(answered) < ANSWERED_AT_LEAST or not later:
        return None
    if any(_held(theirs) < _held(mine) + HELD_MORE_MS for mine, theirs in pairs):
        return None  # the other admits no less: it differs in something else
    runs = [mine.run.folder.name for mine, _ in pairs]

    def said(says: str, show: Show, figure: str, values: Sequence[float]) -> Evidence:
        return Evidence(says.format(shown(show, values)), figure, dict(zip(runs, values, strict=True)))

    p95 = f"the p95 time to first token of {{}} was {{{{}}}} that of {name}"
    evidence = [
        said(f"completed/s were {{}} those of {name}", "times", "completed_per_s", answered),
        *(said(p95.format(of), "times", f"ttft_p95_{of}", each) for of, each in later.items()),
        said(
            f"{{}} as many as under {name} were at the engine without a first token", "times", "prefilling", unanswered
        ),
        said("the gateway held a request for {} on average", "ms", "gateway_ms", [_held(mine) for mine, _ in pairs]),
        said(f"under {name} for {{}}", "ms", "gateway_ms_other", [_held(theirs) for _, theirs in pairs]),
    ]
    against = [
        said(p95.format(of), "times", f"ttft_p95_{of}", each)
        for of, each in times.items()
        if max(each) <= EARLIER_TIMES
    ]
    missing = [] if len(pairs) >= TRACES_SURE else [f"only {len(pairs)} traces that both arms had: add --seeds"]
    return Finding(
        constraint=Constraint.ADMISSION_OPEN,
        certainty=_certainty(len(pairs), doubted=bool(against)),
        strength=1 - 1 / max(min(each) for each in later.values()),
        evidence=evidence,
        against=against,
        missing=missing,
        runs=runs,
        judged=len(pairs),
        command=ADVICE[Constraint.ADMISSION_OPEN].command.format_map(words),
    )


def _certainty(traces: int, *, doubted: bool) -> Certainty:
    if doubted or traces == 1:
        return Certainty.POSSIBLE
    return Certainty.SURE if traces >= TRACES_SURE else Certainty.LIKELY


def _held(seen: Seen) -> float:
    return seen.figures.get("gateway_ms", 0.0)


def _times(pairs: Sequence[tuple[Seen, Seen]]) -> dict[str, list[float]]:
    """Of each class, how many times as late its p95 is on each trace."""
    each = [(_p95s(mine.run), _p95s(theirs.run)) for mine, theirs in pairs]
    shared = set.intersection(*(set(mine) & set(theirs) for mine, theirs in each)) - {ALL}
    return {name: [mine[name] / theirs[name] for mine, theirs in each] for name in sorted(shared)}


def _p95s(run: StoredRun) -> dict[str, float]:
    """Over all that were offered; where that falls among the unanswered there is no ratio of it."""
    measured = by_class(run.records, window=run.window, limits={})
    values = {name: each.samples["ttft_ms_over_offered"].value("p95") for name, each in measured.items()}
    return {name: value for name, value in values.items() if value is not None and 0 < value < float("inf")}


def _ratio(mine: Seen, theirs: Seen, figure: str) -> float:
    return mine.figures[figure] / theirs.figures[figure]
