"""Judges vLLM's own Scheduler class step by step. Runs in the engine's environment; JSON in, JSON out.

`python scheduler_driver.py < [{"check": …, …}, …]` with the repository and tests/simulation on PYTHONPATH. The premises
are set up as an adversary would like them least: budgets filled to the last token, arrivals in bursts, longs always
ready to come. Answers with what was found; the tests judge.
"""

# ruff: noqa: T201 - seeded adversaries, no secrets; the answer is printed

from __future__ import annotations

import json
import sys
from collections import deque
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import Any

from real_scheduler import RealScheduler
from virtual_pool import Caller, VirtualPool

from bench.simulation.steps import EngineFlags, EngineRequest, Step
from bench.simulation.virtual_engine import VirtualEngine
from gateway.core.plan import SlotBudget
from gateway.core.types import LengthClass
from gateway.testing.builders import a_class, a_plan, an_admission, an_engine

SHORT_PRIORITY, LONG_PRIORITY = 0, 1
STEPS_PER_CASE = 30
DECODING_PROMPT_TOKENS_MAX = 128
KV_BLOCKS = 3_072


@dataclass(frozen=True, slots=True)
class Case:
    """What the adversary may have outstanding: longs in prefill, short prompt tokens in prefill, decodes.

    The premise of one-step entry is long_prefills · threshold + decodes + short_tokens ≤ batched tokens, every short
    within the threshold, and sequences and KV for all.
    """

    flags: EngineFlags
    long_prefills: int
    decodes: int
    short_tokens: int
    short_longest: int
    adaptive: bool = False

    @property
    def shortest(self) -> int:
        """Small enough to vary, large enough that a step's shorts stay within max_num_seqs."""
        return max(1, min(self.short_longest, self.short_tokens // 60))


@dataclass(slots=True)
class Found:
    """shorts: how many arrived. late: those not wholly prefilled in the first step after their arrival.

    long_chunks: steps in which a long was in prefill; slowed: those in which it got less than its threshold.
    fullest: the largest share of a step's tokens in use. example: the first late short.
    """

    shorts: int = 0
    late: int = 0
    long_chunks: int = 0
    slowed: int = 0
    fullest: float = 0.0
    example: str = ""


@dataclass(eq=False, slots=True)
class Live:
    """A request of the adversary's that has not ended."""

    request: EngineRequest
    is_short: bool
    decodes: bool
    has_first_token: bool = False


@dataclass(slots=True)
class Adversary:
    """Keeps what it may have outstanding as full as it likes, and looks at each step that the scheduler gives out."""

    case: Case
    random: Random
    engine: RealScheduler
    live: dict[int, Live] = field(default_factory=dict)
    unseen: list[Live] = field(default_factory=list)
    in_flight: deque[Step] = field(default_factory=deque)
    found: Found = field(default_factory=Found)
    number: int = 0

    def run(self, steps: int = STEPS_PER_CASE) -> Found:
        for _ in range(steps):
            if self.random.random() < 0.75:
                self.arrive()
            if self.engine.busy:
                computed = {live.request.id: live.request.computed for live in self.live.values()}
                step = self.engine.schedule()
                self.judge(step, computed)
                if step.tokens:
                    self.in_flight.append(step)
                if step.tokens and len(self.in_flight) < self.case.flags.batches_in_flight:
                    continue
            if self.in_flight:
                self.end(self.in_flight.popleft())
        return self.found

    def arrive(self) -> None:
        """Send longs and shorts, in either order, up to what is allowed."""
        for is_short in self.random.sample([True, False], 2):
            in_prefill = [live for live in self.live.values() if not live.has_first_token and live.is_short is is_short]
            if is_short:
                self.send_shorts(sum(live.request.prompt_tokens for live in in_prefill))
            else:
                for _ in range(self.case.long_prefills - len(in_prefill)):
                    least = self.case.short_longest + 1
                    self.send(self.random.randint(least, max(2048, least + 1000)), is_short=False)

    def send_shorts(self, tokens: int) -> None:
        while tokens + self.case.shortest <= self.case.short_tokens and self.random.random() > 0.03:
            most = min(self.case.short_longest, self.case.short_tokens - tokens)
            prompt_tokens = most if self.random.random() < 0.5 else self.random.randint(self.case.shortest, most)
            self.send(prompt_tokens, is_short=True)
            tokens += prompt_tokens

    def send(self, prompt_tokens: int, *, is_short: bool) -> None:
        """Send one request; it goes on to decode only where one more decode is allowed."""
        room = sum(live.decodes for live in self.live.values()) < self.case.decodes
        decodes = room and prompt_tokens <= DECODING_PROMPT_TOKENS_MAX
        self.number += 1
        request = EngineRequest(
            self.number,
            prompt_tokens,
            output_tokens=self.random.choice([2, 10, 60]) if decodes else 1,
            priority=SHORT_PRIORITY if is_short else LONG_PRIORITY,
        )
        live = self.live[request.id] = Live(request, is_short, decodes)
        self.engine.add(request)
        if is_short:
            self.unseen.append(live)

    def judge(self, step: Step, computed: dict[int, int]) -> None:
        found, flags = self.found, self.case.flags
        found.fullest = max(found.fullest, sum(step.tokens.values()) / flags.max_num_batched_tokens)
        for live in self.unseen:
            got, asked = step.tokens.get(live.request.id, 0), live.request.prompt_tokens
            found.shorts += 1
            found.late += got < asked
            if got < asked and not found.example:
                found.example = f"{got} of {asked} tokens in its first step, {flags}"
        self.unseen.clear()
        for live in self.live.values():
            rest = live.request.prompt_tokens - computed[live.request.id]
            if not live.is_short and rest > 0:
                found.long_chunks += 1
                found.slowed += step.tokens.get(live.request.id, 0) < min(flags.long_prefill_token_threshold, rest)

    def end(self, step: Step) -> None:
        self.engine.end(step)
        for request_id in step.first_tokens:
            self.live[request_id].has_first_token = True
        for request_id in step.ended:
            del self.live[request_id]


def within_the_premise(random: Random) -> Case:
    """Draw K, T, D, P_S and B with K·T + D + P_S ≤ B, mostly with not a token to spare."""
    batched = random.choice([1024, 2048, 4096, 8192])
    adaptive = random.random() < 0.2
    longs = 1 if adaptive else random.randint(1, 4)
    threshold = random.randint(16, (batched - 256) // longs)
    # With two requests or more in the engine the adaptive threshold is at most half the batch.
    room = batched - longs * (max(threshold, batched // 2) if adaptive else threshold)
    decodes = random.randint(0, min(100, room - 32))
    short_tokens = room - decodes if random.random() < 0.7 else random.randint(16, room - decodes)
    flags = EngineFlags(
        max_num_batched_tokens=batched,
        long_prefill_token_threshold=threshold,
        max_num_seqs=512,
        kv_blocks=KV_BLOCKS,
        priority_scheduling=random.random() < 0.7,
        batches_in_flight=random.choice([1, 2]),
    )
    return Case(flags, longs, decodes, short_tokens, min(threshold, short_tokens), adaptive)


def outside_the_premise(random: Random, clause: str) -> Case:
    """Draw a case in which one clause does not hold and every other does."""
    flags = EngineFlags(
        max_num_batched_tokens=1024,
        long_prefill_token_threshold=random.randint(200, 300),
        max_num_seqs=512,
        kv_blocks=KV_BLOCKS,
        batches_in_flight=random.choice([1, 2]),
    )
    threshold = flags.long_prefill_token_threshold
    exact = Case(flags, 1, 50, 1024 - threshold - 50, threshold)
    match clause:
        case "long_prefills":
            return replace(exact, long_prefills=3)
        case "decodes":
            return replace(exact, decodes=350, short_longest=64, flags=replace(flags, kv_blocks=8_192))
        case "short_tokens":
            return replace(exact, short_tokens=1024)
        case "threshold":
            return replace(exact, flags=replace(flags, long_prefill_token_threshold=threshold // 2))
        case "slots":
            return replace(exact, flags=replace(flags, max_num_seqs=4))
        case "kv":
            return replace(exact, flags=replace(flags, kv_blocks=150))
        case _:
            raise ValueError(clause)


def one_step_entry(*, cases: int, clause: str | None) -> list[dict[str, Any]]:
    """Run the adversary on `cases` seeds, inside the premise or with one clause of it broken."""
    found = []
    for seed in range(cases):
        random = Random(seed)
        case = within_the_premise(random) if clause is None else outside_the_premise(random, clause)
        engine = RealScheduler(case.flags, adaptive=case.adaptive)
        found.append(asdict(Adversary(case, random, engine).run()))
    return found


def steps_behind_an_unfit_long(*, priority: bool) -> int:
    """Return the steps until a short is prefilled behind a long that arrived first and finds no KV to start with."""
    engine = RealScheduler(EngineFlags(kv_blocks=400, priority_scheduling=priority))
    holder = EngineRequest(1, 4096, 300, LONG_PRIORITY)
    engine.add(holder)
    while not holder.sampled:
        engine.end(engine.schedule())
    engine.add(EngineRequest(2, 4096, 1, LONG_PRIORITY))
    short = EngineRequest(3, 160, 1, SHORT_PRIORITY)
    engine.add(short)
    steps = 0
    while not short.sampled:
        engine.end(engine.schedule())
        steps += 1
    return steps


def same_steps(*, traces: int) -> dict[str, Any]:
    """Give the same arrivals to vLLM's scheduler and to the model of it; return where they first differ, if at all."""
    steps = preemptions = cached = 0
    for seed in range(traces):
        random = Random(seed)
        flags = EngineFlags(
            max_num_batched_tokens=random.choice([512, 2048]),
            long_prefill_token_threshold=random.choice([0, 100, 640]),
            max_num_seqs=random.choice([4, 16, 128]),
            kv_blocks=random.choice([160, 300, KV_BLOCKS]),
            priority_scheduling=random.random() < 0.5,
            batches_in_flight=random.choice([1, 2]),
            prefix_caching=random.random() < 0.5,
            watermark=random.choice([0.0, 0.02]),
            max_num_active_seqs=random.choice([None, 3]),
        )
        real, model = RealScheduler(flags), VirtualEngine(flags)
        in_flight: deque[tuple[Step, Step]] = deque()
        number = 0
        modelled: list[EngineRequest] = []
        for _ in range(60):
            for _ in range(random.choice([0, 0, 0, 1, 2])):
                number += 1
                prompt_tokens = random.choice([1, 50, 640, 2000])
                prefix_tokens = random.randint(0, prompt_tokens - 1)
                outputs, priority, prefix = random.choice([1, 2, 30, 90]), random.randint(0, 2), random.randint(0, 2)
                asked = number, prompt_tokens, outputs, priority
                one, other = (EngineRequest(*asked, prefix=prefix, prefix_tokens=prefix_tokens) for _ in range(2))
                real.add(one)
                modelled.append(other)
                model.add(other)
            if number and random.random() < 0.1:
                gone = random.randint(1, number)
                real.abort(gone)
                model.abort(gone)
            pair = real.schedule(), model.schedule()
            told = [(each.tokens, each.duration_s, each.first_tokens, each.ended) for each in pair]
            if told[0] != told[1]:
                return {"steps": steps, "differs": f"seed {seed}, {flags}: {told[0]} is not {told[1]}"}
            steps += 1
            if pair[0].tokens:
                in_flight.append(pair)
            if in_flight and (len(in_flight) == flags.batches_in_flight or not pair[0].tokens):
                ended = in_flight.popleft()
                real.end(ended[0])
                model.end(ended[1])
        preemptions += sum(request.preemptions for request in modelled)
        cached += sum(request.cached_tokens for request in modelled)
    return {"steps": steps, "preemptions": preemptions, "cached_tokens": cached, "differs": ""}


def behind_the_gateway(*, batches_in_flight: int, shorts_per_s: float, longs_per_s: float) -> dict[str, Any]:
    """Let Admission itself send a minute of shorts and longs to vLLM's scheduler; return what became of them."""
    random = Random(1)
    flags = EngineFlags(kv_blocks=16_384, batches_in_flight=batches_in_flight)
    plan = a_plan(
        a_class("interactive", weight=16, wait_s_max=(2, 30)),
        a_class("batch", rank=1, weight=1, wait_s_max=(30, 60)),
        admission=an_admission(slots=SlotBudget(128, 32, 16)),
    )
    limits = {
        "max_num_batched_tokens": flags.max_num_batched_tokens,
        "long_prefill_token_threshold": flags.long_prefill_token_threshold,
        "max_num_seqs": flags.max_num_seqs,
    }
    pool = VirtualPool(
        plan, {"a": RealScheduler(flags)}, [an_engine("a", **limits)], batches_in_flight=batches_in_flight
    )
    callers = []
    for rate, prompt_tokens, service_class in ((shorts_per_s, 600, "interactive"), (longs_per_s, 8192, "batch")):
        at_s = random.expovariate(rate)
        while at_s < 60.0:
            callers.append(Caller(at_s, prompt_tokens, 16, service_class))
            at_s += random.expovariate(rate)
    pool.run(callers)
    served = [fate for fate in pool.of(LengthClass.SHORT) if fate.first_token_at is not None]
    return {
        "shorts": len(served),
        "late": sum(fate.late for fate in served),
        "longs": sum(fate.first_token_at is not None for fate in pool.of(LengthClass.LONG)),
        "offered": len(callers),
        "ended": sum(pool.counts.values()),
        "steps": pool.steps,
    }


CHECKS = {
    check.__name__: check for check in (one_step_entry, steps_behind_an_unfit_long, same_steps, behind_the_gateway)
}


def main() -> None:
    RealScheduler.prepare()
    answers = []
    for asked in json.load(sys.stdin):
        check = CHECKS[asked.pop("check")]
        answers.append(check(**asked))
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
