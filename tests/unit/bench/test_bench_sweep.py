"""A sweep's plan: its cells, their commands, their order, what an engine's words tell, and which cell is chosen."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from bench_kit import a_record

from bench.analysis.classes import Window
from bench.analysis.comparison import ArmRun, Load
from bench.analysis.limits import parse_limits
from bench.analysis.scores import Scorecard, ScoredRun, scorecard
from bench.errors import UsageError
from bench.secret_names import is_secret
from bench.sweep import order, settings
from bench.sweep.choice import Choice, choose
from bench.sweep.flags import Help, help_commands, printed_help, stated, with_flags
from bench.sweep.readback import WATCHED, Heard, differences, effective
from bench.sweep.settings import Sweep, Way

ENGINE = {
    "command": ["vllm", "serve", "m", "--port", "8000", "--max-num-seqs", "128"],
    "base_url": "http://127.0.0.1:8000",
}
WORDS: dict[str, Any] = {"version": 1, "model": "m", "tokenizer": "./tok", "num_prompts": 10, "engine": ENGINE}
CAPACITY = {"100/0": 4.0, "80/20": 2.0, "50/50": 1.0}
# As vLLM 0.32 prints it.
HELP = Help("""usage: vllm serve [options]
                  [--max-num-seqs MAX_NUM_SEQS] [--gone GONE]

options:
  -tp, --tensor-parallel-size N
                        Of old: --gone. (default: 1)
  --enable-chunked-prefill, --no-enable-chunked-prefill
                        Chunks prompts. (default: None)
  --long-prefill-token-threshold N
                        0 disables the cap (default).
                        The cap is of one request. (default:
                        0)
  --max-num-batched-tokens N
                        In one step. (default: None)
  --max-num-seqs MAX_NUM_SEQS
                        At once. (default: None)
  --scheduling-policy {fcfs,priority}
                        The policy. (default: fcfs)
""")
ARGS = "(APIServer pid=1) INFO 11-30 [api_utils.py:286] non-default args: "
CONFIG = "(EngineCore pid=2) INFO [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: model='/m', "


def swept(tmp_path: Path, **changes: Any) -> Sweep:
    path = tmp_path / "sweep.yaml"
    path.write_text(json.dumps({name: value for name, value in (WORDS | changes).items() if value is not None}))
    return settings.load(path)


def scenario_of(sweep: Sweep) -> Any:
    return sweep.scenario(Way("http://127.0.0.1:8000", {}), CAPACITY)


def test_what_is_left_out_is_126_runs_of_seven_cells_three_mixes_two_rates_and_three_repeats(tmp_path: Path) -> None:
    sweep = swept(tmp_path)
    scenario = scenario_of(sweep)
    assert list(sweep.cells) == [
        "B0",
        *(f"tokens{tokens}-seqs{seqs}" for tokens in (2048, 4096, 8192) for seqs in (16, 32)),
    ]
    assert sweep.measures_capacity
    assert sorted({load.rate_per_s for load in scenario.offered() if load.mix == "50/50"}) == [0.5, 0.9]
    runs = order.runs(scenario, "run")
    assert len(runs) == len({cell.cell_id for cell in runs}) == 126
    assert scenario.tokenizer == tmp_path / "tok"


def test_the_baseline_is_the_command_as_it_is_and_the_others_change_their_flags_alone(tmp_path: Path) -> None:
    sweep = swept(tmp_path)
    assert sweep.command_of("B0") == ENGINE["command"]
    asked = ["--max-num-seqs", "16", "--max-num-batched-tokens", "4096"]
    assert sweep.command_of("tokens4096-seqs16") == [*ENGINE["command"][:5], *asked]


def test_with_a_fresh_engine_for_each_run_the_cells_of_one_trace_run_back_to_back(tmp_path: Path) -> None:
    scenario = scenario_of(swept(tmp_path))
    runs = order.runs(scenario, "run")
    blocks = [runs[at : at + 7] for at in range(0, len(runs), 7)]
    assert all(len({cell.block for cell in block}) == 1 for block in blocks)
    assert len({tuple(cell.arm.name for cell in block) for block in blocks}) > 6
    assert order.starts(runs, "run") == 126


def test_where_a_cells_runs_share_an_engine_each_repeat_has_one_start_of_each_cell(tmp_path: Path) -> None:
    scenario = scenario_of(swept(tmp_path))
    runs = order.runs(scenario, "repeat")
    assert order.starts(runs, "repeat") == 21
    assert Counter(cell.cell_id for cell in runs) == Counter(cell.cell_id for cell in order.runs(scenario, "run"))
    firsts = [tuple(cell.arm.name for cell in runs[at : at + 42 : 6]) for at in (0, 42, 84)]
    assert all(len(set(cells)) == 7 for cells in firsts) and len(set(firsts)) > 1
    assert runs == order.runs(scenario, "repeat")
    assert runs != order.runs(scenario.model_copy(update={"order_seed": 2}), "repeat")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"grid": {"max_num_seqs": list(range(1, 21))}}, "20 cells, at most 19"),
        ({"grid": {}}, "no cell beside B0"),
        ({"grid": {"max_num_seqs": []}}, "grid.max_num_seqs: "),
        ({"grid": {"max-num-seqs": [1]}}, "grid.max-num-seqs"),
        ({"grid": {"max_num_seqs": [1]}, "cells": {"seqs1": {"seed": 1}}}, "cells.seqs1: there is a cell of this name"),
        ({"cells": {"B0": {"seed": 1}}}, "cells.B0: there is a cell of this name"),
        ({"grid": {"hf_overrides": ["{}"]}}, "List it under `cells`"),
        ({"arms": []}, "arms: no key of a sweep"),
        ({"engine": {**ENGINE, "command": ["vllm", "serve", "--api-key=gw-1"]}}, "Export VLLM_API_KEY instead"),
        ({"engine": {**ENGINE, "command": ["vllm", "serve", "--hf_token", "gw-1"]}}, "Export HF_TOKEN instead"),
        ({"engine": {**ENGINE, "environment": {"X_API_KEY": "gw-1"}}}, "X_API_KEY would be kept in plan.json"),
        ({"cells": {"x": {"api_key": "gw-1"}}}, "Export VLLM_API_KEY instead"),
        ({"grid": {"ssl_keyfile_password": ["gw-1"]}}, "Export what the engine reads it from instead"),
        ({"engine": {**ENGINE, "base_url": "8000"}}, "engine.base_url"),
        ({"engine": {**ENGINE, "restart": "never"}}, "engine.restart"),
        ({"engine": None}, "engine: is missing"),
        ({"engine": {"command": ["x"]}}, "engine.base_url: is missing"),
    ],
)
def test_a_plan_that_is_none_is_named_with_file_key_and_what_to_do(tmp_path: Path, changes: dict, said: str) -> None:
    with pytest.raises(UsageError) as told:
        _ = swept(tmp_path, **changes).cells
    assert f"{tmp_path / 'sweep.yaml'}: " in str(told.value) and said in str(told.value)
    assert "gw-1" not in str(told.value)


def test_what_only_sounds_like_a_secret_is_none() -> None:
    flags = ("long_prefill_token_threshold", "max_num_batched_tokens", "tokenizer", "ssl_keyfile", "VLLM_USE_V1")
    assert not any(is_secret(name) for name in flags)
    assert all(
        map(is_secret, ("HUGGING_FACE_HUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "--hf-token", "token", "DB_PASSWORD"))
    )


@pytest.mark.parametrize("mixes", [5, "80/20", [1], {"80/20": 1}])
def test_mixes_that_are_none_are_named(tmp_path: Path, mixes: Any) -> None:
    sweep = swept(tmp_path, mixes=mixes)
    with pytest.raises(UsageError, match=r"sweep.yaml: mixes"):
        sweep.scenario(Way("http://127.0.0.1:8000", {}), dict.fromkeys(sweep.mixes(), 1.0))


def test_a_trace_has_a_mix_of_its_own_and_no_rate_is_found_for_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"sweep.yaml: trace: .* Give rates_per_s"):
        scenario_of(swept(tmp_path, trace="day.jsonl", num_prompts=None))


def test_keys_of_the_scenario_are_as_strict_as_anywhere(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"sweep.yaml: nonsense: unknown key"):
        scenario_of(swept(tmp_path, nonsense=1))


def test_a_cell_that_says_what_the_baseline_says_shows_the_noise(tmp_path: Path) -> None:
    arms = scenario_of(swept(tmp_path, cells={"same": {"max_num_seqs": 128}, "less": {"max_num_seqs": 64}})).arms
    assert [(arm.name, arm.again) for arm in arms] == [("B0", False), ("same", True), ("less", False)]


@pytest.mark.parametrize(
    ("command", "flags", "made"),
    [
        (["e", "--max-num-seqs", "9", "--x"], {"max_num_seqs": 16}, ["e", "--max-num-seqs", "16", "--x"]),
        (["e", "--max_num_seqs=9", "--x"], {"max_num_seqs": 16}, ["e", "--max-num-seqs", "16", "--x"]),
        (["e", "--seed", "1", "--x", "--seed=2"], {"seed": 3}, ["e", "--seed", "3", "--x"]),
        (["e", "--seed", "-1"], {"seed": 3}, ["e", "--seed", "3"]),
        (["e", "--enable-x", "--y"], {"enable_x": False}, ["e", "--no-enable-x", "--y"]),
        (["e", "--no-enable-x"], {"enable_x": True}, ["e", "--enable-x"]),
        (["e", "--enable-x", "./model"], {"enable_x": False}, ["e", "--no-enable-x", "./model"]),
        (["e", "--seed-more", "1"], {"seed": 3}, ["e", "--seed-more", "1", "--seed", "3"]),
        (["e"], {"a_b": "c", "d": 0.5}, ["e", "--a-b", "c", "--d", "0.5"]),
    ],
)
def test_a_flag_takes_the_place_of_what_was_said_of_it(command: list[str], flags: dict, made: list[str]) -> None:
    assert with_flags(command, flags) == made
    assert {name: stated(made, name) for name in flags} == flags


def test_what_a_command_says_last_holds() -> None:
    assert stated(["e", "--seed", "1", "--seed=2"], "seed") == 2
    assert stated(["e", "--enable-x", "--no-enable-x"], "enable_x") is False
    assert stated(["e", "--seedling", "1"], "seed") is None


def test_the_installed_versions_help_tells_its_flags_and_their_defaults() -> None:
    # `--gone` is only spoken of, and so is a flag that begins like another.
    assert HELP.unknown(["max_num_seqs", "gone", "max_num", "tensor_parallel_size", "enable_chunked_prefill"]) == [
        "gone",
        "max_num",
    ]
    found = [
        HELP.default(name) for name in ("long_prefill_token_threshold", "scheduling_policy", "max_num_seqs", "gone")
    ]
    assert found == [0, "fcfs", None, None]


def test_the_help_is_printed_by_the_words_before_the_first_flag(tmp_path: Path) -> None:
    command = ["vllm", "serve", "m", "--port", "1"]
    assert help_commands(command, []) == [["vllm", "serve", "m", "--help=all"], ["vllm", "serve", "m", "--help"]]
    assert help_commands(command, ["docker", "run", "x", "--help"]) == [["docker", "run", "x", "--help"]]
    with pytest.raises(UsageError, match=r"here: engine.help: `false --help` ended with code 1: no word of why. Give"):
        printed_help([["nowhere-to-be-found"], ["false", "--help"]], {"PATH": "/usr/bin:/bin"}, "here")


def heard(*lines: str, **changes: Any) -> Heard:
    values: dict[str, Any] = {"cache_config": {}, "context_tokens": 16384, "server_info": {}}
    return Heard(log="\n".join(lines), **(values | changes))


def test_settings_are_read_where_vllm_tells_them() -> None:
    log = heard(
        ARGS + "{'host': '127.0.0.1', 'max_num_batched_tokens': 2048, 'max_num_seqs': 128, 'served_model_name': ['t']}",
        CONFIG + "max_seq_len=16384, enable_prefix_caching=False, enable_chunked_prefill=True, compilation_config="
        "{'mode': 0, 'compile_ranges_endpoints': [512, 2048], 'x': None}",
        cache_config={"block_size": "128", "num_gpu_blocks_override": "None"},
    )
    found = effective([*WATCHED, "block_size", "num_gpu_blocks_override", "served_model_name"], log, HELP)
    assert found.values == {
        "max_num_batched_tokens": 2048,
        "max_num_seqs": 128,
        "long_prefill_token_threshold": 0,
        "scheduling_policy": "fcfs",
        "enable_prefix_caching": False,
        "enable_chunked_prefill": True,
        "max_model_len": 16384,
        "block_size": 128,
        "served_model_name": "t",
    }
    assert found.told_by["max_num_seqs"] == "log: non-default args"
    assert "default" in found.told_by["scheduling_policy"]
    assert differences({"max_num_seqs": 128, "max_num_batched_tokens": "2K", "max_model_len": "auto"}, found) == []


def test_what_is_in_force_goes_before_what_was_asked() -> None:
    asked = ARGS + "{'max_num_batched_tokens': 2048, 'max_num_seqs': 64}"
    raised = "INFO [scheduler.py:307] Chunked prefill is enabled with max_num_batched_tokens={}."
    raised = f"{raised.format(1024)}\n{raised.format(4096)}"
    names = ["max_num_batched_tokens", "max_num_seqs"]
    found = effective(names, heard(asked, raised), HELP)
    assert differences({"max_num_batched_tokens": 2048, "max_num_seqs": 64}, found) == [
        "max_num_batched_tokens is 4096 (log: chunked prefill), asked was 2048"
    ]
    server_info = {"scheduler_config": {"max_num_seqs": 32, "max_num_batched_tokens": 2048}}
    found = effective(names, heard(asked, raised, server_info=server_info), HELP)
    assert differences({"max_num_batched_tokens": 2048, "max_num_seqs": 64}, found) == [
        "max_num_seqs is 32 (/server_info), asked was 64"
    ]


def test_an_engine_whose_pages_have_another_form_is_read_by_its_log() -> None:
    log = ARGS + "{'max_num_seqs': 8, 'compilation_config': CompilationConfig(mode=0), 'names': ['a'], 'x': 1e-05}"
    odd = heard(log, server_info={"scheduler_config": "max_num_seqs=9"})
    found = effective(["max_num_seqs", "names", "x"], odd, HELP)
    assert found.values == {"max_num_seqs": 8, "names": "a", "x": 1e-05}


def test_what_nothing_tells_is_not_taken_for_right() -> None:
    found = effective(["max_num_seqs", "scheduling_policy"], heard(ARGS + "{}"), HELP)
    assert differences({"max_num_seqs": 64, "scheduling_policy": "priority"}, found) == [
        "max_num_seqs: nothing that the engine says tells it, asked was 64",
        "scheduling_policy is fcfs (the help's default: not among the log's non-default args), asked was priority",
    ]
    assert effective(["scheduling_policy"], heard("no such line"), HELP).values == {}


LOADS = [Load("load 0.5", 2.0, "80/20"), Load("load 0.9", 4.0, "80/20")]
LIMITS = parse_limits(["short:ttft:500"], "goodput")


def card(
    ends_ms: dict[str, float],
    *,
    per_hour: float | None = 3.6,
    late: str = "",
    invalid: str = "",
    limits=LIMITS,
    requests: int = 20,
    repeats: int = 1,
) -> Scorecard:
    """By cell, when the last two of the answers of each run ended: later than 20 s is outside of the window, and dearer."""
    runs = []
    for load in LOADS:
        for cell, end_ms in ends_ms.items():
            first_token_ms = 1900.0 if cell == late and load is LOADS[1] else 1200.0
            records = [a_record(first_token_ms=first_token_ms) for _ in range(requests - 2)]
            records += [a_record(first_token_ms=first_token_ms, ended_ms=end_ms)] * 2
            for number in range(repeats):
                valid = not (cell == invalid and load is LOADS[1] and number == 0)
                arm_run = ArmRun(load, f"seed {number}", cell, valid, Window(0.0, 20.0), records)
                runs.append(ScoredRun(f"run-{cell}-{number}", arm_run))
    prices = {} if per_hour is None else dict.fromkeys(ends_ms, per_hour)
    return scorecard(runs, list(ends_ms), limits, prices, repeats=repeats)


INSIDE, OUTSIDE = 2000.0, 21000.0


def test_the_cheapest_cell_of_those_that_meet_everything_is_chosen_and_not_a_cheaper_one_that_is_late() -> None:
    ends_ms = {"B0": OUTSIDE, "a": INSIDE, "b": INSIDE}
    found = choose(card(ends_ms, late="a"), list(ends_ms), LOADS)
    assert (found.cell, list(found.costs)) == ("b", ["B0", "b"])
    assert found.costs["b"] == pytest.approx(0.001) and found.costs["B0"] == pytest.approx(0.001 * 10 / 9)
    assert found.misses == {"a": "misses the limits of short under load 0.9, 80/20"}


def test_the_baseline_stays_where_an_answer_costs_alike() -> None:
    ends_ms = {"B0": INSIDE, "a": INSIDE}
    found = choose(card(ends_ms, per_hour=None), list(ends_ms), LOADS)
    assert (found.cell, found.in_engine_seconds, found.costs) == ("B0", True, {"B0": 1.0, "a": 1.0})
    assert "engine seconds" in str(found)


def test_a_cell_without_a_valid_run_of_a_load_is_not_passed() -> None:
    ends_ms = {"B0": OUTSIDE, "a": INSIDE}
    found = choose(card(ends_ms, invalid="a"), list(ends_ms), LOADS)
    assert found.cell == "B0"
    assert found.misses == {"a": "no VALID run under load 0.9, 80/20: INVALID, not passed"}
    only = choose(card({"B0": OUTSIDE}, late="B0"), ["B0"], LOADS)
    assert only.cell is None and str(only).startswith("No choice") and "cell" not in only.to_json()


def test_a_cell_that_lacks_one_of_its_planned_runs_is_no_choice_however_cheap_the_others_are() -> None:
    ends_ms = {"B0": OUTSIDE, "a": INSIDE}
    found = choose(card(ends_ms, invalid="a", repeats=3), list(ends_ms), LOADS)
    why = "2 of 3 planned runs are VALID under load 0.9, 80/20: what is not is not passed"
    assert (found.cell, found.misses) == ("B0", {"a": why})


def test_a_cell_of_which_no_answer_came_inside_the_window_costs_without_end_and_can_be_written_down() -> None:
    said = Choice("B0", {"B0": math.inf}, in_engine_seconds=True, misses={}).to_json()
    assert json.loads(json.dumps(said, allow_nan=False))["costs_per_accepted_response"] == {"B0": "inf"}


def test_without_limits_nothing_is_met() -> None:
    found = choose(card({"B0": INSIDE}, limits={}), ["B0"], LOADS)
    assert found.misses == {"B0": "nothing limits short: give goodput"}


def test_a_cell_of_too_few_requests_has_shown_nothing() -> None:
    found = choose(card({"B0": INSIDE}, requests=19), ["B0"], LOADS)
    assert found.misses == {"B0": "too few of short to show it under load 0.5, 80/20: 20 at least"}
