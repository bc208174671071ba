"""Several arms on the same traces: every figure has its pair in the other arms, or there is none."""

import pytest
from bench_kit import a_record

from bench.analysis.classes import Window
from bench.analysis.comparison import ArmRun, Load, compare
from bench.analysis.paired import differences

LOAD = Load("load 0.95", 2.0, "80/20")
WINDOW = Window(0.0, 10.0)


def a_run(arm: str, trace: str, ttfts_ms: list[float], *, valid: bool = True, ended_ms: float = 3000.0) -> ArmRun:
    records = [a_record(first_token_ms=1000.0 + ttft, ended_ms=ended_ms) for ttft in ttfts_ms]
    return ArmRun(LOAD, trace, arm, valid, WINDOW, records)


def test_arms_are_compared_over_the_pooled_traces_with_the_spread_of_single_ones() -> None:
    runs = [
        a_run("fcfs", "seed 1", [1000.0]),
        a_run("gw", "seed 1", [100.0]),
        a_run("fcfs", "seed 2", [2000.0]),
        a_run("gw", "seed 2", [100.0]),
    ]
    (result,) = compare(runs, ["fcfs", "gw"], {})
    first, second = result.arms
    assert (first.ratios["short", "ttft_ms"].pooled, first.tokens_ratio.pooled) == (1.0, 1.0)
    ratio = second.ratios["short", "ttft_ms"]
    assert (ratio.pooled, ratio.low, ratio.high, ratio.traces) == (0.05, 0.05, 0.1, 2)
    assert second.classes["short"].offered == 2


def test_a_trace_with_an_invalid_or_missing_run_is_left_out_for_all_arms() -> None:
    runs = [
        a_run("fcfs", "seed 1", [1000.0]),
        a_run("gw", "seed 1", [500.0]),
        a_run("fcfs", "seed 2", [9.0]),
        a_run("gw", "seed 2", [9.0], valid=False),
        a_run("fcfs", "seed 3", [9.0]),
    ]
    (result,) = compare(runs, ["fcfs", "gw"], {})
    assert (list(result.traces), list(result.left_out)) == (["seed 1"], ["seed 2", "seed 3"])
    assert result.arms[0].classes["short"].offered == 1
    assert result.arms[1].ratios["short", "ttft_ms"].pooled == 0.5


def test_without_a_usable_trace_there_is_no_figure_at_all() -> None:
    (result,) = compare([a_run("fcfs", "seed 1", [9.0])], ["fcfs", "gw"], {})
    assert result.arms == []


def test_fewer_tokens_a_second_show_in_the_ratio() -> None:
    runs = [a_run("fcfs", "s", [100.0], ended_ms=3000.0), a_run("gw", "s", [100.0], ended_ms=5000.0)]
    (result,) = compare(runs, ["fcfs", "gw"], {})
    assert result.arms[1].tokens_ratio.pooled == pytest.approx(0.5)


def test_loads_are_compared_apart() -> None:
    other = Load("load 0.7", 1.5, "80/20")
    runs = [a_run("fcfs", "s", [100.0]), ArmRun(other, "s", "fcfs", True, WINDOW, [a_record()])]
    assert [result.load for result in compare(runs, ["fcfs"], {})] == [other, LOAD]


def test_an_arm_whose_tokens_are_not_all_known_has_no_ratio_of_them() -> None:
    silent = ArmRun(LOAD, "s", "gw", True, WINDOW, [a_record(), a_record(output_tokens=None)])
    (result,) = compare([a_run("fcfs", "s", [100.0]), silent], ["fcfs", "gw"], {})
    assert result.arms[1].tokens_ratio is None
    assert "total_tokens_per_s" not in result.arms[1].to_json()
    assert result.arms[1].throughput is not None and result.arms[1].throughput.completed_per_s > 0


def three(*, others: bool) -> list[ArmRun]:
    """Two traces of three arms; the first arm is INVALID in both, the last one too where `others` are not."""
    runs = []
    for trace in ("seed 1", "seed 2"):
        runs += [a_run("B0", trace, [100.0], valid=False), a_run("a", trace, [100.0])]
        runs.append(a_run("b", trace, [300.0], valid=others))
    return runs


def test_an_arm_that_is_never_valid_takes_no_part_and_the_others_are_compared() -> None:
    arms = ["a", "B0", "b"]
    (result,) = compare(three(others=True), arms, {})
    assert (list(result.traces), list(result.arms_left_out)) == (["seed 1", "seed 2"], ["B0"])
    assert [arm.arm for arm in result.arms] == ["a", "b"]
    assert result.arms[1].ratios["short", "ttft_ms"].pooled == pytest.approx(3.0)
    assert {each.arm for each in differences(three(others=True), arms, {})} == {"b"}


def test_where_the_first_arm_is_never_valid_the_others_have_figures_and_no_ratios() -> None:
    arms = ["B0", "a", "b"]
    (result,) = compare(three(others=True), arms, {})
    assert [(arm.arm, arm.ratios, arm.tokens_ratio) for arm in result.arms] == [("a", {}, None), ("b", {}, None)]
    assert differences(three(others=True), arms, {}) == []


def test_one_arm_alone_is_no_comparison() -> None:
    (result,) = compare(three(others=False), ["B0", "a", "b"], {})
    assert (result.arms, list(result.left_out)) == ([], ["seed 1", "seed 2"])
