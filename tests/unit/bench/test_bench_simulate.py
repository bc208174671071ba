"""Scenarios in virtual time: what is said of them, and that they end as a live bench's requests do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench_kit import a_record

from bench.analysis.busy import busy_s
from bench.analysis.over_seeds import spread, student
from bench.cli import main
from bench.engine import speed_probe
from bench.errors import UsageError
from bench.load.pacing import Windows
from bench.order import cell_id
from bench.records.request import Outcome
from bench.records.store import LAST_FILE, RunFolder
from bench.scenario import Scenario, load
from bench.simulation import play as play_module
from bench.simulation import study
from bench.simulation.posts import Caller
from bench.simulation.profiles import PROFILES, Profile
from bench.simulation.setup import Setup
from bench.simulation.speed import busy_by_cell, by_probes, probed, slower, valid_runs
from bench.simulation.steps import StepTime
from bench.trace.arrivals import Arrival, Trace

CPU = PROFILES["cpu"]
OPTIONS = ["simulate", "--profile", "cpu", "--request-rate", "1.2", "--num-prompts", "40", "--output-tokens", "16"]


def a_scenario(**said: Any) -> Scenario:
    arm = {"name": "sf", "simulated": {"policy": "short-first"}}
    start = {"version": 1, "name": "s", "model": "m", "tokenizer": ".", "rates_per_s": [1.0], "num_prompts": 20}
    return Scenario.model_validate({**start, "arms": [arm], **said})


def a_setup(policy: str = "short-first", *, fleet: dict[str, Any] | None = None, **engine: Any) -> Setup:
    arm = {"name": "a", "simulated": {"policy": policy, "engine": engine}}
    [setup] = study.setups(a_scenario(arms=[arm], simulation=fleet or {}), CPU, Path())
    return setup


def a_trace(*arrivals: tuple[float, str, int, int]) -> Trace:
    return Trace(tuple(Arrival(*each) for each in arrivals), arrivals[-1][0] + 1.0, {"label": "by hand"})


def records_of(setup: Setup, trace: Trace, *, drain_s: float = 600.0) -> Any:
    return play_module.play(setup, trace, Windows(0.0, trace.span_s, drain_s), seed=1).records


def simulated(tmp_path: Path, *options: str) -> dict[str, Any]:
    assert main([*OPTIONS, "--result-dir", str(tmp_path), *options]) == 0
    [file] = tmp_path.glob("*/simulation.json")
    said: dict[str, Any] = json.loads(file.read_text())
    file.rename(tmp_path / f"{file.parent.name}.json")
    return said


@pytest.mark.parametrize(
    ("freedom", "value"), [(1, 12.706), (2, 4.3027), (3, 3.1824), (4, 2.7764), (9, 2.2622), (30, 2.0423)]
)
def test_the_interval_is_students(freedom, value):
    assert student(freedom) == pytest.approx(value, rel=0.004)


def test_a_figure_that_a_run_does_not_have_has_no_mean():
    assert spread([1.0, None]) is None
    assert spread([]) is None


def test_one_seed_and_an_unanswered_quantile_have_no_interval():
    assert spread([3.0]).to_json() == {"mean": 3.0, "seeds": 1}
    assert spread([3.0, float("inf")]).to_json() == {"mean": "inf", "seeds": 2}


def test_the_mean_lies_in_the_middle_of_its_interval():
    found = spread([1.0, 2.0, 3.0])
    assert (found.mean, found.high - found.mean) == (2.0, pytest.approx(4.3027 / 3**0.5, rel=1e-3))
    assert found.mean - found.low == pytest.approx(found.high - found.mean)


def test_a_record_says_that_it_is_simulated_and_leaves_out_what_is_not_known(tmp_path):
    said = simulated(tmp_path, "--policies", "passthrough", "short-first", "--seeds", "1", "2", "--jobs", "1")
    assert said["simulated"] is True
    assert "not measured" in PROFILES["h200"].about
    assert said["engine"]["name"] == "cpu"
    arms = said["loads"][0]["arms"]
    assert [arm["arm"] for arm in arms] == ["passthrough", "short-first"]
    short = arms[0]["classes"]["short"]
    assert short["offered"] == short["outcomes"]["completed"] == 64
    assert short["over_seeds"]["ttft_ms.p95"]["seeds"] == 2
    assert "completed_in_time" not in short
    assert "goodput_per_s" not in short["over_seeds"]
    assert "chunk_gap_ms" not in said["runs"][0]["classes"]["short"]


def test_whatever_the_number_of_processes_the_figures_are_the_same(tmp_path):
    options = ("--policies", "short-first", "sliced", "--seeds", "1", "2")
    one, two = (simulated(tmp_path, *options, "--jobs", jobs) for jobs in ("1", "2"))
    assert one["loads"] == two["loads"]


def test_short_prompts_wait_less_behind_a_policy_that_puts_them_first(tmp_path):
    options = ("--jobs", "1", "--request-rate", "1.6", "--long-prefill-token-threshold", "640")
    said = simulated(tmp_path, "--policies", "passthrough", "short-first", *options, "--scheduling-policy", "priority")
    first, second = (arm["classes"]["short"]["over_seeds"]["ttft_ms.p95"]["mean"] for arm in said["loads"][0]["arms"])
    assert second < first / 2


def test_a_lone_request_takes_what_its_steps_and_a_request_take():
    [record] = records_of(a_setup("passthrough"), a_trace((0.0, "short", 512, 9)))
    steps = CPU.step_time
    prefill_s = steps.base_s + steps.chunk_s(512, 0)
    assert record.ttft_ms == pytest.approx(1000 * (CPU.request_s + prefill_s), rel=1e-6)
    assert record.tpot_ms == pytest.approx(1000 * (steps.base_s + steps.chunk_s(1, 516)), rel=0.01)
    assert (record.output_tokens, record.outcome, record.accepted) == (9, Outcome.COMPLETED, True)


def test_what_is_open_at_the_end_of_the_drain_is_unfinished_and_has_no_times():
    short, long = records_of(
        a_setup("passthrough"), a_trace((0.0, "short", 100, 5), (0.1, "long", 60_000, 5)), drain_s=0.5
    )
    assert short.outcome is Outcome.COMPLETED
    assert (long.outcome, long.ttft_ms, long.ended_ms) == (Outcome.UNFINISHED, None, None)


def test_a_client_that_leaves_is_cancelled_and_one_that_waits_too_long_is_expired():
    trace = a_trace(*((0.0, "short", 600, 2) for _ in range(60)))
    gone = Trace((replace(trace.arrivals[0], cancel_after_s=0.001), *trace.arrivals[1:]), trace.span_s, trace.origin)
    records = records_of(a_setup(), gone)
    assert records[0].outcome is Outcome.CANCELLED
    late = [record for record in records if record.outcome in {Outcome.EXPIRED, Outcome.REFUSED}]
    assert late
    assert all(record.reason in {"wait_deadline", "predicted_miss"} and not record.accepted for record in late)


def test_priorities_of_an_arm_without_a_gateway_reach_the_engine():
    trace = a_trace(*((0.0, "long", 8192, 2) for _ in range(6)), (0.01, "short", 512, 2))
    plain, urgent = (
        records_of(replace(a_setup("passthrough", scheduling_policy="priority"), priority=priority), trace)[-1].ttft_ms
        for priority in ({"short": 10, "long": 0}, {"short": 0, "long": 10})
    )
    assert urgent < plain / 2


def mixed_trace(*, leaves_after_s: tuple[float | None, ...] = (None,)) -> Trace:
    kinds = (("short", 512, 1), ("long", 5000, 30), ("short", 64, 200))
    trace = a_trace(*((at / 7, *kinds[at % 3]) for at in range(60)))
    gone = [leaves_after_s[at % len(leaves_after_s)] for at in range(60)]
    left = tuple(replace(each, cancel_after_s=after_s) for each, after_s in zip(trace.arrivals, gone, strict=True))
    return Trace(left, trace.span_s, trace.origin)


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_an_engine_by_itself_answers_as_behind_a_gateway_that_only_relays(prefix_caching):
    trace = mixed_trace(leaves_after_s=(None, None, 0.0001, 0.4, 9.0))
    alone, relayed = (
        records_of(a_setup(policy, enable_prefix_caching=prefix_caching), trace) for policy in ("direct", "passthrough")
    )
    assert {record.outcome for record in alone} == {Outcome.COMPLETED, Outcome.CANCELLED}
    of_gateway: Any = {"gateway_queue_ms": None, "gateway_length_class": None}
    assert alone == [replace(record, **of_gateway) for record in relayed]


def test_an_arm_that_states_no_policy_is_an_engine_by_itself():
    [setup] = study.setups(a_scenario(arms=[{"name": "a"}], simulation={"engines": 3}), CPU, Path())
    assert setup.plan is None
    assert setup.to_json()["policy"] == "direct"
    assert all(record.outcome is Outcome.COMPLETED for record in records_of(setup, mixed_trace()))


def test_a_gateway_hears_of_its_own_engine_that_its_kv_cache_ran_out():
    """Behind a plan that reserves none: what the engine preempted has it plan with less."""
    setup = a_setup("bounded-fifo", num_gpu_blocks_override=40, max_num_seqs=32)
    assert setup.plan is not None
    plan = replace(setup.plan, admission=replace(setup.plan.admission, kv=None))
    setup = replace(setup, plan=plan)
    [pool] = play_module.senders(setup, 1)
    pool.expect([Caller(0.1, 500, 900) for _ in range(8)])
    pool.room.run()
    assert pool.room.posts["engine-0"].engine.preemptions > 0
    assert pool.admission.fleet["engine-0"]._drift.kv_share < 1.0


def test_gateways_have_engines_and_requests_of_their_own():
    trace = a_trace(*((at / 10, "short", 512, 8) for at in range(200)))
    alone = records_of(a_setup(fleet={"engines": 4}), trace)
    split = records_of(a_setup(fleet={"engines": 4, "gateways": 4}), trace)
    assert [record.index for record in split] == list(range(200))
    assert all(record.outcome is Outcome.COMPLETED for record in [*alone, *split])
    # A gateway that knows of all engines sends nobody where another waits; a blind balancer does.
    assert max(record.ttft_ms for record in alone) < max(record.ttft_ms for record in split)


def test_gateways_that_share_engines_each_send_to_all_of_them_and_each_more_than_it_knows_of():
    """Four gateways, each of which lets one long prompt prefill: together they let four, and shorts pay for it."""
    trace = a_trace(*((at / 4, "short" if at % 5 else "long", 512 if at % 5 else 8192, 8) for at in range(80)))
    engine = {"scheduling_policy": "priority", "long_prefill_token_threshold": 640}
    alone = records_of(a_setup(fleet={"engines": 2}, **engine), trace)
    fleet = {"engines": 2, "gateways": 4, "shared_engines": True}
    shared = records_of(a_setup(fleet=fleet, **engine), trace)
    assert [record.index for record in shared] == list(range(80))
    assert all(record.outcome is Outcome.COMPLETED for record in [*alone, *shared])
    assert worst_short(alone) < worst_short(shared)
    assert shared == records_of(a_setup(fleet=fleet, **engine), trace)


def worst_short(records: Any) -> float:
    return max(record.ttft_ms for record in records if record.class_name == "short")


def test_a_gateway_learns_from_the_engines_how_much_room_others_took():
    """One has ten requests at the engine: the other, which sent none, plans with ten sequences less than its 24."""
    setup = a_setup("bounded-fifo", fleet={"gateways": 2, "shared_engines": True}, max_num_seqs=32)
    room, callers = play_module.a_room(setup, ["a"]), [Caller(0.1, 64, 4000) for _ in range(10)]
    first, second = (play_module.a_gateway(setup, setup.plan, room, number) for number in range(2))
    first.expect(callers)
    second.look_at_engines()
    caps = []
    room.at(room.now + 10.0, lambda: caps.append(second.admission.snapshot().engines["a"].budgets["slots"]))
    room.run()
    assert caps == [14]


def test_several_gateways_are_reported_each_and_together(tmp_path, capsys):
    fleet = ("--policies", "short-first", "--gateways", "2", "--shared-engines", "--engines", "1", "--jobs", "1")
    said = simulated(tmp_path, *fleet)
    [arm] = said["loads"][0]["arms"]
    assert sum(one["short"]["offered"] for one in arm["gateways"]) == arm["classes"]["short"]["offered"] == 32
    assert "| short-first, gateway 2 | short" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"arms": [{"name": "a", "credentials": {"short": "KEY"}}]}, "which policy"),
        ({"arms": [{"name": "a", "simulated": {"policy": "no-such"}}]}, "no-such"),
        ({"simulation": {"gateways": 2}}, "not enough for 2 gateways"),
        ({"simulation": {"service_classes": {"short": "interactive"}}}, "long is missing"),
        ({"simulation": {"service_classes": {"short": "gold", "long": "batch"}}}, "no service class gold"),
        ({"lengths": {"short": {"prompt_tokens": 9, "output_tokens": 5000}}}, "more than the 4096 output tokens"),
    ],
)
def test_what_cannot_be_simulated_is_said_before_it_is(said, message):
    with pytest.raises(UsageError, match=message):
        study.setups(a_scenario(**said), CPU, Path())


def test_predictions_are_held_against_the_same_traces_alone(tmp_path, capsys):
    scenario = tmp_path / "s.yaml"
    head = {"version": 1, "name": "s", "model": "m", "tokenizer": ".", "rates_per_s": [1.0], "num_prompts": 20}
    scenario.write_text(json.dumps({**head, "arms": [{"name": "a"}]}))
    measured = {
        "scenario": {**Scenario.model_validate({**head, "arms": [{"name": "a"}]}).model_dump(mode="json")},
        "loads": [{"label": "1 requests/s", "mix": "80/20", "traces": ["seed 1"], "arms": [measured_arm()]}],
    }
    measured["scenario"] = {key: value for key, value in measured["scenario"].items() if value is not None}
    record = tmp_path / "comparison.json"
    record.write_text(json.dumps(measured))
    command = ["simulate", str(scenario), "--profile", "cpu", "--measured", str(record), "--jobs", "1"]
    assert main([*command, "--result-dir", str(tmp_path / "runs")]) == 0
    said = capsys.readouterr().out
    assert "| a   | 1 requests/s, 80/20 | long TTFT p50 ms |" in said
    assert main([*command, "--speed-from", "busy", "--result-dir", str(tmp_path / "runs")]) == 0
    assert "no VALID run of it has busy: 1 requests/s, 80/20, seed 1, a" in capsys.readouterr().err
    task = next(iter(tasks_of(load(scenario), scenario.parent)))
    write_run(tmp_path / "1", study.run(replace(task, slower=1.25)), engine_speed={"before": [a_probe(CPU, 1.5)]})
    for source, times in [("probes", 1.5), ("busy", 1.25)]:
        runs = tmp_path / source
        assert main([*command, "--speed-from", source, "--result-dir", str(runs)]) == 0
        assert "of each repeat" not in capsys.readouterr().out  # there is one
        [kept] = runs.glob("*/simulation.json")
        assert json.loads(kept.read_text())["runs"][0]["costs_times"] == pytest.approx(times, rel=1e-3)
    measured["scenario"]["num_prompts"] = 21
    record.write_text(json.dumps(measured))
    assert main([*command, "--result-dir", str(tmp_path / "runs")]) == 2
    assert "num_prompts is 21 there and 20 here" in capsys.readouterr().err
    measured["scenario"] |= {"num_prompts": 20, "seeds": [1, 2]}  # pooled over more traces than are played
    record.write_text(json.dumps(measured))
    assert main([*command, "--result-dir", str(tmp_path / "runs")]) == 2
    assert "seeds is [1, 2] there and [1] here" in capsys.readouterr().err
    assert main(["simulate", str(scenario), "--speed-from", "busy"]) == 2
    assert "--speed-from: of which measured runs?" in capsys.readouterr().err


def test_each_counted_repeat_is_played_at_its_own_speed_and_the_repeats_say_what_the_machine_does(tmp_path, capsys):
    """A trace that does not count in the record is not played, whatever lies beside it."""
    scenario = tmp_path / "s.yaml"
    head = {"version": 1, "name": "s", "model": "m", "tokenizer": ".", "rates_per_s": [1.0], "num_prompts": 20}
    head |= {"seeds": [1, 2], "repeats": 2, "arms": [{"name": "a"}]}
    scenario.write_text(json.dumps(head))
    traces = ["seed 1", "seed 2", "seed 1 repeat 2"]
    measured = {
        "scenario": Scenario.model_validate(head).model_dump(mode="json", exclude_none=True),
        "loads": [{"label": "1 requests/s", "mix": "80/20", "traces": traces, "arms": [measured_arm()]}],
    }
    record = tmp_path / "comparison.json"
    record.write_text(json.dumps(measured))
    first, second = tasks_of(load(scenario), tmp_path)
    factors = {"seed 1": 1.0, "seed 2": 1.1, "seed 1 repeat 2": 2.0, "seed 2 repeat 2": 1.3}
    for number, (trace, factor) in enumerate(factors.items()):
        task = first if trace.startswith("seed 1") else second
        played = study.run(replace(task, slower=factor))
        block = replace(task.block, repeat=2 if "repeat" in trace else 1)
        write_run(tmp_path / str(number), replace(played, block=block))
    command = ["simulate", str(scenario), "--profile", "cpu", "--measured", str(record), "--jobs", "1"]
    assert main([*command, "--speed-from", "busy", "--result-dir", str(tmp_path / "runs")]) == 0
    [kept] = (tmp_path / "runs").glob("*/simulation.json")
    said = json.loads(kept.read_text())
    assert sorted(run.get("costs_times", 1.0) for run in said["runs"]) == pytest.approx([1.0, 1.1, 2.0], rel=1e-3)
    [over_seeds] = said["loads"]
    assert (over_seeds["seeds"], over_seeds["arms"][0]["classes"]["short"]["offered"]) == (2, 32)
    [figure] = [each for each in said["predicted_over_measured"][0]["figures"] if each["figure"] == "long TTFT p50 ms"]
    faster, slower_ = figure["repeats"]
    assert slower_ > 1.5 * faster
    figures = said["predicted_over_measured"][0]["figures"]
    close = sum(abs(each["ratio"] - 1) <= 0.15 for each in figures)
    out = capsys.readouterr().out
    assert f"Within 15%: {close} of 2. Of the measurement's own repeats, held against one another: 0 of 2." in out
    assert main([*command, "--result-dir", str(tmp_path / "at-its-own-costs")]) == 0
    [kept] = (tmp_path / "at-its-own-costs").glob("*/simulation.json")
    [[again, _]] = [each["figures"] for each in json.loads(kept.read_text())["predicted_over_measured"]]
    assert again["repeats"] == pytest.approx([faster, slower_])  # measured, whatever is predicted
    capsys.readouterr()
    measured["loads"][0]["traces"] = []
    record.write_text(json.dumps(measured))
    assert main([*command, "--result-dir", str(tmp_path / "runs")]) == 2
    assert "no trace of s counts in it" in capsys.readouterr().err


def measured_arm() -> dict[str, Any]:
    return {"arm": "a", "classes": {"long": {"ttft_ms": {"p50": {"value": 900.0}}}}, "total_tokens_per_s": 2000.0}


def a_probe(profile: Profile, times: float) -> dict[str, Any]:
    """What the speed probe would say of an engine of the profile, every cost so many times as high."""
    arrival = (0.0, "short", speed_probe.PROMPT_TOKENS, speed_probe.OUTPUT_TOKENS)
    setup = replace(a_setup("direct", scheduling_policy="fcfs"), profile=slower(profile, times))
    [record] = records_of(setup, a_trace(arrival))
    ttft_s = record.ttft_ms / 1000
    lengths = {"prompt_tokens": speed_probe.PROMPT_TOKENS, "output_tokens": speed_probe.OUTPUT_TOKENS}
    decode_s = record.last_token_ms / 1000 - ttft_s
    return {**lengths, "ttft_s": [9.0, ttft_s, ttft_s], "decode_s": [decode_s, decode_s, 9.0]}


def test_probes_before_and_after_say_how_much_slower_the_engine_was_than_its_costs():
    found = {"before": [a_probe(CPU, 1.2)], "after": [a_probe(CPU, 1.4)]}
    assert probed(CPU, found) == pytest.approx(1.3, rel=1e-6)
    assert probed(CPU, {"before": found["before"], "after": [{"failed": "timed_out"}]}) == pytest.approx(1.2, rel=1e-6)
    assert probed(CPU, {}) is None


def test_an_engine_that_is_slower_takes_so_many_times_as_long_for_any_step_and_any_request():
    costs = StepTime(per_sequence_s=2e-4, per_token_chunk_s=9e-8)
    profile = replace(CPU, step_time=costs)
    for step in [(1, 1, 1000, 1), (48, 32, 90_000, 200), (2048, 3, 0, 1 << 22)]:
        assert slower(profile, 1.5).step_time.step_s(*step) == pytest.approx(1.5 * costs.step_s(*step))
    assert slower(profile, 1.5).request_s == pytest.approx(1.5 * profile.request_s)


def a_task(policy: str = "direct", **said: Any) -> study.Task:
    scenario = a_scenario(arms=[{"name": "a", "simulated": {"policy": policy}}], rates_per_s=[1.5], num_prompts=40)
    [task] = tasks_of(scenario)
    return replace(task, **said)


def tasks_of(scenario: Scenario, base: Path = Path()) -> list[study.Task]:
    made = study.setups(scenario, CPU, base)
    return study.tasks(scenario, made, {}, study.once_each(scenario), keeps_records=True)


def write_run(folder: Path, run: study.Run, *, verdict: str = "VALID", **measured: Any) -> None:
    """What a live bench would have kept of a run that was so."""
    kept = RunFolder(folder.parent, folder.name)
    kept.write_json("run.json", {"cell_id": cell_id(run.block, run.arm), "warmup_seconds": 0})
    kept.write_requests(run.records)
    kept.write_json("measurements.json", {"window": {"seconds": run.window.seconds}, **measured})
    kept.write_json("verdict.json", {"verdict": verdict})
    kept.write_json(LAST_FILE, {})


def test_a_run_whose_costs_are_higher_takes_longer_and_its_record_says_so():
    first, second = (study.run(a_task(slower=times)) for times in (1.0, 1.5))
    assert sum(record.ttft_ms or 0.0 for record in second.records) > sum(
        record.ttft_ms or 0.0 for record in first.records
    )
    assert second.to_json()["costs_times"] == 1.5
    assert "costs_times" not in first.to_json()


@pytest.mark.parametrize("policy", ["direct", "short-first", "sliced"])
@pytest.mark.parametrize("times", [0.8, 1.25])
def test_how_long_an_engine_was_at_work_says_what_its_costs_were(policy, times):
    busy = busy_s(study.run(a_task(policy, slower=times)).records)
    assert study.run(a_task(policy, busy_s=busy)).slower == pytest.approx(times, rel=1e-3)


@pytest.mark.parametrize("busy", [0.5, 5000.0])
def test_an_engine_cannot_have_been_at_work_for_less_or_more_than_the_requests_take(busy):
    with pytest.raises(UsageError, match="Is the calibration of the engine"):
        study.run(a_task(busy_s=busy))


def test_an_engine_is_at_work_while_a_request_that_it_answers_is_open():
    spans = [(0, 400), (100, 300), (350, 900), (1000, 1500)]
    records = [a_record(dispatched_ms=at, first_token_ms=at + 1, ended_ms=until) for at, until in spans]
    refused = a_record(dispatched_ms=2000, first_token_ms=None, ended_ms=3000, outcome=Outcome.REFUSED)
    assert busy_s([*reversed(records), refused]) == pytest.approx(1.4)
    assert busy_s([]) == 0.0


def test_a_measured_run_is_played_at_the_speed_that_its_engine_had(tmp_path):
    """One that was INVALID says nothing."""
    run = study.run(a_task(slower=1.5))
    write_run(tmp_path / "runs" / "1", run, engine_speed={"before": [a_probe(CPU, 1.3)]})
    write_run(tmp_path / "runs" / "2", replace(run, arm="b"), verdict="INVALID")
    write_run(tmp_path / "runs" / "3", replace(run, arm="c"))
    runs = valid_runs(tmp_path / "runs" / "comparison.json")
    a, c = (cell_id(run.block, arm) for arm in "ac")
    assert by_probes(CPU, runs) == {a: pytest.approx(1.3, rel=1e-6)}
    assert busy_by_cell(runs) == {
        a: pytest.approx(busy_s(run.records), abs=1e-3),
        c: pytest.approx(busy_s(run.records), abs=1e-3),
    }
