"""How each arm stands at the agreed load: the rules over its runs, and what an answer costs. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.analysis.comparison import Load
from bench.analysis.paired import Interval, interval
from bench.analysis.quantiles import number, share_interval
from bench.analysis.scores import Spread, p95_of, planned, requests_to_show
from bench.decision.evidence import Evidence, Run
from bench.decision.rules import RULES, Rule
from bench.decision.terms import Terms
from bench.decision.words import Standing, worst
from bench.records.request import Outcome


@dataclass(frozen=True, slots=True)
class Check:
    """One rule for one arm, load and class. share: of all requests that it says something of; lowest: of one run, or
    of all together, that can show it. requests_wanted: fewer show nothing, unless so many are bad that it is clear.
    clear_once: all together, or one run that can show it, fail by more than chance. margin: p95 over its limit, 1 at
    most where it holds; None: no such figure.
    """

    rule: Rule
    arm: str
    load: Load
    class_name: str
    runs: tuple[str, ...]
    requests: int
    requests_wanted: int
    share: float
    lowest: float
    at_least: float
    standing: Standing
    clear_once: bool
    figure: Spread | None
    limit_ms: float | None

    @property
    def clearly_fails(self) -> bool:
        """So many of all are bad that it is no chance of a few."""
        return _is_clear(round(self.share * self.requests), self.requests, self.at_least)

    @property
    def margin(self) -> float | None:
        return None if self.figure is None or self.limit_ms is None else self.figure.value / self.limit_ms

    def to_json(self) -> dict[str, Any]:
        said: dict[str, Any] = {
            "rule": self.rule.name,
            "arm": self.arm,
            "load": self.load.label,
            "mix": self.load.mix,
            "class": self.class_name,
            "standing": str(self.standing),
            "share": round(self.share, 4),
            "lowest_share": round(self.lowest, 4),
            "at_least": self.at_least,
            "requests": self.requests,
            "runs": list(self.runs),
        }
        if self.figure is not None and self.rule.metric is not None:
            said["p95_ms"] = self.figure.to_json()
        return said if self.limit_ms is None else {**said, "limit_ms": number(self.limit_ms)}


@dataclass(frozen=True, slots=True)
class ArmStanding:
    """price: of an accepted response over the agreed loads, in money where that is known, else in engine seconds.

    saving: what an answer to the same requests costs less than the baseline's, as a share, by trace.
    """

    arm: str
    standing: Standing
    checks: Sequence[Check]
    price: float | None
    saving: Interval | None = None

    def of(self, load: Load, class_name: str) -> Standing:
        return worst([each.standing for each in self.checks if (each.load, each.class_name) == (load, class_name)])

    @property
    def margin(self) -> float:
        """The fullest limit of all: p95 over the limit; where none has a figure, 1."""
        return max((each.margin for each in self.checks if each.margin is not None), default=1.0)


def stand(evidence: Evidence, arm: str, terms: Terms) -> ArmStanding:
    checks = [
        check
        for load in evidence.agreed
        for class_name in evidence.class_names
        for rule in RULES
        if (check := judged(rule, evidence.of(arm, load), class_name, evidence, terms)) is not None
    ]
    # A load that the arm was not measured at is one that it was not shown at.
    seen = {each.load for each in checks}
    standings = [each.standing for each in checks] + [Standing.UNKNOWN for load in evidence.agreed if load not in seen]
    own = [run for load in evidence.agreed for run in evidence.of(arm, load)]
    return ArmStanding(arm, worst(standings), checks, _price_of(evidence, own, _inside), saving(evidence, arm))


def judged(rule: Rule, runs: Sequence[Run], class_name: str, evidence: Evidence, terms: Terms) -> Check | None:
    """None where the rule says nothing of the class: it has no such limit, or none of it came."""
    by_run = [[each for each in run.stored.records if planned(each) and each.class_name == class_name] for run in runs]
    told = [
        [good for record in records if (good := rule.good(record, evidence.limits)) is not None] for records in by_run
    ]
    requests, met = sum(map(len, told)), sum(map(sum, told))
    if not requests:
        return None
    at_least = rule.at_least(terms)
    needs = requests_to_show(at_least)
    single = [(sum(each), len(each)) for each in told if len(each) >= needs]
    share = met / requests
    lowest = min([share, *(part / whole for part, whole in single)])
    wanted = max(terms.requests_min, needs) if lowest < at_least else terms.requests_min
    clear = _is_clear(met, requests, at_least)
    shown = requests >= needs or clear
    limits = [limit.at_most_ms for limit in evidence.limits.get(class_name, ()) if limit.metric == rule.metric]
    return Check(
        rule=rule,
        arm=runs[0].arm,
        load=runs[0].load,
        class_name=class_name,
        runs=tuple(run.run_id for run in runs),
        requests=requests,
        requests_wanted=wanted,
        share=share,
        lowest=lowest,
        at_least=at_least,
        standing=_standing(lowest >= at_least, shown, requests >= wanted and len(runs) >= terms.repeats_min),
        clear_once=clear or any(_is_clear(part, whole, at_least) for part, whole in single),
        figure=None if rule.metric is None else p95_of(by_run, rule.metric, unanswered=True),
        limit_ms=limits[0] if limits else None,
    )


def _standing(holds: bool, shown: bool, enough: bool) -> Standing:
    """What fails needs no more of it; what holds does."""
    if not holds:
        return Standing.FAILS if shown else Standing.UNKNOWN
    return Standing.HOLDS if enough else Standing.UNKNOWN


def _is_clear(good: int, requests: int, at_least: float) -> bool:
    """Whether the 95 % interval of the share ends below what is wanted."""
    return share_interval(good, requests)[1] < at_least


def _price_of(evidence: Evidence, runs: Sequence[Run], answers_of: Callable[[Run], int]) -> float | None:
    """Of an answer of one arm. All of the windows is paid for: idle time, refusals and what came too late too."""
    answers = sum(map(answers_of, runs))
    seconds = sum(run.stored.window.seconds for run in runs)
    return seconds * _per_second(evidence, runs[0].arm) / answers if answers else None


def _inside(run: Run) -> int:
    """Answers that ended in the window."""
    return len(run.stored.window.answers(run.stored.records))


def _sooner_or_later(run: Run) -> int:
    """Answers to what was planned in the window."""
    return sum(planned(each) and each.outcome is Outcome.COMPLETED for each in run.stored.records)


def _per_second(evidence: Evidence, arm: str) -> float:
    """Money where every arm's is known; engine seconds otherwise, as many for each arm."""
    return evidence.prices[arm] / 3600 if evidence.has_prices else 1.0


def saving(evidence: Evidence, arm: str) -> Interval | None:
    """By the answers to the same requests: who ends them sooner has more of them inside a window, and is no cheaper."""
    savings = []
    for load in evidence.agreed:
        first = {run.trace: run for run in evidence.of(evidence.baseline, load)}
        for run in evidence.of(arm, load):
            base = None if run.trace not in first else _price_of(evidence, [first[run.trace]], _sooner_or_later)
            own = _price_of(evidence, [run], _sooner_or_later)
            if base is not None and own is not None:
                savings.append(1 - own / base)
    return interval(savings) if savings else None
