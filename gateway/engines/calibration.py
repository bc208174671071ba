"""How long an engine's steps take, learned from a few prefills of the gateway's own while nothing else is there.

Owns when a probe may be sent, how long its prompt is, and one background loop an engine. A probe is the least urgent
of all, and is cut the moment a request goes to the engine, which waits for nothing but the step under way. Whatever
goes wrong costs the probe alone: the engine stays in service, and its model learns from what passes.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from math import ceil

import structlog

from gateway.core.steptime import PrefillSample, StepModel
from gateway.core.types import EngineLimits
from gateway.engines import reading
from gateway.engines.probe_prompts import ProbePrompts
from gateway.engines.target import EngineSilent, EngineUnreachable
from gateway.engines.watch import EngineWatch

PROBING_S_MAX = 10.0
PROBE_S_MAX = 10.0
WARM_UP_S_MAX = 30.0
PROMPT_TOKENS_MAX = 65_536
CUTS_MAX = 3
QUIET_S = 1.0
LOOK_INTERVAL_S = 0.5
LOAD_AGE_S_MAX = 3.0
_ROUNDS = 2
_SMALLEST_SHARE = 8  # of a step: there the fixed cost of a step shows best
_LAST_OF_ALL = 2**62
_NO_ROOM = frozenset({429, 503})


class Ended(StrEnum):
    """How a probe ended that measured nothing.

    CUT: a caller came, or the engine had no room or went away. SLOW: it took longer than `PROBE_S_MAX`. REFUSED: the
    engine does not complete token ids.
    """

    CUT = "cut"
    SLOW = "slow"
    REFUSED = "refused"


def prompt_lengths(limits: EngineLimits, context_tokens: int | None) -> list[int]:
    """Return the prompts to measure, in tokens: from a small part of a step to many steps, each twice the last."""
    bounds = (PROMPT_TOKENS_MAX, limits.kv_tokens, None if context_tokens is None else context_tokens - 1)
    room = min(bound for bound in bounds if bound is not None)
    length = max(1, min(limits.step_tokens, room) // _SMALLEST_SHARE)
    lengths = []
    while length <= room:
        lengths.append(length)
        length *= 2
    return lengths


class Ladder:
    """Which prompt comes next and what has been measured: a warm-up, then the lengths upwards, twice. Pure.

    Of a length the fastest counts: whatever else the machine does only makes a prefill slower. is_warm: whether the
    warm-up is over, which may take an engine long, as kernels are compiled at their first use.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        self._todo = deque([*lengths[:1], *(length for _ in range(_ROUNDS) for length in lengths)])
        self.is_warm = False
        self._spent_s = 0.0
        self.fastest_s: dict[int, float] = {}

    def next(self) -> int | None:
        """Return the next prompt's length, or None where none is left that fits into `PROBING_S_MAX` with the rest."""
        while self._todo and self._spent_s + self._expected_s(self._todo[0]) > PROBING_S_MAX:
            self._todo.popleft()
        return self._todo[0] if self._todo else None

    def took(self, seconds: float) -> None:
        """Take in what `next` took."""
        length = self._todo.popleft()
        if self.is_warm:
            self._spent_s += seconds
            self.fastest_s[length] = min(seconds, self.fastest_s.get(length, seconds))
        self.is_warm = True

    def samples(self, step_tokens: int) -> list[PrefillSample]:
        """Return what was measured. A lone prompt is cut by the step alone: vLLM applies no threshold to it."""
        return [
            PrefillSample(tokens, ceil(tokens / step_tokens), taken_s) for tokens, taken_s in self.fastest_s.items()
        ]

    def _expected_s(self, length: int) -> float:
        """As it was measured, else as if all of a shorter one were attention: more than it can take."""
        if length in self.fastest_s or not self.fastest_s:
            return self.fastest_s.get(length, 0.0)
        nearest = max(self.fastest_s)
        return self.fastest_s[nearest] * (length / nearest) ** 2


class Calibration:
    """Probes one engine after each of its starts.

    is_free: whether nothing of the gateway's own runs there. learned: takes the samples, returns the model they make.
    """

    def __init__(
        self,
        watch: EngineWatch,
        is_free: Callable[[], bool],
        learned: Callable[[Sequence[PrefillSample]], StepModel],
        now: Callable[[], float],
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._watch = watch
        self._is_free = is_free
        self._learned = learned
        self._now = now
        self._pause = pause
        self._log = structlog.get_logger().bind(engine=watch.target.name)
        self._of_start: int | None = None
        self._ladder = Ladder([])
        self._cuts = 0
        self._under_way: asyncio.Timeout | None = None
        watch.make_room = self.make_room

    @property
    def is_done(self) -> bool:
        """Whether the engine's present start has been measured as far as it will be."""
        return self._of_start == self._watch.known.restarts and self._ladder.next() is None

    def make_room(self) -> None:
        """Cut the probe under way: a request goes to the engine now."""
        if self._under_way is not None and not self._under_way.expired():
            self._under_way.reschedule(asyncio.get_running_loop().time())

    async def run(self) -> None:
        """Probe whenever there is something to learn and the engine is idle, until cancelled."""
        while True:
            await self.look()
            await self._pause(LOOK_INTERVAL_S)

    async def look(self) -> None:
        """Go on with the ladder of the engine's present start, where something is left of it and the engine is idle."""
        if self._of_start != self._watch.known.restarts:
            self._begin()
        if self.is_done or not self._is_idle():
            return
        ended = await self._climb()
        if ended is Ended.CUT:
            self._cuts += 1
        if ended is not Ended.CUT or self._cuts >= CUTS_MAX:
            self._ladder = Ladder([])

    def _begin(self) -> None:
        known = self._watch.known
        if not self._watch.health.is_up or not known.cards:
            return
        self._of_start, self._cuts = known.restarts, 0
        context_tokens = reading.context_tokens(known.cards, known.cards[0]["id"])
        self._ladder = Ladder(prompt_lengths(self._watch.limits, context_tokens))

    def _is_idle(self) -> bool:
        """Whether nobody is at the engine, as far as can be known; where its metrics do not say, somebody may be."""
        watch, now = self._watch, self._now()
        load, load_at = watch.known.load, watch.known.load_at
        is_fresh = load_at is not None and now - load_at <= LOAD_AGE_S_MAX
        return (
            watch.health.is_up
            and is_fresh
            and load.is_idle
            and self._is_free()
            and now - watch.dispatched_at >= QUIET_S
        )

    async def _climb(self) -> Ended | None:
        """Probe until the ladder's end, or what cuts it; hand over what was measured. None: it came to its end."""
        ladder, before = self._ladder, dict(self._ladder.fastest_s)
        prompts = ProbePrompts(self._watch.known.cards[0]["id"], os.urandom(16))
        ended = None
        while ended is None and (length := ladder.next()) is not None:
            taken = await self._probe(prompts, length) if self._is_free() else Ended.CUT
            if isinstance(taken, Ended):
                ended = taken
            else:
                ladder.took(taken)
        if ladder.fastest_s != before:
            model = self._learned(ladder.samples(self._watch.limits.step_tokens))
            self._log.info(
                "engine_calibrated",
                prefills=len(ladder.fastest_s),
                prompt_tokens_max=max(ladder.fastest_s),
                ended=ended,
                base_s=model.base_s,
                per_token_s=model.per_token_s,
                per_token_context_s=model.per_token_context_s,
            )
        return ended

    async def _probe(self, prompts: ProbePrompts, length: int) -> float | Ended:
        """Return how long one prefill took, or how it ended without saying."""
        watch, is_warm = self._watch, self._ladder.is_warm
        body = {**prompts.of(length), "cache_salt": os.urandom(8).hex()}
        priority = _LAST_OF_ALL if watch.priority_effective else None
        sent_at = self._now()
        try:
            # Without a limit of its own: it ends when room is to be made.
            async with asyncio.timeout(None) as self._under_way:
                answer = await watch.generate(body, priority, timeout_s=PROBE_S_MAX if is_warm else WARM_UP_S_MAX)
        except (TimeoutError, EngineUnreachable):
            return Ended.CUT
        except EngineSilent:
            return Ended.SLOW if is_warm else Ended.CUT
        finally:
            self._under_way = None
        if answer.status == 200:
            return self._now() - sent_at
        if answer.status in _NO_ROOM:
            return Ended.CUT
        self._log.warning("engine_not_calibrated", why=f"it answers a prefill of token ids with {answer.status}")
        return Ended.REFUSED
