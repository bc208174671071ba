"""The open loop never waits for a reply to send; both loops end when they must, with every request accounted for."""

import asyncio
import time

import bench_kit
import pytest
from bench_kit import a_flight
from hypothesis import given
from hypothesis import strategies as st

from bench.corpus.prompts import Corpus
from bench.corpus.tokenizer import PromptForm
from bench.load import saturation
from bench.load.bodies import BodyStyle
from bench.load.exchange import Ended
from bench.load.flight import Flight
from bench.load.lag import LoopLag
from bench.load.outcomes import Ending
from bench.load.pacing import Windows, wait_s
from bench.load.runner import OpenLoop, Start
from bench.load.saturation import closed_loop, endless_flights
from bench.load.target import Target
from bench.records.request import Outcome, Phase
from bench.trace.mix import ClassLoad

clock = time.perf_counter
FAR_S = 30.0


def flights(number: int, *, every_s: float = 0.0) -> list[Flight]:
    start = clock()
    return [a_flight(index=i, planned_at=start + i * every_s) for i in range(number)]


def complete(flight: Flight) -> None:
    flight.ending = Ending(Outcome.COMPLETED)


class Sent:
    """Takes flights as a client does; those of `silent` indices are never answered."""

    def __init__(self, *silent: int) -> None:
        self.indices: list[int] = []
        self.late_s: list[float] = []
        self._silent = silent

    def start(self, flight: Flight, ended: Ended) -> None:
        flight.dispatched_at = clock()
        self.indices.append(flight.request.index)
        self.late_s.append(flight.dispatched_at - flight.planned_at)
        if flight.request.index not in self._silent:
            complete(flight)
            asyncio.get_running_loop().call_soon(ended, flight)


async def run(planned: list[Flight], start: Start, *, for_s: float = FAR_S) -> list[int]:
    """Returns the indices in the order in which they ended."""
    ended: list[int] = []
    await OpenLoop(planned, start, clock, lambda flight: ended.append(flight.request.index)).run(clock() + for_s)
    return ended


async def test_all_requests_are_sent_although_none_is_answered() -> None:
    sent = Sent(*range(50))

    def start(flight: Flight, ended: Ended) -> None:
        sent.start(flight, ended)
        if len(sent.indices) == 50:
            loop.stop()

    loop = OpenLoop(flights(50, every_s=0.001), start, clock, lambda _: pytest.fail("none is answered"))
    await loop.run(clock() + FAR_S)
    assert sent.indices == list(range(50))


async def test_nothing_is_sent_before_its_planned_time_and_all_are_told_when_they_end() -> None:
    sent = Sent()
    assert await run(flights(20, every_s=0.003), sent.start) == list(range(20))
    assert min(sent.late_s) >= 0


async def test_what_is_due_is_sent_between_the_reads_of_a_burst() -> None:
    sent = Sent()
    planned = flights(2, every_s=FAR_S)
    loop = OpenLoop(planned, sent.start, clock, lambda _: None)
    running = asyncio.get_running_loop().create_task(loop.run(clock() + FAR_S))
    await asyncio.sleep(0)
    assert (sent.indices, loop.sent) == ([0], 1)
    loop.look(planned[1].planned_at - 0.001)
    assert sent.indices == [0]
    planned[1].planned_at = clock()
    loop.look(clock() + FAR_S)
    assert sent.indices == [0, 1]
    await running


async def test_a_request_without_an_answer_is_unfinished_at_the_deadline_and_the_loop_ends() -> None:
    planned = flights(3)
    assert await run(planned, Sent(1).start, for_s=0.1) == [0, 2]
    assert [flight.record(0.0).outcome for flight in planned] == [
        Outcome.COMPLETED,
        Outcome.UNFINISHED,
        Outcome.COMPLETED,
    ]


async def test_a_request_whose_time_never_came_is_unsent() -> None:
    planned = [a_flight(planned_at=clock()), a_flight(index=1, planned_at=clock() + FAR_S)]
    await run(planned, Sent().start, for_s=0.05)
    assert [flight.record(0.0).outcome for flight in planned] == [Outcome.COMPLETED, Outcome.UNSENT]


async def test_a_loop_that_is_stopped_sends_no_more() -> None:
    sent = Sent()
    planned = [a_flight(planned_at=clock()), a_flight(index=1, planned_at=clock() + FAR_S)]
    loop = OpenLoop(planned, sent.start, clock, lambda _: loop.stop())
    await loop.run(clock() + FAR_S)
    loop.look(clock() + 2 * FAR_S)
    assert sent.indices == [0]


async def test_a_loop_without_requests_ends_at_once() -> None:
    assert await run([], Sent().start) == []


@pytest.mark.parametrize("after", [0, 1])
async def test_a_fault_of_the_client_itself_is_not_swallowed(after: int) -> None:
    def start(flight: Flight, _: Ended) -> None:
        if flight.request.index == after:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await run(flights(2, every_s=0.01), start)


async def test_the_closed_loop_keeps_its_concurrency_and_never_more() -> None:
    now, peak = 0, 0

    async def send(flight: Flight) -> None:
        nonlocal now, peak
        now += 1
        peak = max(peak, now)
        await asyncio.sleep(0)
        now -= 1
        complete(flight)

    sent: list[Flight] = []
    far = clock() + FAR_S
    await closed_loop(iter(flights(40)), send, sent, concurrency=4, stop_at=far, cut_at=far, clock=clock)
    assert (len(sent), peak) == (40, 4)


async def test_the_closed_loop_ends_at_its_deadline_although_nothing_is_answered() -> None:
    async def send(_: Flight) -> None:
        await asyncio.Event().wait()

    # Time stands still for the loop: all four begin, however long the machine takes over it.
    sent: list[Flight] = []
    await closed_loop(iter(flights(40)), send, sent, concurrency=4, stop_at=1.0, cut_at=0.05, clock=lambda: 0.0)
    assert len(sent) == 4


async def test_the_closed_loop_does_not_hammer_a_server_that_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saturation, "PAUSE_AFTER_REFUSAL_S", FAR_S)

    async def send(flight: Flight) -> None:
        flight.ending = Ending(Outcome.REFUSED, "http_429")

    # Time stands still for the loop: it is cut in its pauses, before which each has sent one.
    sent: list[Flight] = []
    await closed_loop(iter(flights(1000)), send, sent, concurrency=2, stop_at=1.0, cut_at=0.05, clock=lambda: 0.0)
    assert len(sent) == 2


TARGET = Target("t", "http://h", {}, {})
LOADS = [ClassLoad("short", 1, 32, 4), ClassLoad("long", 1, 64, 4)]


def test_saturation_repeats_prompts_with_a_salt_and_an_id_of_their_own() -> None:
    style = BodyStyle(PromptForm.CHAT, "m", "run")
    made = endless_flights(LOADS, Corpus(("one", "two"), ""), style=style, target=TARGET, run_id="run")
    first, _, third = (next(made).request for _ in range(3))
    assert first.body != third.body
    assert b"one" in first.body and b"one" in third.body
    assert first.request_id != third.request_id


def test_saturation_without_salts_sends_each_prompt_once() -> None:
    style = BodyStyle(PromptForm.CHAT, "m", None)
    made = endless_flights(LOADS, Corpus(("one", "two"), ""), style=style, target=TARGET, run_id="run")
    assert len(list(made)) == 2


async def test_loop_lag_shows_a_blocked_loop() -> None:
    readings = 0
    second_round = asyncio.Event()

    def clock_of_a_blocked_loop() -> float:
        nonlocal readings
        readings += 1
        if readings == 3:
            second_round.set()
        return readings * 0.25

    lag = LoopLag(clock_of_a_blocked_loop, [])
    watching = asyncio.get_running_loop().create_task(lag.watch())
    await second_round.wait()
    watching.cancel()
    assert lag.lags_s[0] == pytest.approx(0.24)


def test_a_request_belongs_to_the_window_by_its_planned_arrival() -> None:
    windows = Windows(warmup_s=10.0, observation_s=60.0, drain_deadline_s=5.0)
    assert [windows.phase(at_s) for at_s in (0.0, 9.999, 10.0)] == [Phase.WARMUP, Phase.WARMUP, Phase.WINDOW]
    assert (windows.span_s, windows.cut_s) == (70.0, 75.0)


@given(planned=st.floats(-1e6, 1e6), now=st.floats(-1e6, 1e6))
def test_waiting_is_never_negative_and_never_too_short(planned: float, now: float) -> None:
    waited = wait_s(planned_at=planned, now=now)
    assert waited >= 0
    assert waited == 0 or waited == planned - now


def test_latency_counts_from_the_planned_arrival_and_from_dispatch_apart() -> None:
    flight = a_flight(planned_at=11.0)
    flight.dispatched_at, flight.ended_at, flight.ending = 11.5, 13.0, Ending(Outcome.COMPLETED)
    flight.reading.feed(b'data: {"choices": [{"text": "a", "finish_reason": "stop"}]}\n\n', 12.0)
    record = flight.record(started_at=10.0)
    assert (record.planned_ms, record.lag_ms) == (1000.0, 500.0)
    assert (record.ttft_ms, record.ttft_from_dispatch_ms) == (1000.0, 500.0)
    assert (record.e2e_ms, record.e2e_from_dispatch_ms) == (2000.0, 1500.0)


def test_a_row_has_no_key_for_what_was_not_seen() -> None:
    flight = a_flight(planned_at=1.0)
    row = flight.record(started_at=0.0).to_row()
    assert row == {
        "index": 0,
        "request_id": "run-0",
        "class": "short",
        "phase": "window",
        "outcome": "unsent",
        "planned_ms": 1000.0,
        "prompt_tokens_planned": 32,
        "output_tokens_planned": 4,
        "malformed_events": 0,
    }


def test_a_row_of_a_completed_request_has_its_latencies() -> None:
    row = bench_kit.a_record().to_row()
    assert {key: row[key] for key in ("lag_ms", "ttft_ms", "e2e_ms", "tpot_ms")} == {
        "lag_ms": 0.0,
        "ttft_ms": 200.0,
        "e2e_ms": 1000.0,
        "tpot_ms": 100.0,
    }
