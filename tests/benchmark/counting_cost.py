"""What classifying a chat costs its thread, and how long counting holds up the event loop: within one run.

`python tests/benchmark/counting_cost.py FOLDER [FOLDER...]` from the repository's root; a folder holds a model's
tokenizer.json and chat template. Thread time is CPU time over prompts that were not seen before, its median and, as the
machine would be without its neighbours, its tenth percentile: of reading and judging the body, of its count, and of the
count by the reference. Prompts are paragraphs of English prose in ever another order; "made up": every tenth word is one
that no one ever wrote, and every tenth a number.

How long the loop is blocked is told by `loop_blocked`, while requests are read and counted one after the other as the
gateway does it. A machine with neighbours takes a core away for milliseconds in the middle of whatever runs, which no
clock of ours tells from work. So each size of chat has its control, in turns with it in short rounds: hashing that takes
as long, in the same place, and holds nothing that the loop needs. What is asked is how many more ticks were blocked for
over 1 ms than in the control, with an interval over the rounds. A size is within the limit where its own p99 is under
1 ms, or where that excess is surely under 1 %.
"""

# ruff: noqa: T201 - a script that prints

from __future__ import annotations

import argparse
import asyncio
import gc
import hashlib
import json
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, cycle, islice
from pathlib import Path
from pydoc_data.topics import topics
from random import Random
from statistics import median, quantiles
from time import perf_counter, thread_time

from loop_blocked import LoopClock

from gateway.core.plan import RequestBounds
from gateway.counting.counter import CountingOverloaded, Uncountable
from gateway.counting.encoder import ReferenceEncoder
from gateway.counting.local import AT_ONCE_BYTES_MAX, LocalTokenizer
from gateway.counting.model_files import read_model_files
from gateway.server.heavy import of_body
from gateway.wire import requests
from gateway.wire.dialects import CHAT_COMPLETIONS
from gateway.wire.requests import Call

KB = 1024
CONTEXT_TOKENS = 16_384
REFERENCE_EACH = 10
SMALL_BYTES, LARGE_BYTES, HUGE_BYTES = 2 * KB, 32 * KB, 27_000_000
WARM_CALLS = {SMALL_BYTES: 300, LARGE_BYTES: 30}
ROUNDS, ROUND_S, HUGE_EACH = 32, 0.2, 4
CALLS_KEPT = {SMALL_BYTES: 20_000, LARGE_BYTES: 2_000, HUGE_BYTES: 1}
CALLS = {SMALL_BYTES: 500, LARGE_BYTES: 100}
LIMIT_MS = {SMALL_BYTES: 0.1, LARGE_BYTES: 3.0}
BLOCKED_MS_MAX, BLOCKED_SHARE_MAX, RESAMPLES = 1.0, 0.01, 2000
HASHED_BYTES = 1 << 20
BOUNDS = RequestBounds(sequences_max=16, stop_max=64, list_items_max=1024)
WORDS = ("the", "of", "and", "to", "in", "that", "is", "was", "for", "with", "as", "on", "not", "from", "they", "which")
PARAGRAPHS = [paragraph for topic in topics.values() for paragraph in topic.split("\n\n")]

Prompt = Callable[[Random, int], str]
Ticks = list[list[tuple[float, float]]]  # of each round; of each tick, how late it was and how long blocked, in ms


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
    """Print what a chat costs; return whether its median is within the limit, and that median in ms."""
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
    return median(whole) < LIMIT_MS[size_bytes], median(whole)


async def counted(counter: LocalTokenizer, calls: Iterator[Call], seconds: float) -> None:
    """Read and count them one after the other, each in a turn of the loop's, as requests come."""
    until = perf_counter() + seconds
    while perf_counter() < until:
        await asyncio.sleep(0)
        call = next(calls)
        with suppress(Uncountable, CountingOverloaded):
            call = await of_body(len(call.body), judged, call)
            await counter.count(call, context_tokens=CONTEXT_TOKENS)


async def hashed(counter: LocalTokenizer, part: memoryview, size_bytes: int, seconds: float) -> None:
    """Keep busy what counting a chat of this size keeps busy, with work that lets go of the interpreter lock."""
    until = perf_counter() + seconds
    while perf_counter() < until:
        await asyncio.sleep(0)
        if size_bytes <= AT_ONCE_BYTES_MAX:
            hashlib.sha256(part).digest()
        else:
            await counter.threads.run(lambda: hashlib.sha256(part).digest(), size_bytes)


def hashed_part(spent_ms: float) -> memoryview:
    """Return as much as is hashed in that time."""
    block = bytes(HASHED_BYTES)
    began = thread_time()
    hashlib.sha256(block).digest()
    return memoryview(block)[: int(HASHED_BYTES * min(1.0, spent_ms / 1e3 / (thread_time() - began)))]


async def report_blocked(clock: LoopClock, fast: LocalTokenizer, spent_ms: Mapping[int, float]) -> bool:
    """Print how long the loop was blocked, by what; return whether counting chats is within the limit."""
    calls = {size: cycle(list(islice(chats(size + 1, prose), CALLS_KEPT[size]))) for size in CALLS_KEPT}
    parts = {size: hashed_part(ms) for size, ms in spent_ms.items()}
    gc.collect()
    gc.freeze()  # what this script keeps is none of the gateway's to search
    await asyncio.sleep(ROUND_S)
    rounds: dict[str, Ticks] = {}
    for turn in range(ROUNDS):
        work: dict[str, Coroutine[None, None, None]] = {"at rest": asyncio.sleep(ROUND_S)}
        for size, part in parts.items():
            work[_control(size)] = hashed(fast, part, size, ROUND_S)
            work[_load(size)] = counted(fast, calls[size], ROUND_S)
        if turn % HUGE_EACH == 0:
            work["prompts of 27 MB"] = counted(fast, calls[HUGE_BYTES], ROUND_S)
        for name, under_way in work.items():
            clock.ticks.clear()
            await under_way
            rounds.setdefault(name, []).append(list(clock.ticks))
    gc.unfreeze()
    for name, seen in rounds.items():
        late, blocked = zip(*chain.from_iterable(seen), strict=True)
        print(
            f"    loop, {name:18s} blocked p50 {median(blocked):.2f}, p99 {quantiles(blocked, n=100)[98]:.2f}, most "
            f"{max(blocked):.2f} ms; late p99 {quantiles(late, n=100)[98]:.2f} ms, of {len(blocked)} ticks"
        )
    surely_under = [report_excess(size, rounds[_load(size)], rounds[_control(size)]) for size in parts]
    return all(surely_under)


def report_excess(size: int, load: Ticks, control: Ticks) -> bool:
    """Print how many more ticks were blocked for over 1 ms than in the control; return whether that is within limits."""
    random = Random(size)
    pairs = [(*_over(counting), *_over(hashing)) for counting, hashing in zip(load, control, strict=True)]
    drawn = sorted(_excess(random.choices(pairs, k=len(pairs))) for _ in range(RESAMPLES))
    low, high = drawn[RESAMPLES // 40], drawn[-RESAMPLES // 40]
    print(
        f"    loop, {_load(size)}: blocked over 1 ms {_excess(pairs):+.2%} of ticks against {_control(size)} "
        f"(95 %: {low:+.2%} to {high:+.2%}, limit {BLOCKED_SHARE_MAX:.0%})"
    )
    p99_ms = quantiles([blocked for _, blocked in chain.from_iterable(load)], n=100)[98]
    return p99_ms < BLOCKED_MS_MAX or high < BLOCKED_SHARE_MAX


def _load(size: int) -> str:
    return f"chats of {size // KB} KB"


def _control(size: int) -> str:
    return f"hashing as {size // KB} KB"


def _over(ticks: list[tuple[float, float]]) -> tuple[int, int]:
    return sum(blocked > BLOCKED_MS_MAX for _, blocked in ticks), len(ticks)


def _excess(pairs: Sequence[tuple[int, int, int, int]]) -> float:
    over, ticks, control_over, control_ticks = (sum(column) for column in zip(*pairs, strict=True))
    return over / max(ticks, 1) - control_over / max(control_ticks, 1)


def measure(clock: LoopClock, folder: Path) -> bool:
    """Print one model's figures; return whether they are within the limits."""
    files = read_model_files(folder)
    fast, reference = LocalTokenizer(files), LocalTokenizer(files, encoder=ReferenceEncoder(files.tokenizer))
    print(f"{folder.name}: counted by {fast.encoder}")
    costs = {
        (size, prompt): report_cost(fast, reference, size, prompt) for size in LIMIT_MS for prompt in (prose, made_up)
    }
    spent_ms = {size: costs[size, prose][1] for size in LIMIT_MS}
    with clock.ticking():
        is_within = clock.loop.run_until_complete(report_blocked(clock, fast, spent_ms))
    fast.close()
    reference.close()
    return is_within and all(within for within, _ in costs.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    folders = parser.parse_args().folders
    clock = LoopClock()
    results = [measure(clock, folder) for folder in folders]
    return 0 if all(results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
