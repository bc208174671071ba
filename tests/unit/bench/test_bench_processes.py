"""The client's processes: shares that make up the whole run, none lost unnoticed, none that outlives its starter."""

import asyncio
import dataclasses
import os
import signal
import sys
import time

import pytest
from bench_kit import Asked, Reply, a_flight, scripted

from bench.corpus.tokenizer import PromptForm
from bench.load.flight import Flight
from bench.load.processes import ClientProcesses, processes_for
from bench.load.tally import Tally
from bench.load.target import PATHS
from bench.records.request import Outcome

clock = time.perf_counter
PATH = PATHS[PromptForm.CHAT]
FAR_S = 30.0


def planned(number: int, *, at_s: float = 0.0, output_tokens: int = 4) -> list[Flight]:
    flights = [a_flight(index=index) for index in range(number)]
    for flight in flights:
        arrival = dataclasses.replace(flight.request.arrival, at_s=at_s, output_tokens=output_tokens)
        flight.request = dataclasses.replace(flight.request, arrival=arrival)
    return flights


def of(flights: list[Flight], number: int, url: str) -> ClientProcesses:
    return ClientProcesses(flights, number, url, PATH, Tally(flights, 1.0, clock))


async def test_shares_make_up_the_whole_run() -> None:
    flights = planned(11)
    tally = Tally(flights, 1.0, clock)
    async with scripted(lambda _asked, reply: reply.answer(32, ["a", "b"])) as server:
        async with ClientProcesses(flights, 2, server.url, PATH, tally) as processes:
            assert await processes.warm() == 12
            started_at = clock()
            await processes.run(started_at, started_at + FAR_S)
        assert sorted(asked.headers["x-request-id"] for asked in server.asked) == sorted(
            flight.request.request_id for flight in flights
        )
    records = [flight.record(started_at) for flight in flights]
    assert {(record.outcome, record.output_tokens) for record in records} == {(Outcome.COMPLETED, 2)}
    assert all(record.dispatched_ms is not None and record.dispatched_ms >= 0 for record in records)
    own = tally.classes["short"]
    assert (own.sent, own.ended[Outcome.COMPLETED], own.open) == (11, 11, 0)
    assert processes.faults == []


async def test_what_is_open_when_the_run_is_cut_is_unfinished_and_what_was_not_sent_unsent() -> None:
    flights = [*planned(2), *planned(1, at_s=FAR_S)]
    flights[2].request = dataclasses.replace(flights[2].request, index=2)

    async def script(asked: Asked, reply: Reply) -> None:
        if asked.headers["x-request-id"] == flights[1].request.request_id:
            await reply.answer(32, ["a"])
        else:
            await reply.client_left()

    async with scripted(script) as server, of(flights, 1, server.url) as processes:
        await processes.warm()
        await processes.run(clock(), clock() + 2.0)
    assert [flight.record(0.0).outcome for flight in flights] == [
        Outcome.UNFINISHED,
        Outcome.COMPLETED,
        Outcome.UNSENT,
    ]
    assert len(processes.lags_s) > 0


async def test_a_process_that_is_killed_is_a_fault_and_the_others_go_on() -> None:
    flights = planned(6)
    lost: list[str] = []
    ready = asyncio.Event()

    async def script(asked: Asked, reply: Reply) -> None:
        if asked.headers["x-request-id"] in lost:
            ready.set()
            await reply.client_left()
        else:
            await ready.wait()
            await reply.answer(32, ["a"])

    lost += [flight.request.request_id for flight in flights[1::2]]
    async with scripted(script) as server, of(flights, 2, server.url) as processes:
        await processes.warm()
        running = asyncio.get_running_loop().create_task(processes.run(clock(), clock() + FAR_S))
        await ready.wait()
        os.kill(processes.numbers[1], signal.SIGKILL)
        await running
    assert processes.faults == [f"a process of the client ended with -{int(signal.SIGKILL)}"]
    assert [flight.ending is not None for flight in flights] == [True, False] * 3


async def test_a_process_that_is_lost_before_the_run_is_a_fault_and_its_share_unsent() -> None:
    flights = planned(4)
    async with (
        scripted(lambda _asked, reply: reply.answer(32, ["a"])) as server,
        of(flights, 2, server.url) as processes,
    ):
        os.kill(processes.numbers[1], signal.SIGKILL)
        assert await processes.warm() == 2
        await processes.run(clock(), clock() + FAR_S)
    assert processes.faults == [f"a process of the client ended with -{int(signal.SIGKILL)}"]
    assert [flight.record(0.0).outcome for flight in flights] == [Outcome.COMPLETED, Outcome.UNSENT] * 2


STARTER = """
import asyncio, time
from bench.load.bodies import PreparedRequest
from bench.load.flight import Flight
from bench.load.processes import ClientProcesses
from bench.load.tally import Tally
from bench.records.request import Phase
from bench.trace.arrivals import Arrival

async def main():
    flights = [Flight(PreparedRequest(0, "r", Arrival(0.0, "short", 1, 1), Phase.WINDOW, {{}}, b"{{}}"), 0.0)]
    tally = Tally(flights, 1.0, time.perf_counter)
    async with ClientProcesses(flights, 1, "{url}", "/v1/chat/completions", tally) as processes:
        await processes.warm()
        now = time.perf_counter()
        await processes.run(now, now + 600)

asyncio.run(main())
"""


async def test_a_process_whose_starter_is_killed_gives_up_at_once() -> None:
    arrived, left = asyncio.Event(), asyncio.Event()

    async def script(_: Asked, reply: Reply) -> None:
        arrived.set()
        await reply.client_left()
        left.set()

    async with scripted(script) as server:
        program = STARTER.format(url=server.url)
        starter = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
        await arrived.wait()
        starter.kill()
        await starter.wait()
        await left.wait()


@pytest.mark.parametrize(
    ("requests", "output_tokens", "cpus", "number"),
    [(1, 1, 8, 1), (100, 100, 8, 2), (100, 100, 1, 1), (4500, 1, 8, 3), (100, 5000, 4, 3)],
)
def test_there_are_as_many_processes_as_the_load_needs_and_the_machine_has(
    requests: int, output_tokens: int, cpus: int, number: int
) -> None:
    assert processes_for(planned(requests, output_tokens=output_tokens), 1.0, cpus) == number
