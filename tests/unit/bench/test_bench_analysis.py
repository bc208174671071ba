"""Statistics and judgement: nothing dropped, infinite where unanswered, no interval without a sample for it."""

import math
from itertools import pairwise

import bench_kit
import pytest
from bench_kit import a_record
from hypothesis import given
from hypothesis import strategies as st

from bench.analysis.capacity import estimate
from bench.analysis.classes import measure
from bench.analysis.comparison import ArmRun, Load, compare
from bench.analysis.limits import Limit, is_good, parse_limits
from bench.analysis.measurements import put_together, throughput
from bench.analysis.quantiles import interval_ranks, quantile, values_needed
from bench.analysis.validity import judge
from bench.errors import UsageError
from bench.records.request import Outcome, Phase
from bench.records.vllm_flat import flat


@pytest.mark.parametrize(("q", "needed"), [(0.5, 6), (0.95, 72), (0.99, 368)])
def test_an_interval_takes_so_many_values_and_no_fewer(q: float, needed: int) -> None:
    assert values_needed(q) == needed
    assert interval_ranks(needed - 1, q) is None
    assert interval_ranks(needed, q) is not None


def test_the_interval_of_a_median_is_the_one_of_the_tables() -> None:
    # Rank tables of the sign test at 95 %: 6 and 15 of 20, 40 and 61 of 100.
    assert interval_ranks(20, 0.5) == (6, 15)
    assert interval_ranks(100, 0.5) == (40, 61)


@given(n=st.integers(6, 400), q=st.sampled_from([0.5, 0.95, 0.99]))
def test_an_interval_covers_what_it_promises_and_no_narrower_one_does(n: int, q: float) -> None:
    ranks = interval_ranks(n, q)
    if ranks is None:
        assert n < values_needed(q)
        return
    low, high = ranks
    mass = [math.comb(n, k) * q**k * (1 - q) ** (n - k) for k in range(n + 1)]
    assert sum(mass[low:high]) >= 0.95 - 1e-9
    assert sum(mass[: low + 1]) > 0.025 - 1e-9
    assert sum(mass[high - 1 :]) > 0.025 - 1e-9


def test_quantiles_are_values_of_the_sample() -> None:
    values = [float(i) for i in range(1, 101)]
    assert [quantile(values, q).value for q in (0.5, 0.95, 0.99)] == [50.0, 95.0, 99.0]
    assert quantile([7.0], 0.99).value == 7.0
    assert quantile([], 0.5) is None


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200), st.sampled_from([0.5, 0.95, 0.99]))
def test_a_quantile_lies_inside_its_interval(values: list[float], q: float) -> None:
    found = quantile(sorted(values), q)
    if found.low is not None:
        assert found.low <= found.value <= found.high
    assert sum(value <= found.value for value in values) >= q * len(values)


def test_a_record_says_how_many_values_an_interval_would_take() -> None:
    assert quantile([1.0], 0.95).to_json() == {"value": 1.0, "interval_needs": 72}
    assert quantile([math.inf], 0.95).to_json()["value"] == "inf"
    assert quantile([1.0], 0.95, independent=False).to_json() == {"value": 1.0}


LIMITS = parse_limits(["short:ttft:500", "short:e2el:5000", "long:ttft:20000"], "--goodput")


def ended(outcome: Outcome, **changes):
    unanswered = {
        "status": 429,
        "first_token_ms": None,
        "last_token_ms": None,
        "chunk_gaps_ms": (),
        "longest_stall_ms": None,
    }
    return a_record(outcome=outcome, **(unanswered | changes))


def test_offered_is_the_sum_of_all_outcomes() -> None:
    records = [ended(outcome) for outcome in Outcome for _ in range(2)]
    measured = measure(records, window_s=10.0, limits={})
    assert measured.offered == sum(measured.outcomes.values()) == 2 * len(Outcome)
    assert set(measured.to_json()["outcomes"]) == {str(outcome) for outcome in Outcome}


def test_a_server_that_refuses_half_does_not_look_fast() -> None:
    records = [a_record() for _ in range(10)] + [ended(Outcome.REFUSED, reason="queue_full") for _ in range(10)]
    measured = measure(records, window_s=10.0, limits=LIMITS)
    assert measured.samples["ttft_ms"].value("p95") == 200.0
    assert measured.samples["ttft_ms_over_offered"].value("p95") == math.inf
    assert (measured.good, measured.goodput_per_s) == (10, 1.0)
    said = measured.to_json()
    assert (said["good_share"], said["accepted_share"]) == (0.5, 0.5)
    assert said["reasons"] == {"refused: queue_full": 10}
    assert said["ttft_ms_over_offered"]["p95"]["value"] == "inf"


def test_late_is_completed_outside_the_limits() -> None:
    records = [a_record(), a_record(first_token_ms=1600.0), a_record(ended_ms=9000.0), ended(Outcome.FAILED)]
    said = measure(records, window_s=10.0, limits=LIMITS).to_json()
    assert (said["completed_in_time"], said["late"], said["offered"]) == (1, 2, 4)


def test_a_class_without_limits_has_no_goodput_rather_than_none() -> None:
    said = measure([a_record()], window_s=10.0, limits={}).to_json()
    assert not {"goodput_per_s", "late", "completed_in_time"} & set(said)


def test_what_was_not_measured_is_absent() -> None:
    said = measure([ended(Outcome.UNSENT, status=None)], window_s=10.0, limits={}).to_json()
    assert not {"ttft_ms", "e2e_ms", "chunk_gap_ms", "gateway_queue_ms"} & set(said)


def test_a_good_response_is_a_completed_one() -> None:
    assert is_good(a_record(), LIMITS)
    assert is_good(a_record(outcome=Outcome.FAILED), parse_limits(["short:ttft:500"], "--goodput")) is False
    assert is_good(a_record(class_name="other"), LIMITS) is None


def test_a_value_that_was_not_measured_meets_no_limit() -> None:
    assert not Limit("tpot_ms", 100.0).met(a_record(output_tokens=None))


def test_limits_are_parsed_by_class() -> None:
    assert {
        "short": (Limit("ttft_ms", 500.0), Limit("e2e_ms", 5000.0)),
        "long": (Limit("ttft_ms", 20000.0),),
    } == LIMITS


@pytest.mark.parametrize(
    "words",
    [
        ["ttft:500"],
        ["short:ttft"],
        ["short:ttft:x"],
        ["short:itl:5"],
        ["short:ttft:0"],
        ["short:ttft:inf"],
        ["short:e2e:1", "short:e2el:2"],
    ],
)
def test_a_limit_that_is_none_is_refused(words: list[str]) -> None:
    with pytest.raises(UsageError, match="--goodput"):
        parse_limits(words, "--goodput")


def measured_of(records, **changes):
    return put_together(
        records,
        **(
            {
                "window_s": 10.0,
                "limits": {},
                "loop_lags_s": [0.001],
                "loop_period_s": 0.01,
                "lag_tolerance_ms": 50.0,
            }
            | changes
        ),
    )


def test_requests_of_the_warm_up_are_in_no_measure_of_the_window() -> None:
    measured = measured_of([a_record(phase=Phase.WARMUP, first_token_ms=9000.0), a_record()])
    assert measured.classes["all"].offered == 1
    assert measured.classes["short"].samples["ttft_ms"].value("p99") == 200.0
    assert measured.warmup_outcomes == {"completed": 1}


def test_throughput_is_over_first_dispatch_to_last_end() -> None:
    flow = throughput(
        [a_record(), a_record(dispatched_ms=3000.0, ended_ms=5000.0), ended(Outcome.REFUSED, ended_ms=5000.0)]
    )
    assert flow.seconds == 4.0
    assert (flow.completed_per_s, flow.output_tokens_per_s, flow.total_tokens_per_s) == (0.5, 2.0, 258.0)


def test_no_throughput_where_nothing_completed() -> None:
    assert throughput([ended(Outcome.REFUSED)]) is None
    assert "throughput" not in measured_of([ended(Outcome.REFUSED)]).to_json()


def verdict_of(records, *, interrupted: bool = False, **changes):
    return judge(measured_of(records, **changes), lag_tolerance_ms=50.0, interrupted=interrupted)


def test_a_clean_run_is_valid_also_with_refusals_and_unfinished_requests() -> None:
    assert verdict_of([a_record(), ended(Outcome.REFUSED), ended(Outcome.UNFINISHED)]).valid


@pytest.mark.parametrize(
    ("records", "changes", "said"),
    [
        ([a_record(dispatched_ms=1050.1)], {}, "sent 50.1 ms late"),
        ([a_record()], {"loop_lags_s": [0.0] * 500 + [0.06]}, "late by more than 50 ms for 1.2% of the time"),
        ([a_record()], {"interrupted": True}, "interrupted"),
        ([a_record(phase=Phase.WARMUP)], {}, "no request was planned inside"),
        ([a_record(prompt_tokens=511)], {}, "1 prompts did not have the asked length"),
        ([a_record(output_tokens=3)], {}, "1 outputs did not have the asked length"),
        ([ended(Outcome.UNSENT)], {}, "1 requests were never sent"),
    ],
)
def test_a_run_that_is_not_what_was_asked_for_is_invalid(records, changes: dict, said: str) -> None:
    verdict = verdict_of(records, **changes)
    assert not verdict.valid
    assert any(said in reason for reason in verdict.reasons)


@pytest.mark.parametrize(
    ("status", "fix"),
    [(400, "--long-tokens"), (401, "--credential ENV"), (403, "--credential ENV"), (404, "--model")],
)
@pytest.mark.parametrize("phase", list(Phase))
def test_a_run_with_requests_that_were_turned_away_is_invalid_and_says_how_to_mend_it(
    status: int, fix: str, phase: Phase
) -> None:
    (reason,) = verdict_of([a_record(), ended(Outcome.REFUSED, status=status, phase=phase)]).reasons
    assert reason.startswith(f"1 requests were answered {status}: ")
    assert fix in reason


@pytest.mark.parametrize("status", [429, 503, 504])
def test_a_run_in_which_nothing_completed_is_invalid(status: int) -> None:
    (reason,) = verdict_of([ended(Outcome.REFUSED, status=status)]).reasons
    assert reason.startswith("no request completed")


def test_lag_at_the_tolerance_is_allowed() -> None:
    assert verdict_of([a_record(dispatched_ms=1050.0)]).valid


def test_one_hiccup_in_a_long_run_is_noted_and_voids_nothing() -> None:
    verdict = verdict_of([a_record()], loop_lags_s=[0.001] * 10_000 + [0.5])
    assert verdict.valid
    assert "once 500 ms late" in verdict.notes[0]


def test_a_server_without_usage_is_noted_and_valid() -> None:
    verdict = verdict_of([a_record(prompt_tokens=None, output_tokens=None)])
    assert verdict.valid
    assert "unverified" in verdict.notes[0]


LOAD = Load("load 0.95", 2.0, "80/20")


def a_run(arm: str, trace: str, ttfts_ms: list[float], *, valid: bool = True, ended_ms: float = 3000.0) -> ArmRun:
    records = [a_record(first_token_ms=1000.0 + ttft, ended_ms=ended_ms) for ttft in ttfts_ms]
    return ArmRun(LOAD, trace, arm, valid, 10.0, records)


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
    runs = [a_run("fcfs", "s", [100.0]), ArmRun(other, "s", "fcfs", True, 10.0, [a_record()])]
    assert [result.load for result in compare(runs, ["fcfs"], {})] == [other, LOAD]


def test_capacity_credits_a_request_by_its_time_inside_the_window() -> None:
    records = [
        a_record(dispatched_ms=0.0, ended_ms=2000.0),  # half inside
        a_record(dispatched_ms=2000.0, ended_ms=3000.0),  # all inside
        a_record(dispatched_ms=10_000.0, ended_ms=14_000.0, class_name="long"),  # a quarter inside
        a_record(dispatched_ms=0.0, ended_ms=500.0),  # before
        ended(Outcome.REFUSED, dispatched_ms=2000.0, ended_ms=2001.0),
    ]
    found = estimate(records, from_ms=1000.0, to_ms=11_000.0)
    assert found.by_class == {"long": 0.25, "short": 1.5}
    assert found.requests_per_s == pytest.approx(0.175)
    assert found.ends == {"completed": 4, "refused": 1}


@given(st.integers(1, 8), st.integers(1, 50))
def test_capacity_of_a_steady_server_is_its_rate(concurrency: int, rounds: int) -> None:
    # `concurrency` requests of one second each, back to back: so many requests a second, wherever the window lies.
    records = [
        a_record(dispatched_ms=1000.0 * i, ended_ms=1000.0 * (i + 1))
        for i in range(rounds + 4)
        for _ in range(concurrency)
    ]
    found = estimate(records, from_ms=700.0, to_ms=700.0 + 1000.0 * rounds + 300.0)
    assert found.requests_per_s == pytest.approx(concurrency)


def test_the_flat_record_has_the_names_of_vllm_bench_serve_and_no_inter_token_latency() -> None:
    records = [a_record(), ended(Outcome.REFUSED)]
    run = {
        "run_id": "20260101T000000Z-ab",
        "cell_id": "run",
        "endpoint": "chat",
        "trace_origin": {"rate_per_s": 2.0},
        "metadata": {"k": "v"},
    }
    said = flat(records, measured_of(records), model="m", tokenizer="t", run=run)
    assert (said["completed"], said["failed"], said["num_prompts"], said["request_rate"]) == (1, 1, 2, 2.0)
    assert said["mean_ttft_ms"] == said["p99_ttft_ms"] == 200.0
    assert (said["total_input_tokens"], said["backend"], said["k"]) == (512, "openai-chat", "v")
    assert not [name for name in said if "itl" in name]


def test_the_flat_record_has_no_key_for_what_was_not_measured() -> None:
    records = [ended(Outcome.REFUSED)]
    run = {"run_id": "x", "cell_id": "run", "endpoint": "chat", "trace_origin": {}, "metadata": {}}
    said = flat(records, measured_of(records), model="m", tokenizer="t", run=run)
    assert not [name for name in said if name.endswith("_ms") or name in ("request_goodput", "duration")]


def test_longer_samples_give_narrower_intervals() -> None:
    widths = []
    for n in (100, 1000, 10_000):
        low, high = interval_ranks(n, 0.95)
        widths.append((high - low) / n)
    assert all(wider > narrower for wider, narrower in pairwise(widths))


def test_gaps_of_one_stream_get_no_interval() -> None:
    records = [bench_kit.a_record(chunk_gaps_ms=tuple(float(i) for i in range(500)))]
    assert measure(records, window_s=1.0, limits={}).to_json()["chunk_gap_ms"]["p50"] == {"value": 249.0}
