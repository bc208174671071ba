"""The step oracle, by hand: the rest of the step under way, and a step of one's own."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from bench_kit import a_record

from bench.analysis.comparison import Load
from bench.analysis.oracle import EngineSteps, over_oracle
from bench.records.request import Outcome, Phase, RequestRecord
from bench.report import engine_table, oracle_table

# A step costs 10 ms and 0.1 ms a token, whatever came before it.
TIMES = SimpleNamespace(base_s=0.01, per_token_s=0.0001, chunk_s=lambda tokens, _context: tokens * 0.0001)
ENGINE = EngineSteps(TIMES, request_s=0.005, step_tokens=2000, chunk_tokens=2000)
OWN_MS = 5 + 10 + 10  # beside its steps, its step, its 100 tokens


def short(at_ms: float, ttft_ms: float = 200.0) -> RequestRecord:
    return a_record(
        planned_ms=at_ms,
        dispatched_ms=at_ms,
        first_token_ms=at_ms + ttft_ms,
        ended_ms=at_ms + ttft_ms + 1,
        prompt_tokens_planned=100,
    )


def long(start_ms: float, first_ms: float, **changes: object) -> RequestRecord:
    times = {"planned_ms": start_ms, "dispatched_ms": start_ms, "first_token_ms": first_ms, "ended_ms": 9_000.0}
    return a_record(class_name="long", prompt_tokens_planned=4000, **(times | changes))


def oracle_ms(records: list[RequestRecord], engine: EngineSteps = ENGINE) -> tuple[float, ...]:
    found = over_oracle([records], "short", engine)
    assert found is not None
    return found.oracle_ms


def test_alone_a_prompt_waits_for_its_own_step() -> None:
    found = over_oracle([[short(1000.0, ttft_ms=50.0)]], "short", ENGINE)
    assert found is not None
    assert found.oracle_ms == pytest.approx((OWN_MS, OWN_MS))
    assert (found.ratios, found.requests) == (pytest.approx((2.0, 2.0)), 1)


def test_requests_of_the_warm_up_are_at_the_engine_and_in_no_figure() -> None:
    warm = replace(short(500.0, ttft_ms=9_000.0), phase=Phase.WARMUP)
    found = over_oracle([[warm, short(1000.0)]], "short", ENGINE)
    assert found is not None and found.requests == 1
    assert found.oracle_ms[0] > OWN_MS


def test_beside_a_long_prefill_it_waits_for_the_rest_of_a_full_step() -> None:
    step_ms = 10 + 200
    median, high = oracle_ms([short(1000.0), long(500.0, 2500.0)])
    assert median == pytest.approx(OWN_MS + 0.475 * step_ms)
    assert high == pytest.approx(OWN_MS + 0.925 * step_ms)


def test_a_threshold_makes_the_step_under_way_smaller() -> None:
    median, _ = oracle_ms([short(1000.0), long(500.0, 2500.0)], replace(ENGINE, chunk_tokens=500))
    assert median == pytest.approx(OWN_MS + 0.475 * (10 + 50))


def test_of_a_prefill_that_is_nearly_done_only_the_rest_is_under_way() -> None:
    median, _ = oracle_ms([short(1000.0), long(0.0, 1111.111)])  # nine tenths are computed
    assert median == pytest.approx(OWN_MS + 0.475 * (10 + 40), abs=0.1)


def test_who_decodes_takes_a_token_of_each_step_and_who_waits_in_the_gateway_nothing() -> None:
    median, _ = oracle_ms([short(1000.0), long(100.0, 500.0)])
    assert median == pytest.approx(OWN_MS + 0.1 + 0.475 * 10.1)
    waiting = long(500.0, 4000.0, gateway_queue_ms=700)
    refused = long(500.0, 4000.0, outcome=Outcome.REFUSED)
    assert oracle_ms([short(1000.0), waiting, refused]) == pytest.approx((OWN_MS, OWN_MS))


def test_a_class_that_takes_several_steps_or_had_no_token_has_no_oracle() -> None:
    assert over_oracle([[long(0.0, 100.0)]], "long", ENGINE) is None
    assert over_oracle([[a_record(first_token_ms=None)]], "short", ENGINE) is None


def test_tables_say_what_was_found_and_leave_out_what_was_not() -> None:
    load = Load("load 0.7", 2.0, "80/20")
    found = over_oracle([[short(1000.0, ttft_ms=50.0)]], "short", ENGINE)
    assert found is not None
    assert "| fcfs |" in oracle_table.describe([(load, "short", "fcfs", found)]).replace("  ", "")
    assert oracle_table.describe([]) == ""
    engine = {
        "during": {"running_max": 3.0, "waiting_max": 2.0, "kv_usage_max": 0.25, "gpu_absent": "no NVIDIA GPU"},
        "delta": {"queue_seconds": 3.0, "queue_observations": 6.0, "preemptions": "unknown"},
    }
    said = engine_table.describe([(load, "fcfs", [engine, engine])])
    cells = [cell.strip() for cell in said.splitlines()[-1].strip("|").split("|")]
    assert cells[2:] == ["fcfs", "3", "2", "25%", "500", "–", "–"]
    assert "GPU memory was not measured: no NVIDIA GPU." in said
    assert engine_table.describe([(load, "fcfs", [])]) == ""
