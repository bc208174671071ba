"""What classifying a chat costs its thread, and how long counting holds up the event loop: within one run.

`python tests/benchmark/counting_cost.py FOLDER [FOLDER...]` from the repository's root; a folder holds a model's
tokenizer.json and chat template. Thread time is CPU time over prompts that were not seen before, its median and, as the
machine would be without its neighbours, its tenth percentile: of reading and judging the body, of its count, and of the
count by the reference. Prompts are paragraphs of English prose in ever another order; "made up": every tenth word is one
that no one ever wrote, and every tenth a number. How long the loop is blocked is told by `loop_blocked`, while requests are
counted one after the other as the gateway counts them, in turns with a loop at rest and with threads that hash for as
long, which holds nothing that the loop needs.
"""

# ruff: noqa: T201 - a script that prints

from __future__ import annotations

import argparse
import asyncio
import gc
import hashlib
import json
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from pydoc_data.topics import topics
from random import Random
from statistics import median, quantiles
from time import thread_time

from loop_blocked import LoopClock

from gateway.core.plan import RequestBounds
from gateway.counting.counter import CountingOverloaded, Uncountable
from gateway.counting.encoder import ReferenceEncoder
from gateway.counting.local import LocalTokenizer
from gateway.counting.model_files import read_model_files
from gateway.wire import requests
from gateway.wire.dialects import CHAT_COMPLETIONS
from gateway.wire.requests import Call

KB = 1024
CONTEXT_TOKENS = 16_384
REFERENCE_EACH = 10
SMALL_BYTES, LARGE_BYTES, HUGE_BYTES = 2 * KB, 32 * KB, 27_000_000
WARM_CALLS = {SMALL_BYTES: 300, LARGE_BYTES: 30}
ROUNDS, REST_S, HASHES = 8, 0.2, 100
CALLS = {SMALL_BYTES: 500, LARGE_BYTES: 100}
LIMIT_MS = {SMALL_BYTES: 0.1, LARGE_BYTES: 3.0}
CALLS_A_ROUND = {SMALL_BYTES: 750, LARGE_BYTES: 100, HUGE_BYTES: 1}
BLOCKED_MS_P99_MAX = 1.0
HASHED_BYTES = 1 << 20
BOUNDS = RequestBounds(sequences_max=16, stop_max=64, list_items_max=1024)
WORDS = ("the", "of", "and", "to", "in", "that", "is", "was", "for", "with", "as", "on", "not", "from", "they", "which")
PARAGRAPHS = [paragraph for topic in topics.values() for paragraph in topic.split("\n\n")]

Prompt = Callable[[Random, int], str]


def prose(random: Random, size_bytes: int) -> str:
    """Return English prose with some code in it: known words, never in the same order twice."""
    paragraphs: list[str] = []
    length = 0
    while length < size_bytes:
        paragraphs.append(random.choice(PARAGRAPHS))
        length += len(paragraphs[-1])
    return "\n\n".join(paragraphs)[:size_bytes]


def made_up(random: Random, size_bytes: int) -> str:
    """Return common words with numbers and made-up names among them, never the same twice."""
    words: list[str] = []
    length = 0
    while length < size_bytes:
        kind = random.random()
        word = (
            random.choice(WORDS) if kind < 0.8 else f"{random.randrange(10_000)}," if kind < 0.9 else _made_up(random)
        )
        words.append(word)
        length += len(word) + 1
    return " ".join(words)[:size_bytes]


def _made_up(random: Random) -> str:
    return "".join(random.choices("abcdefghijklmnopqrstuvwxyz_(", k=random.randint(3, 10))).capitalize()


def chats(size_bytes: int, prompt: Prompt) -> Iterator[Call]:
    """Yield judged chats whose user message has this size."""
    random = Random(size_bytes)
    while True:
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": prompt(random, size_bytes)}]
        body = json.dumps({"model": "m", "messages": messages, "max_tokens": 64}).encode()
        yield requests.parse(CHAT_COMPLETIONS, body, BOUNDS, frozenset())


def judged(call: Call) -> Call:
    return requests.parse(CHAT_COMPLETIONS, call.body, BOUNDS, frozenset())


def thread_ms(work: Callable[[Call], object], call: Call) -> float:
    began = thread_time()
    work(call)
    return (thread_time() - began) * 1e3


def report_cost(fast: LocalTokenizer, reference: LocalTokenizer, size_bytes: int, prompt: Prompt) -> tuple[bool, float]:
    """Print what a chat costs; return whether its median is within the limit, and the count's share of it in ms."""
    calls = list(islice(chats(size_bytes, prompt), WARM_CALLS[size_bytes] + CALLS[size_bytes]))
    spent = [(thread_ms(judged, call), thread_ms(fast.count_now, call)) for call in calls][WARM_CALLS[size_bytes] :]
    whole = sorted(read + counted for read, counted in spent)
    read_ms, counted_ms = (median(part) for part in zip(*spent, strict=True))
    reference_ms = median(thread_ms(reference.count_now, call) for call in calls[::REFERENCE_EACH])
    print(
        f"  {size_bytes // KB:>3} KB, {prompt.__name__:8s} read {read_ms:.3f} + counted {counted_ms:.3f} = "
        f"{median(whole):.3f} ms of a thread (a tenth below {whole[len(whole) // 10]:.3f}, limit {LIMIT_MS[size_bytes]}), "
        f"the reference counts {reference_ms / counted_ms:.0f} times as long"
    )
    return median(whole) < LIMIT_MS[size_bytes], counted_ms


async def counted(counter: LocalTokenizer, calls: Sequence[Call]) -> None:
    """Count them one after the other, each in a turn of the loop's, as requests come."""
    for call in calls:
        await asyncio.sleep(0)
        with suppress(Uncountable, CountingOverloaded):
            await counter.count(call, context_tokens=CONTEXT_TOKENS)


async def hashed(counter: LocalTokenizer, part: memoryview) -> None:
    """Keep the counter's threads as busy as counting does, with work that lets go of the interpreter lock."""
    for _ in range(HASHES):
        await counter.threads.run(lambda: hashlib.sha256(part).digest(), LARGE_BYTES)


def hashed_part(spent_ms: float) -> memoryview:
    """Return as much as is hashed in that time."""
    block = bytes(HASHED_BYTES)
    began = thread_time()
    hashlib.sha256(block).digest()
    return memoryview(block)[: int(HASHED_BYTES * min(1.0, spent_ms / 1e3 / (thread_time() - began)))]


async def report_blocked(clock: LoopClock, fast: LocalTokenizer, large_ms: float) -> bool:
    """Print how long the loop was blocked, by what; return whether counting chats is within the limit."""
    calls = {size: list(islice(chats(size + 1, prose), CALLS_A_ROUND[size] * ROUNDS)) for size in CALLS}
    calls[HUGE_BYTES] = ROUNDS * [next(chats(HUGE_BYTES, prose))]
    part = hashed_part(large_ms)
    gc.collect()
    gc.freeze()  # what this script keeps is none of the gateway's to search
    await asyncio.sleep(REST_S)
    ticks: dict[str, list[tuple[float, float]]] = {}
    for turn in range(ROUNDS):
        work: dict[str, Callable[[], Coroutine[None, None, None]]] = {
            "at rest": lambda: asyncio.sleep(REST_S),
            "threads that hash": lambda: hashed(fast, part),
        }
        for size, each in CALLS_A_ROUND.items():
            name = f"chats of {size // KB:,} KB" if size < HUGE_BYTES else "prompts of 27 MB"
            work[name] = partial(counted, fast, calls[size][turn * each : (turn + 1) * each])
        for name, start in work.items():
            clock.ticks.clear()
            await start()
            ticks.setdefault(name, []).extend(clock.ticks)
    within = True
    for name, seen in ticks.items():
        late, blocked = zip(*seen, strict=True)
        p99_ms = quantiles(blocked, n=100)[98]
        within = within and (p99_ms < BLOCKED_MS_P99_MAX or not name.startswith("chats"))
        print(
            f"    loop, {name:18s} blocked p50 {median(blocked):.2f}, p99 {p99_ms:.2f}, most {max(blocked):.2f} ms; "
            f"late p99 {quantiles(late, n=100)[98]:.2f} ms, of {len(seen)} ticks"
        )
    gc.unfreeze()
    return within


def measure(clock: LoopClock, folder: Path) -> bool:
    """Print one model's figures; return whether they are within the limits."""
    files = read_model_files(folder)
    fast, reference = LocalTokenizer(files), LocalTokenizer(files, encoder=ReferenceEncoder(files.tokenizer))
    print(f"{folder.name}: counted by {fast.encoder}")
    costs = [report_cost(fast, reference, size, prompt) for size in LIMIT_MS for prompt in (prose, made_up)]
    with clock.ticking():
        is_within = clock.loop.run_until_complete(report_blocked(clock, fast, costs[-1][1]))
    fast.close()
    reference.close()
    return is_within and all(within for within, _ in costs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    folders = parser.parse_args().folders
    clock = LoopClock()
    results = [measure(clock, folder) for folder in folders]
    return 0 if all(results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
