"""The verdict: what it takes for each, and that nothing which is not shown is taken for granted."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench_kit import a_record
from comparison_kit import (
    GOODPUT,
    Answer,
    Facts,
    Planned,
    a_comparison,
    a_manifest,
    a_scenario,
    completed,
    prompt,
    refused,
)

from bench.cli import main
from bench.decision import drills, interference, recovery
from bench.decision.changes import FAILURES, Change, seen
from bench.decision.evidence import Evidence, gather, together
from bench.decision.interference import company
from bench.decision.questions import answers, ways
from bench.decision.recovery import Recovery
from bench.decision.terms import DRILLS, Terms
from bench.decision.verdict import Decision, decide
from bench.decision.words import Stage, Standing, Verdict
from bench.errors import UsageError
from bench.faults.expectations import Check
from bench.manifest import sealed
from bench.order import Cell
from bench.records import material
from bench.records.material import ReportRun
from bench.records.request import Outcome, RequestRecord
from bench.records.store import DRILLS_FILE, ROLLBACK_FILE, RunFolder
from bench.scenario import Scenario

BUSY = {"num_prompts": 160}
POLICIES = shlex.split(
    "gateway bench policies first second --engine-url http://127.0.0.1:8000 --num-prompts 40 --mixes 80/20 "
    "--loads 0.9 --capacity 2.2 --seeds 1 2 3"
)


def late(planned: Planned) -> RequestRecord:
    return completed(planned, ttft_ms=900.0 if planned.class_name == "short" else 12_000.0)


def late_for(*arms: str, class_name: str = "short", share: int = 4) -> Answer:
    """Every so many-th request of the class comes late, in these arms."""

    def answer(planned: Planned) -> RequestRecord:
        is_late = planned.cell.arm.name in arms and planned.class_name == class_name and planned.number % share == 0
        return late(planned) if is_late else prompt(planned)

    return answer


def drilled(
    result_dir: Path, policy: str, *, failing: Sequence[str] = (), names: Sequence[str] = DRILLS, late: str = ""
) -> Path:
    """The folder of drills, as `gateway bench faults` leaves one. late: the one whose client was."""
    folder = RunFolder(result_dir, f"faults-{policy}-{len(failing)}-{len(names)}{late}")
    held = [
        {
            "drill": name,
            "about": "",
            "run_id": f"drill-{policy}-{name}",
            "passed": name not in failing,
            "client_late": name == late,
            "offered": 10,
            "completed": 10,
            "checks": [Check("nobody hung", name not in failing, "the slowest end after 99.0 s").to_json()],
        }
        for name in names
    ]
    folder.write_json(DRILLS_FILE, {"command": [], "policy": policy, "drills": held})
    for each in held:
        RunFolder(folder.path, str(each["run_id"])).write_json("run.json", {"policy_sha256": policy_of(policy)})
    return folder.path


def rehearsed(folder: Path, *, held: bool = True, first: str = "first", second: str = "second") -> list[Path]:
    """Manifests of the baseline and of a change to it, with these arms' policies, and a rehearsal of going back."""
    folder = folder / f"way-back-{held}-{first}-{second}"
    manifest = a_manifest(folder, "baseline", policy_sha256=policy_of(first))
    baseline = sealed.load(manifest)
    candidate = a_manifest(folder, "candidate", policy_sha256=policy_of(second), baseline=baseline)
    rehearsal = RunFolder(folder, "rollback")
    rehearsal.write_json(
        ROLLBACK_FILE,
        {
            "rehearsed_at": "2026-01-01T00:00:00Z",
            "manifest_sha256": baseline.sha256,
            "candidate_sha256": sealed.load(candidate).sha256,
            "held": held,
            "failures": [] if held else ["3 requests were lost"],
        },
    )
    return [manifest, candidate, rehearsal.path]


def policy_of(arm: str) -> str:
    """The hash of an arm's policy."""
    return hashlib.sha256(arm.encode()).hexdigest()


def of_arms(cell: Cell) -> Facts:
    """Each arm has a policy of its own."""
    return Facts(identity={"policy_sha256": policy_of(cell.arm.name)})


def decided(
    *folders: Path, faults: Sequence[Path] = (), manifests: Sequence[Path] = (), **terms: Any
) -> tuple[Evidence, Decision]:
    evidence = gather(folders, Terms(**terms))
    return evidence, decide(evidence, Terms(**terms), drills.read(faults), recovery.read(manifests))


def findings(decision: Decision, rule: str) -> list[tuple[str | None, Standing]]:
    return [(each.arm or each.class_name, each.standing) for each in decision.findings if each.rule == rule]


def says(decision: Decision, rule: str) -> str:
    return "; ".join(each.says for each in decision.findings if each.rule == rule)


def commands(evidence: Evidence, decision: Decision) -> list[str]:
    return ways(evidence, decision, answers(evidence, decision, Terms(), []))


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every class in time with both arms."""
    return a_comparison(tmp_path_factory.mktemp("kept"), a_scenario(**BUSY), prompt, facts=of_arms)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Short requests late with the baseline alone."""
    return a_comparison(tmp_path_factory.mktemp("tuned"), a_scenario(**BUSY), late_for("first"), facts=of_arms)


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Short requests late with both arms."""
    return a_comparison(tmp_path_factory.mktemp("split"), a_scenario(**BUSY), late_for("first", "second"))


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Each class by itself in time."""
    return [alone(tmp_path_factory.mktemp("apart"), name, prompt) for name in ("short", "long")]


@pytest.fixture(scope="module")
def records(kept: Path, tuned: Path, split: Path, apart: list[Path]) -> Mapping[str, list[Path]]:
    return {"kept": [kept], "tuned": [tuned], "split": [split, *apart], "open": [split]}


def with_runs(folder: Path, change: Callable[[ReportRun], ReportRun], **terms: Any) -> Decision:
    """Of the record as it were if its runs were others."""
    made = material.read(folder)
    changed = replace(made, runs=[change(run) for run in made.runs])
    return decide(together([changed], Terms(**terms)), Terms(**terms), [], Recovery())


def stating(run: ReportRun, **words: Any) -> ReportRun:
    said = {name: value for name, value in {**run.stored.run, **words}.items() if value is not None}
    return replace(run, stored=replace(run.stored, run=said))


def test_a_baseline_that_meets_everything_is_kept_once_its_drills_passed(kept: Path, tmp_path: Path) -> None:
    _, decision = decided(kept)
    assert (decision.verdict, decision.on_load_alone) == (Verdict.MISSING, Verdict.KEEP)
    assert [each.rule for each in decision.why()] == ["drills"]
    assert decision.why()[0].todo == ("gateway bench faults --policy POLICY",)
    _, decision = decided(kept, faults=[drilled(tmp_path, "first")])
    assert (decision.verdict, decision.arm) == (Verdict.KEEP, "first")


def test_a_drill_that_failed_once_is_failed_and_one_not_held_is_missing(kept: Path, tmp_path: Path) -> None:
    passed, failed = drilled(tmp_path, "first"), drilled(tmp_path, "first", failing=["flood"])
    _, decision = decided(kept, faults=[passed, failed])
    assert decision.verdict is Verdict.MISSING and [each.rule for each in decision.why()] == ["flood"]
    assert "the slowest end after 99.0 s" in decision.why()[0].says
    _, decision = decided(kept, faults=[drilled(tmp_path, "first", names=DRILLS[1:])])
    assert decision.why()[0].todo == (f"gateway bench faults {DRILLS[0]} --policy POLICY",)
    _, decision = decided(kept, faults=[drilled(tmp_path, "second")])
    assert "drills were held of second alone" in says(decision, "drills")


def test_a_drill_whose_client_was_late_has_shown_nothing(kept: Path, tmp_path: Path) -> None:
    _, decision = decided(kept, faults=[drilled(tmp_path, "first", late="flood")])
    assert findings(decision, "flood") == [("first", Standing.UNKNOWN)] and decision.verdict is Verdict.MISSING


def test_an_arm_that_was_not_measured_at_an_agreed_load_has_not_shown_it(tmp_path: Path) -> None:
    both = a_scenario(name="both", rates_per_s=[1.5, 2.0], **BUSY)
    arms = [{"name": name, "base_url": "http://127.0.0.1:1"} for name in ("first", "third")]
    folders = [
        a_comparison(tmp_path, both, late_for("first", "second")),
        a_comparison(tmp_path, a_scenario(arms=arms, **BUSY), late_for("first")),
    ]
    _, decision = decided(*folders)
    assert decision.standing("third").standing is Standing.UNKNOWN and decision.on_load_alone is Verdict.MISSING
    assert decided(*folders, loads=["2"])[1].on_load_alone_arm == "third"


def test_cells_of_a_sweep_that_the_engine_cannot_run_are_left_out(tmp_path: Path) -> None:
    bad = lambda cell: Facts(late_ms=400.0 if cell.arm.name == "second" else 0.0)  # noqa: E731
    folder = a_comparison(tmp_path, a_scenario(**BUSY), prompt, facts=bad)
    said = json.loads((folder / "comparison.json").read_text())
    for unknown, verdict in ((["--strange"], Verdict.KEEP), ([], Verdict.MISSING)):
        said["sweep"] = {"cells": {"first": {"unknown": []}, "second": {"unknown": unknown}}}
        (folder / "comparison.json").write_text(json.dumps(said))
        assert decided(folder, faults=[drilled(tmp_path / str(verdict), "first")])[1].verdict is verdict


def test_alone_is_who_met_as_many_of_its_own_class_as_usual(kept: Path) -> None:
    def one(planned_ms: float, name: str = "short") -> RequestRecord:
        ttft_ms = 100.0 if planned_ms < 90_000 else 900.0
        return a_record(
            class_name=name, planned_ms=planned_ms, first_token_ms=planned_ms + ttft_ms, ended_ms=planned_ms + 1500
        )

    quiet = [one(10_000.0 * number) for number in range(3)]
    busy = [one(100_000.0 + 10_000 * number + step) for number in range(5) for step in (0.0, 1.0, 2.0)]
    found = company([[*quiet, *busy, one(140_001.0, "long")]], "short", gather([kept], Terms()))
    assert (found.alone, found.alone_in_time) == (8, 0)
    assert (found.together, found.together_in_time) == (3, 0)


def test_drills_are_of_an_arm_by_its_policys_hash_else_by_its_name(kept: Path, tmp_path: Path) -> None:
    faults = drilled(tmp_path, "first")
    for name in DRILLS:
        (faults / f"drill-first-{name}" / "run.json").write_text('{"policy_sha256": "of another version"}')
    _, decision = decided(kept, faults=[faults])
    assert findings(decision, "drills") == [("first", Standing.UNKNOWN)]
    unhashed = [a_comparison(tmp_path, a_scenario(**BUSY), prompt, policies=words) for words in ((), POLICIES)]
    assert decided(unhashed[0], faults=[drilled(tmp_path, "mine")])[1].verdict is Verdict.KEEP
    assert decided(unhashed[0], faults=[drilled(tmp_path, "second")])[1].verdict is Verdict.MISSING, "of another arm"
    assert (
        decided(unhashed[1], faults=[drilled(tmp_path, "first", names=[*DRILLS, "stale-metrics"])])[1].verdict
        is Verdict.KEEP
    )
    _, decision = decided(unhashed[1], faults=[tmp_path / "faults-second-0-10"])
    assert decision.why()[0].todo == ("gateway bench faults --policy first",)


def test_what_to_run_is_the_command_that_made_the_record_with_other_options(tmp_path: Path) -> None:
    def stated(scenario: Scenario, answer: Answer, facts: Facts) -> list[str]:
        evidence, decision = decided(a_comparison(tmp_path, scenario, answer, facts=lambda _: facts, policies=POLICIES))
        return commands(evidence, decision)

    engine = "gateway bench policies first second --engine-url http://127.0.0.1:8000 --num-prompts 40 --mixes 80/20"
    few = stated(a_scenario(num_prompts=80), prompt, Facts())
    assert f"{engine} --loads 0.9 --capacity 2.2 --seeds 4 5 --repeats 1" in few
    unstated = stated(a_scenario(**BUSY), prompt, Facts(identity={"hardware_id": None}))
    again = "--loads 0.9 --capacity 2.2 --metadata hardware_id=NAME --seeds 1 2 3 --repeats 1"
    assert f"{engine} {again}" in unstated
    apart = stated(a_scenario(**BUSY), late_for("first", "second"), Facts())
    alone_options = "--seeds 1 2 3 --mixes 100/0 --rates 1.6"
    assert f"{engine.removesuffix(' --mixes 80/20')} {alone_options}" in apart


def test_what_is_tuned_anew_needs_a_way_back_that_was_rehearsed(tuned: Path, tmp_path: Path) -> None:
    faults, way_back = drilled(tmp_path, "second"), rehearsed(tmp_path)
    _, decision = decided(tuned, faults=[faults], manifests=way_back)
    assert (decision.verdict, decision.arm) == (Verdict.RETUNE, "second")
    for manifests, rule, said in (
        ([], "manifest", "no manifest"),
        (way_back[:2], "rehearsal", "no rollback was rehearsed"),
        ([way_back[0], way_back[2]], "rehearsal", "manifest is not here"),
        (rehearsed(tmp_path, held=False), "rehearsal", "3 requests were lost"),
        (rehearsed(tmp_path, first="third"), "manifest is the baseline's", "another policy_sha256 than first"),
        (rehearsed(tmp_path, second="third"), "rehearsal", "another policy_sha256 than second"),
    ):
        _, decision = decided(tuned, faults=[faults], manifests=manifests)
        assert (decision.verdict, decision.arm) == (Verdict.MISSING, "first")
        assert said in next(each.says for each in decision.why() if each.rule == rule)
        assert decision.on_load_alone_arm == "second"
    way_back[0].chmod(0o644)
    way_back[0].write_bytes(way_back[0].read_bytes() + b" ")
    _, decision = decided(tuned, faults=[faults], manifests=way_back)
    assert ("second", Standing.FAILS) in findings(decision, "manifest")


def test_one_repeat_that_fails_is_enough_and_the_fastest_proves_nothing(tmp_path: Path) -> None:
    def answer(planned: Planned) -> RequestRecord:
        return late_for("first", share=8)(planned) if planned.cell.block.seed == 2 else prompt(planned)

    _, decision = decided(a_comparison(tmp_path, a_scenario(**BUSY), answer))
    (check,) = [
        each
        for each in decision.standing("first").checks
        if each.rule.name == "first token" and each.class_name == "short"
    ]
    assert check.share > 0.95 > check.lowest and check.standing is Standing.FAILS
    assert decision.on_load_alone is Verdict.RETUNE


def test_too_few_runs_or_requests_show_nothing_and_the_missing_runs_are_named(tmp_path: Path) -> None:
    evidence, decision = decided(a_comparison(tmp_path, a_scenario(seeds=[4, 5], **BUSY), prompt))
    assert decision.on_load_alone is Verdict.MISSING
    assert "2 runs of 3" in says(decision, "every class")
    assert "gateway bench compare scenario.yaml   # in scenario.yaml: seeds: [6], repeats: 1" in commands(
        evidence, decision
    )
    evidence, decision = decided(a_comparison(tmp_path, a_scenario(num_prompts=60), prompt))
    assert "36 requests of 72" in says(decision, "every class")
    assert any("seeds: [4, 5, 6]" in each for each in commands(evidence, decision))


def test_a_class_that_nothing_limits_leaves_no_verdict(tmp_path: Path) -> None:
    _, decision = decided(a_comparison(tmp_path, a_scenario(goodput=["short:ttft:500"], **BUSY), prompt))
    assert decision.verdict is Verdict.MISSING and "first token for long" in says(decision, "limits of every class")
    _, decision = decided(
        a_comparison(tmp_path, a_scenario(goodput=["short:ttft:500", "long:e2e:90000"], **BUSY), prompt)
    )
    assert decision.verdict is Verdict.MISSING


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("hardware_id", "hw-2", "one thing"),
        ("model_revision", "rev-2", "one thing"),
        ("model_revision", None, "one thing"),
        ("cache_salt", "none", "one thing"),
        ("tolerances", {"lag_ms": 500}, "one thing"),
        ("corpus_sha256", "other", "same arrivals"),
        ("trace_sha256", "other", "same arrivals"),
    ],
)
def test_runs_that_are_not_of_one_thing_show_nothing(kept: Path, name: str, value: Any, rule: str) -> None:
    decision = with_runs(kept, lambda run: stating(run, **{name: value}) if run.arm == "second" else run)
    assert decision.verdict is Verdict.MISSING
    assert [each.rule for each in decision.stage(Stage.VALIDITY) if each.standing is Standing.FAILS] == [rule]


def test_an_arm_whose_settings_changed_between_its_runs_is_no_arm(kept: Path) -> None:
    decision = with_runs(kept, lambda run: stating(run, effective_args={"block_size": run.trace}))
    assert "effective_args of first" in says(decision, "arms as they were")
    decision = with_runs(kept, lambda run: stating(run, effective_args={"num_gpu_blocks": run.trace}))
    assert findings(decision, "arms as they were") == [(None, Standing.HOLDS)]


@pytest.mark.parametrize("name", ["hardware_id", "engine_version"])
def test_what_nobody_says_is_not_equal(kept: Path, name: str) -> None:
    decision = with_runs(kept, lambda run: stating(run, **{name: None}))
    assert (None, Standing.UNKNOWN) in findings(decision, name) and decision.verdict is Verdict.MISSING
    decision = with_runs(kept, lambda run: stating(run, metadata={name: "stated"}, **{name: None}))
    assert says(decision, name) == "stated"


def test_an_engine_that_nobody_read_may_have_restarted(kept: Path) -> None:
    def unread(run: ReportRun) -> ReportRun:
        measured = {name: value for name, value in run.stored.measurements.items() if name != "engine"}
        return replace(run, stored=replace(run.stored, measurements=measured))

    decision = with_runs(kept, unread)
    assert findings(decision, "engine read") == [(None, Standing.UNKNOWN)]


def test_planned_runs_that_are_missing_or_invalid_are_named_with_the_command(tmp_path: Path) -> None:
    bad = lambda cell: Facts(late_ms=400.0 if (cell.arm.name, cell.block.seed) == ("second", 2) else 0.0)  # noqa: E731
    folder = a_comparison(tmp_path, a_scenario(**BUSY), prompt, facts=bad)
    evidence, decision = decided(folder, faults=[drilled(tmp_path, "first")])
    assert decision.verdict is Verdict.MISSING
    assert "second, 2 requests/s, 80/20, seed 2: INVALID: client lag" in says(decision, "every planned run")
    assert f"gateway bench compare --resume {folder} --retry-invalid" in commands(evidence, decision)
    said = json.loads((folder / "comparison.json").read_text())
    said["order"] = [each for each in said["order"] if each["verdict"] == "VALID"]
    (folder / "comparison.json").write_text(json.dumps(said))
    evidence, decision = decided(folder)
    assert "second, 2 requests/s, 80/20, seed 2: not run" in says(decision, "every planned run")
    assert f"gateway bench compare --resume {folder}" in commands(evidence, decision)
    _, decision = decided(
        folder, faults=[drilled(tmp_path, "first", names=[*DRILLS, "in-band-error"])], without=["second"]
    )
    assert decision.verdict is Verdict.KEEP


def test_a_cell_that_another_record_has_is_not_missing(tmp_path: Path) -> None:
    bad = lambda cell: Facts(late_ms=400.0 if cell.block.seed == 2 else 0.0)  # noqa: E731
    first = a_comparison(tmp_path, a_scenario(**BUSY), prompt, facts=bad)
    second = a_comparison(tmp_path, a_scenario(**BUSY), prompt)
    _, decision = decided(first, second, faults=[drilled(tmp_path, "first")])
    assert decision.verdict is Verdict.KEEP


def test_a_load_beyond_the_capacity_is_not_agreed_unless_it_is_said(tmp_path: Path) -> None:
    def answer(planned: Planned) -> RequestRecord:
        return (
            refused(planned)
            if planned.cell.block.load.label == "load 1.5" and planned.number % 3 == 0
            else prompt(planned)
        )

    scenario = a_scenario(rates_per_s=[], capacity_per_s=2.0, loads=[0.5, 1.5], **BUSY)
    folder = a_comparison(tmp_path, scenario, answer)
    evidence, decision = decided(folder)
    assert [load.label for load in evidence.agreed] == ["load 0.5"] and decision.on_load_alone is Verdict.KEEP
    burst = answers(evidence, decision, Terms(), [])[1]
    assert burst.answer == "refusals" and "33.9% refused" in burst.says[0]
    evidence, decision = decided(folder, loads=["1.5"])
    assert [load.label for load in evidence.agreed] == ["load 1.5"] and decision.on_load_alone is Verdict.MISSING
    with pytest.raises(UsageError, match=r"no load '2'.*load 0.5, load 1.5"):
        decided(folder, loads=["2"])


def test_a_gain_that_another_class_pays_for_is_no_gain(tmp_path: Path) -> None:
    def answer(planned: Planned) -> RequestRecord:
        return late_for({"short": "first", "long": "second"}[planned.class_name], class_name=planned.class_name)(
            planned
        )

    _, decision = decided(a_comparison(tmp_path, a_scenario(**BUSY), answer))
    assert decision.on_load_alone is not Verdict.RETUNE
    assert says(decision, "waiting is not moved") == "long not late before, late now; short gains: no gain"


def alone(result_dir: Path, class_name: str, answer: Answer) -> Path:
    """The class by itself, as often as it comes in the mix."""
    rate, mix = {"short": (1.6, "100/0"), "long": (0.4, "0/100")}[class_name]
    return a_comparison(
        result_dir, a_scenario(name=f"alone-{class_name}", mixes=[mix], rates_per_s=[rate], num_prompts=100), answer
    )


def test_classes_that_disturb_each_other_are_isolated(split: Path, apart: list[Path], tmp_path: Path) -> None:
    evidence, decision = decided(split)
    assert decision.verdict is Verdict.MISSING
    assert "short alone at 1.6/s was not measured" in says(decision, "each class by itself")
    asked = [each for each in commands(evidence, decision) if "100/0" in each]
    assert asked == [
        "gateway bench compare scenario.yaml   # in scenario.yaml: mixes: [100/0], rates_per_s: [1.6], no loads, no capacity_per_s"
    ]
    _, decision = decided(split, *apart)
    assert (decision.verdict, decision.arm) == (Verdict.ISOLATE, "first")
    _, decision = decided(split, apart[0])
    assert decision.verdict is Verdict.MISSING
    assert [
        failure.justifies
        for failure, _, _ in decided(split, *apart)[1].table
        if failure.name.startswith("late in company")
    ]


def test_an_arm_that_fails_by_a_hair_is_measured_more_before_engines_are_set_apart(
    apart: list[Path], tmp_path: Path
) -> None:
    def answer(planned: Planned) -> RequestRecord:
        share = 4 if planned.cell.arm.name == "first" else 16
        return late_for("first", "second", share=share)(planned)

    folder = a_comparison(tmp_path, a_scenario(num_prompts=180), answer)
    evidence, decision = decided(folder, *apart)
    assert decision.verdict is Verdict.MISSING and "it may be chance" in says(decision, "clearly late")
    assert any("seeds: [4, 5, 6]" in each for each in commands(evidence, decision))


def test_a_class_that_is_late_by_itself_is_not_helped_by_isolation(
    split: Path, apart: list[Path], tmp_path: Path
) -> None:
    _, decision = decided(split, alone(tmp_path, "short", late), apart[1])
    assert decision.verdict is Verdict.MISSING
    assert "no isolation helps it" in says(decision, "each class by itself")
    assert "each class by itself" in {each.rule for each in decision.why()}, "the first lines say why"


def test_a_class_measured_alone_at_a_lower_rate_shows_nothing(split: Path, apart: list[Path], tmp_path: Path) -> None:
    slow = a_scenario(name="alone", mixes=["100/0"], rates_per_s=[1.0], num_prompts=100)
    _, decision = decided(split, a_comparison(tmp_path, slow, prompt), apart[1])
    assert decision.verdict is Verdict.MISSING and "was not measured" in says(decision, "each class by itself")


def test_who_met_no_other_class_shows_the_interference_too(tmp_path: Path) -> None:
    """Shorts are late exactly while a long one is there; the load fits."""
    scenario = a_scenario(mixes=["90/10"], rates_per_s=[0.5], num_prompts=1200, seeds=[1, 2, 3])

    def answer(planned: Planned) -> RequestRecord:
        if planned.class_name == "long":
            longs.setdefault(planned.cell.cell_id, []).append(planned.planned_ms)
            return prompt(planned)
        near = any(0 <= planned.planned_ms - at < 4000 for at in longs.get(planned.cell.cell_id, ()))
        return late(planned) if near else completed(planned, ttft_ms=1.0, decode_ms=1.0)

    longs: dict[str, list[float]] = {}
    folder = a_comparison(tmp_path, scenario, answer)
    _, decision = decided(folder)
    assert decision.verdict is Verdict.ISOLATE
    assert says(decision, "late in company alone").startswith("100% of ")


def test_a_load_of_which_clients_left_a_part_fits_where_the_rest_is_answered(tmp_path: Path) -> None:
    leaving = {"outcome": Outcome.CANCELLED}
    folder = a_comparison(
        tmp_path,
        a_scenario(**BUSY),
        lambda each: completed(each, ttft_ms=200.0, **(leaving if each.number % 5 == 0 else {})),
    )
    evidence, _ = decided(folder)
    assert interference._fits(evidence.of("first", evidence.agreed[0]))


def test_who_is_quick_on_an_empty_engine_alone_shows_no_interference(tmp_path: Path) -> None:
    """Shorts are late whenever others of their own are there, longs or not."""
    scenario = a_scenario(mixes=["90/10"], rates_per_s=[2.0], num_prompts=400)
    came: dict[str, list[float]] = {}

    def answer(planned: Planned) -> RequestRecord:
        before = came.setdefault(planned.cell.cell_id, [])
        crowded = sum(planned.planned_ms - at < 1500 for at in before) > 2
        before.append(planned.planned_ms)
        if planned.class_name == "long":
            return prompt(planned)
        return completed(planned, ttft_ms=900.0 if crowded else 100.0, decode_ms=1400.0)

    _, decision = decided(a_comparison(tmp_path, scenario, answer))
    assert decision.verdict is Verdict.MISSING and decision.standing("first").standing is Standing.FAILS


@pytest.mark.parametrize(("answer", "verdict"), [(prompt, Verdict.ISOLATE), (late, Verdict.MISSING)])
def test_an_arm_with_engines_apart_is_isolation_itself(tmp_path: Path, answer: Answer, verdict: Verdict) -> None:
    arms = [{"name": name, "base_url": "http://127.0.0.1:1"} for name in ("first", "second", "isolated")]
    apart = lambda each: answer(each) if each.cell.arm.name == "isolated" else late_for("first", "second")(each)  # noqa: E731
    folder = a_comparison(tmp_path, a_scenario(arms=arms, **BUSY), apart, facts=of_arms)
    _, decision = decided(folder, alone(tmp_path, "short", prompt), alone(tmp_path, "long", prompt))
    assert decision.on_load_alone is verdict
    assert decision.on_load_alone_arm == ("isolated" if verdict is Verdict.ISOLATE else "first")
    if verdict is Verdict.ISOLATE:
        assert {each.rule for each in decision.why()} >= {"drills", "rehearsal"}, "it is rolled out as any change is"
        faults, way_back = drilled(tmp_path, "isolated"), rehearsed(tmp_path, second="isolated")
        assert decided(folder, faults=[faults], manifests=way_back)[1].arm == "isolated"
    _, decision = decided(a_comparison(tmp_path, a_scenario(arms=arms, **BUSY), late_for("first")))
    assert (decision.on_load_alone, decision.on_load_alone_arm) == (Verdict.RETUNE, "second")


def test_with_the_baseline_alone_no_verdict_but_keep_can_stand(tmp_path: Path) -> None:
    one = a_scenario(arms=[{"name": "first", "base_url": "http://127.0.0.1:1"}], **BUSY)
    evidence, decision = decided(a_comparison(tmp_path, one, late_for("first")))
    assert decision.verdict is Verdict.MISSING and "nothing but the baseline" in says(decision, "candidates")
    assert any("gateway bench policies" in each for each in commands(evidence, decision))


def test_a_clearly_lower_cost_is_worth_a_change_and_no_other(kept: Path, tmp_path: Path) -> None:
    at = lambda second: {"engine_cost_per_hour": {"*": 4.0, "second": second}}  # noqa: E731
    assert decided(kept, **at(2.0))[1].on_load_alone_arm == "second"
    assert decided(kept, **at(2.0))[1].on_load_alone is Verdict.RETUNE
    assert decided(kept, **at(3.9))[1].on_load_alone is Verdict.KEEP
    assert decided(kept, **at(6.0))[1].on_load_alone is Verdict.KEEP
    assert decided(kept)[1].on_load_alone is Verdict.KEEP


def slower_second(**slow: Any) -> Answer:
    """Long answers of the second arm take longer, but not their first token; the baseline's short ones are late."""

    def answer(each: Planned) -> RequestRecord:
        if (each.cell.arm.name, each.class_name) == ("second", "long"):
            return completed(each, **{"ttft_ms": 3000.0, **slow})
        return late_for("first")(each)

    return answer


@pytest.mark.parametrize(("slow", "metric"), [({"decode_ms": 9000.0}, "e2e"), ({"longest_stall_ms": 4000.0}, "stall")])
def test_waiting_may_not_be_moved_to_where_nothing_limits_it(
    tmp_path: Path, slow: dict[str, float], metric: str
) -> None:
    folder = a_comparison(tmp_path, a_scenario(**BUSY), slower_second(**slow), facts=of_arms)
    evidence, decision = decided(folder)
    assert decision.on_load_alone is Verdict.MISSING and f"long {metric} p95 +" in says(
        decision, "waiting is not moved"
    )
    assert any(f"--goodput long:{metric}:MS" in each for each in commands(evidence, decision))
    _, decision = decided(folder, goodput=[*GOODPUT, f"long:{metric}:15000"])
    assert decision.on_load_alone is Verdict.RETUNE
    _, decision = decided(folder, goodput=[*GOODPUT, f"long:{metric}:2000"])
    assert decision.on_load_alone is not Verdict.RETUNE


def test_slower_within_its_limits_is_no_reason_against_a_lower_cost(tmp_path: Path) -> None:
    def slower(each: Planned) -> RequestRecord:
        is_slow = (each.cell.arm.name, each.class_name) == ("second", "short")
        return completed(each, ttft_ms=450.0, decode_ms=750.0) if is_slow else prompt(each)

    folder = a_comparison(tmp_path, a_scenario(**BUSY), slower)
    assert decided(folder, engine_cost_per_hour={"*": 4.0, "second": 2.0})[1].on_load_alone is Verdict.RETUNE


def test_of_those_that_hold_the_cheapest_answer_is_chosen(tmp_path: Path) -> None:
    arms = [{"name": name, "base_url": "http://127.0.0.1:1"} for name in ("first", "dear", "cheap", "roomy")]

    def answer(planned: Planned) -> RequestRecord:
        if planned.cell.arm.name == "cheap" and planned.class_name == "short":
            return completed(planned, ttft_ms=400.0)
        return late_for("first")(planned)

    folder = a_comparison(tmp_path, a_scenario(arms=arms, **BUSY), answer)
    prices = {"*": 4.0, "cheap": 2.0, "roomy": 2.0, "dear": 3.0}
    assert decided(folder, engine_cost_per_hour=prices)[1].on_load_alone_arm == "roomy"
    assert decided(folder, engine_cost_per_hour=prices | {"cheap": 1.0})[1].on_load_alone_arm == "cheap"


def test_an_again_arm_is_the_baseline_once_more_and_never_a_candidate(tmp_path: Path) -> None:
    arms = [
        {"name": name, "base_url": "http://127.0.0.1:1", "again": name == "first-again"}
        for name in ("first", "first-again")
    ]
    evidence, decision = decided(a_comparison(tmp_path, a_scenario(arms=arms, **BUSY), late_for("first-again")))
    assert evidence.candidates == [] and decision.standing("first").standing is Standing.FAILS


@pytest.mark.parametrize(
    ("answer", "rule"),
    [
        (lambda each: completed(each, ttft_ms=200.0, outcome=Outcome.FAILED, reason="cut"), "errors"),
        (lambda each: completed(each, ttft_ms=200.0, outcome=Outcome.UNFINISHED, ended_ms=None), "errors"),
        (refused, "completion"),
        (lambda each: completed(each, ttft_ms=200.0, malformed_events=2), "quality"),
        (lambda each: completed(each, ttft_ms=200.0, decode_ms=30_000.0), "end to end"),
        (lambda each: completed(each, ttft_ms=200.0, longest_stall_ms=5000.0), "streaming"),
    ],
)
def test_every_kind_of_limit_is_a_rule(tmp_path: Path, answer: Answer, rule: str) -> None:
    some = lambda each: answer(each) if each.number % 5 == 0 and each.class_name == "short" else prompt(each)  # noqa: E731
    limits = ["short:ttft:500", "short:e2e:4000", "short:stall:1000", "long:ttft:9000"]
    folder = a_comparison(tmp_path, a_scenario(goodput=limits, **BUSY), some)
    _, decision = decided(folder)
    failing = {each.rule.name for each in decision.standing("first").checks if each.standing is Standing.FAILS}
    assert rule in failing


@pytest.mark.parametrize("good_share", [0.999, 1.0])
def test_a_share_that_takes_more_requests_than_there_are_is_not_met_by_many_bad_ones(
    tuned: Path, good_share: float
) -> None:
    _, decision = decided(tuned, good_share=good_share)
    assert [each.standing for each in decision.standings] == [Standing.FAILS, Standing.HOLDS]


def test_too_few_requests_to_show_a_share_hold_only_while_none_is_bad(tmp_path: Path) -> None:
    """Two errors of ninety: more than one in a hundred, and no proof of it."""

    def answer(planned: Planned) -> RequestRecord:
        may = planned.class_name == "short" and planned.cell.arm.name == "first" and planned.cell.block.seed < 3
        if may and planned.cell.cell_id not in cut:
            cut.add(planned.cell.cell_id)
            return completed(planned, ttft_ms=200.0, outcome=Outcome.FAILED, reason="cut")
        return prompt(planned)

    cut: set[str] = set()
    evidence, decision = decided(a_comparison(tmp_path, a_scenario(mixes=["50/50"], num_prompts=60), answer))
    assert [each.standing for each in decision.standings] == [Standing.UNKNOWN, Standing.HOLDS]
    assert "90 requests of 100 at least: short, errors 97.8%" in says(decision, "every class")
    assert any("seeds: [4]" in each for each in commands(evidence, decision))


def test_a_baseline_that_fails_by_a_hair_is_measured_more_before_anything_is_changed(
    apart: list[Path], tmp_path: Path
) -> None:
    hair = late_for("first", share=16)
    folder = a_comparison(tmp_path, a_scenario(num_prompts=180), hair)
    evidence, decision = decided(folder)
    assert decision.standing("first").standing is Standing.FAILS and decision.on_load_alone is Verdict.MISSING
    assert "it may be chance" in says(decision, "clearly late")
    assert any("seeds: [4, 5, 6]" in each for each in commands(evidence, decision))
    both = lambda each: late_for("second")(each) if each.cell.arm.name == "second" else hair(each)  # noqa: E731
    _, decision = decided(a_comparison(tmp_path, a_scenario(num_prompts=180), both), *apart)
    assert findings(decision, "clearly late") == [("first", Standing.UNKNOWN)]
    assert decision.verdict is Verdict.MISSING, "nor are engines set apart"


def test_engines_apart_are_for_where_another_policy_was_tried_on_a_shared_one(tmp_path: Path) -> None:
    arms = [{"name": name, "base_url": "http://127.0.0.1:1"} for name in ("first", "isolated")]
    folder = a_comparison(tmp_path, a_scenario(arms=arms, **BUSY), late_for("first"))
    _, decision = decided(folder)
    assert decision.on_load_alone is Verdict.MISSING and "on a shared engine" in says(decision, "candidates")
    one = {"name": "isolated", "engine_metrics_urls": ["http://127.0.0.1:1/metrics"]}
    decision = with_runs(folder, lambda run: stating(run, target=one) if run.arm == "isolated" else run)
    assert (decision.on_load_alone, decision.on_load_alone_arm) == (Verdict.RETUNE, "isolated"), "it shares its engine"


def test_runs_of_the_embedded_engine_are_no_evidence(kept: Path) -> None:
    decision = with_runs(kept, lambda run: stating(run, engine_version="0.32.0+emulator"))
    assert findings(decision, "a real engine") == [(None, Standing.UNKNOWN)] and decision.on_load_alone is Verdict.KEEP
    assert decision.verdict is Verdict.MISSING and decision.why()[0].rule == "a real engine"


@pytest.mark.parametrize("how", ["another machine", "shorter requests"])
def test_a_class_alone_elsewhere_or_with_less_work_shows_nothing(
    split: Path, apart: list[Path], tmp_path: Path, how: str
) -> None:
    lengths = {"short": {"prompt_tokens": 64, "output_tokens": 128}} if how == "shorter requests" else {}
    facts = Facts(identity={"hardware_id": "hw-2"}) if how == "another machine" else Facts()
    scenario = a_scenario(name="alone", mixes=["100/0"], rates_per_s=[1.6], num_prompts=100, lengths=lengths)
    _, decision = decided(split, a_comparison(tmp_path, scenario, prompt, facts=lambda _: facts), apart[1])
    assert decision.verdict is Verdict.MISSING and "was not measured" in says(decision, "each class by itself")


def test_a_class_that_is_late_by_itself_at_a_higher_rate_is_not_late_by_itself(
    split: Path, apart: list[Path], tmp_path: Path
) -> None:
    """As in a sweep, whose short requests alone come at near what the engine carries of them."""
    more = a_scenario(name="alone", mixes=["100/0"], rates_per_s=[3.2], num_prompts=100)
    often = a_comparison(tmp_path, more, late)
    assert decided(split, often, *apart)[1].verdict is Verdict.ISOLATE
    _, decision = decided(split, often, apart[1])
    assert "short alone at 1.6/s was not measured" in says(decision, "each class by itself")


def test_who_answers_sooner_is_no_cheaper_for_it(tmp_path: Path) -> None:
    """Inside a window that has no warm-up before it there are more answers, of the same requests."""
    slow = lambda each: completed(each, ttft_ms=200.0, decode_ms=9000.0 if each.cell.arm.name == "first" else 500.0)  # noqa: E731
    limits = ["short:ttft:500", "long:ttft:9000"]
    _, decision = decided(a_comparison(tmp_path, a_scenario(goodput=limits, **BUSY), slow))
    assert decision.on_load_alone is Verdict.KEEP
    saved = decision.standing("second").saving
    assert saved is not None and saved.mean == 0.0


def test_the_way_back_that_was_rehearsed_is_the_one_to_what_was_measured(tuned: Path, tmp_path: Path) -> None:
    faults, other, own = drilled(tmp_path, "second"), rehearsed(tmp_path, first="another"), rehearsed(tmp_path)
    _, decision = decided(tuned, faults=[faults], manifests=[*other, own[0]])
    assert decision.verdict is Verdict.MISSING and says(decision, "rehearsal") == "rehearsed for other manifests alone"
    assert decided(tuned, faults=[faults], manifests=[*other, *own])[1].verdict is Verdict.RETUNE


@pytest.mark.parametrize(("sequences", "verdict"), [(16, Verdict.RETUNE), (32, Verdict.MISSING)])
def test_a_candidate_of_other_settings_was_not_rehearsed(tmp_path: Path, sequences: int, verdict: Verdict) -> None:
    """Cells of a sweep have one policy, image and model."""

    def settings(cell: Cell) -> Facts:
        number = 16 if cell.arm.name == "first" else sequences
        return Facts(identity={"policy_sha256": policy_of("one"), "effective_args": {"max_num_seqs": number}})

    folder = a_comparison(tmp_path, a_scenario(**BUSY), late_for("first"), facts=settings)
    way_back = rehearsed(tmp_path, first="one", second="one")
    _, decision = decided(folder, faults=[drilled(tmp_path, "one")], manifests=way_back)
    assert decision.on_load_alone is Verdict.RETUNE and decision.verdict is verdict


def test_single_runs_at_one_rate_are_repeats(kept: Path, tmp_path: Path) -> None:
    runs = [run.stored.folder for run in material.read(kept).runs if run.arm == "second"]
    evidence, decision = decided(*runs)
    assert [load.label for load in evidence.agreed] == ["2 requests/s"] and decision.on_load_alone is Verdict.KEEP
    arms = [{"name": name, "base_url": "http://127.0.0.1:1"} for name in ("first", "third")]
    evidence, _ = decided(a_comparison(tmp_path, a_scenario(name="beside", arms=arms, **BUSY), prompt), *runs)
    assert evidence.candidates == ["third"], "a single run stands beside a comparison"


@pytest.mark.parametrize(
    ("burst", "answer"),
    [(refused, "refusals"), (lambda each: completed(each, ttft_ms=1.0, outcome=Outcome.CANCELLED), "bounded queue")],
)
def test_a_burst_that_nobody_was_answered_in_is_told_as_what_it_was(tmp_path: Path, burst: Answer, answer: str) -> None:
    """Of short requests; the long ones are served."""
    scenario = a_scenario(rates_per_s=[], capacity_per_s=2.0, loads=[0.5, 1.5], **BUSY)
    beyond = lambda each: each.cell.block.load.label == "load 1.5" and each.class_name == "short"  # noqa: E731
    either = lambda each: (burst if beyond(each) else prompt)(each)  # noqa: E731
    evidence, decision = decided(a_comparison(tmp_path, scenario, either))
    assert answers(evidence, decision, Terms(), [])[1].answer == answer


def test_the_longest_request_that_was_served_is_one_that_was_answered(tmp_path: Path) -> None:
    some = lambda each: refused(each) if each.class_name == "long" else prompt(each)  # noqa: E731
    evidence, decision = decided(a_comparison(tmp_path, a_scenario(**BUSY), some))
    assert answers(evidence, decision, Terms(), [])[2].answer == "yes, up to 640 tokens"


def test_what_its_client_left_is_no_failure(tmp_path: Path) -> None:
    def leaving(each: Planned) -> RequestRecord:
        left = each.number % 5 == 0
        return completed(each, ttft_ms=200.0, outcome=Outcome.CANCELLED) if left else prompt(each)

    _, decision = decided(a_comparison(tmp_path, a_scenario(num_prompts=240), leaving))
    assert decision.on_load_alone is Verdict.KEEP


def test_records_that_leave_the_baseline_or_the_limits_open_are_refused(tmp_path: Path) -> None:
    other = [{"name": name, "base_url": "http://127.0.0.1:1"} for name in ("other", "second")]
    folders = [
        a_comparison(tmp_path, a_scenario(**BUSY), prompt),
        a_comparison(tmp_path, a_scenario(arms=other, **BUSY), prompt),
        a_comparison(tmp_path, a_scenario(goodput=["short:ttft:900"], **BUSY), prompt),
    ]
    with pytest.raises(UsageError, match="--baseline: which of first, other"):
        decided(*folders[:2])
    with pytest.raises(UsageError, match="no arm 'none'"):
        decided(folders[0], baseline="none")
    with pytest.raises(UsageError, match="different limits"):
        decided(folders[0], folders[2])
    assert decided(*folders[:2], baseline="other")[0].baseline == "other"


def test_the_table_says_of_no_change_that_it_is_both_justified_and_not() -> None:
    for failure in FAILURES:
        assert failure.justifies and failure.does_not and not set(failure.justifies) & set(failure.does_not)
    assert {change for failure in FAILURES for change in failure.justifies} == set(Change)


@pytest.mark.parametrize(
    ("figures", "name", "change"),
    [
        ({"preemptions a request": 0.05}, "KV runs out", Change.ADMISSION),
        ({"errors": 0.02}, "errors", Change.MENDING),
        ({"stall over limit": 1.5}, "streams stall", Change.BUDGET),
        ({"refused": 0.1, "answered of offered": 0.97}, "refusals though the load fits", Change.ADMISSION),
        ({"engine wait over limit": 0.6, "KV used": 0.3}, "waits inside the engine with KV free", Change.SEQUENCES),
        ({"answered of offered": 0.7, "late alone": 0.4}, "answers fall behind what is offered", Change.CAPACITY),
        ({"first token over limit": 2.0, "late together − late alone": 0.5}, "first tokens late where long prompts are in work", Change.SLICING),
        ({"classes disturb each other": 1.0}, "late in company, in time alone, in every arm", Change.ISOLATION),
    ],
)  # fmt: skip
def test_each_failure_justifies_what_the_table_says(figures: dict[str, float], name: str, change: Change) -> None:
    (failure,) = [each for each in seen(figures) if each.name == name]
    assert change in failure.justifies
    assert name not in {each.name for each in seen({})}


def test_the_five_questions_are_answered_with_their_evidence(tmp_path: Path) -> None:
    scenario = a_scenario(rates_per_s=[], capacity_per_s=2.0, loads=[0.5, 1.4], **BUSY)
    cliff = lambda each: completed(each, ttft_ms=9000.0) if each.cell.block.load.label == "load 1.4" else prompt(each)  # noqa: E731
    evidence, decision = decided(a_comparison(tmp_path, scenario, cliff), engine_cost_per_hour=3.6)
    terms = Terms(engine_cost_per_hour=3.6, alternative_cost=0.01, context_tokens=8320)
    said = answers(evidence, decision, terms, [])
    assert [each.answer for each in said] == ["yes", "latency cliff", "yes", "yes, over 3 repeats", "yes"]
    assert all(line.startswith("load 1.4") for line in said[1].says)
    assert answers(evidence, decision, Terms(context_tokens=9000), [])[2].answer == "not shown beyond 8320 tokens"
    assert (
        "short, load 0.5, 80/20: first token p95 200 ms (200 to 200 over 3 runs), limit 500 ms: holds" in said[0].says
    )
    assert all(each.runs for each in said)
    assert answers(evidence, decision, Terms(alternative_cost=0.0001), [])[4].answer == "no"


def test_a_question_without_evidence_says_what_to_run(tmp_path: Path) -> None:
    blind = lambda _: Facts(preemptions=None, identity={"model_revision": None})  # noqa: E731
    evidence, decision = decided(
        a_comparison(tmp_path, a_scenario(goodput=["short:ttft:500", "long:ttft:9000"], **BUSY), prompt, facts=blind)
    )
    said = answers(evidence, decision, Terms(), [])
    assert [each.answer.split(":")[0] for each in said] == [
        "yes, as far as limits were agreed", "not measured", "not measured", "not shown", "not measured",
    ]  # fmt: skip
    assert all(each.todo or each.anew.facts for each in said)


def test_preemptions_or_full_kv_are_not_stable(tmp_path: Path) -> None:
    for number, facts in enumerate((Facts(preemptions=40.0), Facts(kv_usage_max=0.99))):
        folder = a_comparison(tmp_path / str(number), a_scenario(**BUSY), prompt, facts=lambda _, facts=facts: facts)
        evidence, decision = decided(folder)
        assert answers(evidence, decision, Terms(), [])[2].answer == "no"


def test_the_command_says_it_all_by_its_exit_code_too(
    records: Mapping[str, list[Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    faults = [str(drilled(tmp_path, name)) for name in ("first", "second")]
    manifests = [str(each) for each in rehearsed(tmp_path)]
    common = ["--faults", *faults, "--manifest", *manifests, "--out", str(tmp_path / "out")]
    cases = [("kept", 0, "keep"), ("tuned", 10, "retune to second"), ("split", 11, "isolate")]
    for name, code, title in [*cases, ("open", 12, "keep the baseline: evidence missing")]:
        assert main(["decide", *map(str, records[name]), *common]) == code
        assert capsys.readouterr().out.startswith(f"# {title}\n")
        record = json.loads((tmp_path / "out" / "decision.json").read_text())
        assert record["verdict"] == title.removesuffix(" to second")
        assert f"<h1>{title}</h1>" in (tmp_path / "out" / "decision.html").read_text()
        assert all(each["runs"] for each in record["arms"][0]["checks"])


def test_terms_come_from_a_file_and_options_go_before_it(
    kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "decision.yaml"
    file.write_text("version: 1\nbaseline: second\nrequests_min: 90000\n")
    out = ["--out", str(tmp_path / "out")]
    assert main(["decide", str(kept), "--terms", str(file), "--requests-min", "80", *out]) == 12
    record = json.loads((tmp_path / "out" / "decision.json").read_text())
    assert (record["serves"], record["terms"]["requests_min"], record["on_load_alone"]["verdict"]) == (
        "second",
        80,
        "keep",
    )
    file.write_text("version: 1\nbasline: second\n")
    assert main(["decide", str(kept), "--terms", str(file)]) == 2
    assert f"{file}: basline: unknown key" in capsys.readouterr().err
    assert main(["decide", str(kept), "--engine-cost-per-hour", "much"]) == 2
    assert main(["decide", str(tmp_path)]) == 2
    assert "neither a run nor a comparison" in capsys.readouterr().err
