"""An engine in virtual time: vLLM's V1 scheduling order, and a model of how long each step takes.

Owns which request gets how many tokens in which step. The order is vLLM 0.32's for text without speculation: running
requests first, in order of admission, each min(rest, threshold, budget); then the waiting ones by (priority, arrival)
or by arrival, until the budget, the sequences or the KV blocks are used up; the threshold does not bind a request
that is alone. Preemption is not modelled: running out of KV is an assertion, since reservations must prevent it.
Reads no clock.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import ceil


@dataclass(frozen=True, slots=True)
class StepTime:
    """τ = a + n/R + Σ q·n·(context + n/2), seconds. Defaults: measured on a CPU engine with a tiny model."""

    base_s: float = 0.003
    tokens_per_s: float = 27_800.0
    per_token_context_s: float = 54e-9

    def chunk_s(self, tokens: int, context: int) -> float:
        """Return what one request's tokens add to a step."""
        return tokens / self.tokens_per_s + self.per_token_context_s * tokens * (context + tokens / 2)


@dataclass(frozen=True, slots=True)
class EngineFlags:
    """vLLM's own flags. batches_in_flight: 1 is synchronous scheduling, 2 is asynchronous."""

    max_num_batched_tokens: int = 2048
    long_prefill_token_threshold: int = 640
    max_num_seqs: int = 128
    kv_blocks: int = 65_536
    block_tokens: int = 16
    priority_scheduling: bool = True
    batches_in_flight: int = 1


@dataclass(eq=False, slots=True)
class Sequence:
    """One request inside the engine. computed: tokens scheduled so far; sampled: output tokens scheduled so far."""

    id: int
    prompt_tokens: int
    output_tokens: int
    priority: int = 0
    arrived: int = 0
    computed: int = 0
    sampled: int = 0
    blocks: int = 0

    @property
    def rest(self) -> int:
        """Tokens that it still has to compute before it can sample its next output token."""
        return self.prompt_tokens + self.sampled - self.computed

    @property
    def in_prefill(self) -> bool:
        return self.computed < self.prompt_tokens


@dataclass(frozen=True, slots=True)
class Step:
    """One scheduled step: tokens by sequence id, in the order given out; who gets a first token and who ends by it."""

    tokens: dict[int, int]
    duration_s: float
    first_tokens: tuple[int, ...]
    ended: tuple[int, ...]


@dataclass(slots=True)
class VirtualEngine:
    """The scheduler's state. `add` and `abort` act at the next step border, as vLLM's do."""

    flags: EngineFlags = field(default_factory=EngineFlags)
    step_time: StepTime = field(default_factory=StepTime)
    running: list[Sequence] = field(default_factory=list)
    waiting: deque[Sequence] = field(default_factory=deque)
    blocks_used: int = 0
    arrivals: int = 0

    @property
    def busy(self) -> bool:
        return bool(self.running or self.waiting)

    def add(self, sequence: Sequence) -> None:
        self.arrivals += 1
        sequence.arrived = self.arrivals
        self.waiting.append(sequence)
        if self.flags.priority_scheduling:
            self.waiting = deque(sorted(self.waiting, key=lambda other: (other.priority, other.arrived)))

    def abort(self, sequence_id: int) -> None:
        """Forget a sequence, wherever it is. Nothing happens where it has ended."""
        for sequence in (*self.running, *self.waiting):
            if sequence.id == sequence_id:
                self._free(sequence)
        self.running = [sequence for sequence in self.running if sequence.id != sequence_id]
        self.waiting = deque(sequence for sequence in self.waiting if sequence.id != sequence_id)

    def clear(self) -> None:
        """Restart: everything is lost."""
        self.running, self.waiting, self.blocks_used = [], deque(), 0

    def schedule(self) -> Step:
        """Give out one step's tokens. An empty step has no tokens and takes no time."""
        flags = self.flags
        budget = flags.max_num_batched_tokens
        chunk = flags.long_prefill_token_threshold if len(self.running) + len(self.waiting) > 1 else 0
        chunk = chunk or budget
        tokens: dict[int, int] = {}
        taking_part: list[Sequence] = []
        for sequence in self.running:
            count = min(sequence.rest, chunk, budget)
            if count:
                assert self._allocate(sequence, count), "a reservation of prompt and output prevents preemption"
                tokens[sequence.id] = count
                budget -= count
                taking_part.append(sequence)
        while budget and self.waiting and len(self.running) < flags.max_num_seqs:
            sequence = self.waiting[0]
            if self._missing_blocks(sequence, sequence.prompt_tokens) > flags.kv_blocks - self.blocks_used:
                break
            count = min(sequence.rest, chunk, budget)
            self._allocate(sequence, count)
            tokens[sequence.id] = count
            budget -= count
            self.running.append(self.waiting.popleft())
            taking_part.append(sequence)
        return self._step(tokens, taking_part)

    def _step(self, tokens: dict[int, int], taking_part: list[Sequence]) -> Step:
        duration_s = self.step_time.base_s if tokens else 0.0
        first_tokens, ended = [], []
        for sequence in taking_part:
            duration_s += self.step_time.chunk_s(tokens[sequence.id], sequence.computed)
            sequence.computed += tokens[sequence.id]
            if sequence.in_prefill:
                continue
            if not sequence.sampled:
                first_tokens.append(sequence.id)
            sequence.sampled += 1
            if sequence.sampled >= sequence.output_tokens:
                ended.append(sequence.id)
        for sequence in [sequence for sequence in taking_part if sequence.id in ended]:
            self.running.remove(sequence)
            self._free(sequence)
        return Step(tokens, duration_s, tuple(first_tokens), tuple(ended))

    def _missing_blocks(self, sequence: Sequence, tokens: int) -> int:
        return max(0, ceil(tokens / self.flags.block_tokens) - sequence.blocks)

    def _allocate(self, sequence: Sequence, count: int) -> bool:
        missing = self._missing_blocks(sequence, sequence.computed + count)
        if missing > self.flags.kv_blocks - self.blocks_used:
            return False
        sequence.blocks += missing
        self.blocks_used += missing
        return True

    def _free(self, sequence: Sequence) -> None:
        self.blocks_used -= sequence.blocks
        sequence.blocks = 0
