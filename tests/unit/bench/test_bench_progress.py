"""What is seen while a run goes on: what the requests came to so far, how long the rest takes, where the knee lies."""

from __future__ import annotations

import io
import random

import bench_kit
import pytest
from rich.console import Console

from bench.analysis.classes import measure
from bench.analysis.knee import Rung, knee, next_rate
from bench.analysis.limits import parse_limits
from bench.load.outcomes import Ending
from bench.load.tally import RECENT, Tally
from bench.progress import Progress, TimeLeft, duration, line
from bench.records.request import Outcome
from bench.report.ladder_table import describe


def a_tally(*endings: Outcome | None) -> Tally:
    flights = [bench_kit.a_flight(index=index, planned_at=10.0) for index in range(len(endings))]
    tally = Tally(flights, 30.0, lambda: 22.0)

    for flight, ending in zip(flights[:-1], endings, strict=False):
        tally.sent(flight)
        if ending is None:
            continue
        flight.ending = Ending(ending)
        if ending is Outcome.COMPLETED:
            flight.reading.chunk_times.append(10.25)
        tally.ended(flight)
    return tally


async def test_a_tally_counts_what_was_sent_how_it_ended_and_what_is_open() -> None:
    tally = a_tally(Outcome.COMPLETED, Outcome.REFUSED, Outcome.EXPIRED, Outcome.FAILED, None, None)
    own = tally.classes["short"]
    assert (own.planned, own.sent, own.open, own.recent_p95_ms()) == (6, 5, 1, 250.0)
    assert line("short", own) == "short 5/6 sent, 1 open, 1 completed, 2 refused, 1 other, p95 250 ms"
    assert tally.elapsed_s() == 12.0


async def test_a_tally_keeps_no_more_than_the_last_first_tokens() -> None:
    tally = a_tally(*[Outcome.COMPLETED] * (RECENT + 50))
    assert len(tally.classes["short"].recent_ttft_ms) == RECENT


def test_time_left_is_what_was_planned_and_what_earlier_runs_took_beyond_it() -> None:
    left = TimeLeft([60.0, 60.0, 30.0])
    assert left.seconds(0, 20.0) == 40 + 90
    left.took(0, 70.0)
    assert left.seconds(1, 20.0) == 40 + 10 + 30 + 10
    assert left.seconds(1, 500.0) == 10 + 30 + 10


@pytest.mark.parametrize(
    ("seconds", "said"), [(9.4, "9 s"), (61, "1 min 01 s"), (3599.6, "1 h 00 min"), (7500, "2 h 05 min")]
)
def test_a_duration_is_said_as_people_say_it(seconds: float, said: str) -> None:
    assert duration(seconds) == said


async def test_where_no_terminal_is_lines_are_plain() -> None:
    out = io.StringIO()
    with Progress([30.0, 30.0], out) as progress:
        progress.begin(0, "6 requests/s, first")
        progress.watch(a_tally(Outcome.COMPLETED, None))
        progress.say("[not markup]")
    assert out.getvalue() == "[1/2] 6 requests/s, first\n[not markup]\n"


async def test_a_terminal_shows_a_table_by_class_with_the_time_left() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    with Progress([30.0, 30.0], Terminal()) as progress:
        progress.begin(0, "6 requests/s, first")
        progress.watch(a_tally(Outcome.COMPLETED, Outcome.REFUSED, None))
        shown = Console(file=io.StringIO(), width=200)
        shown.print(progress._table())
        text = shown.file.getvalue()  # type: ignore[attr-defined]
    assert "[1/2] 6 requests/s, first · 12 of 30 s, 48 s left in all" in text
    assert [word.strip() for word in text.splitlines()[-2].strip("│").split("│")] == [
        "short", "2/3", "0", "1", "1", "0", "250",
    ]  # fmt: skip


def a_rung(rate: float, good: int, *, valid: bool = True) -> Rung:
    limits = parse_limits(["short:ttft:500"], "x")
    records = [bench_kit.a_record(first_token_ms=1200.0 if i < good else 9000.0) for i in range(100)]
    measured = measure(records, records, window_s=10, limits=limits)
    return Rung(rate, valid, {"short": measured, "all": measured})


def test_the_knee_is_the_last_rate_below_which_all_hold() -> None:
    rungs = [a_rung(1, 100), a_rung(2, 96), a_rung(4, 80), a_rung(8, 99), a_rung(3, 0, valid=False)]
    random.Random(1).shuffle(rungs)
    assert knee(rungs, 0.95) == 2
    assert next_rate(rungs, 0.95) == pytest.approx(8**0.5, rel=1e-3)
    assert "2 ← knee" in describe(rungs, 0.95) and "INVALID" in describe(rungs, 0.95)


def test_without_a_rate_that_holds_there_is_no_knee_and_without_one_that_fails_it_lies_above() -> None:
    assert knee([a_rung(1, 90)], 0.95) is None and next_rate([a_rung(1, 90)], 0.95) is None
    assert "no knee" in describe([a_rung(1, 90)], 0.95)
    assert next_rate([a_rung(1, 100)], 0.95) is None
    assert "lies above it" in describe([a_rung(1, 100)], 0.95)


def test_a_wait_of_the_client_itself_is_in_the_latency_and_stands_apart() -> None:
    late = bench_kit.a_record(planned_ms=1000.0, dispatched_ms=1700.0, first_token_ms=1900.0, ended_ms=2000.0)
    assert (late.lag_ms, late.ttft_ms, late.ttft_from_dispatch_ms) == (700.0, 900.0, 200.0)
    assert (late.e2e_ms, late.e2e_from_dispatch_ms) == (1000.0, 300.0)
    said = measure([late], [late], window_s=1.0, limits={}).to_json()
    assert {"ttft_ms", "ttft_from_dispatch_ms", "e2e_ms", "e2e_from_dispatch_ms"} <= said.keys()
