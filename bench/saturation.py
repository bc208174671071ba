"""A target kept saturated by a closed loop, and what it carried. Owns the order of things and the folder's records.

Its latencies say nothing of what users would see.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import uvloop

from bench.analysis.capacity import Capacity, estimate
from bench.corpus import prompts
from bench.corpus.tokenizer import PromptForm, ServedTokenizer
from bench.engine.session import open_session
from bench.errors import TargetUnreachableError
from bench.load.bodies import BodyStyle
from bench.load.client import StreamingClient
from bench.load.flight import Flight
from bench.load.saturation import closed_loop, endless_flights
from bench.load.target import PATHS, Target
from bench.reach import reach
from bench.records.request import RequestRecord
from bench.records.store import RunFolder
from bench.told_to_end import ToldToEnd
from bench.trace.mix import ClassLoad, endless

FILE = "capacity.json"
CLOSED_DRAIN_S = 120.0


@dataclass(frozen=True, slots=True)
class Saturation:
    """num_prompts: different ones that are made; each is sent over and over, every time with another cache salt."""

    target: Target
    model: str
    form: PromptForm
    served: ServedTokenizer
    mix: Sequence[ClassLoad]
    seed: int
    concurrency: int
    warmup_s: float
    duration_s: float
    num_prompts: int
    cache_salted: bool


def carried(
    what: Saturation,
    folder: RunFolder,
    *,
    command: Sequence[str],
    metadata: Mapping[str, str],
    echo: Callable[[str], None],
) -> Capacity:
    """Measure it and write it down. Raises TargetUnreachableError, and KeyboardInterrupt where it was told to end."""
    drawn = endless(what.mix, random.Random(f"closed loop {what.seed}"))
    loads = [next(drawn) for _ in range(what.num_prompts)]
    echo(f"making {len(loads)} prompts")
    corpus = prompts.build_lengths((load.prompt_tokens for load in loads), what.served.count_for(what.form), what.seed)
    run_id = folder.path.name
    style = BodyStyle(what.form, what.model, run_id if what.cache_salted else None)
    requests = endless_flights(loads, corpus, style=style, target=what.target, run_id=run_id)
    records = _measured(what, requests, folder, echo)
    found = estimate(records, from_ms=what.warmup_s * 1000, to_ms=(what.warmup_s + what.duration_s) * 1000)
    said = {
        "run_id": run_id,
        "command": list(command),
        "target": what.target.public(),
        "concurrency": what.concurrency,
        "warmup_s": what.warmup_s,
        "mix": {load.name: load.share for load in what.mix},
        "seed": what.seed,
        "tokenizer_sha256": what.served.sha256,
        "metadata": dict(metadata),
    }
    folder.write_json(FILE, said | {"capacity": found.to_json()})
    return found


def _measured(
    what: Saturation,
    requests: Iterator[Flight],
    folder: RunFolder,
    echo: Callable[[str], None],
) -> list[RequestRecord]:
    """Of all that was sent, written down whatever happened."""
    sent: list[Flight] = []
    with ToldToEnd() as told:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(told.cancels(_saturate(what, requests, sent, echo)))
        except TargetUnreachableError:
            folder.discard()
            raise
        except (asyncio.CancelledError, KeyboardInterrupt):
            echo(f"records: {folder.path}")
        records = [flight.record(sent[0].planned_at) for flight in sent]
        folder.write_requests(records)
    if told.heard:
        raise KeyboardInterrupt
    return records


async def _saturate(
    what: Saturation,
    requests: Iterator[Flight],
    sent: list[Flight],
    echo: Callable[[str], None],
) -> None:
    clock = time.perf_counter
    async with open_session() as session:
        await reach(session, what.target)
    async with StreamingClient(what.target.base_url, PATHS[what.form], clock) as client:
        await client.warm(what.concurrency)
        echo(f"{what.concurrency} requests in flight for {what.warmup_s + what.duration_s:g} s")
        stop_at = clock() + what.warmup_s + what.duration_s
        await closed_loop(
            requests,
            client.send,
            sent,
            concurrency=what.concurrency,
            stop_at=stop_at,
            cut_at=stop_at + CLOSED_DRAIN_S,
            clock=clock,
        )
