"""An engine in virtual time: vLLM's V1 scheduler, step by step, and how long each step takes.

Owns which request gets how many tokens in which step. The order is vLLM 0.32's for text: running requests first, in
order of admission, each min(rest, threshold, budget), preempting the last or least urgent where KV runs out; then,
unless somebody was preempted, the waiting ones by (priority, arrival) or by arrival, until the budget, the requests or
the KV blocks are used up. Not modelled: speculation, images, LoRA, KV connectors, chunked prefill switched off, and the
context's length, which the API server guards. Reads no clock.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field

from bench.simulation.kv_blocks import NOTHING_FOUND, KvBlocks, PlainBlocks
from bench.simulation.steps import EngineFlags, EngineRequest, Step, StepTime


def _urgency(request: EngineRequest) -> tuple[int, int]:
    return request.priority, request.arrived


@dataclass(slots=True)
class VirtualEngine:
    """The scheduler's state. Whoever calls `add` and `abort` does so between two calls of `schedule`, as vLLM does."""

    flags: EngineFlags = field(default_factory=EngineFlags)
    step_time: StepTime = field(default_factory=StepTime)
    running: list[EngineRequest] = field(default_factory=list)
    waiting: list[EngineRequest] = field(default_factory=list)
    arrivals: int = 0
    admissions: int = 0
    preemptions: int = 0
    _requests: dict[int, EngineRequest] = field(default_factory=dict)
    _kv: PlainBlocks = field(init=False)

    def __post_init__(self) -> None:
        flags = self.flags
        self._kv = self._keeping() if flags.prefix_caching else PlainBlocks(flags.kv_blocks)

    def _keeping(self) -> PlainBlocks:
        return KvBlocks(self.flags.kv_blocks, self.flags.block_tokens)

    @property
    def _active_max(self) -> int:
        asked = self.flags.max_num_active_seqs
        return self.flags.max_num_seqs if asked is None else asked

    @property
    def busy(self) -> bool:
        return bool(self._requests)

    @property
    def blocks_used(self) -> int:
        return self.flags.kv_blocks - 1 - self._kv.free

    def add(self, request: EngineRequest) -> None:
        self.arrivals += 1
        request.arrived = self.arrivals
        self._requests[request.id] = request
        if self.flags.priority_scheduling:
            insort(self.waiting, request, key=_urgency)
        else:
            self.waiting.append(request)

    def abort(self, request_id: int) -> None:
        """Forget a request, wherever it is. Nothing happens where it has ended."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return
        (self.running if request in self.running else self.waiting).remove(request)
        self._free(request)

    def schedule(self) -> Step:
        """Give out one step's tokens. An empty step has no tokens and takes no time. `end` must follow each step."""
        threshold = self.flags.long_prefill_token_threshold if len(self.running) + len(self.waiting) > 1 else 0
        chunk = threshold or self.flags.max_num_batched_tokens
        tokens: dict[int, int] = {}
        budget, preempted = self._schedule_running(tokens, chunk)
        if not preempted:
            self._admit(tokens, chunk, budget)
        return self._step(tokens)

    def end(self, step: Step) -> None:
        """Deliver a step's output tokens and take out the requests that it completed; called when the step has run."""
        names_blocks = self.flags.prefix_caching
        for request_id in step.tokens:
            request = self._requests.get(request_id)
            if request is None:
                continue
            if request.in_flight == request.sampled - request.delivered:  # its chunks without a token come first
                request.delivered += 1
            request.in_flight -= 1
            if request.stale:
                request.stale -= 1
            elif names_blocks:
                self._name_blocks(request, request.computed - (request.sampled - request.delivered))
        for request_id in step.ended:
            self.abort(request_id)

    def steps_alike(self) -> int:
        """Every step is looked at; `quick_engine` takes many as one."""
        return 0

    def ends_alike(self, begins_at: float, steps: int) -> list[float]:
        raise AssertionError(f"no steps are alike: {begins_at}, {steps}")

    def run_alike(self, scheduled: int, ended: int) -> list[Step]:
        raise AssertionError(f"no steps are alike: {scheduled}, {ended}")

    def look_at(self, request: EngineRequest) -> None:
        """Bring up to date what a request says of itself; here it always is."""

    def _schedule_running(self, tokens: dict[int, int], chunk: int) -> tuple[int, bool]:
        flags, kv, running = self.flags, self._kv, self.running
        budget, index, preempted = flags.max_num_batched_tokens, 0, False
        block_tokens, names_blocks = flags.block_tokens, flags.prefix_caching
        while index < len(running) and budget:
            request = running[index]
            sampled = request.sampled
            count = 0 if sampled >= request.output_tokens else request.prompt_tokens + sampled - request.computed
            if count > 1:
                count = min(count, chunk, budget)
            if not count:
                index += 1
                continue
            missing = -(-(request.computed + count) // block_tokens) - request.blocks
            while missing > 0 and missing > kv.free:
                victim = max(running, key=_urgency) if flags.priority_scheduling else running[-1]
                position = running.index(victim)
                index -= position < index
                budget += tokens.pop(victim.id, 0)
                self._preempt(position)
                preempted = True
                if victim is request:
                    return budget, preempted
            if missing > 0 or names_blocks:
                self._allocate(request, count)
            tokens[request.id] = count
            budget -= count
            index += 1
        return budget, preempted

    def _admit(self, tokens: dict[int, int], chunk: int, budget: int) -> None:
        waiting, running, flags, kv = self.waiting, self.running, self.flags, self._kv
        skipped, active_max, keeps, block_tokens = 0, self._active_max, flags.prefix_caching, flags.block_tokens
        while budget and skipped < len(waiting) and len(running) < active_max:
            request = waiting[skipped]
            if request.stale:  # its output from before the preemption has yet to come back
                skipped += 1
                continue
            found = kv.find(request) if keeps else NOTHING_FOUND
            watermark = int(flags.watermark * flags.kv_blocks) if running else 0
            missing = -(-request.known_tokens // block_tokens) - found.blocks
            if missing + found.free + watermark > kv.free:
                break
            if found.blocks:
                kv.hold(request, found)
            computed = request.computed = found.blocks * block_tokens
            request.cached_tokens += computed
            count = min(request.prompt_tokens + request.sampled - computed, chunk, budget)
            self._allocate(request, count)
            tokens[request.id] = count
            budget -= count
            self.admissions += 1
            request.rank = self.admissions
            running.append(waiting.pop(skipped))

    def _step(self, tokens: dict[int, int]) -> Step:
        context, chunks, first_tokens, ended = self._compute(tokens)
        total = sum(tokens.values())
        duration_s = self.step_time.step_s(total, len(tokens), context, chunks) if tokens else 0.0
        return Step(tokens, duration_s, first_tokens, ended)

    def _compute(self, tokens: dict[int, int]) -> tuple[int, int, list[int], list[int]]:
        """Move each request on by its tokens: what they attend to, who gets a first token, who has its last."""
        first_tokens, ended, context, chunks, requests = [], [], 0, 0, self._requests
        for request_id, count in tokens.items():
            request = requests[request_id]
            context += count * request.computed
            chunks += count * count
            request.computed += count
            request.in_flight += 1
            sampled = request.sampled
            if request.prompt_tokens + sampled != request.computed:
                continue
            if not sampled:
                first_tokens.append(request_id)
            request.sampled = sampled + 1
            if sampled + 1 >= request.output_tokens:
                ended.append(request_id)
        return context, chunks, first_tokens, ended

    def _preempt(self, position: int) -> None:
        request = self.running.pop(position)
        self._free(request)
        request.lost_tokens += request.computed
        request.computed = 0
        request.stale = request.in_flight
        request.preemptions += 1
        self.preemptions += 1
        if self.flags.priority_scheduling:
            insort(self.waiting, request, key=_urgency)
        else:
            self.waiting.insert(0, request)

    def _missing(self, request: EngineRequest, count: int) -> int:
        return -(-(request.computed + count) // self.flags.block_tokens) - request.blocks

    def _allocate(self, request: EngineRequest, count: int) -> None:
        behind = request.computed + count
        missing = -(-behind // self.flags.block_tokens) - request.blocks
        if missing > 0:
            self._kv.take(request, missing)
        self._name_blocks(request, min(behind, request.prompt_tokens + request.delivered))

    def _name_blocks(self, request: EngineRequest, tokens: int) -> None:
        full = tokens // self.flags.block_tokens
        if full > request.named and self.flags.prefix_caching:
            self._kv.name(request, full)

    def _free(self, request: EngineRequest) -> None:
        self._kv.release(request)
