"""The engines of one pool: which are up, what each still has room for, and which one takes a ticket.

Owns the engines and their pauses. Knows no line and no deadline: it is asked about heads, and answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from math import inf

from gateway.core.dues import Due
from gateway.core.engine import Engine
from gateway.core.lazy_heap import LazyHeap
from gateway.core.ledger import EVERYTHING, USED_BY, Budget
from gateway.core.plan import Plan
from gateway.core.shares import Shares
from gateway.core.standing import STANDINGS_MAX, Standing, standing_at
from gateway.core.steptime import FollowedFit
from gateway.core.ticket import Assignment, Ticket
from gateway.core.types import LONG, SHORT, EngineSnapshot, EngineSpec, LengthClass

_PACKED_S = 1e6
"""More than any step takes."""


class Fleet:
    """Late binding: a ticket meets its engine at dispatch, never earlier."""

    def __init__(self, specs: Sequence[EngineSpec], plan: Plan) -> None:
        self._due: LazyHeap[Due] = LazyHeap()
        self._engines = {spec.name: Engine(spec, plan, self._due) for spec in specs}
        self._may_divide = plan.admission.long_prefill is not None
        self.kv_block_tokens = _kv_block_tokens(specs)
        self._first: Engine | None = None
        self._shares: Shares | None = None
        self._take_note()

    def __getitem__(self, name: str) -> Engine:
        return self._engines[name]

    def has_slot(self, is_long: int) -> bool:
        """Whether an engine takes work and is not full for this length; otherwise no such request can go."""
        for engine in self._open:
            if not engine.ledger.is_full(is_long):
                return True
        return False

    @property
    def divides(self) -> bool:
        """Whether a long prompt is under way in parts anywhere."""
        if self._may_divide:
            for engine in self._engines.values():
                if engine.parts.courses:
                    return True
        return False

    def dividing(self) -> list[Engine]:
        return [engine for engine in self._engines.values() if engine.parts.courses]

    def may_serve(self, assignment: Assignment) -> bool:
        """Tell whether an engine is up that can serve it."""
        return self.any_up if assignment.engine is None else self.may_yet_serve(assignment)

    def may_yet_serve(self, assignment: Assignment) -> bool:
        """Tell whether waiting may help: not where the one engine that could serve it is down or takes nothing new.

        One that comes back is another process as a rule, and keeps nothing of what the first one kept.
        """
        if assignment.engine is None:
            return True
        engine = self._engines.get(assignment.engine)
        return engine is not None and engine.up and not engine.retired and engine.weight > 0

    def specs(self) -> list[EngineSpec]:
        """Return the engines of the configuration, as they are now."""
        engines = [engine for engine in self._engines.values() if not engine.retired]
        return [EngineSpec(engine.name, engine.limits, engine.up, engine.weight) for engine in engines]

    def follow(self, other: Fleet) -> None:
        """Predict by what another fleet knows of the engines that both have."""
        for name in self._engines.keys() & other._engines.keys():
            self._engines[name].fit = FollowedFit(other._engines[name].fit)

    def standings(self, ticket: Ticket) -> list[Standing]:
        """Return what the ticket lacks at each engine, of the first few."""
        return [standing_at(engine, ticket) for engine in islice(self._engines.values(), STANDINGS_MAX)]

    def take(self, ticket: Ticket, engine: Engine, now: float) -> None:
        """Charge a ticket that is sent to an engine now."""
        engine.take(ticket, now)
        if self._shares is not None:
            self._shares.sent(engine)

    def set_up(self, name: str, up: bool) -> None:
        self._engines[name].up = up
        self._take_note()

    def pause(self, name: str, until: float) -> None:
        """Give the engine nothing new before `until`; a longer pause stands."""
        engine = self._engines[name]
        engine.paused_until = until if engine.paused_until is None else max(engine.paused_until, until)
        self._take_note()

    def cost_s(self, assignment: Assignment) -> float:
        """Predict the engine seconds of a request before its engine is known: engines of a pool are alike."""
        assert self._first is not None, "nothing is offered to a pool without engines"
        return self._first.cost_s(assignment)

    def unused_s(self, assignment: Assignment, output_tokens: int) -> float:
        """Predict the engine seconds of reserved output that was not generated, as `cost_s` would have charged it."""
        return 0.0 if self._first is None else self._first.unused_s(assignment, output_tokens)

    def settle(self, now: float) -> None:
        """End the pauses that are over, and give back the charges that are due."""
        while (first := self._due.first) is not None and first[0] <= now:
            due = first[2]
            self._due.discard(due)
            assert due.engine is not None, "only what is at an engine comes due"
            engine = self._engines[due.engine]
            engine.settle(due)
            self.drop_if_idle(engine)
        if self._resumes_at <= now:
            for engine in self._engines.values():
                if engine.paused_until is not None and engine.paused_until <= now:
                    engine.paused_until = None
            self._take_note()

    def next_change_at(self) -> float:
        """Return when `settle` has something to do; infinity: never."""
        first = self._due.first
        return self._resumes_at if first is None or self._resumes_at < first[0] else first[0]

    def choose(self, heads: Sequence[Ticket]) -> tuple[Ticket, Engine] | None:
        """Choose which head goes next and where; None when none can go.

        `heads` are one a lane, the oldest first. It goes first; a younger one may pass it on an engine only where the
        older lacks a budget there which the younger does not use. So what they share is first come, first served, and
        neither lane can starve the other of it.
        """
        engines = self._open
        if len(engines) == 1:
            return _choose_at(engines[0], heads)
        older_lacks = [EVERYTHING] * len(engines)  # whoever is first in line passes nobody
        for head in heads:
            lacks = [engine.lacking(head) for engine in engines]
            uses_not = ~USED_BY[head.is_long]
            free = [engines[at] for at, lack in enumerate(lacks) if not lack and older_lacks[at] & uses_not]
            if free:
                if self._shares is not None:
                    return head, self._shares.choose(free)
                return head, free[0] if len(free) == 1 else min(free, key=_load_for(head))
            older_lacks = lacks
        return None

    def configure(self, specs: Sequence[EngineSpec], plan: Plan) -> None:
        """Take new engines and limits; an engine that is gone gets nothing new and is dropped once it is idle."""
        self._may_divide |= plan.admission.long_prefill is not None  # what a plan before has divided goes on so
        for spec in specs:
            engine = self._engines.get(spec.name)
            if engine is None:
                self._engines[spec.name] = Engine(spec, plan, self._due)
            else:
                engine.retired = False
                engine.configure(spec, plan)
        self.kv_block_tokens = _kv_block_tokens(specs)
        for name in self._engines.keys() - {spec.name for spec in specs}:
            self._engines[name].retired = True
            self.drop_if_idle(self._engines[name])
        self._take_note()

    def drop_if_idle(self, engine: Engine) -> None:
        if engine.retired and not len(engine.ledger) and engine.name in self._engines:
            engine.forget_timers()
            del self._engines[engine.name]

    def _take_note(self) -> None:
        """Keep what every dispatch asks: who takes work, and when the next pause ends."""
        ready = [engine for engine in self._engines.values() if engine.up and not engine.retired and engine.weight]
        self._shares = Shares.of((e for e in self._engines.values() if not e.retired), self._shares)
        self._open = [engine for engine in ready if engine.paused_until is None]
        self.any_up = bool(ready)
        self._first = next(iter(self._engines.values()), self._first)
        ends = [engine.paused_until for engine in self._engines.values() if engine.paused_until is not None]
        self._resumes_at = min(ends, default=inf)

    def names(self) -> Iterable[str]:
        return self._engines.keys()

    def snapshot(self, running: Iterable[Ticket]) -> Mapping[str, EngineSnapshot]:
        """Return every engine's ledger; `running`: the tickets that are at engines."""
        at_engine: dict[str, Counter[tuple[str, LengthClass]]] = {name: Counter() for name in self._engines}
        for ticket in running:
            assert ticket.engine is not None
            assignment = ticket.assignment
            at_engine[ticket.engine][assignment.class_plan.name, assignment.length_class] += 1
        return {name: _snapshot(engine, at_engine[name]) for name, engine in self._engines.items()}


def _choose_at(engine: Engine, heads: Sequence[Ticket]) -> tuple[Ticket, Engine] | None:
    """`Fleet.choose` where there is nothing to choose of engines."""
    older_lacks = EVERYTHING
    for head in heads:
        lacks = engine.lacking(head)
        if not lacks and older_lacks & ~USED_BY[head.is_long]:
            return head, engine
        older_lacks = lacks
    return None


def _kv_block_tokens(specs: Sequence[EngineSpec]) -> int:
    """Engines of one pool serve the same models; where their block sizes differ the coarsest is charged."""
    return max((spec.limits.kv_block_tokens for spec in specs), default=1)


def _load_for(ticket: Ticket) -> Callable[[Engine], tuple[float, int]]:
    """Order engines for a request: longs packed where a long already prefills; then by when its own step would end.

    Packing leaves the other engines without long steps, and shorts find them by the predicted step. Where nothing
    bounds the long prompts in prefill, all of them would be packed at one engine: there they are spread.
    """
    is_long = ticket.is_long

    def load(engine: Engine) -> tuple[float, int]:
        packs = is_long and engine.ledger.long_prefills and engine.ledger.cap(Budget.LONG_PREFILLS) < inf
        packed_s = -_PACKED_S if packs else 0.0
        return packed_s + engine.predicted_step_s(ticket), engine.ledger.slots

    return load


def _snapshot(engine: Engine, running: Mapping[tuple[str, LengthClass], int]) -> EngineSnapshot:
    ledger = engine.ledger
    return EngineSnapshot(
        up=engine.up,
        running=running,
        prefill_tokens={SHORT: ledger.short_prefill_tokens, LONG: ledger.long_prefill_tokens},
        long_prefills=ledger.long_prefills,
        slots=ledger.slots,
        kv_reserved_tokens=ledger.kv_tokens,
        budgets=ledger.budgets(),
        weight=engine.weight,
        dividing=engine.dividing(),
    )
