"""Statistics and judgement: nothing dropped, infinite where unanswered, no interval without a sample for it."""

import math
from itertools import pairwise

import bench_kit
import pytest
from bench_kit import a_record, ended, measured_of
from hypothesis import given
from hypothesis import strategies as st

from bench.analysis.capacity import estimate
from bench.analysis.classes import Window, measure
from bench.analysis.comparison import ArmRun, Load, compare
from bench.analysis.cost import cost
from bench.analysis.limits import Limit, is_good, parse_limits
from bench.analysis.measurements import throughput
from bench.analysis.quantiles import interval_ranks, quantile, values_needed
from bench.errors import UsageError
from bench.records.request import Outcome, Phase


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


def test_offered_is_the_sum_of_all_outcomes() -> None:
    records = [ended(outcome) for outcome in Outcome for _ in range(2)]
    measured = measure(records, records, window_s=10.0, limits={})
    assert measured.offered == sum(measured.outcomes.values()) == 2 * len(Outcome)
    assert set(measured.to_json()["outcomes"]) == {str(outcome) for outcome in Outcome}


def test_a_server_that_refuses_half_does_not_look_fast() -> None:
    records = [a_record() for _ in range(10)] + [ended(Outcome.REFUSED, reason="queue_full") for _ in range(10)]
    measured = measure(records, records, window_s=10.0, limits=LIMITS)
    assert measured.samples["ttft_ms"].value("p95") == 200.0
    assert measured.samples["ttft_ms_over_offered"].value("p95") == math.inf
    assert (measured.good, measured.goodput_per_s) == (10, 1.0)
    said = measured.to_json()
    assert (said["good_share"], said["accepted_share"]) == (0.5, 0.5)
    assert said["reasons"] == {"refused: queue_full": 10}
    assert said["ttft_ms_over_offered"]["p95"]["value"] == "inf"


def test_late_is_completed_outside_the_limits() -> None:
    records = [a_record(), a_record(first_token_ms=1600.0), a_record(ended_ms=9000.0), ended(Outcome.FAILED)]
    said = measure(records, records, window_s=10.0, limits=LIMITS).to_json()
    assert (said["completed_in_time"], said["late"], said["offered"]) == (1, 2, 4)


def test_a_class_without_limits_has_no_goodput_rather_than_none() -> None:
    said = measure([a_record()], [a_record()], window_s=10.0, limits={}).to_json()
    assert not {"goodput_per_s", "late", "completed_in_time"} & set(said)


def test_what_was_not_measured_is_absent() -> None:
    said = measure([ended(Outcome.UNSENT, status=None)], [], window_s=10.0, limits={}).to_json()
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


def test_requests_of_the_warm_up_are_in_no_measure_of_the_window() -> None:
    measured = measured_of([a_record(phase=Phase.WARMUP, first_token_ms=9000.0), a_record()])
    assert measured.classes["all"].offered == 1
    assert measured.classes["short"].samples["ttft_ms"].value("p99") == 200.0
    assert measured.warmup_outcomes == {"completed": 1}


def test_what_the_drain_completes_is_no_rate_that_the_target_keeps_up_and_lowers_no_cost() -> None:
    # Two in the window of 5 to 15 s, one of them planned in the warm-up; two of its own requests ended in the drain.
    ends_ms = {"warmup": [4_999.0, 5_000.0], "window": [14_999.0, 15_000.0, 90_000.0]}
    records = [a_record(phase=Phase(phase), ended_ms=end) for phase, ends in ends_ms.items() for end in ends]
    limits, window = parse_limits(["short:ttft:500", "short:e2el:13999"], "--goodput"), Window(5.0, 10.0)
    found = measured_of(records, window=window, limits=limits).classes["all"]
    assert (found.outcomes[Outcome.COMPLETED], found.completed_per_s) == (3, 0.2)
    assert (found.goodput_per_s, found.in_time_per_s) == (0.1, 0.2)
    price = cost(found, 3600.0)
    assert (price.per_accepted_response, price.per_response_in_time) == (5.0, 5.0)
    load = Load("load 1.3", 2.0, "80/20")
    runs = [ArmRun(load, trace, "fcfs", True, window, records) for trace in ("seed 1", "seed 2")]
    [result] = compare(runs, ["fcfs"], limits)
    assert (result.arms[0].classes["short"].completed_per_s, result.arms[0].classes["all"].offered) == (0.2, 6)


def test_throughput_is_over_first_dispatch_to_last_end() -> None:
    flow = throughput(
        [a_record(), a_record(dispatched_ms=3000.0, ended_ms=5000.0), ended(Outcome.REFUSED, ended_ms=5000.0)]
    )
    assert flow.seconds == 4.0
    assert (flow.completed_per_s, flow.output_tokens_per_s, flow.total_tokens_per_s) == (0.5, 2.0, 258.0)


def test_what_was_asked_for_is_no_count_of_the_tokens_that_came() -> None:
    flow = throughput([a_record(), a_record(prompt_tokens=None)])
    assert (flow.completed_per_s, flow.output_tokens_per_s, flow.total_tokens_per_s) == (2.0, 8.0, None)
    said = measured_of([a_record(), a_record(output_tokens=None)]).to_json()["throughput"]
    assert set(said) == {"seconds", "completed_per_s"}


def test_the_time_of_a_token_is_of_the_tokens_and_not_of_the_chunks_they_came_in() -> None:
    drafted = a_record(output_tokens=7, chunk_gaps_ms=(150.0, 150.0))
    assert drafted.tpot_ms == 50.0


def test_no_throughput_where_nothing_completed() -> None:
    assert throughput([ended(Outcome.REFUSED)]) is None
    assert "throughput" not in measured_of([ended(Outcome.REFUSED)]).to_json()


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


def test_longer_samples_give_narrower_intervals() -> None:
    widths = []
    for n in (100, 1000, 10_000):
        low, high = interval_ranks(n, 0.95)
        widths.append((high - low) / n)
    assert all(wider > narrower for wider, narrower in pairwise(widths))


def test_gaps_of_one_stream_get_no_interval() -> None:
    records = [bench_kit.a_record(chunk_gaps_ms=tuple(float(i) for i in range(500)))]
    assert measure(records, records, window_s=1.0, limits={}).to_json()["chunk_gap_ms"]["p50"] == {"value": 249.0}
