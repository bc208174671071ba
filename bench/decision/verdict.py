"""The verdict: the four stages in order, over the rules. Pure.

Nothing that is not shown is taken for granted: a verdict stands where every stage that it wants holds, and is
`keep the baseline: evidence missing` otherwise, with what the measured load alone would say beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bench.analysis.comparison import ArmRun, Load
from bench.analysis.paired import Difference, Interval, differences
from bench.analysis.scores import worth_no_change
from bench.decision import drills, recovery, todo
from bench.decision.acceptance import ArmStanding, Check, saving, stand
from bench.decision.changes import Failure
from bench.decision.drills import Drilled
from bench.decision.evidence import Evidence
from bench.decision.interference import interference
from bench.decision.recovery import Recovery
from bench.decision.symptoms import failures
from bench.decision.terms import Terms
from bench.decision.validity import validity
from bench.decision.words import WANTED, Anew, Finding, Stage, Standing, Verdict, worst

WAITS = {"ttft_ms_p95": "ttft", "e2e_ms_p95": "e2e", "longest_stall_ms_p95": "stall"}


@dataclass(frozen=True, slots=True)
class Decision:
    """arm: what serves if the verdict is followed: the baseline too where isolation is to be built first.

    on_load_alone: what the load says, without faults and recovery.
    """

    verdict: Verdict
    arm: str
    on_load_alone: Verdict
    on_load_alone_arm: str
    standings: Sequence[ArmStanding]
    findings: Sequence[Finding]
    table: Sequence[tuple[Failure, Load, str]]

    def why(self) -> list[Finding]:
        """What keeps a verdict from standing: all that is wanted and does not hold, in the order of the stages."""
        if self.verdict is not Verdict.MISSING:
            return []
        open_ = [each for each in self.findings if each.standing is not Standing.HOLDS]
        if self.on_load_alone is Verdict.MISSING:
            late = [each for each in open_ if each.stage is Stage.ACCEPTANCE]
            unknown = [each for each in late if each.standing is Standing.UNKNOWN]
            return [each for each in open_ if each.stage is Stage.VALIDITY] + (unknown or late)
        return [each for each in open_ if each.stage is not Stage.ACCEPTANCE]

    def stage(self, stage: Stage) -> list[Finding]:
        return [each for each in self.findings if each.stage is stage]

    def standing(self, arm: str) -> ArmStanding:
        return next(each for each in self.standings if each.arm == arm)


def decide(evidence: Evidence, terms: Terms, held: Sequence[Drilled], found: Recovery) -> Decision:
    standings = [_baseline(evidence, terms), *(stand(evidence, arm, terms) for arm in evidence.candidates)]
    on_load, arm, accepted = _on_load(evidence, standings, terms)
    findings = [*validity(evidence), *accepted]
    # Engines apart that are there are rolled out as any other change is.
    is_there = on_load is Verdict.ISOLATE and arm != evidence.baseline
    wanted = WANTED[Verdict.RETUNE if is_there else on_load]
    if Stage.FAULTS in wanted:
        findings += drills.faults(evidence, arm, held, terms)
    if Stage.RECOVERY in wanted:
        findings += recovery.recovery(evidence, arm, found)
    late = [each for each in findings if each.standing is not Standing.HOLDS and each.stage is not Stage.ACCEPTANCE]
    verdict = Verdict.MISSING if late else on_load
    is_disturbed = on_load is Verdict.ISOLATE
    return Decision(
        verdict=verdict,
        arm=arm if verdict in (Verdict.RETUNE, Verdict.ISOLATE) else evidence.baseline,
        on_load_alone=on_load,
        on_load_alone_arm=arm,
        standings=standings,
        findings=findings,
        table=failures(evidence, standings[0], disturb=is_disturbed),
    )


def _baseline(evidence: Evidence, terms: Terms) -> ArmStanding:
    """What the A/A runs show of it counts too: they are the baseline once more."""
    own = stand(evidence, evidence.baseline, terms)
    again = [check for arm in evidence.again for check in stand(evidence, arm, terms).checks]
    failing = [check for check in again if check.standing is Standing.FAILS]
    return replace(own, standing=Standing.FAILS, checks=[*own.checks, *failing]) if failing else own


def _on_load(evidence: Evidence, standings: Sequence[ArmStanding], terms: Terms) -> tuple[Verdict, str, list[Finding]]:
    """By acceptance alone: the verdict, what would serve, and why."""
    baseline, candidates = standings[0], standings[1:]
    findings = [_stands(each, terms) for each in standings]
    findings += [lost for each in candidates if (lost := _loses(evidence, baseline, each)) is not None]
    if baseline.standing is Standing.UNKNOWN:
        return Verdict.MISSING, baseline.arm, findings
    holding = [each for each in candidates if each.standing is Standing.HOLDS]
    if baseline.standing is Standing.HOLDS:
        cheaper = [each for each in holding if _is_cheaper(each, evidence, terms)]
        findings += [_saves(each, each.saving, terms, each in cheaper) for each in holding if each.saving is not None]
        holding = [each for each in cheaper if each.arm not in evidence.apart]
    paid = {each.arm: pays for each in holding if (pays := _pays(evidence, each)) is not None}
    findings += paid.values()
    holding = [each for each in holding if each.arm not in paid]
    chosen = _cheapest([each for each in holding if each.arm not in evidence.apart], terms)
    if baseline.standing is Standing.HOLDS:
        return (Verdict.KEEP, baseline.arm, findings) if chosen is None else (Verdict.RETUNE, chosen.arm, findings)
    if chosen is None:
        apart = _cheapest(holding, terms)
        found = _isolation(evidence, standings, terms, apart)
        verdict, serves = Verdict.ISOLATE, baseline if apart is None else apart
    else:
        found = _by_chance([baseline], lambda check: check.clear_once)
        verdict, serves = Verdict.RETUNE, chosen
    if any(each.standing is not Standing.HOLDS for each in found):
        verdict, serves = Verdict.MISSING, baseline
    return verdict, serves.arm, [*findings, *found]


def _isolation(
    evidence: Evidence, standings: Sequence[ArmStanding], terms: Terms, chosen: ArmStanding | None
) -> list[Finding]:
    """What it takes: no arm on a shared engine may do, because engines apart are dear. Beside that, that such engines
    were measured and do (chosen), or that the classes disturb each other.
    """
    shared = [each for each in standings if each.arm not in evidence.apart]
    if len(shared) < 2:
        says = "nothing but the baseline was measured on a shared engine"
        return [_accepted("candidates", Standing.UNKNOWN, says, None, (), *todo.more_arms(evidence))]
    asked = standings if chosen is None else shared
    if unsure := [each.arm for each in asked if each.standing is not Standing.FAILS]:
        return [_accepted("candidates", Standing.UNKNOWN, "they may yet hold", ", ".join(unsure))]
    found = _by_chance(shared, lambda check: check.clearly_fails)
    if chosen is not None:
        return found
    if apart := [each.arm for each in standings if each.arm in evidence.apart]:
        says = "engines of their own were measured for each class, and do not do either"
        return [_accepted("isolation", Standing.FAILS, says, ", ".join(apart), _ids(evidence, apart[0]))]
    seen = interference(evidence, shared, terms)
    return [*found, *(seen or [_accepted("isolation", Standing.UNKNOWN, "one class alone was measured", None)])]


def _by_chance(standings: Sequence[ArmStanding], is_clear: Callable[[Check], bool]) -> list[Finding]:
    """Changes are dear: an arm that fails by a hair may yet hold, and is measured more first."""
    found = []
    for each in standings:
        failing = [check for check in each.checks if check.standing is Standing.FAILS]
        if any(map(is_clear, failing)):
            continue
        lowest = min(failing, key=lambda check: check.lowest)
        says = f"{lowest.class_name}: {lowest.rule.name} {lowest.share:.1%} of {lowest.requests}: it may be chance"
        narrow = _accepted("clearly late", Standing.UNKNOWN, says, each.arm, lowest.runs)
        found.append(replace(narrow, anew=Anew(runs=2 * len(lowest.runs))))
    return found


def _stands(each: ArmStanding, terms: Terms) -> Finding:
    """The arm at the agreed load, by the checks that decide it."""
    deciding = [check for check in each.checks if check.standing is each.standing]
    ids = tuple(sorted({run_id for check in deciding for run_id in check.runs}))
    if each.standing is Standing.HOLDS:
        says = f"every class within its limits in {len(ids)} runs; the fullest limit is {each.margin:.0%} used"
        return _accepted("every class", Standing.HOLDS, says, each.arm, ids)
    if each.standing is Standing.FAILS:
        says = "; ".join(_failing(deciding))
        return _accepted("every class", Standing.FAILS, says, each.arm, ids)
    if not deciding:
        says, wanted = "not measured at every agreed load", terms.repeats_min
    else:
        least = min(deciding, key=lambda one: _there(one, terms))
        runs, requests = len(least.runs), least.requests
        says = (
            f"{runs} runs of {terms.repeats_min} and {requests} requests of {least.requests_wanted} at least: "
            f"{least.class_name}, {least.rule.name} {least.share:.1%}"
        )
        wanted = max(terms.repeats_min, math.ceil(runs * least.requests_wanted / requests))
    return replace(_accepted("every class", Standing.UNKNOWN, says, each.arm, ids), anew=Anew(runs=wanted))


def _there(check: Check, terms: Terms) -> float:
    """How much of the evidence that it takes is there."""
    return min(len(check.runs) / terms.repeats_min, check.requests / check.requests_wanted)


def _failing(checks: Sequence[Check]) -> list[str]:
    """By class and load: which rules, `all limits` only where it is alone."""
    by_place: dict[tuple[str, Load], list[str]] = {}
    for check in checks:
        by_place.setdefault((check.class_name, check.load), []).append(check.rule.name)
    said = []
    for (name, load), rules in by_place.items():
        single = [rule for rule in rules if rule != "all limits"] or rules
        said.append(f"{name} at {load.label}, {load.mix}: {', '.join(dict.fromkeys(single))}")
    return said


def _is_cheaper(each: ArmStanding, evidence: Evidence, terms: Terms) -> bool:
    """Clearly: on every trace alike, by more than the A/A runs differ, and by enough to be worth a change."""
    found = each.saving
    if found is None or found.low is None or found.traces < terms.repeats_min:
        return False
    return found.mean >= terms.cost_gain_min and found.low > 0 and found.mean > _noise(evidence)


def _noise(evidence: Evidence) -> float:
    """Of the cost of an answer, where nothing differs; 0 where no A/A run says."""
    means = [saving(evidence, arm) for arm in evidence.again]
    return max((abs(each.mean) for each in means if each is not None), default=0.0)


def _cheapest(holding: Sequence[ArmStanding], terms: Terms) -> ArmStanding | None:
    """The lowest cost of an answer; of those that cost about the same, the one with the most room in its limits."""
    prices = {each.arm: each.price for each in holding if each.price is not None}
    alike = worth_no_change(prices, terms.cost_gain_min)
    return min((each for each in holding if each.arm in alike), key=lambda each: (each.margin, each.arm), default=None)


def _saves(each: ArmStanding, found: Interval, terms: Terms, is_enough: bool) -> Finding:
    known = found.low is not None and found.high is not None
    within = f", 95 % interval {found.low:+.1%} to {found.high:+.1%}" if known else ", no interval"
    says = f"an answer costs {found.mean:.1%} less{within}; {terms.cost_gain_min:.0%} is worth a change"
    return _accepted("lower cost", Standing.HOLDS if is_enough else Standing.FAILS, says, each.arm)


def _loses(evidence: Evidence, baseline: ArmStanding, each: ArmStanding) -> Finding | None:
    """One class gains, and another is past its limits for it."""
    names = evidence.class_names
    before = {name: worst([baseline.of(load, name) for load in evidence.agreed]) for name in names}
    after = {name: worst([each.of(load, name) for load in evidence.agreed]) for name in names}
    lost = [name for name in names if before[name] is not Standing.FAILS and after[name] is Standing.FAILS]
    won = [name for name in names if before[name] is Standing.FAILS and after[name] is not Standing.FAILS]
    if not lost:
        return None
    says = f"{', '.join(lost)} not late before, late now; {', '.join(won) or 'no class'} gains: no gain"
    return _accepted("waiting is not moved", Standing.FAILS, says, each.arm, _ids(evidence, each.arm))


def _pays(evidence: Evidence, each: ArmStanding) -> Finding | None:
    """A class is clearly slower where nothing limits it: what is gained may only have been moved there."""
    slower = [
        found
        for found in _differences(evidence, each.arm)
        if found.metric in WAITS and found.clear and found.interval.mean > 0 and not _limited(evidence, found)
    ]
    if not slower:
        return None
    told = [f"{found.class_name} {WAITS[found.metric]} p95 {found.interval.mean:+.0f} ms at {found.load.label}, "
            f"{found.load.mix}" for found in slower]  # fmt: skip
    says = f"clearly slower than with {evidence.baseline}, and nothing limits it: {'; '.join(told)}"
    words = dict.fromkeys(f"{found.class_name}:{WAITS[found.metric]}:MS" for found in slower)
    way = f"… --goodput {' '.join(words)} beside the other limits: what may it be?"
    return _accepted("waiting is not moved", Standing.UNKNOWN, says, each.arm, _ids(evidence, each.arm), way)


def _limited(evidence: Evidence, found: Difference) -> bool:
    metric = found.metric.removesuffix("_p95")
    return any(limit.metric == metric for limit in evidence.limits.get(found.class_name, ()))


def _differences(evidence: Evidence, arm: str) -> list[Difference]:
    arms = [evidence.baseline, arm, *(each for each in evidence.again if each != arm)]
    runs = [
        ArmRun(run.load, run.trace, run.arm, run.stored.valid, run.stored.window, run.stored.records)
        for run in evidence.runs
        if run.arm in arms and run.load in evidence.agreed
    ]
    measured = {run.arm for run in runs}
    arms = [each for each in arms if each in measured]
    return [each for each in differences(runs, arms, evidence.limits, again=evidence.again) if each.arm == arm]


def _ids(evidence: Evidence, arm: str) -> tuple[str, ...]:
    return tuple(run.run_id for load in evidence.agreed for run in evidence.of(arm, load))


def _accepted(
    rule: str, standing: Standing, says: str, arm: str | None, runs: tuple[str, ...] = (), *ways: str
) -> Finding:  # fmt: skip
    return Finding(Stage.ACCEPTANCE, rule, standing, says, arm, runs=runs, todo=ways)
