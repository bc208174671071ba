"""The scorecard of a folder's runs as Markdown: one row for each arm and class under a load, and what to choose."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bench.analysis.comparison import Load
from bench.analysis.measurements import ALL
from bench.analysis.scores import COST_GAIN_MIN, RUN_REQUESTS_MIN, Score, Scorecard, ScoredRun, Spread, scorecard
from bench.records.material import Material, ReportRun
from bench.tables import NOTHING, milliseconds, rate, table

_HEAD = (
    "arm", "class", "runs", "offered/s", "completed/s", "first token p95 ms", "queue p95 ms", "end to end p95 ms",
    "error rate", "refused", "in time", "preemptions", "cost of an answer",
)  # fmt: skip
_SAID = (
    "Over all VALID runs of an arm, with the lowest and highest run behind p95 and the share in time. What got no "
    "first token, or no answer, came never: later than all others; what its client left counts nowhere. Errors are all "
    "that did not complete, refusals included. The queue is the gateway's."
)


def of(material: Material) -> Scorecard:
    """Of everything that lies in a folder of records."""
    runs = [ScoredRun(run.stored.folder.name, run.as_arm_run(), preemptions(run)) for run in material.runs]
    return scorecard(
        runs,
        material.arms,
        material.limits,
        material.prices,
        repeats=material.repeats,
        again=material.again,
    )


def preemptions(run: ReportRun) -> float | None:
    """Of the engines behind it; None where they did not say, or one restarted."""
    found = run.stored.measurements.get("engine", {}).get("delta", {}).get("preemptions")
    return float(found) if isinstance(found, int | float) else None


def describe(card: Scorecard) -> str:
    """Empty where no run is VALID."""
    if not card.scores:
        return ""
    return "\n\n".join([f"### Scorecard\n\n{_SAID}", *(_load(card, load) for load in card.loads())])


def _load(card: Scorecard, load: Load) -> str:
    own = [each for each in card.scores if each.load == load]
    parts = [f"### Scorecard: {load.label}, {load.mix}", table(_HEAD, [_row(each) for each in own])]
    without = [arm for other, arm in card.unmeasured if other == load]
    runs = dict.fromkeys((each.arm, each.runs) for each in own)
    lines = [_choice(card, load), *_lacking(card, load)]
    lines += [f"no VALID run: {', '.join(without)}"] if without else []
    lines += [f"runs of {arm}: {', '.join(ids)}" for arm, ids in runs]
    return "\n\n".join([*parts, "\n".join(f"- {line}" for line in lines)])


def _choice(card: Scorecard, load: Load) -> str:
    meeting, chosen = card.meeting(load), card.choice(load)
    if chosen is None:
        everything = [name for score in card.scores if score.load == load and (name := score.class_name) != ALL]
        free = sorted({name for name in everything if _is_free(card, load, name)})
        if free:
            return f"no choice: nothing limits {', '.join(free)}"
        if few := sorted({each.class_name for each in card.scores if each.load == load and each.too_few} - {ALL}):
            return f"no choice: fewer than {RUN_REQUESTS_MIN} requests of {', '.join(few)} show no such share"
        return f"no choice: none has all its planned runs VALID and {100 * card.good_share:g}% of every class in time"
    spread = "" if card.repeats > 1 else "; one run of each shows no spread"
    by = "the lowest cost of an answer" if card.has_prices else "the least engine time for an answer"
    alike = f", or the first within {COST_GAIN_MIN:.0%} of it," if len(meeting) > 1 else ""
    return f"{chosen}: {by}{alike} of those that meet every class's limits ({', '.join(meeting)}){spread}"


def _lacking(card: Scorecard, load: Load) -> list[str]:
    arms = dict.fromkeys(each.arm for each in card.scores if each.load == load)
    counts = [(arm, card.repeats - lacking) for arm in arms if (lacking := card.lacking(load, arm))]
    words = ", ".join(f"{arm} {count}" for arm, count in counts)
    return [f"no choice, with fewer VALID runs than the {card.repeats} planned: {words}"] if words else []


def _is_free(card: Scorecard, load: Load, name: str) -> bool:
    return all(each.in_time is None for each in card.scores if (each.load, each.class_name) == (load, name))


def _row(score: Score) -> list[str]:
    return [
        score.arm,
        score.class_name,
        str(len(score.runs)),
        rate(score.offered_per_s),
        rate(score.completed_per_s),
        _latency(score.ttft_ms_p95),
        _latency(score.queue_ms_p95),
        _latency(score.e2e_ms_p95),
        _percent(score.error_share),
        _percent(score.refused_share),
        NOTHING if score.in_time is None else _shares(score.in_time),
        NOTHING if score.preemptions is None else f"{score.preemptions:.0f}",
        NOTHING if score.cost is None else f"{score.cost:.4g}",
    ]


def _latency(spread: Spread | None) -> str:
    if spread is None:
        return NOTHING
    values = (spread.value, spread.low, spread.high)
    return _with_range(["never" if math.isinf(value) else milliseconds(value) for value in values])


def _shares(spread: Spread) -> str:
    return _with_range([_percent(value) for value in (spread.value, spread.low, spread.high)])


def _with_range(words: Sequence[str]) -> str:
    value, low, high = words
    return value if low == high else f"{value} ({low}–{high})"


def _percent(share: float | None) -> str:
    return NOTHING if share is None else f"{share:.1%}"
