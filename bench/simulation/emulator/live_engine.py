"""The step model in real time: what comes is taken in at step borders, what a step brings is handed on at its end.

Owns the loop over steps and the engine's own time. That time is the model's: a step begins where the one before it
ended, however late this process looked at the clock, so that being late does not add up. Where it is later than
`LAG_S_MAX` the model's time is given up to the clock, and that is counted and told: figures taken then are this
machine's, not the model's.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from bench.simulation.emulator.accounts import Accounts
from bench.simulation.emulator.generation import Generation, LiveSequence, News
from bench.simulation.steps import Step
from bench.simulation.virtual_engine import VirtualEngine

LAG_S_MAX = 0.25
TOLD_EVERY_S = 10.0
DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."


class _Flying(NamedTuple):
    """sampled: by request, how many output tokens it has once this step has ended."""

    step: Step
    begins_at: float
    ends_at: float
    sampled: dict[int, int]


class LiveEngine:
    """One engine. clock: seconds; say: told what a person should know."""

    def __init__(
        self, engine: VirtualEngine, accounts: Accounts, clock: Callable[[], float], say: Callable[[str], None]
    ) -> None:
        self._engine = engine
        self._accounts = accounts
        self._clock = clock
        self._say = say
        self._arrived: list[LiveSequence] = []
        self._aborted: list[LiveSequence] = []
        self._unfinished: dict[int, LiveSequence] = {}
        self._in_flight: deque[_Flying] = deque()
        self._free_at = 0.0
        self._woken = asyncio.Event()
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._told_at = float("-inf")
        self._numbers = 0

    @property
    def unfinished(self) -> int:
        """How many sequences are in, running or waiting."""
        return len(self._unfinished)

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens of all sequences that have no first token, whole, as vLLM's own limit counts them."""
        return sum(each.prompt_tokens for each in self._unfinished.values() if not each.told)

    def submit(self, generation: Generation) -> None:
        """Take a request in at the next step border."""
        for sequence in generation.sequences:
            self._numbers += 1
            sequence.id = self._numbers
            self._unfinished[sequence.id] = sequence
        self._arrived += generation.sequences
        self._woken.set()

    def abort(self, generation: Generation) -> None:
        """Let go of what is left of a request, at the next step border."""
        left = [each for each in generation.sequences if self._unfinished.pop(each.id, None) is not None]
        self._aborted += left
        self._woken.set()

    def freeze(self) -> None:
        """Hold the engine's steps, as a process that is stopped; `thaw` lets them go on."""
        self._thawed.clear()

    def thaw(self) -> None:
        self._thawed.set()

    def fail_all(self, message: str) -> None:
        """Break off every request that is in."""
        failed = {id(each.generation): each.generation for each in self._unfinished.values()}
        self._unfinished.clear()
        for generation in failed.values():
            if generation is not None:
                generation.fail(message)

    async def run(self) -> None:
        """Step until cancelled."""
        batches = self._engine.flags.batches_in_flight
        while True:
            await self._thawed.wait()
            self._take_in()
            step = self._engine.schedule() if self._engine.busy else None
            if step is not None and step.tokens:
                self._begin(step)
                if len(self._in_flight) < batches:
                    continue
            if self._in_flight:
                await self._end(self._in_flight.popleft())
            else:
                self._show_load()
                await self._be_idle()

    def _take_in(self) -> None:
        # Both lists may name the same sequence: one that came and left between two steps is added and dropped.
        for sequence in self._arrived:
            self._engine.add(sequence)
        for sequence in self._aborted:
            self._engine.abort(sequence.id)
        self._arrived, self._aborted = [], []

    async def _be_idle(self) -> None:
        self._woken.clear()
        await self._woken.wait()
        self._free_at = self._clock()

    def _begin(self, step: Step) -> None:
        begins_at = self._in_flight[-1].ends_at if self._in_flight else self._free_at
        sampled = {number: each.sampled for number in step.tokens if (each := self._unfinished.get(number)) is not None}
        self._in_flight.append(_Flying(step, begins_at, begins_at + step.duration_s, sampled))
        for number in step.tokens:
            sequence = self._unfinished.get(number)
            if sequence is not None and sequence.scheduled_at is None:
                sequence.scheduled_at = begins_at
                sequence.first_cached_tokens = sequence.cached_tokens
                if self._engine.flags.prefix_caching:
                    self._accounts.looked_up(sequence.prompt_tokens, sequence.cached_tokens)

    async def _end(self, flying: _Flying) -> None:
        # Also where it is over already: whoever writes and whoever asks has to have his turn between two steps.
        await asyncio.sleep(max(0.0, flying.ends_at - self._clock()))
        frozen = not self._thawed.is_set()
        await self._thawed.wait()
        lag_s = max(0.0, self._clock() - flying.ends_at)
        self._free_at = flying.ends_at
        if frozen or lag_s > LAG_S_MAX:
            self._give_up(lag_s)
        if lag_s > LAG_S_MAX and not frozen:
            self._tell_lost(lag_s)
        self._engine.end(flying.step)
        self._hand_on(flying, 0.0 if frozen else lag_s)
        self._show_load()

    def _give_up(self, lag_s: float) -> None:
        """Move the model's time up to the clock: what is in flight ends later by as much."""
        self._free_at += lag_s
        self._in_flight = deque(
            each._replace(begins_at=each.begins_at + lag_s, ends_at=each.ends_at + lag_s) for each in self._in_flight
        )

    def _hand_on(self, flying: _Flying, lag_s: float) -> None:
        """Tell every request what the step brought it, in one go, and book it."""
        at, prompt_tokens, output_tokens = flying.ends_at, 0, 0
        ended = frozenset(flying.step.ended)
        for number in flying.step.tokens:
            sequence = self._unfinished.get(number)
            total = flying.sampled.get(number, 0)
            if sequence is None or total <= sequence.told:
                continue
            output_tokens += total - sequence.told
            if not sequence.told:
                prompt_tokens += sequence.prompt_tokens - sequence.first_cached_tokens
            self._tell(sequence, total, at, is_last=number in ended)
        if output_tokens:
            self._accounts.step(prompt_tokens=prompt_tokens, output_tokens=output_tokens, lag_s=lag_s)

    def _tell(self, sequence: LiveSequence, total: int, at: float, *, is_last: bool) -> None:
        generation = sequence.generation
        assert generation is not None
        if sequence.last_token_at is None:
            sequence.first_token_at = at
            self._accounts.first_token(sequence, max(0.0, at - generation.arrived_at))
        else:
            self._accounts.next_token(at - sequence.last_token_at)
        sequence.last_token_at = at
        self._accounts.preempted(sequence.preemptions - sequence.counted_preemptions)
        sequence.counted_preemptions = sequence.preemptions
        sequence.told = total
        generation.tell(News(sequence.index, sequence.told, sequence.finish if is_last else None))
        if is_last:
            del self._unfinished[sequence.id]
            self._accounts.finished(sequence, generation, at)

    def _show_load(self) -> None:
        engine = self._engine
        self._accounts.load(
            running=len(engine.running),
            waiting=len(engine.waiting),
            kv_usage=engine.blocks_used / (engine.flags.kv_blocks - 1),
        )

    def _tell_lost(self, lag_s: float) -> None:
        self._accounts.lost(lag_s)
        if self._clock() - self._told_at > TOLD_EVERY_S:
            self._told_at = self._clock()
            self._say(
                f"late by {lag_s:.2f} s: this machine does not keep up with the model's steps, and latencies measured "
                "now are this machine's. Fewer requests at once or a slower --profile help."
            )
