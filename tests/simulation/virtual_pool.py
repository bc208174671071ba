"""The virtual pool under watch: what must hold at every instant is asserted at every instant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench.simulation import virtual_pool
from bench.simulation.engine_room import START, EngineRoom
from bench.simulation.posts import Caller, Fate, Part, Post
from bench.simulation.virtual_engine import VirtualEngine
from gateway.core.ledger import NO_LONG_PREFILL
from gateway.core.plan import Plan
from gateway.core.ticket import Assignment, Dispatched, Event, Finished, Queued, Refused, SliceEnded, SliceResult
from gateway.core.types import EngineSpec, LengthClass, Outcome
from gateway.testing.builders import an_assignment

__all__ = ["START", "Caller", "Fate", "VirtualPool"]

SOON_S = 1.0
"""An abort holds its place until the steps in flight end: for so long an empty engine may leave somebody waiting."""


class VirtualPool:
    """Run callers through Admission to engines, every promise of it asserted.

    pauses_seen: how often an engine had nothing to do before a line of longs, since feedback had them pause.
    """

    def __init__(
        self,
        plan: Plan,
        engines: Mapping[str, VirtualEngine],
        specs: Sequence[EngineSpec],
        *,
        assign: Callable[[Plan, Caller], Assignment] | None = None,
        batches_in_flight: int = 1,
        **ways: Any,
    ) -> None:
        self.room = EngineRoom(engines, batches_in_flight=batches_in_flight)
        self.pool = virtual_pool.VirtualPool(plan, self.room, specs, assign or assigned, watcher=self, **ways)
        self.plan = plan
        self.posts, self.admission = self.pool.posts, self.pool.admission
        self.fates = self.pool.fates
        self.restart = self.pool.restart
        self.waiting: set[int] = set()
        self.slices: Counter[SliceResult] = Counter()
        self.pauses_seen = 0
        self._ending: list[Fate] = []

    @property
    def now(self) -> float:
        return self.room.now

    @property
    def network_s(self) -> float:
        return self.room.network_s

    @property
    def counts(self) -> Counter[Outcome]:
        """How many ended in which way."""
        return Counter(fate.outcome for fate in self.fates.values() if fate.outcome is not None)

    @property
    def steps(self) -> int:
        return self.room.steps

    def at(self, seconds: float, what: Callable[[], None], rank: int = 2) -> None:
        """Note something to do so many seconds after the start."""
        self.room.at(START + seconds, what, rank)

    def run(self, callers: Sequence[Caller]) -> None:
        """Play until nothing is left to come, then check that nothing is left over."""
        self.pool.run(callers)
        self._nothing_is_left()

    # ── what holds at every instant ──

    def hears(self, fate: Fate, event: Event) -> None:
        match event:
            case Dispatched():
                assert event.waited_s <= fate.ticket.assignment.wait_s_max + 1e-9, "nothing goes after its deadline"
                assert self.posts[event.engine].up, "nothing goes to an engine that is down"
            case Refused(waited_s=waited_s, outcome=Outcome.EXPIRED):
                assert abs(waited_s - fate.ticket.assignment.wait_s_max) < 1e-6, "expiry is exact"
            case SliceEnded(result=result):
                self.slices[result] += 1
            case _:
                pass
        if isinstance(event, Queued):
            self.waiting.add(fate.ticket.id)
        if isinstance(event, Dispatched | Refused | Finished):
            self.waiting.discard(fate.ticket.id)
        if isinstance(event, Refused | Finished):
            assert fate.outcome is None, "a request ends once"
            self._ending.append(fate)

    def sends(self, post: Post, part: Part) -> None:
        assert part.fate.outcome is None, "nothing goes of a request that has ended"
        assert not [other for other in post.parts.values() if other.fate is part.fate], "one part at a time"

    def settled(self) -> None:
        self._nothing_stays_of_who_ended()
        self._budgets_hold()
        self._no_engine_idles_before_a_line()

    def _nothing_stays_of_who_ended(self) -> None:
        for fate in self._ending:
            assert fate.outcome is not None, "who ends has an outcome"
            if fate.engine is not None and fate.outcome is not Outcome.CLIENT_GONE:
                left = [part for part in self.posts[fate.engine].parts.values() if part.fate is fate]
                assert not left, "nothing of it stays at its engine"
        self._ending.clear()

    def _budgets_hold(self) -> None:
        bounds = self.plan.admission
        for post in self.posts.values():
            longs, short_tokens = _in_prefill(post)
            assert bounds.long_prefills_max is None or longs <= bounds.long_prefills_max
            assert bounds.short_prefill_tokens_max is None or short_tokens <= bounds.short_prefill_tokens_max
            assert bounds.slots is None or len(post.tickets) <= bounds.slots.total

    def _no_engine_idles_before_a_line(self) -> None:
        if self.waiting:
            for post in self.posts.values():
                idle = post.up and not post.tickets and self.room.now >= post.cut_at + SOON_S
                if idle and self._is_pause_of_longs(post):
                    self.pauses_seen += 1
                else:
                    assert not idle, f"{len(self.waiting)} wait while engine {post.name} has nothing to do"

    def _is_pause_of_longs(self, post: Post) -> bool:
        """Whether all who wait are longs that feedback holds back from this engine, for the shorts to come."""
        engine = self.admission.fleet[post.name]
        return self.plan.feedback is not None and all(
            engine.lacking(self.fates[number].ticket) == NO_LONG_PREFILL for number in self.waiting
        )

    def _nothing_is_left(self) -> None:
        assert not self.waiting
        assert self.counts.total() == len(self.fates), "offered = completed + refused + expired + gone + broken"
        assert not any(post.parts for post in self.posts.values())
        snapshot = self.admission.snapshot()
        assert all(line.requests == 0 and line.prompt_tokens == 0 for line in snapshot.lines.values())
        for engine in snapshot.engines.values():
            assert engine.slots == engine.long_prefills == engine.kv_reserved_tokens == 0
            assert not any(engine.prefill_tokens.values())
            assert engine.dividing is None or not engine.dividing.courses

    # ── what became of them ──

    def of(self, length: LengthClass, *, service_class: str | None = None) -> list[Fate]:
        """Return the fates of one length class, in order of arrival."""
        return [
            fate
            for fate in self.fates.values()
            if fate.length is length and service_class in {None, fate.caller.service_class}
        ]


def _in_prefill(post: Post) -> tuple[int, int]:
    """Return how many long prompts have no first token at an engine, and the tokens of short ones that have none."""
    longs = short_tokens = 0
    for ticket in post.tickets:
        if ticket.first_token_at is None:
            is_long = ticket.assignment.length_class is LengthClass.LONG
            longs += is_long
            short_tokens += 0 if is_long else ticket.assignment.prompt_tokens
    return longs, short_tokens


def assigned(plan: Plan, caller: Caller) -> Assignment:
    return an_assignment(
        plan,
        caller.service_class,
        tenant=caller.tenant,
        prompt_tokens=caller.prompt_tokens,
        output_tokens=caller.output_tokens,
        is_divisible=True,
    )
