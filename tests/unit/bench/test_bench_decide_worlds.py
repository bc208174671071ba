"""What must be true of every verdict, whatever the runs were: drawn worlds of good, bad, INVALID and missing runs."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from comparison_kit import Planned, a_comparison, a_manifest, a_scenario, completed, prompt
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.decision.drills import Drilled
from bench.decision.evidence import together
from bench.decision.recovery import Recovery
from bench.decision.terms import DRILLS, Terms
from bench.decision.verdict import Decision, decide
from bench.decision.words import Verdict
from bench.manifest import sealed
from bench.records import material
from bench.records.material import Material, ReportRun
from bench.records.request import RequestRecord

ARMS, SEEDS = ("first", "second", "third"), (1, 2, 3)
RATE = 2.0
DRILLED = [Drilled(drill, True, False, f"{drill} {arm}", arm, None, ()) for drill in DRILLS for arm in ARMS]
TERMS = [Terms(), Terms(engine_cost_per_hour={"*": 4.0, "second": 2.0})]


def short_late(planned: Planned) -> RequestRecord:
    is_late = planned.class_name == "short" and planned.number % 3 == 0
    return completed(planned, ttft_ms=900.0) if is_late else prompt(planned)


def long_late(planned: Planned) -> RequestRecord:
    is_late = planned.class_name == "long" and planned.number % 3 == 0
    return completed(planned, ttft_ms=12_000.0) if is_late else prompt(planned)


KINDS = {"good": prompt, "short late": short_late, "long late": long_late}


class Made:
    """By kind, arm and seed: a run of it. apart: each class by itself, in time. No dataclass: a failure prints it."""

    def __init__(
        self, mixed: Material, runs: Mapping[tuple[str, str, int], ReportRun], apart: Sequence[Material]
    ) -> None:
        self.mixed, self.runs, self.apart = mixed, runs, apart

    def world(self, kinds: Sequence[str]) -> Material:
        """One kind for each arm and seed."""
        places = [(arm, seed) for arm in ARMS for seed in SEEDS]
        runs = [self.runs[kind, arm, seed] for kind, (arm, seed) in zip(kinds, places, strict=True)]
        return replace(self.mixed, runs=runs)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("worlds")
    arms = [{"name": name, "base_url": "http://127.0.0.1:1"} for name in ARMS]
    scenario = a_scenario(name="mixed", arms=arms, num_prompts=122, rates_per_s=[RATE])
    runs: dict[tuple[str, str, int], ReportRun] = {}
    for kind, answer in KINDS.items():
        mixed = material.read(a_comparison(folder, scenario, answer))
        for run in mixed.runs:
            runs[kind, run.arm, int(run.trace.removeprefix("seed "))] = run
    apart = [
        material.read(a_comparison(folder, a_scenario(name=f"alone-{name}", mixes=[mix], rates_per_s=[rate], num_prompts=60),
                                   prompt))
        for name, mix, rate in (("short", "100/0", 0.8 * RATE), ("long", "0/100", 0.2 * RATE))
    ]  # fmt: skip
    return Made(mixed, runs, apart)


@pytest.fixture(scope="module", autouse=True)
def way_back(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A manifest of what every arm was measured with, and a rehearsal that held."""
    folder = tmp_path_factory.mktemp("manifests")
    baseline = sealed.load(a_manifest(folder, "baseline"))
    candidate = sealed.load(a_manifest(folder, "candidate", baseline=baseline))
    rehearsal = {"manifest_sha256": baseline.sha256, "candidate_sha256": candidate.sha256, "held": True}
    RECOVERY.append(Recovery((baseline, candidate), (), (rehearsal,)))


RECOVERY: list[Recovery] = []


def verdict(worlds: Sequence[Material], terms: Terms) -> Decision:
    return decide(together(worlds, terms), terms, DRILLED, RECOVERY[-1])


def invalid(run: ReportRun) -> ReportRun:
    said = {"verdict": "INVALID", "reasons": ["client lag: late"], "notes": []}
    return replace(run, stored=replace(run.stored, valid=False, verdict=said))


def repeated(run: ReportRun, number: int) -> ReportRun:
    """One more trace of the same arm."""
    folder = run.stored.folder.with_name(f"{run.stored.folder.name}-more-{number}")
    return replace(run, trace=f"seed {90 + number}", stored=replace(run.stored, folder=folder))


# Mostly the same within an arm, so that all verdicts come.
an_arm = st.one_of(
    st.sampled_from(list(KINDS)).map(lambda kind: [kind] * len(SEEDS)),
    st.lists(st.sampled_from(list(KINDS)), min_size=len(SEEDS), max_size=len(SEEDS)),
)
worlds = st.tuples(an_arm, an_arm, an_arm).map(lambda arms: [kind for arm in arms for kind in arm])


@settings(max_examples=15, deadline=None)
@given(
    kinds=worlds,
    terms=st.sampled_from(TERMS),
    places=st.sets(st.integers(0, len(ARMS) * len(SEEDS) - 1), min_size=1, max_size=3),
    how=st.sampled_from(["invalid", "missing"]),
)
def test_a_run_that_is_invalid_or_missing_changes_no_verdict_but_to_missing_evidence(
    made: Made, kinds: list[str], terms: Terms, places: set[int], how: str
) -> None:
    world = made.world(kinds)
    before = verdict([world, *made.apart], terms)
    bad = [invalid(run) if at in places else run for at, run in enumerate(world.runs)]
    left = [run for at, run in enumerate(world.runs) if at not in places]
    after = verdict([replace(world, runs=bad if how == "invalid" else left), *made.apart], terms)
    assert after.verdict is Verdict.MISSING and after.arm == "first"
    assert before.verdict is Verdict.MISSING or any(each.rule == "every planned run" for each in after.why())
    more = verdict([world, *made.apart, alone_invalid(made)], terms)
    assert more.verdict in (before.verdict, Verdict.MISSING)


def alone_invalid(made: Made) -> Material:
    """A record beside the others of which nothing counts."""
    return replace(made.apart[0], runs=[invalid(repeated(run, 7)) for run in made.apart[0].runs])


@settings(max_examples=15, deadline=None)
@given(
    kinds=worlds,
    terms=st.sampled_from(TERMS),
    arm=st.sampled_from(ARMS),
    late=st.lists(st.sampled_from(["short late", "long late"]), min_size=1, max_size=2),
)
def test_a_repeat_that_fails_never_makes_its_arm_look_better(
    made: Made, kinds: list[str], terms: Terms, arm: str, late: list[str]
) -> None:
    world = made.world(kinds)
    before = verdict([world, *made.apart], terms)
    more = [repeated(made.runs[kind, arm, 1], number) for number, kind in enumerate(late)]
    after = verdict([replace(world, runs=[*world.runs, *more]), *made.apart], terms)
    assert not (after.verdict is Verdict.RETUNE and after.arm == arm)
    if arm == "first":
        assert after.verdict is not Verdict.KEEP
    if before.verdict is Verdict.RETUNE and before.standing("first").standing != "holds":
        assert after.verdict is not Verdict.KEEP, "the baseline does not hold, whatever else fails"


@settings(max_examples=10, deadline=None)
@given(kinds=worlds, terms=st.sampled_from(TERMS), seed=st.integers(0, 1000))
def test_neither_the_order_of_records_and_runs_nor_naming_one_twice_changes_anything(
    made: Made, kinds: list[str], terms: Terms, seed: int
) -> None:
    world = made.world(kinds)
    rng = random.Random(seed)
    shuffled = [replace(world, runs=rng.sample(list(world.runs), len(world.runs))), *made.apart, world]
    rng.shuffle(shuffled)
    once, other = verdict([world, *made.apart], terms), verdict(shuffled, terms)
    assert (once.verdict, once.arm, once.findings) == (other.verdict, other.arm, other.findings)


@settings(max_examples=15, deadline=None)
@given(kinds=worlds, terms=st.sampled_from(TERMS))
def test_what_serves_has_every_class_in_time_in_every_run(made: Made, kinds: list[str], terms: Terms) -> None:
    found = verdict([made.world(kinds), *made.apart], terms)
    of_arm = dict(zip(ARMS, (set(kinds[at : at + len(SEEDS)]) for at in range(0, len(kinds), len(SEEDS))), strict=True))
    good = [arm for arm in ARMS if of_arm[arm] == {"good"}]
    match found.verdict:
        case Verdict.KEEP:
            assert "first" in good
        case Verdict.RETUNE:
            assert found.arm in good and found.arm != "first"
        case Verdict.ISOLATE:
            assert not good
        case Verdict.MISSING:
            assert {each.rule for each in found.why()} == {"clearly late"}, "everything else was shown"


def test_every_verdict_occurs(made: Made) -> None:
    """So that the properties above are of something."""
    late = ["short late"] * 3
    good = ["good"] * 3
    found = {verdict([made.world([*a, *b, *c]), *made.apart], TERMS[0]).verdict for a, b, c in
             ((good, good, good), (late, good, late), (late, late, late))}  # fmt: skip
    assert found == {Verdict.KEEP, Verdict.RETUNE, Verdict.ISOLATE}
