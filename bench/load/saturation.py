"""The closed loop: so many requests in flight at all times, to find what a target can carry. Always labelled so.

Its requests have no planned arrival, so its latencies say nothing of what users would see.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace

from bench.corpus.prompts import Corpus
from bench.load.bodies import BodyStyle, prepare_one
from bench.load.flight import Flight
from bench.load.pacing import Clock
from bench.load.target import Target
from bench.records.request import Outcome, Phase
from bench.trace.arrivals import Arrival
from bench.trace.mix import ClassLoad

Send = Callable[[Flight], Awaitable[None]]  # returns when the answer has ended

PAUSE_AFTER_REFUSAL_S = 1.0


async def closed_loop(
    flights: Iterator[Flight],
    send: Send,
    sent: list[Flight],
    *,
    concurrency: int,
    stop_at: float,
    cut_at: float,
    clock: Clock,
) -> None:
    """Keep `concurrency` requests in flight until `stop_at`, and wait for the last ones until `cut_at`.

    sent: gets each one as it is sent, so that a loop that is cancelled loses none.
    """

    async def work() -> None:
        while clock() < stop_at and (flight := next(flights, None)) is not None:
            flight.planned_at = clock()
            sent.append(flight)
            await send(flight)
            # A refusal comes back at once: without a pause the loop would send nothing but refused requests.
            if flight.ending is None or flight.ending.outcome is not Outcome.COMPLETED:
                await asyncio.sleep(PAUSE_AFTER_REFUSAL_S)

    try:
        async with asyncio.timeout(max(0.0, cut_at - clock())), asyncio.TaskGroup() as group:
            for worker in range(concurrency):
                group.create_task(work(), name=f"worker {worker}")
    except TimeoutError:
        return  # the flights tell which ones were open


def endless_flights(
    loads: Sequence[ClassLoad], corpus: Corpus, *, style: BodyStyle, target: Target, run_id: str
) -> Iterator[Flight]:
    """The loads and their prompts over and over, each time with an id and a cache salt of its own.

    Where the style has no salt each prompt is sent once: a second time it would find the engine's prefix cache warm.
    """
    index = 0
    while style.cache_salt is not None or index < len(loads):
        load = loads[index % len(loads)]
        request = prepare_one(
            index,
            Arrival(0.0, load.name, load.prompt_tokens, load.output_tokens),
            corpus.prompts[index % len(loads)],
            style=replace(style, cache_salt=None if style.cache_salt is None else f"{style.cache_salt}-{index}"),
            target=target,
            phase=Phase.WINDOW,
            run_id=run_id,
        )
        yield Flight(request, planned_at=0.0)
        index += 1
