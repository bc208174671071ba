"""The scorecard's figures: of each arm under each load, by class and in all, over its VALID runs; and its choice. Pure.

A request that its own client left because the trace said so is in no share and no quantile. Of all others those without
a first token, or without an answer, count as infinitely late: a target that refuses does not look fast.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.analysis.classes import Window
from bench.analysis.comparison import ArmRun, Load
from bench.analysis.cost import cost
from bench.analysis.limits import Limits, is_good
from bench.analysis.measurements import ALL, each_class
from bench.analysis.quantiles import number, quantile
from bench.records.request import Outcome, Phase, RequestRecord

QUANTILE = 0.95
GOOD_SHARE = 0.95  # of the requests of a class, completed within all its limits: what a p95 limit asks for
COST_GAIN_MIN = 0.05  # what an answer has to cost less, as a share, to be worth a change
PREEMPTIONS_NOTED = 0.01  # of the requests: work that is thrown away so often is a sign of too little KV
BEHIND_NOTED = 0.1  # of what was offered in the window, not answered in it
KV_PRESSING = 0.95  # of the KV cache in use
REFUSALS = (Outcome.REFUSED, Outcome.EXPIRED)
# An end that is an error and no answer to load.
BROKEN = (Outcome.FAILED, Outcome.TIMED_OUT, Outcome.UNFINISHED, Outcome.UNSENT)


def requests_to_show(share: float) -> int:
    """As many as it takes for one bad one alone not to be below the share; one, where none may be bad."""
    return 1 if share >= 1 else math.ceil(1 / (1 - share) - 1e-9)


# The share shows in a single run only where it has so many requests; fewer are judged over all runs together.
RUN_REQUESTS_MIN = requests_to_show(GOOD_SHARE)


def worth_no_change(costs: Mapping[str, float], gain_min: float = COST_GAIN_MIN) -> list[str]:
    """Of these, in their order, the cheapest, and those against which it saves too little."""
    lowest = min(costs.values(), default=math.inf)
    return [name for name, cost in costs.items() if cost == lowest or cost * (1 - gain_min) < lowest]


@dataclass(frozen=True, slots=True)
class ScoredRun:
    """preemptions: of its engines; None where that is not known."""

    run_id: str
    run: ArmRun
    preemptions: float | None = None


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over the requests of all runs together, and the lowest and highest of the single runs."""

    value: float
    low: float
    high: float

    def to_json(self) -> dict[str, Any]:
        return {name: number(getattr(self, name)) for name in ("value", "low", "high")}


@dataclass(frozen=True, slots=True)
class Score:
    """One class, or `all`, of one arm under one load. None: not measured, or not of one class alone.

    in_time: the share completed within all limits; None without limits. cost: of an accepted response, of `all` alone,
    because the classes share the engine. engine_seconds: that the window takes for an accepted response.
    """

    load: Load
    arm: str
    class_name: str
    runs: tuple[str, ...]
    requests: int
    offered_per_s: float
    completed_per_s: float
    ttft_ms_p95: Spread | None
    queue_ms_p95: Spread | None
    e2e_ms_p95: Spread | None
    error_share: float | None
    refused_share: float | None
    in_time: Spread | None
    in_time_shown: float | None
    preemptions: float | None
    cost: float | None

    @property
    def too_few(self) -> bool:
        """Its limits are known, and so few of it came that a share of 95 % cannot show."""
        return self.in_time is not None and self.in_time_shown is None

    @property
    def engine_seconds(self) -> float | None:
        return 1 / self.completed_per_s if self.completed_per_s else None

    def meets(self, good_share: float) -> bool | None:
        """In every run that can show it, and in all together; None where nothing limits the class, or it is too few."""
        return None if self.in_time_shown is None else self.in_time_shown >= good_share

    def to_json(self) -> dict[str, Any]:
        said: dict[str, Any] = {
            "load": self.load.label,
            "rate_per_s": round(self.load.rate_per_s, 6),
            "mix": self.load.mix,
            "arm": self.arm,
            "class": self.class_name,
            "runs": list(self.runs),
            "requests": self.requests,
            "offered_per_s": round(self.offered_per_s, 4),
            "completed_per_s": round(self.completed_per_s, 4),
        }
        for name in ("ttft_ms_p95", "queue_ms_p95", "e2e_ms_p95", "in_time"):
            spread: Spread | None = getattr(self, name)
            if spread is not None:
                said[name] = spread.to_json()
        single = {
            "error_share": self.error_share,
            "refused_share": self.refused_share,
            "preemptions": self.preemptions,
            "cost_per_accepted_response": self.cost,
        }
        return said | {name: float(f"{value:.6g}") for name, value in single.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Scorecard:
    """scores: of loads, arms and classes in their own order. unmeasured: arms without a VALID run of a load.

    repeats: runs that were planned of each arm under each load. has_prices: what an hour costs is known of every arm.
    again: arms that are the first one once more, and so no choice.
    """

    scores: Sequence[Score]
    unmeasured: Sequence[tuple[Load, str]]
    repeats: int
    has_prices: bool
    again: Sequence[str] = ()
    good_share: float = GOOD_SHARE

    def loads(self) -> list[Load]:
        return list(dict.fromkeys(each.load for each in self.scores))

    def of(self, load: Load, arm: str) -> dict[str, Score]:
        return {each.class_name: each for each in self.scores if (each.load, each.arm) == (load, arm)}

    def lacking(self, load: Load, arm: str) -> int:
        """Planned runs without a VALID one: what they would show is not known, so that the arm is no choice."""
        return max(0, self.repeats - len(self.of(load, arm)[ALL].runs))

    def meeting(self, load: Load) -> list[str]:
        """The arms that meet the limits of every class, over all runs that were planned of them."""
        arms = dict.fromkeys(each.arm for each in self.scores if each.load == load and each.arm not in self.again)
        return [arm for arm in arms if self._meets(load, arm)]

    def choice(self, load: Load) -> str | None:
        """Of those that meet every class's limits the cheapest answer, not the most answers; None: none meets them.

        The first of those that cost about the same.
        """
        return next(iter(worth_no_change({arm: self.price(load, arm) for arm in self.meeting(load)})), None)

    def price(self, load: Load, arm: str) -> float:
        """Of an answer: in money where every arm's is known, else in the time of engines, alike for each arm."""
        everything = self.of(load, arm)[ALL]
        found = everything.cost if self.has_prices else everything.engine_seconds
        return math.inf if found is None else found

    def to_json(self) -> dict[str, Any]:
        return {
            "good_share": self.good_share,
            "runs_planned_of_each": self.repeats,
            "rows": [each.to_json() for each in self.scores],
            "choices": [
                {"load": load.label, "mix": load.mix, "meeting": self.meeting(load)}
                | ({} if (chosen := self.choice(load)) is None else {"choice": chosen})
                for load in self.loads()
            ],
            "unmeasured": [{"load": load.label, "mix": load.mix, "arm": arm} for load, arm in self.unmeasured],
        }

    def _meets(self, load: Load, arm: str) -> bool:
        own = [each.meets(self.good_share) for name, each in self.of(load, arm).items() if name != ALL]
        return bool(own) and all(own) and not self.lacking(load, arm)


def scorecard(
    runs: Sequence[ScoredRun],
    arms: Sequence[str],
    limits: Limits,
    prices: Mapping[str, float],
    *,
    repeats: int,
    again: Sequence[str] = (),
) -> Scorecard:
    """arms: in the order of the scenario. prices: by arm, what an hour of the engines behind it costs, where that is
    known. repeats: as planned.

    Each VALID run of an arm counts, whatever became of the other arms' runs: one that fails cannot be hidden.
    """
    scores: list[Score] = []
    unmeasured: list[tuple[Load, str]] = []
    for load in sorted({each.run.load for each in runs}, key=lambda load: (load.mix, load.rate_per_s, load.label)):
        for arm in arms:
            own = [each for each in runs if (each.run.load, each.run.arm) == (load, arm) and each.run.valid]
            if own:
                scores += _scores(load, arm, sorted(own, key=lambda each: each.run_id), limits, prices.get(arm))
            else:
                unmeasured.append((load, arm))
    has_prices = {arm for arm in arms if arm not in again} <= prices.keys()
    return Scorecard(scores, unmeasured, repeats, has_prices, again)


def planned(record: RequestRecord) -> bool:
    """Whether a request is of the window, and its client wanted the answer."""
    return record.phase is Phase.WINDOW and record.outcome is not Outcome.CANCELLED


def answered_share(runs: Iterable[tuple[Window, Sequence[RequestRecord]]]) -> float | None:
    """Answers that ended in the windows over what was planned in them and wanted; None: nothing was."""
    wanted = answers = 0
    for window, records in runs:
        wanted += sum(map(planned, records))
        answers += len(window.answers(records))
    return answers / wanted if wanted else None


def _scores(load: Load, arm: str, runs: Sequence[ScoredRun], limits: Limits, per_hour: float | None) -> list[Score]:
    window_s = sum(each.run.window.seconds for each in runs)
    in_window = [record for each in runs for record in each.run.records if record.phase is Phase.WINDOW]
    answers = [record for each in runs for record in each.run.window.answers(each.run.records)]
    names = sorted({record.class_name for record in in_window}, reverse=True)
    measured = each_class(names, in_window, answers, window_s=window_s, limits=limits)
    preemptions = [each.preemptions for each in runs]
    known = [value for value in preemptions if value is not None]
    scores = []
    for name, own in measured.items():
        by_run = [[r for r in each.run.records if planned(r) and name in (r.class_name, ALL)] for each in runs]
        asked = [record for records in by_run for record in records]
        ends = [record.outcome for record in asked]
        in_time, shown = _in_time(by_run, limits)
        scores.append(
            Score(
                load=load,
                arm=arm,
                class_name=name,
                runs=tuple(each.run_id for each in runs),
                requests=len(asked),
                offered_per_s=own.offered / window_s,
                completed_per_s=own.completed_per_s,
                ttft_ms_p95=p95_of(by_run, "ttft_ms", unanswered=True),
                queue_ms_p95=p95_of(by_run, "gateway_queue_ms", unanswered=False),
                e2e_ms_p95=p95_of(by_run, "e2e_ms", unanswered=True),
                error_share=_share(end is not Outcome.COMPLETED for end in ends),
                refused_share=_share(end in REFUSALS for end in ends),
                in_time=in_time,
                in_time_shown=shown,
                preemptions=sum(known) if name == ALL and len(known) == len(preemptions) else None,
                cost=cost(own, per_hour).per_accepted_response if name == ALL and per_hour is not None else None,
            )
        )
    return scores


def p95_of(by_run: Sequence[Sequence[RequestRecord]], metric: str, *, unanswered: bool) -> Spread | None:
    """Of all runs' requests, and of each run's. unanswered: a request without the value counts, as infinite."""

    def of(records: Iterable[RequestRecord]) -> float | None:
        values = [math.inf if value is None else value for record in records
                  if (value := getattr(record, metric)) is not None or unanswered]  # fmt: skip
        found = quantile(sorted(values), QUANTILE)
        return None if found is None else found.value

    return _spread(of(record for records in by_run for record in records), [of(records) for records in by_run])


def _in_time(by_run: Sequence[Sequence[RequestRecord]], limits: Limits) -> tuple[Spread | None, float | None]:
    """The share in time, and the lowest that counts: of all runs together, or of one that can show it, if any."""

    def of(records: Sequence[RequestRecord]) -> float | None:
        judged = [is_good(record, limits) for record in records]
        return None if None in judged else _share(bool(good) for good in judged)

    pooled = of([record for records in by_run for record in records])
    if pooled is None:
        return None, None
    can_show = [share for each in by_run if len(each) >= RUN_REQUESTS_MIN and (share := of(each)) is not None]
    shown = min([pooled, *can_show]) if sum(map(len, by_run)) >= RUN_REQUESTS_MIN else None
    return _spread(pooled, [of(each) for each in by_run]), shown


def _spread(pooled: float | None, single: Sequence[float | None]) -> Spread | None:
    known = [value for value in single if value is not None]
    return None if pooled is None or not known else Spread(pooled, min(known), max(known))


def _share(each: Iterable[bool]) -> float | None:
    seen = list(each)
    return sum(seen) / len(seen) if seen else None
