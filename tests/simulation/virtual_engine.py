"""An engine in virtual time: vLLM's V1 scheduling order, and a model of how long each step takes.

Owns which request gets how many tokens in which step. The order is vLLM 0.32's for text without speculation: running
requests first, in order of admission, each min(rest, threshold, budget); then the waiting ones by (priority, arrival)
or by arrival, until the budget, the requests or the KV blocks are used up; the threshold does not bind a request
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
class EngineRequest:
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

    @property
    def complete(self) -> bool:
        """Its last token is scheduled: it only waits for that step to end."""
        return self.sampled >= self.output_tokens


@dataclass(frozen=True, slots=True)
class Step:
    """One scheduled step: tokens by request id, in the order given out; who gets a first token and who ends by it."""

    tokens: dict[int, int]
    duration_s: float
    first_tokens: tuple[int, ...]
    ended: tuple[int, ...]


@dataclass(slots=True)
class VirtualEngine:
    """The scheduler's state. Whoever calls `add` and `abort` does so between two calls of `schedule`, as vLLM does."""

    flags: EngineFlags = field(default_factory=EngineFlags)
    step_time: StepTime = field(default_factory=StepTime)
    running: list[EngineRequest] = field(default_factory=list)
    waiting: deque[EngineRequest] = field(default_factory=deque)
    blocks_used: int = 0
    arrivals: int = 0

    @property
    def busy(self) -> bool:
        return bool(self.running or self.waiting)

    def add(self, request: EngineRequest) -> None:
        self.arrivals += 1
        request.arrived = self.arrivals
        self.waiting.append(request)
        if self.flags.priority_scheduling:
            self.waiting = deque(sorted(self.waiting, key=lambda other: (other.priority, other.arrived)))

    def abort(self, request_id: int) -> None:
        """Forget a request, wherever it is. Nothing happens where it has ended."""
        for request in (*self.running, *self.waiting):
            if request.id == request_id:
                self._free(request)
        self.running = [request for request in self.running if request.id != request_id]
        self.waiting = deque(request for request in self.waiting if request.id != request_id)

    def schedule(self) -> Step:
        """Give out one step's tokens. An empty step has no tokens and takes no time. `end` must follow each step."""
        flags = self.flags
        budget = flags.max_num_batched_tokens
        chunk = flags.long_prefill_token_threshold if len(self.running) + len(self.waiting) > 1 else 0
        chunk = chunk or budget
        tokens: dict[int, int] = {}
        taking_part: list[EngineRequest] = []
        for request in self.running:
            count = 0 if request.complete else min(request.rest, chunk, budget)
            if count:
                assert self._allocate(request, count), "a reservation of prompt and output prevents preemption"
                tokens[request.id] = count
                budget -= count
                taking_part.append(request)
        while budget and self.waiting and len(self.running) < flags.max_num_seqs:
            request = self.waiting[0]
            if self._missing_blocks(request, request.prompt_tokens) > flags.kv_blocks - self.blocks_used:
                break
            count = min(request.rest, chunk, budget)
            self._allocate(request, count)
            tokens[request.id] = count
            budget -= count
            self.running.append(self.waiting.popleft())
            taking_part.append(request)
        return self._step(tokens, taking_part)

    def end(self, step: Step) -> None:
        """Take out the requests that a step completed; called when the step has run."""
        for request_id in step.ended:
            self.abort(request_id)

    def _step(self, tokens: dict[int, int], taking_part: list[EngineRequest]) -> Step:
        duration_s = self.step_time.base_s if tokens else 0.0
        first_tokens, ended = [], []
        for request in taking_part:
            duration_s += self.step_time.chunk_s(tokens[request.id], request.computed)
            request.computed += tokens[request.id]
            if request.in_prefill:
                continue
            if not request.sampled:
                first_tokens.append(request.id)
            request.sampled += 1
            if request.complete:
                ended.append(request.id)
        return Step(tokens, duration_s, tuple(first_tokens), tuple(ended))

    def _missing_blocks(self, request: EngineRequest, tokens: int) -> int:
        return max(0, ceil(tokens / self.flags.block_tokens) - request.blocks)

    def _allocate(self, request: EngineRequest, count: int) -> bool:
        missing = self._missing_blocks(request, request.computed + count)
        if missing > self.flags.kv_blocks - self.blocks_used:
            return False
        request.blocks += missing
        self.blocks_used += missing
        return True

    def _free(self, request: EngineRequest) -> None:
        self.blocks_used -= request.blocks
        request.blocks = 0
