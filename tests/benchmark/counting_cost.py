"""What classifying a chat costs its thread, and how long counting holds up the event loop: within one run.

`python tests/benchmark/counting_cost.py FOLDER [FOLDER...]` from the repository's root; a folder holds a model's
tokenizer.json and chat template. Thread time is CPU time, medians over prompts that were not seen before: of reading
and judging the body, of its count, and of the count by the reference. The loop's lag is how late a 1 ms timer fires while
requests are counted as the gateway counts them, small ones at once and large ones on threads: at rest, under chats of
2 KB and 32 KB, and under prompts of 27 MB that have to be refused. On a busy machine much of that is the machine's own: so
beside each stands the lag while a thread hashes for as long, which holds nothing that the loop needs.
"""

# ruff: noqa: T201 - a script that prints

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from statistics import median, quantiles
from time import perf_counter, thread_time

from gateway.core.plan import RequestBounds
from gateway.counting.counter import CountingOverloaded, Uncountable
from gateway.counting.encoder import ReferenceEncoder
from gateway.counting.local import LocalTokenizer
from gateway.counting.model_files import read_model_files
from gateway.server.tasks import spawn
from gateway.wire import requests
from gateway.wire.dialects import CHAT_COMPLETIONS
from gateway.wire.requests import Call

KB = 1024
CONTEXT_TOKENS = 16_384
CALLS, WARM_CALLS, LAG_CALLS = 200, 100, 600
SMALL_BYTES, LARGE_BYTES, HUGE_BYTES = 2 * KB, 32 * KB, 27_000_000
SMALL_MS_MAX, LARGE_MS_MAX, LAG_MS_P99_MAX = 0.1, 3.0, 1.0
LAG_OVER_HASHING_MAX = 1.5
HASHED_BYTES = 1 << 20
BOUNDS = RequestBounds(sequences_max=16, stop_max=64, list_items_max=1024)
WORDS = ("the", "of", "and", "to", "in", "that", "is", "was", "for", "with", "as", "on", "not", "from", "they", "which")


def prompt(random: Random, size_bytes: int) -> str:
    """Return prose with numbers, names and code in it, never the same twice."""
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


def chats(size_bytes: int) -> Iterator[Call]:
    """Yield judged chats whose user message has this size."""
    random = Random(size_bytes)
    while True:
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": prompt(random, size_bytes)}]
        body = json.dumps({"model": "m", "messages": messages, "max_tokens": 64}).encode()
        yield requests.parse(CHAT_COMPLETIONS, body, BOUNDS, frozenset())


def thread_ms(work: Callable[[Call], object], size_bytes: int) -> float:
    """Return the median thread milliseconds of work on one chat, once code and caches are warm."""
    spent = []
    calls = [call for call, _ in zip(chats(size_bytes), range(WARM_CALLS + CALLS), strict=False)]
    for call in calls:
        began = thread_time()
        work(call)
        spent.append(thread_time() - began)
    return median(spent[WARM_CALLS:]) * 1e3


def judged(call: Call) -> Call:
    return requests.parse(CHAT_COMPLETIONS, call.body, BOUNDS, frozenset())


async def lag_ms(work: Callable[[], Coroutine[None, None, None]]) -> tuple[float, float]:
    """Return p99 and the greatest lateness of a 1 ms timer while the work goes on."""
    late: list[float] = []
    done = spawn(work(), name="counting")
    while not done.done() or len(late) < WARM_CALLS:
        began = perf_counter()
        await asyncio.sleep(0.001)
        late.append((perf_counter() - began - 0.001) * 1e3)
    await done
    return quantiles(late, n=100)[98], max(late)


async def counted(counter: LocalTokenizer, calls: list[Call]) -> None:
    """Count them one after the other, each in a turn of the loop's, as requests come."""
    for call in calls:
        await asyncio.sleep(0)
        with suppress(Uncountable, CountingOverloaded):
            await counter.count(call, context_tokens=CONTEXT_TOKENS)


async def hashed(counter: LocalTokenizer, spent_ms: float) -> None:
    """Keep the counter's threads as busy as counting does, with work that lets go of the interpreter lock."""
    block = bytes(HASHED_BYTES)
    began = thread_time()
    hashlib.sha256(block).digest()
    part = memoryview(block)[: int(HASHED_BYTES * min(1.0, spent_ms / 1e3 / (thread_time() - began)))]
    for _ in range(LAG_CALLS):
        await counter.threads.run(lambda: hashlib.sha256(part).digest(), LARGE_BYTES)


async def measure(folder: Path) -> bool:
    """Print one model's figures; return whether they are within the limits."""
    files = read_model_files(folder)
    fast, reference = LocalTokenizer(files), LocalTokenizer(files, encoder=ReferenceEncoder(files.tokenizer))
    print(f"{folder.name}: counted by {fast.encoder}")
    within = True
    for size_bytes, limit_ms in ((SMALL_BYTES, SMALL_MS_MAX), (LARGE_BYTES, LARGE_MS_MAX)):
        judged_ms, spent_ms = thread_ms(judged, size_bytes), thread_ms(fast.count_now, size_bytes)
        reference_ms = thread_ms(reference.count_now, size_bytes)
        calls = [call for call, _ in zip(chats(size_bytes + 1), range(LAG_CALLS), strict=False)]
        p99_ms, most_ms = await lag_ms(lambda calls=calls: counted(fast, calls))
        hashing_ms, _ = await lag_ms(lambda spent_ms=spent_ms: hashed(fast, spent_ms))
        within = within and judged_ms + spent_ms < limit_ms
        within = within and p99_ms < max(LAG_MS_P99_MAX, LAG_OVER_HASHING_MAX * hashing_ms)
        print(
            f"  {size_bytes // KB:>3} KB chat: read {judged_ms:.3f} + counted {spent_ms:.3f} ms of a thread (limit "
            f"{limit_ms} ms), {reference_ms / spent_ms:.0f} times less than the reference; "
            f"loop lag p99 {p99_ms:.2f} ms, most {most_ms:.2f} ms (hashing: p99 {hashing_ms:.2f} ms)"
        )
    rest_ms, _ = await lag_ms(lambda: asyncio.sleep(0.5))
    huge = next(chats(HUGE_BYTES))
    p99_ms, most_ms = await lag_ms(lambda: counted(fast, [huge] * 8))
    print(
        f"   27 MB chat, eight times: loop lag p99 {p99_ms:.2f} ms, most {most_ms:.2f} ms (at rest p99 {rest_ms:.2f} ms)"
    )
    fast.close()
    reference.close()
    return within


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    results = [asyncio.run(measure(folder)) for folder in parser.parse_args().folders]
    return 0 if all(results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
