"""The virtual engine at speed: all that decode are one group, and steps in which only they take part are taken as one.

Owns the arithmetic of the group: how many tokens it takes, what they attend to, which blocks it needs and who ends
when are sums and counts that one step moves on together, whatever its size. Decides nothing: wherever order matters
(no budget or no blocks for all, somebody to be preempted) the group is dissolved and the step is virtual_engine's own.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import accumulate
from operator import attrgetter

from bench.simulation.kv_blocks import PlainBlocks
from bench.simulation.kv_runs import KvRuns
from bench.simulation.steps import EngineRequest, Step
from bench.simulation.virtual_engine import VirtualEngine

_rank = attrgetter("rank")
_NOTHING = Step({}, 0.0, [], [])


@dataclass(slots=True)
class Group:
    """Requests that get a token in every step. Their own counts stand as they were when they joined.

    since: the first step of each in the group. context: of all in the next step. takers: how many take a block, by the
    step's number modulo a block's tokens. ends: who has its last token in which step, and end_numbers the heap of
    those. last_rank: no member's is higher.
    """

    takers: list[int]
    since: dict[int, int] = field(default_factory=dict)
    context: int = 0
    ends: dict[int, list[EngineRequest]] = field(default_factory=dict)
    end_numbers: list[int] = field(default_factory=list)
    last_rank: int = 0

    def join(self, request: EngineRequest, number: int) -> None:
        """Add a request whose next step is `number`."""
        self.last_rank = max(self.last_rank, request.rank) if self.since else request.rank
        self.since[request.id] = number
        self.context += request.computed
        self.takers[(number - request.computed) % len(self.takers)] += 1
        end = number + request.output_tokens - request.sampled - 1
        if end not in self.ends:
            heappush(self.end_numbers, end)
        self.ends.setdefault(end, []).append(request)

    def leave(self, request: EngineRequest, steps: int) -> None:
        """Take a request out; `steps`: of the group since it joined. Its counts are still those of then."""
        number = self.since.pop(request.id)
        self.context -= request.computed + steps
        self.takers[(number - request.computed) % len(self.takers)] -= 1
        ends = self.ends.get(number + request.output_tokens - request.sampled - 1)
        if ends:  # else it leaves by its end
            ends.remove(request)

    def next_end(self) -> int:
        """Return the number of the next step that is somebody's last."""
        while not self.ends.get(self.end_numbers[0]):
            self.ends.pop(heappop(self.end_numbers), None)
        return self.end_numbers[0]

    def blocks(self, after: int, steps: int) -> int:
        """Return how many blocks the group takes in the steps behind number `after`."""
        size = len(self.takers)
        whole, rest = divmod(steps, size)
        return whole * len(self.since) + sum(self.takers[(after + step) % size] for step in range(1, rest + 1))


@dataclass
class QuickEngine(VirtualEngine):
    """A step's `tokens` names those outside of the group alone. `look_at` a request before reading its counts.

    Steps are numbered. _ended_by_then: how many had ended when the last was scheduled.
    _known_rank: whoever has a higher one was admitted since.
    """

    _group: Group = field(init=False)
    _others: list[EngineRequest] = field(default_factory=list)
    _flying: deque[tuple[int, Step]] = field(default_factory=deque)
    _scheduled: int = 0
    _ended: int = 0
    _ended_by_then: int = 0
    _known_rank: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._group = Group([0] * self.flags.block_tokens)

    def schedule(self) -> Step:
        waiting, flags = self.waiting, self.flags
        if not (waiting or self._group.since or any(each.sampled < each.output_tokens for each in self._others)):
            return _NOTHING
        self._known_rank = self.admissions
        threshold = flags.long_prefill_token_threshold
        chunk = threshold if threshold and len(self.running) + len(waiting) > 1 else flags.max_num_batched_tokens
        tokens: dict[int, int] = {}
        budget = self._give_out(tokens, chunk)
        if budget is None:
            return super().schedule()
        if waiting:
            self._admit(tokens, chunk, budget)
        return self._step(tokens)

    def abort(self, request_id: int) -> None:
        request = self._requests.get(request_id)
        if request is None:
            return
        self.look_at(request)
        if request in self._others:
            self._others.remove(request)
        super().abort(request_id)

    def end(self, step: Step) -> None:
        if not step.is_empty:
            self._flying.popleft()
            self._ended += 1
            super().end(step)

    def look_at(self, request: EngineRequest) -> None:
        """Take a request out of the group: what it says of itself is as it would be step by step."""
        if request.id in self._group.since:
            self._leave(request)
            insort(self._others, request, key=_rank)

    def _keeping(self) -> PlainBlocks:
        return KvRuns(self.flags.kv_blocks, self.flags.block_tokens)

    # ── steps that are alike ──

    def steps_alike(self) -> int:
        """Return how many steps from here on give each running request one token, and begin, end and preempt nothing.

        A lower bound: where it says 0, `schedule` tells. It holds until somebody is added or aborted.
        """
        group, running, flags = self._group, self.running, self.flags
        count = len(group.since)
        if not count or count != len(running) or count > flags.max_num_batched_tokens:
            return 0
        if self.waiting and count < self._active_max:
            return 0
        return min(self._kv.free // count * flags.block_tokens, group.next_end() - self._scheduled - 1)

    def ends_alike(self, begins_at: float, steps: int) -> list[float]:
        """Return when each of the next steps ends, one behind the other from `begins_at` on, if all are alike."""
        count, context, step_s = len(self._group.since), self._group.context, self.step_time.step_s
        took = [step_s(count, count, context + count * step, count) for step in range(steps)]
        return list(accumulate(took, initial=begins_at))[1:]

    def run_alike(self, scheduled: int, ended: int) -> list[Step]:
        """Do what so many calls of `schedule` and of `end` would do in steps that are alike; return those in flight.

        ended: also of the steps in flight before, of which none brings a first token or ends anybody.
        """
        group, flying = self._group, self._flying
        count = len(group.since)
        self._ended_by_then = self._ended + scheduled - 1
        self._kv.reserve(group.blocks(self._scheduled, scheduled))
        while ended and flying:
            self.end(flying[0][1])
            ended -= 1
        skipped, self._ended = ended, self._ended + ended
        for number in range(skipped, scheduled):
            step_s = self.step_time.step_s(count, count, group.context + count * number, count)
            flying.append((self._scheduled + number + 1, Step({}, step_s, [], [], count)))
        self._scheduled += scheduled
        group.context += count * scheduled
        return [step for _, step in flying]

    # ── one step ──

    def _schedule_running(self, tokens: dict[int, int], chunk: int) -> tuple[int, bool]:
        """Not all have room: from here on nobody is in the group."""
        for request in [each for each in self.running if each.id in self._group.since]:
            self._leave(request)
        self._others = list(self.running)
        return super()._schedule_running(tokens, chunk)

    def _give_out(self, tokens: dict[int, int], chunk: int) -> int | None:
        """Give the others what they get beside the group; return the budget left. None: not all have room."""
        group, kv, block_tokens = self._group, self._kv, self.flags.block_tokens
        grouped = len(group.since)
        budget = self.flags.max_num_batched_tokens - grouped
        taken = group.takers[(self._scheduled + 1) % block_tokens] if grouped else 0
        free = kv.free - taken
        getting: list[tuple[EngineRequest, int]] = []
        for request in self._others:
            sampled = request.sampled
            if sampled >= request.output_tokens:
                continue
            count = min(request.prompt_tokens + sampled - request.computed, chunk)
            if count > budget:
                if budget < 0 or (grouped and request.rank < group.last_rank):
                    return None
                count = budget
                if not count:
                    break
            free -= max(0, -(-(request.computed + count) // block_tokens) - request.blocks)
            getting.append((request, count))
            budget -= count
        if budget < 0 or free < 0:
            return None
        if taken:
            kv.reserve(taken)
        for request, count in getting:
            tokens[request.id] = count
            self._allocate(request, count)
        return budget

    def _step(self, tokens: dict[int, int]) -> Step:
        """As step by step; then who has its last token leaves the group, and who now decodes joins it."""
        group, count = self._group, len(self._group.since)
        if not tokens and not count:
            return _NOTHING
        context, chunks, first_tokens, ended = self._compute(tokens)
        number = self._scheduled = self._scheduled + 1
        self._ended_by_then = self._ended
        last = group.ends.pop(number, None) if count else None
        if last:
            requests = [*last, *(self._requests[request_id] for request_id in ended)] if ended else last
            ended = [request.id for request in sorted(requests, key=_rank)]
        duration_s = self.step_time.step_s(
            sum(tokens.values()) + count, len(tokens) + count, context + group.context, chunks + count
        )
        group.context += count
        step = Step(tokens, duration_s, first_tokens, ended, count)
        self._flying.append((number, step))
        if last:
            for request in last:
                self._leave(request)
                insort(self._others, request, key=_rank)
        if tokens:
            self._gather(tokens)
        return step

    def _gather(self, tokens: dict[int, int]) -> None:
        """Let whoever decodes from here on join the group."""
        requests, others, joined = self._requests, self._others, False
        for request_id in tokens:
            request = requests[request_id]
            sampled = request.sampled
            decodes = 0 < sampled < request.output_tokens and request.prompt_tokens + sampled == request.computed + 1
            if decodes:
                self._group.join(request, self._scheduled + 1)
                joined = True
            if not decodes and request.rank > self._known_rank:
                others.append(request)
        if joined:
            since = self._group.since
            self._others = [request for request in others if request.id not in since]

    def _preempt(self, position: int) -> None:
        self._others.remove(self.running[position])
        super()._preempt(position)

    def _leave(self, request: EngineRequest) -> None:
        """Let a request's own counts say what the group's did meanwhile; steps in flight are its own from here on."""
        since = self._group.since[request.id]
        steps = self._scheduled - since + 1
        ended = max(0, self._ended - since + 1)
        self._group.leave(request, steps)
        request.computed += steps
        request.sampled += steps
        request.delivered += ended
        request.in_flight += steps - ended
        request.blocks += self._missing(request, 0)  # reserved as they were needed
        heard = request.delivered - (self._ended > self._ended_by_then)  # of its output, when it last took a block
        self._name_blocks(request, min(request.computed, request.prompt_tokens + heard))
        for number, step in self._flying:
            if number >= since:
                step.tokens[request.id] = 1
