"""Whether classes disturb each other: each by itself, and those of a class that met no other. Pure.

Isolation helps a class that is in time by itself and late in company, and no other: one that is late by itself has
limits that its engine cannot keep at that rate, however it is isolated.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from bench.analysis.comparison import Load
from bench.analysis.limits import is_good
from bench.analysis.quantiles import share_interval
from bench.analysis.scores import RUN_REQUESTS_MIN, answered_share, planned
from bench.decision import todo
from bench.decision.acceptance import ArmStanding, judged
from bench.decision.evidence import Evidence, Run
from bench.decision.rules import RULES, SAME_EVERYWHERE, identity
from bench.decision.terms import Terms
from bench.decision.words import Finding, Stage, Standing, worst
from bench.records.request import Phase, RequestRecord

RATE_TOLERATED = 0.95  # of a class's own rate in the mix: a run of it alone at less shows nothing
LENGTH_TOLERATED = 0.9  # of its mean length in the mix: nor does one of shorter requests
FITS_SHARE = 0.95  # of the offered load, answered inside the window: the engine carries the work


@dataclass(frozen=True, slots=True)
class Company:
    """Requests of a class, by whether one of another class was there between its arrival and its first token."""

    alone: int
    alone_in_time: int
    together: int
    together_in_time: int


def interference(evidence: Evidence, standings: Sequence[ArmStanding], terms: Terms) -> list[Finding]:
    """One finding for each class that some arm fails, at each agreed load; and whether the load fits at all."""
    found: list[Finding] = []
    for load in evidence.agreed:
        late = [
            name for name in evidence.class_names if any(each.of(load, name) is Standing.FAILS for each in standings)
        ]
        if not late or len(evidence.class_names) < 2:
            continue
        by_itself = [_by_itself(evidence, load, name, terms) for name in evidence.class_names]
        if Standing.UNKNOWN in {each.standing for each in by_itself} and not any(
            each.standing is Standing.FAILS for each in by_itself
        ):
            seen = [_in_company(evidence, load, name, standings, terms) for name in late]
            if all(each.standing is Standing.HOLDS for each in seen):
                found += seen
                continue
        found += by_itself
    return found


def _by_itself(evidence: Evidence, load: Load, name: str, terms: Terms) -> Finding:
    mixed = [run for run in evidence.runs if run.load == load]
    rate, _ = _offered(mixed, name)
    ways: tuple[str, ...] = ()
    shown = _shown_alone(evidence, mixed, name, terms)
    ids = tuple(sorted(run.run_id for _, _, runs in shown for run in runs))
    where = f"{name} alone at {rate:.3g}/s"
    if arms := sorted({arm for arm, standing, _ in shown if standing is Standing.HOLDS}):
        says, standing = f"{where} is in time: {', '.join(arms)}", Standing.HOLDS
    elif shown and all(standing is Standing.FAILS for _, standing, _ in shown):
        says = f"{where} is late too: no isolation helps it; its limits ask for a faster engine, or a lower rate"
        standing = Standing.FAILS
    else:
        says = f"{where} was measured too little" if shown else f"{where} was not measured on the same thing"
        standing, ways = Standing.UNKNOWN, todo.alone(evidence, load, name, rate)
    return _finding("each class by itself", standing, says, (load, name), ids, *ways)


def _shown_alone(
    evidence: Evidence, mixed: Sequence[Run], name: str, terms: Terms
) -> list[tuple[str, Standing, list[Run]]]:
    """By arm and load, how a class by itself stands, where that says something of it as it comes in the mix: in time at
    less than that says nothing, and neither does late at more.
    """
    rate, tokens = _offered(mixed, name)
    by_load: dict[tuple[str, Load], list[Run]] = {}
    for run in evidence.runs:
        if run.class_names == {name} and _is_of_one_thing(run, mixed):
            by_load.setdefault((run.arm, run.load), []).append(run)
    shown = []
    for (arm, _), runs in by_load.items():
        own_rate, own_tokens = _offered(runs, name)
        checks = [check for rule in RULES if (check := judged(rule, runs, name, evidence, terms)) is not None]
        standing = worst([each.standing for each in checks])
        is_less = own_rate < RATE_TOLERATED * rate or own_tokens < LENGTH_TOLERATED * tokens
        is_more = own_rate * RATE_TOLERATED > rate or own_tokens * LENGTH_TOLERATED > tokens
        if not is_less and not (is_more and standing is Standing.FAILS):
            shown.append((arm, standing, runs))
    return shown


def _in_company(evidence: Evidence, load: Load, name: str, standings: Sequence[ArmStanding], terms: Terms) -> Finding:
    """The class fails in every arm though the load fits, and where it met no other class it was in time."""
    rule = "late in company alone"
    failing = [each.arm for each in standings if each.of(load, name) is Standing.FAILS]
    runs = [run for arm in failing for run in evidence.of(arm, load)]
    ids = tuple(run.run_id for run in runs)
    if len(failing) < len(standings) or len(standings) < 2:
        return _finding(
            rule, Standing.UNKNOWN, f"{name} is late in {len(failing)} of {len(standings)} arms", (load, name), ids
        )
    if not any(_fits(evidence.of(each.arm, load)) for each in standings):
        return _finding(
            rule, Standing.UNKNOWN, "no arm answers what is offered: the load does not fit", (load, name), ids
        )
    each = company([run.stored.records for run in runs], name, evidence)
    if each.alone < RUN_REQUESTS_MIN or each.together < RUN_REQUESTS_MIN:
        return _finding(
            rule,
            Standing.UNKNOWN,
            f"{each.alone} of {name} met as many of their own class as usual and no other: too few",
            (load, name),
            ids,
        )
    share, other = each.alone_in_time / each.alone, each.together_in_time / each.together
    says = f"{share:.0%} of {each.alone} {name} that met no other class in time, {other:.0%} of {each.together} others"
    low, _ = share_interval(each.alone_in_time, each.alone)
    _, high = share_interval(each.together_in_time, each.together)
    holds = share >= terms.good_share > other and low > high
    return _finding(rule, Standing.HOLDS if holds else Standing.UNKNOWN, says, (load, name), ids)


def company(by_run: Sequence[Sequence[RequestRecord]], name: str, evidence: Evidence) -> Company:
    """Alone are those alone that met as many of their own class as is usual: an empty engine makes anybody quick."""
    met = [one for records in by_run for one in _met(records, name)]
    usual = median([own for _, own, _ in met]) if met else 0
    alone = [is_good(each, evidence.limits) for each, own, others in met if not others and own >= usual]
    together = [is_good(each, evidence.limits) for each, _, others in met if others]
    return Company(len(alone), sum(map(bool, alone)), len(together), sum(map(bool, together)))


def _met(records: Sequence[RequestRecord], name: str) -> Iterator[tuple[RequestRecord, int, int]]:
    """Each request of the class that is of the window, and how many there were from its arrival to its first token:
    of its own class at its arrival, of others until its first token.
    """
    own = _Crowd([each for each in records if each.class_name == name])
    others = _Crowd([each for each in records if each.class_name != name])
    for each in records:
        if each.class_name == name and planned(each):
            until_ms = each.first_token_ms if each.first_token_ms is not None else _left_ms(each)
            yield (
                each,
                own.between(each.planned_ms, each.planned_ms) - 1,
                others.between(each.planned_ms, until_ms),
            )


class _Crowd:
    """How many of these requests were there between two instants."""

    def __init__(self, records: Sequence[RequestRecord]) -> None:
        self._came = sorted(each.planned_ms for each in records)
        self._left = sorted(map(_left_ms, records))

    def between(self, from_ms: float, until_ms: float) -> int:
        return bisect_right(self._came, until_ms) - bisect_left(self._left, from_ms)


def _left_ms(record: RequestRecord) -> float:
    return float("inf") if record.ended_ms is None else record.ended_ms


def _fits(runs: Sequence[Run]) -> bool:
    share = answered_share((run.stored.window, run.stored.records) for run in runs)
    return share is not None and share >= FITS_SHARE


def _offered(runs: Sequence[Run], name: str) -> tuple[float, float]:
    """Requests of the class a second, and the mean of their tokens, prompt and answer."""
    own = [
        each for run in runs for each in run.stored.records if each.class_name == name and each.phase is Phase.WINDOW
    ]
    tokens = sum(each.prompt_tokens_planned + each.output_tokens_planned for each in own)
    return len(own) / sum(run.stored.window.seconds for run in runs), tokens / max(1, len(own))


def _is_of_one_thing(run: Run, others: Sequence[Run]) -> bool:
    """A class that is in time on another machine, or another version, shows nothing here."""
    return all(
        identity(run.stored.run, key) in [identity(other.stored.run, key) for other in others]
        for key in SAME_EVERYWHERE
    )


def _finding(
    rule: str, standing: Standing, says: str, where: tuple[Load, str], runs: tuple[str, ...], *ways: str
) -> Finding:  # fmt: skip
    load, name = where
    return Finding(Stage.ACCEPTANCE, rule, standing, says, None, f"{load.label}, {load.mix}", name, runs, ways)
