"""Who takes part in a simulation: callers, what becomes of them, and the engines at work.

Owns the records, and of each engine what is at it now. Knows no Admission: who is sent where is `virtual_pool`'s.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field

from bench.simulation.steps import EngineRequest, Step
from bench.simulation.virtual_engine import VirtualEngine
from gateway.core.ticket import Ticket
from gateway.core.types import EngineLoad, LengthClass, Outcome, Reason

NEVER_S = float("-inf")
RUN_STEPS_MAX = 256


@dataclass(frozen=True, slots=True)
class Caller:
    """One request to come. at_s: after the start. leaves_after_s: its client goes away then, if it still waits or runs.

    is_bad: an engine refuses it as soon as it is judged. priority: sent to the engine instead of the plan's.
    """

    at_s: float
    prompt_tokens: int
    output_tokens: int = 32
    service_class: str = "interactive"
    tenant: str = "acme"
    leaves_after_s: float | None = None
    is_bad: bool = False
    priority: int | None = None


class Answer:
    """What became of one caller. late: not wholly prefilled in the first step scheduled after it reached the engine.

    computed_tokens: that engines scheduled for it, over all its parts.
    """

    __slots__ = ("caller", "computed_tokens", "ended_at", "engine", "first_token_at", "late", "outcome")

    def __init__(self, caller: Caller, engine: str | None = None) -> None:
        self.caller = caller
        self.engine = engine
        self.first_token_at: float | None = None
        self.ended_at: float | None = None
        self.outcome: Outcome | None = None
        self.late = False
        self.computed_tokens = 0


class Fate(Answer):
    """What became of one request inside admission.

    sent: of a divided prompt the parts that went, by their prefixes; None: the request itself.
    """

    __slots__ = ("priority", "reason", "recalls", "sent", "ticket", "waited_s")

    def __init__(self, caller: Caller, ticket: Ticket) -> None:
        super().__init__(caller)
        self.ticket = ticket
        self.waited_s: float | None = None
        self.priority = 0
        self.reason: Reason | None = None
        self.sent: list[int | None] = []
        self.recalls = 0

    @property
    def length(self) -> LengthClass:
        return self.ticket.assignment.length_class

    @property
    def engine_ttft_s(self) -> float:
        assert self.first_token_at is not None
        assert self.ticket.dispatched_at is not None
        return self.first_token_at - self.ticket.dispatched_at


class Sender(ABC):
    """Whoever sends requests to engines, and hears what becomes of them."""

    @abstractmethod
    def first_token(self, part: Part) -> None:
        """Hear of a request's first token."""

    @abstractmethod
    def ended(self, part: Part) -> None:
        """Hear that a request has its last token."""


class Part:
    """One request at an engine. prefix_tokens: it computes so much of a prompt; None: it is the caller's own."""

    __slots__ = ("fate", "prefix_tokens", "request", "sender")

    def __init__(self, sender: Sender, fate: Answer, request: EngineRequest, prefix_tokens: int | None = None) -> None:
        self.sender = sender
        self.fate = fate
        self.request = request
        self.prefix_tokens = prefix_tokens


@dataclass(frozen=True, slots=True)
class Run:
    """Steps that are alike, taken as one. ends: of those that were in flight at its start, and of its own."""

    ends: list[float]
    steps: int

    @property
    def over_at(self) -> float:
        """When the step after its last has to be scheduled."""
        return self.ends[self.steps - 1]


@dataclass(eq=False, slots=True)
class Post:
    """One engine at work: the steps in flight, and what is to be told it at the next step border.

    run: steps that the engine has not been told of yet; none is in in_flight meanwhile. epoch: of its
    process; what was under way in another is lost. cut_at: when something was aborted here last.
    """

    name: str
    engine: VirtualEngine
    batches_in_flight: int
    up: bool = True
    in_flight: deque[tuple[Step, float]] = field(default_factory=deque)
    run: Run | None = None
    aborts: list[int] = field(default_factory=list)
    unseen: list[Part] = field(default_factory=list)
    parts: dict[int, Part] = field(default_factory=dict)
    tickets: dict[Ticket, None] = field(default_factory=dict)
    epoch: int = 0
    cut_at: float = NEVER_S

    def lose(self, fresh: VirtualEngine) -> None:
        """Lose all that is at the engine; `fresh` is in its place, and cannot be reached yet."""
        for request_id in list(self.parts):
            self.let_go(request_id)
        self.engine, self.up = fresh, False
        self.epoch += 1
        self.in_flight.clear()
        self.run = None
        self.aborts.clear()
        self.unseen.clear()

    @property
    def load(self) -> EngineLoad:
        """What the engine's metrics say now. Who came after the last step was scheduled does not wait for room."""
        engine = self.engine
        waiting = max(0, len(engine.waiting) - len(self.unseen))
        return EngineLoad(len(engine.running) + len(engine.waiting), waiting, engine.preemptions)

    def may_run(self) -> int:
        """Return how many steps can be taken as one from here on; 0: they have to be looked at one by one."""
        if self.unseen or len(self.in_flight) != self.batches_in_flight - 1:
            return 0
        for step, _ in self.in_flight:
            if step.first_tokens or step.ended:
                return 0
        steps = min(self.engine.steps_alike(), RUN_STEPS_MAX)
        return steps if steps > 1 else 0

    def begin_run(self, now: float, steps: int) -> Run:
        flying = [ends_at for _, ends_at in self.in_flight]
        self.run = Run([*flying, *self.engine.ends_alike(max(now, self.free_at), steps)], steps)
        self.in_flight.clear()
        return self.run

    def end_run(self, now: float) -> int:
        """Tell the engine of the steps of a run that have begun until now; return how many. None runs: 0."""
        run, self.run = self.run, None
        if run is None:
            return 0
        ended = bisect_right(run.ends, now)
        begun = min(ended + 1, run.steps)
        in_flight = run.ends[ended : begun + len(run.ends) - run.steps]
        self.in_flight.extend(zip(self.engine.run_alike(begun, ended), in_flight, strict=True))
        return begun

    def let_go(self, request_id: int) -> Part | None:
        """Have nothing more to do with a request here; None where that was so already."""
        part = self.parts.pop(request_id, None)
        if part is not None:
            self.engine.look_at(part.request)
            part.fate.computed_tokens += part.request.worked_tokens
        return part

    def see(self, step: Step) -> None:
        """Take note of whether a step computes all of each request that is new."""
        for part in self.unseen:
            if part.request.id in self.parts:
                part.fate.late = step.tokens.get(part.request.id, 0) < part.request.prompt_tokens
        self.unseen.clear()

    def cross_border(self) -> None:
        for request_id in self.aborts:
            self.engine.abort(request_id)
        self.aborts.clear()

    @property
    def has_room(self) -> bool:
        """Whether another step may be scheduled now."""
        return self.run is None and len(self.in_flight) < self.batches_in_flight

    @property
    def free_at(self) -> float:
        """When the steps in flight have run; the past where none is."""
        return self.in_flight[-1][1] if self.in_flight else 0.0
