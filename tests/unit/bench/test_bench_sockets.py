"""Connections: as many as there are requests, warm where they can be, and what is the client's own limit is said."""

import asyncio
import contextlib
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench_kit import Asked, Reply, a_flight, scripted

from bench.corpus.tokenizer import PromptForm
from bench.load.client import StreamingClient
from bench.load.flight import Flight
from bench.load.target import PATHS
from bench.records.request import Outcome, RequestRecord

PATH = PATHS[PromptForm.CHAT]


async def sent(url: str, *flights: Flight) -> list[RequestRecord]:
    async with StreamingClient(url, PATH, time.perf_counter) as client:
        await asyncio.gather(*(client.send(flight) for flight in flights))
    return [flight.record(0.0) for flight in flights]


async def test_three_hundred_requests_are_in_flight_at_once() -> None:
    all_here = asyncio.Event()
    here = 0

    async def script(_: Asked, reply: Reply) -> None:
        nonlocal here
        here += 1
        if here == 300:
            all_here.set()
        await all_here.wait()
        await reply.answer(32, ["a"])

    async with scripted(script) as server:
        records = await sent(server.url, *(a_flight(index=i) for i in range(300)))
    assert {record.outcome for record in records} == {Outcome.COMPLETED}


async def test_sixty_four_prompts_of_fifty_thousand_tokens_are_at_the_server_together() -> None:
    """Nobody is answered before the last body is there: a connection limit or a full buffer would keep it away."""
    here = 0
    all_here = asyncio.Event()

    async def script(_asked: Asked, reply: Reply) -> None:
        nonlocal here
        here += 1
        if here == 64:
            all_here.set()
        await all_here.wait()
        await reply.answer(50_000, ["a", "b"])

    flights = [a_flight(index=index, prompt="word " * 50_000) for index in range(64)]
    async with scripted(script) as server:
        records = await sent(server.url, *flights)
    assert {record.outcome for record in records} == {Outcome.COMPLETED}


async def test_warm_sockets_are_used_by_the_first_requests() -> None:
    async with (
        scripted(lambda _asked, reply: reply.answer(32, ["a"])) as server,
        StreamingClient(server.url, PATH, time.perf_counter) as client,
    ):
        assert await client.warm(4) == 4
        flight = a_flight()
        await client.send(flight)
    assert flight.record(0.0).connect_ms is None


async def test_warming_tells_that_nothing_listens() -> None:
    async with scripted(lambda _asked, reply: reply.whole(200)) as server:
        url = server.url
    async with StreamingClient(url, PATH, time.perf_counter) as client:
        assert await client.warm(4) == 0


@contextlib.contextmanager
def no_more_files() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(each.name) for each in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, before[1]))
    held = []
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.dup(0))
        yield
    finally:
        for number in held:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_a_client_without_a_socket_left_is_not_taken_for_a_server_that_is_not_there() -> None:
    async with (
        scripted(lambda _asked, reply: reply.answer(32, ["a"])) as server,
        StreamingClient(server.url, PATH, time.perf_counter) as client,
    ):
        flight = a_flight()
        with no_more_files():
            await client.send(flight)
        assert server.asked == []
    record = flight.record(0.0)
    assert (record.outcome, record.reason) == (Outcome.FAILED, "client_out_of_sockets")


async def test_a_request_on_a_waiting_socket_that_the_server_closes_is_told_apart_and_not_sent_again() -> None:
    async def script(_: Asked, reply: Reply) -> None:
        if len(server.asked) == 1:
            await reply.answer(32, ["a"])
        else:
            reply.cut()  # as a server whose idle time is over just now

    async with scripted(script) as server, StreamingClient(server.url, PATH, time.perf_counter) as client:
        flights = [a_flight(index=index) for index in range(2)]
        for flight in flights:
            await client.send(flight)
        assert len(server.asked) == 2
    assert [flight.record(0.0).reason for flight in flights] == [None, "waiting_connection_lost"]


@pytest.mark.parametrize(
    ("said", "waits_s"),
    [("", 4.0), ("timeout=75", 4.0), ("timeout=5, max=100", 4.0), ("max=9, Timeout=2", 1.6), ("timeout=0", 0.0)],
)
async def test_a_socket_waits_for_less_than_the_server_says(said: str, waits_s: float) -> None:
    now = 0.0
    headers = {"Keep-Alive": said} if said else {}

    async with (
        scripted(lambda _asked, reply: reply.answer(32, ["a"], headers)) as server,
        StreamingClient(server.url, PATH, lambda: now) as client,
    ):
        opened = []
        for at in (0.0, waits_s - 0.01, 2 * waits_s + 0.01):
            now = max(0.0, at)
            flight = a_flight()
            await client.send(flight)
            opened.append(flight.connect_s is not None)
    assert opened == [True, waits_s == 0.0, True]
