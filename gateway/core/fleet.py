"""The engines of one pool: which are up, what each still has room for, and which one takes a ticket.

Owns the engines and their pauses. Knows no line and no deadline: it is asked about heads, and answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gateway.core.engine import Due, Engine
from gateway.core.lazy_heap import LazyHeap
from gateway.core.ledger import USED_BY, Budget
from gateway.core.plan import Plan
from gateway.core.ticket import Ticket
from gateway.core.types import EngineSnapshot, EngineSpec, LengthClass


class Fleet:
    """Late binding: a ticket meets its engine at dispatch, never earlier."""

    def __init__(self, specs: Sequence[EngineSpec], plan: Plan) -> None:
        self._due: LazyHeap[Due] = LazyHeap()
        self._engines = {spec.name: Engine(spec, plan, self._due) for spec in specs}
        self.kv_block_tokens = _kv_block_tokens(specs)
        self._take_note()

    def __getitem__(self, name: str) -> Engine:
        return self._engines[name]

    @property
    def any_up(self) -> bool:
        return any(engine.up and not engine.retired for engine in self._engines.values())

    def set_up(self, name: str, up: bool) -> None:
        self._engines[name].up = up
        self._take_note()

    def pause(self, name: str, until: float) -> None:
        """Give the engine nothing new before `until`; a longer pause stands."""
        engine = self._engines[name]
        engine.paused_until = until if engine.paused_until is None else max(engine.paused_until, until)
        self._take_note()

    def settle(self, now: float) -> None:
        """End the pauses that are over, and give back the charges that are due."""
        while (first := self._due.peek()) is not None and first[1] <= now:
            due = first[0]
            self._due.discard(due)
            assert due.engine is not None, "only what is at an engine comes due"
            engine = self._engines[due.engine]
            engine.settle(due)
            self.drop_if_idle(engine)
        if self._resumes_at is not None and self._resumes_at <= now:
            for engine in self._engines.values():
                if engine.paused_until is not None and engine.paused_until <= now:
                    engine.paused_until = None
            self._take_note()

    def next_change_at(self) -> float | None:
        """Return when `settle` has something to do, or None."""
        first = self._due.peek()
        times = (self._resumes_at, None if first is None else first[1])
        return min((time for time in times if time is not None), default=None)

    def choose(self, heads: Sequence[Ticket]) -> tuple[Ticket, Engine] | None:
        """Choose which head goes next and where; None when none can go.

        `heads` are one a lane. The oldest goes first; a younger one may pass it on an engine only where the older
        lacks a budget there which the younger does not use. So what they share is first come, first served, and
        neither lane can starve the other of it.
        """
        if len(heads) == 2 and heads[1].id < heads[0].id:
            heads = heads[::-1]
        first_lacks: list[int] | None = None
        for head in heads:
            uses_not = ~USED_BY[head.needs[0]]
            lacks = [engine.lacking(head) for engine in self._open]
            free = [
                engine
                for at, engine in enumerate(self._open)
                if not lacks[at] and (first_lacks is None or first_lacks[at] & uses_not)
            ]
            if free:
                return head, free[0] if len(free) == 1 else min(free, key=_load_for(head.needs[0]))
            first_lacks = lacks
        return None

    def configure(self, specs: Sequence[EngineSpec], plan: Plan) -> None:
        """Take new engines and limits; an engine that is gone gets nothing new and is dropped once it is idle."""
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
            del self._engines[engine.name]

    def _take_note(self) -> None:
        """Keep what every dispatch asks: who takes work, and when the next pause ends."""
        ready = [engine for engine in self._engines.values() if engine.up and not engine.retired]
        self._open = [engine for engine in ready if engine.paused_until is None]
        ends = [engine.paused_until for engine in self._engines.values() if engine.paused_until is not None]
        self._resumes_at = min(ends, default=None)

    def snapshot(self) -> Mapping[str, EngineSnapshot]:
        return {name: _snapshot(engine) for name, engine in self._engines.items()}


def _kv_block_tokens(specs: Sequence[EngineSpec]) -> int:
    """Engines of one pool serve the same models; where their block sizes differ the coarsest is charged."""
    return max((spec.limits.kv_block_tokens for spec in specs), default=1)


def _load_for(length_class: LengthClass) -> Callable[[Engine], tuple[int, int, int]]:
    """Order engines for a request: longs packed where a long already prefills, else least prefill, then slots."""

    def load(engine: Engine) -> tuple[int, int, int]:
        ledger = engine.ledger
        prefill = ledger.prefill_tokens(LengthClass.SHORT) + ledger.prefill_tokens(LengthClass.LONG)
        packed = -ledger.used(Budget.LONG_PREFILLS) if length_class is LengthClass.LONG else 0
        return packed, prefill, ledger.used(Budget.SLOTS)

    return load


def _snapshot(engine: Engine) -> EngineSnapshot:
    ledger = engine.ledger
    return EngineSnapshot(
        up=engine.up,
        running=ledger.running(),
        prefill_tokens={length: ledger.prefill_tokens(length) for length in LengthClass},
        long_prefills=ledger.used(Budget.LONG_PREFILLS),
        slots=ledger.used(Budget.SLOTS),
        kv_reserved_tokens=ledger.used(Budget.KV_TOKENS),
        budgets=ledger.budgets(),
    )
