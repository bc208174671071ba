"""Traces: the same from a seed in every process, exact in their mix, equal after a trip through a file."""

import json
import os
import subprocess
import sys
from itertools import pairwise
from statistics import fmean, pstdev

import bench_kit
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.errors import UsageError
from bench.trace import jsonl, random_arrivals
from bench.trace.arrivals import Arrival, Trace
from bench.trace.intensity import Burst, Intensity, parse_burst
from bench.trace.mix import ClassLoad, endless, shuffled

MIX = [ClassLoad("short", 80, 512, 128), ClassLoad("long", 20, 8192, 128)]


def a_trace(**changes):
    return random_arrivals.for_count(**({"rate_per_s": 2.0, "requests": 50, "mix": MIX, "seed": 3} | changes))


def test_one_seed_gives_one_trace_in_every_process() -> None:
    script = (
        "from bench.trace import jsonl, random_arrivals; from bench.trace.intensity import Intensity; from bench.trace.mix import ClassLoad;"
        "mix = [ClassLoad('short', 80, 512, 128), ClassLoad('long', 20, 8192, 128)];"
        "print(jsonl.sha256(random_arrivals.for_duration(rate=Intensity(5.0), span_s=20.0, mix=mix, seed=7)))"
    )
    hashes = {
        subprocess.run(
            [sys.executable, "-c", script],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        ).stdout
        for hash_seed in ("1", "2")
    }
    own = jsonl.sha256(random_arrivals.for_duration(rate=Intensity(5.0), span_s=20.0, mix=MIX, seed=7))
    assert hashes == {own + "\n"}


def test_another_seed_gives_another_trace() -> None:
    assert a_trace(seed=3).arrivals != a_trace(seed=4).arrivals


def test_the_mix_is_exact_by_count() -> None:
    names = [arrival.class_name for arrival in a_trace(requests=50).arrivals]
    assert (names.count("short"), names.count("long")) == (40, 10)


@given(count=st.integers(0, 300), shares=st.lists(st.integers(1, 9), min_size=1, max_size=5), seed=st.integers(0, 9))
def test_a_mix_is_never_off_by_more_than_one(count: int, shares: list[int], seed: int) -> None:
    mix = [ClassLoad(f"c{i}", share, 1, 1) for i, share in enumerate(shares)]
    drawn = shuffled(count, mix, bench_kit.seeded(seed))
    assert len(drawn) == count
    for load in mix:
        assert abs(drawn.count(load) - count * load.share / sum(shares)) < 1


def test_an_endless_mix_is_exact_in_every_small_block() -> None:
    drawn = endless(MIX, bench_kit.seeded(1))
    for _ in range(20):
        assert [next(drawn).name for _ in range(5)].count("long") == 1


def test_a_given_count_offers_exactly_the_asked_rate() -> None:
    trace = a_trace(rate_per_s=2.0, requests=50)
    assert len(trace.arrivals) == 50
    assert trace.span_s == 25.0


def test_one_seed_has_the_same_times_at_every_rate_but_for_their_scale() -> None:
    slow, fast = a_trace(rate_per_s=1.0), a_trace(rate_per_s=4.0)
    for each, other in zip(slow.arrivals, fast.arrivals, strict=True):
        assert each.at_s == pytest.approx(4 * other.at_s, abs=1e-5)
        assert each.class_name == other.class_name


def test_poisson_gaps_have_the_mean_and_the_spread_of_an_exponential() -> None:
    trace = random_arrivals.for_duration(rate=Intensity(10.0), span_s=400.0, mix=MIX, seed=1)
    times = [0.0, *(arrival.at_s for arrival in trace.arrivals)]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    spread = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert mean == pytest.approx(0.1, rel=0.06)
    assert spread / mean == pytest.approx(1.0, rel=0.08)


@pytest.mark.parametrize(("burstiness", "variation"), [(0.25, 2.0), (1.0, 1.0), (4.0, 0.5)])
def test_gamma_gaps_have_the_asked_rate_and_clumps(burstiness: float, variation: float) -> None:
    rate = Intensity(10.0)
    trace = random_arrivals.for_duration(rate=rate, span_s=2000.0, mix=MIX, seed=1, burstiness=burstiness)
    gaps = [later.at_s - earlier.at_s for earlier, later in pairwise(trace.arrivals)]
    assert fmean(gaps) == pytest.approx(0.1, rel=0.05)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(variation, rel=0.05)
    counted = a_trace(rate_per_s=10.0, requests=2000, burstiness=burstiness)
    assert (len(counted.arrivals), counted.span_s) == (2000, 200.0)


def test_a_burst_has_its_factor_and_a_ramp_its_ends() -> None:
    bursts = Intensity(10.0, Burst(every_s=20.0, length_s=5.0, factor=6.0))
    times = [each.at_s for each in random_arrivals.for_duration(rate=bursts, span_s=400, mix=MIX, seed=2).arrivals]
    inside = sum(at_s % 20 >= 15 for at_s in times)
    assert inside / 100 == pytest.approx(60, rel=0.1)
    assert (len(times) - inside) / 300 == pytest.approx(10, rel=0.1)
    ramp = Intensity(2.0, rate_to_per_s=10.0)
    times = [each.at_s for each in random_arrivals.for_duration(rate=ramp, span_s=400, mix=MIX, seed=2).arrivals]
    assert len(times) == pytest.approx(2400, rel=0.06)
    assert sum(at_s < 100 for at_s in times) == pytest.approx(300, rel=0.15)
    assert sum(at_s >= 300 for at_s in times) == pytest.approx(900, rel=0.1)


@given(rate=st.floats(0.1, 50), to=st.floats(0.1, 50), share=st.floats(0, 1))
def test_along_a_ramp_the_area_until_a_time_is_the_one_that_it_was_found_for(rate, to, share) -> None:
    (segment,) = Intensity(rate, rate_to_per_s=to).segments(10.0)
    at_s = segment.time_at(share * segment.area)
    assert rate * at_s + (to - rate) / 10 * at_s**2 / 2 == pytest.approx(share * segment.area, abs=1e-6)


@pytest.mark.parametrize("text", ["60", "60:5", "5:60:2", "60:5:0", "a:b:c", "60:5:8:1"])
def test_a_burst_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--burst"):
        parse_burst(text, "--burst")


def test_a_trace_without_arrivals_is_refused() -> None:
    with pytest.raises(UsageError, match="no arrivals"):
        random_arrivals.for_duration(rate=Intensity(0.001), span_s=0.001, mix=MIX, seed=1)


def test_a_trace_too_large_for_a_run_is_refused_before_it_is_made() -> None:
    with pytest.raises(UsageError, match="more than"):
        random_arrivals.for_duration(rate=Intensity(1e6), span_s=1e6, mix=MIX, seed=1)


arrivals = st.builds(
    Arrival,
    at_s=st.integers(0, 10**9).map(lambda microseconds: microseconds / 10**6),
    class_name=st.sampled_from(["short", "long", "agent-2"]),
    prompt_tokens=st.integers(1, 10**6),
    output_tokens=st.integers(1, 10**6),
    prefix=st.lists(st.sampled_from(["a", "b7", "0"]), max_size=3).map(tuple),
    tenant=st.sampled_from([None, "acme"]),
    service_class=st.sampled_from([None, "batch"]),
    session=st.sampled_from([None, "s.1"]),
    cancel_after_s=st.none() | st.integers(1, 10**6).map(lambda milliseconds: milliseconds / 10**3),
)


@given(st.lists(arrivals, min_size=1, max_size=20))
def test_a_saved_trace_reads_back_equal_and_hashes_equal(made: list[Arrival]) -> None:
    trace = Trace(tuple(sorted(made, key=lambda arrival: arrival.at_s)), 1000.0, {"label": "synthetic"}, 128)
    again = jsonl.decode(jsonl.encode(trace), "trace")
    assert again == trace
    assert jsonl.sha256(again) == jsonl.sha256(trace)


def test_a_generated_trace_reads_back_equal() -> None:
    trace = a_trace(rate_per_s=3.7)
    assert jsonl.decode(jsonl.encode(trace), "trace") == trace


HEAD = {"format": "gateway-bench-trace", "version": 1, "span_s": 10.0, "origin": {}}
ROW = {"arrival_ms": 1.0, "class": "short", "prompt_tokens": 512, "output_tokens": 128}


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "empty"),
        (["not json"], "line 1: not JSON"),
        ([[1]], "line 1: not a JSON object"),
        ([{"timestamp": 0, "input_length": 3}], "line 1: not a trace of this bench"),
        ([HEAD | {"version": 2}, ROW], "line 1: not a trace of this bench"),
        ([HEAD | {"span_s": "10"}, ROW], "span_s"),
        ([HEAD], "no arrivals"),
        ([HEAD, ROW | {"prompt": "hello"}], "line 2: unknown key 'prompt'"),
        ([HEAD, {"arrival_ms": 1.0}], "line 2: class must be a str"),
        ([HEAD, ROW | {"prompt_tokens": True}], "line 2: prompt_tokens"),
        ([HEAD, ROW | {"prompt_tokens": 0}], "arrival 0: token counts"),
        ([HEAD, ROW | {"class": "Short one"}], "arrival 0: a class is"),
        ([HEAD, ROW | {"arrival_ms": -1}], "arrival 0: at -0.001 s"),
        ([HEAD, ROW | {"arrival_ms": 20_000}], "after the end of the trace"),
        ([HEAD, ROW | {"arrival_ms": 5}, ROW], "arrival 1: at 0.001 s, which is not in order"),
        ([HEAD, ROW | {"cancel_after_ms": 0}], "a cancel time is positive"),
        ([HEAD, ROW | {"prefix": ["a"]}], "line 1: prefix_block_tokens is missing"),
        ([HEAD | {"prefix_block_tokens": 0}, ROW], "line 1: prefix_block_tokens must be"),
        ([HEAD, ROW | {"prefix": [1]}], "line 2: prefix must be a list of words"),
        ([HEAD | {"prefix_block_tokens": 9}, ROW | {"prefix": ["a b"]}], "arrival 0: a prefix is"),
        ([HEAD, ROW | {"tenant": "Acme Inc."}], "arrival 0: tenant and session"),
        ([HEAD, ROW | {"service_class": "Gold"}], "arrival 0: a service class is"),
    ],
)
def test_a_malformed_trace_is_refused_with_its_place(lines: list[object], said: str) -> None:
    raw = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines).encode()
    with pytest.raises(UsageError) as refused:
        jsonl.decode(raw, "t.jsonl")
    assert str(refused.value).startswith("t.jsonl: ")
    assert said in str(refused.value)


def test_a_trace_that_is_no_text_is_refused() -> None:
    with pytest.raises(UsageError, match="not UTF-8 at byte 0"):
        jsonl.decode(b"\xff\xfe", "t.jsonl")


def test_a_trace_file_that_is_not_there_is_named(tmp_path) -> None:
    with pytest.raises(UsageError, match=r"gone\.jsonl: cannot be read"):
        jsonl.read(tmp_path / "gone.jsonl")
