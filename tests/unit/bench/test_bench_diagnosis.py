"""A diagnosis is held against truth: an engine and a policy whose one constraint was set on purpose, played in virtual
time and read every second as a bench reads a live engine.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import bench_kit
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.analysis.classes import Window
from bench.analysis.comparison import Load
from bench.cli import main
from bench.diagnosis.advice import ADVICE
from bench.diagnosis.diagnosing import diagnose
from bench.diagnosis.facts import EngineFacts, of_run
from bench.diagnosis.figures import figures
from bench.diagnosis.findings import Certainty, GroupDiagnosis
from bench.diagnosis.moments import moments
from bench.diagnosis.rules import ABSENT, RULES, Constraint
from bench.load.pacing import Windows
from bench.records.material import Material, ReportRun
from bench.records.request import Outcome, RequestRecord
from bench.records.store import RunFolder
from bench.records.stored import StoredRun, read_run
from bench.records.vllm_flat import flat
from bench.report.diagnosis_table import describe
from bench.simulated import DIRECT, SimulatedEngine
from bench.simulation.play import _caller, _record, senders
from bench.simulation.profiles import PROFILES
from bench.simulation.setup import Setup, flags_of, plan_of
from bench.trace.intensity import Intensity
from bench.trace.mix import ClassLoad
from bench.trace.random_arrivals import for_duration

WARMUP_S, WINDOW_S = 5.0, 60.0
SHORTS = (ClassLoad("short", 1, 512, 128),)
MIXED = (ClassLoad("short", 80, 512, 64), ClassLoad("long", 20, 8192, 64))
LOAD = Load("load", 1.0, "mix")
_POLICIES = TemporaryDirectory()


def a_policy(admission: str) -> str:
    """A file of its own for each, gone with the process."""
    classes = "".join(
        f"  {name}: {{weight: 1, queue: {{requests_max: 4096, prompt_tokens_max: 100000000, bytes_max: 4294967296}}, "
        "wait_s_max: {short: 600, long: 600}, output_tokens_max: 4096}\n"
        for name in ("interactive", "batch")
    )
    path = Path(_POLICIES.name) / f"{len(list(Path(_POLICIES.name).iterdir()))}.yaml"
    path.write_text(
        "version: 1\nname: mine\nlength_classes: {short: {prompt_tokens_max: 640}, long: {}}\n"
        f"service_classes:\n{classes}admission: {admission}\norder: {{kind: arrival}}\n"
    )
    return str(path)


def played(
    *, rate: float, mix: Sequence[ClassLoad], policy: str = DIRECT, seed: int = 1, name: str = "run", **engine: Any
) -> StoredRun:
    """One run in virtual time, with the readings that a sampler would have made."""
    profile = PROFILES["h200"]
    setup = Setup(
        arm="arm",
        plan=plan_of(policy, Path()),
        flags=flags_of(SimulatedEngine(enable_prefix_caching=False, **engine), profile),
        profile=profile,
        engines=1,
        gateways=1,
        shared_engines=False,
        service_classes={"short": "interactive", "long": "batch"},
        priority={},
        tenants=1,
    )
    trace = for_duration(rate=Intensity(rate), span_s=WARMUP_S + WINDOW_S, mix=mix, seed=seed)
    windows = Windows(WARMUP_S, WINDOW_S, 600.0)
    (sender,) = senders(setup, seed)
    sender.expect([_caller(setup, arrival, 0) for arrival in trace.arrivals])
    (post,) = sender.room.posts.values()
    lines: list[dict[str, Any]] = []

    def read() -> None:
        sender.room._look_up(post)  # steps that were taken as one are looked at one by one
        kv = post.engine.blocks_used / setup.flags.kv_blocks  # type: ignore[attr-defined]
        line = {"running": len(post.engine.running), "waiting": len(post.engine.waiting), "kv_usage_max": kv}
        lines.append({"at_ms": (sender.room.now - began) * 1000, **line, "preemptions": post.engine.preemptions})

    began = sender.room.now
    for second in range(int(windows.span_s)):
        sender.room.at(began + second + 0.5, read, rank=3)
    sender.room.run()
    answers = sender.answers if policy == DIRECT else sender.fates.values()  # type: ignore[union-attr]
    records = [_record(i, *each, windows) for i, each in enumerate(zip(trace.arrivals, answers, strict=True))]
    return a_run(records, lines, name=name, preemptions=post.engine.preemptions, **facts_said(setup))


def facts_said(setup: Setup) -> dict[str, Any]:
    blocks, tokens = setup.flags.kv_blocks, setup.flags.block_tokens
    return {
        "num_gpu_blocks": str(blocks),
        "block_size": str(tokens),
        "max_num_seqs": str(setup.flags.max_num_seqs),
        "max_num_batched_tokens": str(setup.flags.max_num_batched_tokens),
        "long_prefill_token_threshold": str(setup.flags.long_prefill_token_threshold),
    }


def a_run(
    records: Sequence[RequestRecord],
    lines: Sequence[dict[str, Any]],
    *,
    name: str = "run",
    preemptions: int = 0,
    **said: str,
) -> StoredRun:
    return StoredRun(
        folder=Path(name),
        cell_id=name,
        valid=True,
        window=Window(WARMUP_S, WINDOW_S),
        run={"run_id": name, "effective_args": said, "target": {"name": "arm"}},
        records=records,
        measurements={"engine": {"delta": {"preemptions": preemptions}}},
        verdict={"verdict": "VALID", "reasons": [], "notes": []},
        engine=lines,
    )


def material_of(*runs: ReportRun) -> Material:
    arms = list(dict.fromkeys(run.arm for run in runs))
    return Material("made", Path(), runs, arms, [], {}, None, len(runs))


def group_of(*runs: StoredRun, known: EngineFacts | None = None) -> GroupDiagnosis:
    material = material_of(*(ReportRun("arm", LOAD, f"seed {n}", run) for n, run in enumerate(runs)))
    (group,) = diagnose(material, known=known or EngineFacts()).groups
    return group


def named(group: GroupDiagnosis) -> list[Constraint]:
    return [each.constraint for each in group.findings]


SLOTS = "{{kind: slots, slots: {{total: {}}}}}"
TRUTH: dict[str, tuple[Constraint, dict[str, Any]]] = {
    "four sequences": (Constraint.SEQUENCE_LIMIT, {"rate": 8, "mix": SHORTS, "max_num_seqs": 4}),
    "four sequences behind a gateway": (
        Constraint.SEQUENCE_LIMIT,
        {"rate": 8, "mix": SHORTS, "max_num_seqs": 4, "admission": SLOTS.format(64)},
    ),
    "a tiny cache": (Constraint.KV_CACHE, {"rate": 12, "mix": SHORTS, "num_gpu_blocks_override": 200}),
    "a cache of one long prompt": (Constraint.KV_CACHE, {"rate": 3, "mix": MIXED, "num_gpu_blocks_override": 640}),
    "small steps and long prompts": (
        Constraint.PREFILL_BUDGET,
        {"rate": 6, "mix": MIXED, "max_num_batched_tokens": 1024},
    ),
    "large steps and long prompts": (Constraint.PREFILL_BUDGET, {"rate": 10, "mix": MIXED}),
    "three slots": (Constraint.ADMISSION_TIGHT, {"rate": 6, "mix": SHORTS, "admission": SLOTS.format(3)}),
    "three slots, mixed": (Constraint.ADMISSION_TIGHT, {"rate": 5, "mix": MIXED, "admission": SLOTS.format(3)}),
    "too much": (Constraint.ENGINE_SPEED, {"rate": 40, "mix": MIXED}),
}
FLAGS = {
    "long_prefill_token_threshold": 640,
    "max_num_batched_tokens": 2048,
    "max_num_seqs": 128,
    "scheduling_policy": "priority",
}
FREE: dict[str, dict[str, Any]] = {
    "a low load": {"rate": 4, "mix": SHORTS},
    "a low load behind a gateway": {"rate": 4, "mix": SHORTS, "policy": "short-first"},
    "what the policy is for": {"rate": 8, "mix": MIXED, "policy": "short-first", **FLAGS},
}
PAIR: dict[str, dict[str, Any]] = {
    "held back": {"rate": 6, "mix": SHORTS, "admission": SLOTS.format(6)},
    "let through": {"rate": 6, "mix": SHORTS, "policy": "passthrough"},
    "all at once": {"rate": 9, "mix": MIXED, "policy": "passthrough", **FLAGS},
    "the policy under the same load": {"rate": 9, "mix": MIXED, "policy": "short-first", **FLAGS},
}


@cache
def truth(name: str, seed: int = 1) -> StoredRun:
    said = dict(TRUTH[name][1] if name in TRUTH else {**FREE, **PAIR}[name])
    if "admission" in said:
        said["policy"] = a_policy(said.pop("admission"))
    return played(seed=seed, name=f"{name} {seed}", **said)


def without_limit(run: StoredRun) -> StoredRun:
    said = {name: value for name, value in run.run["effective_args"].items() if name != "max_num_seqs"}
    return replace(run, run={**run.run, "effective_args": said})


def shifted(run: StoredRun, *, planned_ms: float = 0.0, dispatched_ms: float = 0.0) -> StoredRun:
    """Requests that were planned, or sent, so much sooner than the engine knew of them."""
    records = [
        replace(
            each, planned_ms=each.planned_ms - planned_ms, dispatched_ms=(each.dispatched_ms or 0.0) - dispatched_ms
        )
        for each in run.records
    ]
    return replace(run, records=records)


@pytest.mark.parametrize("name", TRUTH)
def test_the_one_constraint_that_was_set_is_named_and_no_other(name: str) -> None:
    group = group_of(truth(name))
    assert named(group) == [TRUTH[name][0]]
    assert group.findings[0].certainty is Certainty.SURE
    assert group.answer == TRUTH[name][0]


@pytest.mark.parametrize("name", FREE)
def test_where_nothing_holds_requests_up_no_constraint_is_seen(name: str) -> None:
    assert group_of(truth(name)).answer == "no constraint seen at this load"


def test_what_an_engine_computes_all_the_time_is_too_much_behind_a_gateway_too() -> None:
    run = played(rate=40, mix=MIXED, policy="short-first")
    assert group_of(run).answer == "engine_speed"


def test_limits_that_are_missed_without_a_constraint_are_not_passed_over() -> None:
    run = truth("a low load")
    late = replace(run, measurements={**run.measurements, "classes": {"short": {"good_share": 0.07}}})
    said = describe("made", diagnose(material_of(ReportRun("arm", LOAD, "seed 1", late))))
    assert "No constraint seen at this load" in said and "Yet only 7% of a class" in said


def test_where_the_limit_is_in_no_record_it_is_missing_evidence() -> None:
    (found,) = group_of(without_limit(truth("four sequences"))).findings
    assert (found.constraint, found.certainty) == (Constraint.SEQUENCE_LIMIT, Certainty.LIKELY)
    assert found.missing == [ABSENT["limit_known"]]
    (found,) = group_of(without_limit(truth("four sequences")), known=EngineFacts(max_num_seqs=4)).findings
    assert found.certainty is Certainty.SURE


def test_an_unknown_limit_is_seen_where_some_requests_are_still_on_their_way() -> None:
    """As on a live engine: its numbers are a step old, and its API server takes a while."""
    run = without_limit(shifted(truth("four sequences"), planned_ms=320.0, dispatched_ms=320.0))
    assert named(group_of(run)) == [Constraint.SEQUENCE_LIMIT]


def test_an_engine_that_mostly_runs_as_many_may_be_at_a_limit_that_nobody_knows() -> None:
    """1,024 sequences with long answers: new prompts are in prefill all the time, so it may be the steps as well."""
    run = without_limit(played(rate=60, mix=(ClassLoad("short", 1, 64, 1024),)))
    (found,) = group_of(run).findings
    assert (found.constraint, found.certainty) == (Constraint.ENGINE_SPEED, Certainty.POSSIBLE)
    assert [each.figure for each in found.against] == ["plateau_share"]


def test_a_gateway_that_holds_back_before_an_unknown_limit_is_no_more_than_possible() -> None:
    for name in ("four sequences behind a gateway", "three slots"):
        (found,) = group_of(without_limit(truth(name))).findings
        assert (found.constraint, found.certainty) == (Constraint.ADMISSION_TIGHT, Certainty.POSSIBLE)


def test_how_many_steps_a_long_prompt_takes_is_said_where_it_is_known() -> None:
    (found,) = group_of(truth("small steps and long prompts")).findings
    said = [each.says for each in found.evidence]
    assert "a long prompt fills 8 steps of max_num_batched_tokens" in said
    assert "long_prefill_token_threshold is 0" in said


def test_requests_that_are_in_no_queue_are_on_the_way() -> None:
    slow = shifted(truth("a low load"), planned_ms=400.0, dispatched_ms=400.0)
    (found,) = group_of(slow).findings
    assert found.constraint is Constraint.API_SERVER
    (way,) = (each for each in found.evidence if each.figure == "way_ms")
    assert way.by_run[slow.folder.name] == pytest.approx(400, rel=0.15)


def test_a_late_client_is_named_and_not_what_it_makes_slow() -> None:
    assert named(group_of(shifted(truth("a low load"), planned_ms=400.0))) == [Constraint.CLIENT]


def test_a_client_that_stands_still_is_named_and_not_the_way() -> None:
    """It sends late, and reads the ends late: of both the engine knows nothing."""
    run = truth("a low load")
    late = [
        replace(each, first_token_ms=each.first_token_ms + 600, ended_ms=each.ended_ms + 600)
        for each in shifted(run, planned_ms=600.0).records
        if each.first_token_ms is not None and each.ended_ms is not None
    ]
    assert named(group_of(replace(run, records=late))) == [Constraint.CLIENT]


@pytest.mark.parametrize(("queue_ms", "on_the_way"), [(0, 0), (None, 1)])
def test_a_long_prompt_that_a_gateway_may_hold_between_two_parts_is_not_on_the_way(
    queue_ms: int | None, on_the_way: int
) -> None:
    said = {"class_name": "long", "prompt_tokens_planned": 8192, "gateway_queue_ms": queue_ms}
    waiting = bench_kit.a_record(
        planned_ms=6000.0, dispatched_ms=6000.0, first_token_ms=20000.0, ended_ms=20000.0, **said
    )
    short = bench_kit.a_record(gateway_queue_ms=queue_ms)
    (moment,) = moments(a_run([short, waiting], [{"at_ms": 9000, "running": 0, "waiting": 0}]), EngineFacts())
    assert (moment.between, moment.prefilling) == (on_the_way, 1)


def test_what_was_refused_passed_through_no_queue() -> None:
    """Half of what comes is refused at once: the others' time in the engine's queue is not half as long for it."""
    run = truth("four sequences")
    refused = [
        replace(each, outcome=Outcome.REFUSED, ended_ms=each.dispatched_ms, first_token_ms=None, status=429)
        for each in run.records
    ]
    alone, beside = (
        figures(replace(run, records=each), of_run(run)) for each in (run.records, [*run.records, *refused])
    )
    assert beside["engine_queue_ms"] == alone["engine_queue_ms"]


def test_preemptions_alone_are_the_cache_where_they_are_more_than_a_few() -> None:
    lines = [{"at_ms": 5000 + n * 1000, "running": 4, "waiting": 0, "kv_usage_max": 0.97} for n in range(30)]
    records = truth("a low load").records
    (found,) = group_of(a_run(records, lines, preemptions=12)).findings
    assert found.constraint is Constraint.KV_CACHE
    assert "12 preemptions" in found.evidence[0].says
    assert found.strength == 12 / len(records), "no more than so many requests suffered"
    assert group_of(a_run(records, lines, preemptions=1)).findings == []


def test_a_preemption_or_two_are_not_what_an_overload_comes_from() -> None:
    run = truth("too much")
    few = replace(run, measurements={"engine": {"delta": {"preemptions": 2}}})
    assert named(group_of(few)) == [Constraint.ENGINE_SPEED]


def test_what_its_client_left_was_not_left_unanswered() -> None:
    """A trace may have a third of its clients leave: the load that is answered is of the others."""
    run = truth("a low load")
    left = [replace(each, outcome=Outcome.CANCELLED) if each.index % 3 == 0 else each for each in run.records]
    before, after = (figures(replace(run, records=each), of_run(run)) for each in (run.records, left))
    assert after["behind_share"] == pytest.approx(before["behind_share"], abs=0.03)


def test_the_gateways_part_of_a_first_token_is_of_those_who_had_one() -> None:
    """Half of what comes waits to its deadline in vain, ten times as long as the others' first token takes."""
    run = truth("a low load behind a gateway")
    expired = [
        replace(each, outcome=Outcome.EXPIRED, first_token_ms=None, gateway_queue_ms=None,
                ended_ms=each.planned_ms + 10_000.0, status=429)
        for each in run.records
    ]  # fmt: skip
    alone, beside = (
        figures(replace(run, records=each), of_run(run)) for each in (run.records, [*run.records, *expired])
    )
    assert beside["gateway_ms"] == alone["gateway_ms"]
    assert beside["gateway_ms"] <= beside["ttft_ms"]


def test_a_long_prompt_of_which_nobody_knows_where_it_waited_is_in_nobodys_way() -> None:
    """Still open at the end, perhaps in the gateway's line: shorts did not meet it in prefill."""
    run = truth("what the policy is for")
    lost = [
        replace(each, outcome=Outcome.UNFINISHED, first_token_ms=None, ended_ms=None, gateway_queue_ms=None)
        for each in run.records
        if each.class_name == "long"
    ]
    alone, beside = (figures(replace(run, records=each), of_run(run)) for each in (run.records, [*run.records, *lost]))
    assert beside["shorts_that_met_long"] == alone["shorts_that_met_long"]


def test_an_idle_gpu_while_requests_wait_is_the_host() -> None:
    run = truth("small steps and long prompts")
    idle = replace(run, engine=[{**line, "gpu_busy_share": 0.1} for line in run.engine])
    busy = replace(run, engine=[{**line, "gpu_busy_share": 0.97} for line in run.engine])
    assert Constraint.DEVICE_IDLE in named(group_of(idle))
    assert Constraint.DEVICE_IDLE not in named(group_of(busy))
    assert any(said.startswith("device_idle: ") for said in group_of(run).not_judged)


def test_without_readings_only_what_requests_show_is_said() -> None:
    unread = replace(truth("a low load"), engine=[])
    group = group_of(unread)
    assert group.answer == "not enough readings"
    few = replace(unread, engine=truth("a low load").engine[5:8])
    assert (group_of(few).answer, group_of(few).to_json()["readings"]) == ("not enough readings", 3)
    assert {said.partition(":")[0] for said in group.not_judged} >= {"sequence_limit", "kv_cache", "api_server"}
    assert named(group_of(shifted(unread, planned_ms=400.0))) == [Constraint.CLIENT]


def test_what_shows_in_few_of_the_repeats_is_less_sure() -> None:
    shows, free = truth("four sequences"), replace(truth("a low load"), folder=Path("free"))
    other = replace(free, folder=Path("free too"))
    again = replace(shows, folder=Path("shows too"))
    certainty = [
        group_of(*runs).findings[0].certainty for runs in ([shows, again], [shows, again, free], [shows, free, other])
    ]
    assert certainty == [Certainty.SURE, Certainty.LIKELY, Certainty.POSSIBLE]


def test_a_command_names_the_policy_behind_an_arm_and_no_arm_that_is_none() -> None:
    material = material_of(ReportRun("arm", LOAD, "seed 1", truth("three slots")))
    for policies, said in (({"arm": "/my policies/mine.yaml"}, "'/my policies/mine.yaml'"), ({}, "POLICY")):
        ((found,),) = (group.findings for group in diagnose(material, policies=policies).groups)
        assert found.command.startswith(f"gateway bench policies {said} ./looser.yaml ")


# ── between arms ──


def two_arms(first: str, second: str, traces: int = 3) -> Material:
    runs = [
        ReportRun(name, LOAD, f"seed {seed}", truth(name, seed))
        for seed in range(1, traces + 1)
        for name in (first, second)
    ]
    return material_of(*runs)


@pytest.mark.parametrize(("traces", "certainty"), [(3, Certainty.SURE), (2, Certainty.LIKELY), (1, Certainty.POSSIBLE)])
def test_an_arm_that_answers_no_more_and_later_admits_too_much(traces: int, certainty: Certainty) -> None:
    loose, bounded = diagnose(two_arms("all at once", "the policy under the same load", traces)).groups
    (found,) = (each for each in loose.findings if each.constraint is Constraint.ADMISSION_OPEN)
    assert found.certainty is certainty
    assert len(found.runs) == traces
    assert Constraint.ADMISSION_OPEN not in named(bounded)


def test_an_arm_that_holds_more_back_is_not_the_open_one() -> None:
    held, through = diagnose(two_arms("held back", "let through", 1)).groups
    for group in (held, through):
        assert Constraint.ADMISSION_OPEN not in named(group)


def test_the_first_arm_once_more_is_no_other_arm() -> None:
    pair = two_arms("all at once", "the policy under the same load")
    loose, _ = diagnose(replace(pair, again=[pair.arms[1]])).groups
    assert Constraint.ADMISSION_OPEN not in named(loose)


def test_a_second_run_of_one_arm_admits_no_more_than_the_first() -> None:
    same = [
        ReportRun(arm, LOAD, f"seed {seed}", replace(truth("all at once", seed), folder=Path(f"{arm} {seed}")))
        for seed in (1, 2, 3)
        for arm in ("first", "again")
    ]
    assert all(Constraint.ADMISSION_OPEN not in named(group) for group in diagnose(material_of(*same)).groups)


# ── what counts, and what does not ──


def invalid(run: StoredRun, name: str) -> StoredRun:
    verdict = {"verdict": "INVALID", "reasons": ["client lag: a request was sent 900.0 ms late"], "notes": []}
    return replace(run, folder=Path(name), valid=False, verdict=verdict)


def test_of_an_invalid_run_nothing_is_said_but_why() -> None:
    late = invalid(truth("four sequences"), "late")
    found = diagnose(material_of(ReportRun("arm", LOAD, "seed 1", late)))
    assert found.groups == []
    assert found.left_out == {"late": ["client lag: a request was sent 900.0 ms late"]}


@settings(max_examples=8)
@given(order=st.permutations(range(4)), with_invalid=st.booleans())
def test_neither_the_order_of_runs_nor_an_invalid_one_changes_what_is_said(
    order: list[int], with_invalid: bool
) -> None:
    runs = [truth("four sequences", 1), truth("four sequences", 2), truth("a low load"), truth("a low load", 2)]
    material = [ReportRun("arm", LOAD, f"seed {n}", run) for n, run in enumerate(runs)]
    shuffled = [material[n] for n in order]
    if with_invalid:
        shuffled.insert(2, ReportRun("arm", LOAD, "seed 9", invalid(truth("a tiny cache"), "late")))
    (plain,), (mixed,) = diagnose(material_of(*material)).groups, diagnose(material_of(*shuffled)).groups
    assert [(f.constraint, f.certainty, f.strength, sorted(f.runs)) for f in mixed.findings] == [
        (f.constraint, f.certainty, f.strength, sorted(f.runs)) for f in plain.findings
    ]


# ── what the record says of the engine ──


@pytest.mark.parametrize(
    ("effective", "metadata", "limits", "found"),
    [
        ({"max_num_seqs": "16"}, {"max_num_seqs": "32"}, [{"max_num_seqs": 64}], 16),
        ({"block_size": "16"}, {"max_num_seqs": "32"}, [{"max_num_seqs": 64}], 32),
        ({"block_size": "16"}, {}, [{"max_num_seqs": 64}, {"max_num_seqs": 8}], 72),
        ({"block_size": "16"}, {}, [{"max_num_seqs": 64}, {}], None),
        ({"a": {"max_num_seqs": "4"}, "b": {"max_num_seqs": "6"}}, {}, [], 10),
        ({"max_num_seqs": "None"}, {}, [], None),
    ],
)
def test_the_limit_is_what_the_engine_says_then_the_user_then_the_gateway(
    effective: dict[str, Any], metadata: dict[str, str], limits: list[dict[str, int]], found: int | None
) -> None:
    run = a_run([], [])
    said = replace(run, run={**run.run, "effective_args": effective, "metadata": metadata})
    assert of_run(said, {"engines": [{"limits": each} for each in limits]}).max_num_seqs == found


def test_what_an_engine_says_goes_before_what_is_said_of_all_arms() -> None:
    """Cells of a sweep have limits of their own, whatever an option says."""
    known = EngineFacts(max_num_seqs=8)
    swept, silent = a_run([], [], max_num_seqs="4"), a_run([], [], block_size="16")
    assert of_run(swept, known=known).max_num_seqs == 4
    stated = replace(silent, run={**silent.run, "metadata": {"max_num_seqs": "32"}})
    assert of_run(stated, {"engines": [{"limits": {"max_num_seqs": 64}}]}, known).max_num_seqs == 8


def test_the_cache_is_as_large_as_its_blocks() -> None:
    assert of_run(a_run([], [], num_gpu_blocks="200", block_size="16")).kv_tokens == 3200
    assert of_run(a_run([], [], num_gpu_blocks="None", block_size="16")).kv_tokens is None
    each = {name: {"num_gpu_blocks": blocks, "block_size": "16"} for name, blocks in (("a", "200"), ("b", "100"))}
    run = a_run([], [])
    assert of_run(replace(run, run={**run.run, "effective_args": each})).kv_tokens == 1600


# ── the rules as data ──


def test_every_figure_that_a_rule_names_is_measured_of_some_run() -> None:
    measured = {"gpu_idle_while_waiting", "way_steps"}  # of GPUs, and of streams: no simulation has them
    for name in (*TRUTH, "a low load behind a gateway"):
        run = truth(name)
        measured |= set(figures(run, of_run(run)))
    tests = [test for rule in RULES for test in (*rule.needs, *rule.unless, *rule.confirms, *rule.about)]
    assert {test.figure for test in tests} | {rule.strength for rule in RULES} <= measured
    assert set(ABSENT) <= {test.figure for test in tests}
    assert all(test.says.count("{}") == 1 for rule in RULES for test in (*rule.needs, *rule.confirms))


def test_every_constraint_has_a_rule_and_advice() -> None:
    assert {rule.constraint for rule in RULES} | {Constraint.ADMISSION_OPEN} == set(Constraint) == set(ADVICE)


# ── the command ──


def kept(folder: Path, run: StoredRun, **verdict: Any) -> Path:
    """The run as it lies on disk."""
    where = RunFolder(folder, run.folder.name.replace(" ", "-"))
    measured = bench_kit.measured_of(list(run.records), window=run.window)
    said: dict[str, Any] = {
        "goodput": [],
        "trace_origin": {},
        "warmup_seconds": WARMUP_S,
        "metadata": {},
        "model": "m",
        "endpoint": "chat",
    }
    said = {**run.run, **said, "cell_id": "run"}
    where.write_json("run.json", said)
    where.write_requests(run.records)
    where.write_lines("engine.jsonl", run.engine)
    where.write_json("measurements.json", {**measured.to_json(), **run.measurements})
    where.write_json("verdict.json", {**run.verdict, **verdict})
    where.write_json("vllm_bench.json", flat(run.records, measured, model="m", tokenizer="t", run=said))
    return where.path


def test_the_command_says_it_and_keeps_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = kept(tmp_path, truth("four sequences"))
    assert main(["diagnose", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "sequence_limit (sure)" in said and "max_num_seqs is 4" in said and "would not help: " in said
    assert (folder / "diagnosis.md").read_text() == said
    (group,) = json.loads((folder / "diagnosis.json").read_text())["groups"]
    assert group["answer"] == "sequence_limit"
    (finding,) = group["findings"]
    assert finding["try"].startswith("gateway bench sweep")
    own = figures(read_run(folder), of_run(read_run(folder)))
    for each in (*finding["evidence"], *finding["against"]):
        assert each["runs"] == {folder.name: round(own[each["figure"]], 4)}


def test_a_record_without_a_valid_run_has_a_code_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = kept(tmp_path, truth("four sequences"), verdict="INVALID", reasons=["the engine restarted during the run"])
    assert main(["diagnose", str(folder), "--out", str(tmp_path / "out")]) == 4
    assert "the engine restarted during the run" in capsys.readouterr().out
    assert json.loads((tmp_path / "out" / "diagnosis.json").read_text())["groups"] == []


def test_a_folder_that_is_no_record_is_a_usage_error(tmp_path: Path) -> None:
    assert main(["diagnose", str(tmp_path)]) == 2
