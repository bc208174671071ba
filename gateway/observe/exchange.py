"""One offered request from its head to its single end, as accounting and the log see it.

Owns the phase of every request that has not ended. A request is in exactly one phase at any instant, and leaves the
set of the living at the instant in which its outcome is counted: so offered = outcomes + receiving + waiting + running
whenever it is looked at. Never decides anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from gateway.core.standing import Ahead
from gateway.core.ticket import Assignment
from gateway.core.types import Identity, LengthClass, Outcome, Reason, Refusal

if TYPE_CHECKING:
    from gateway.observe.tracing import Trace

UNKNOWN = "none"  # a label that is not known (yet)


class Phase(StrEnum):
    """RECEIVING: body, count. WAITING and RUNNING: as admission says. ENDED: its outcome is counted."""

    RECEIVING = "receiving"
    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


class Labels(NamedTuple):
    """The common labels of CONTRACT 5, each from a closed set."""

    service_class: str = UNKNOWN
    length_class: str = UNKNOWN
    pool: str = UNKNOWN


NO_LABELS = Labels()


@dataclass(eq=False, slots=True)
class Exchange:
    """One request on a generation route. Times are seconds since the epoch, durations seconds.

    counted_prompt_tokens: the gateway's own count, by counting_method. prompt_tokens, output_tokens: the engine's
    `usage`. usage_told: called with the engine's prompt tokens, for whoever counted them. sliced: whether a slice of
    its prompt was computed before it. stood, stood_at_end: what stood in its way when it joined its line, or was
    refused, and when its wait ended without an engine. refusal: the last answer of the gateway itself.
    cut: ends the request and tells its caller why, while it lives.
    trace: where tracing is on, until the request is settled.
    """

    request_id: str
    route: str
    arrived_at: float
    labels: Labels = NO_LABELS
    phase: Phase = Phase.RECEIVING
    identity: Identity | None = None
    caller_request_id: str | None = None
    assignment: Assignment | None = None
    stream: bool | None = None
    engine: str | None = None
    waiting_since: float | None = None
    dispatched_at: float | None = None
    first_token_at: float | None = None
    last_chunk_at: float | None = None
    longest_stall_s: float | None = None
    waited_s: float | None = None
    counted_prompt_tokens: int | None = None
    counting_method: str = ""
    stood: Ahead | None = None
    stood_at_end: Ahead | None = None
    refusal: Refusal | None = None
    usage_told: Callable[[int], None] | None = None
    cut: Callable[[Refusal], None] | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    sliced: bool = False
    requeues: int = 0
    status: int | None = None
    reason: Reason | None = None
    outcome: Outcome | None = None
    ended_at: float | None = None
    trace: Trace | None = None

    @property
    def length_class(self) -> LengthClass | None:
        """How long its prompt is; None until that is counted."""
        return None if self.labels.length_class == UNKNOWN else LengthClass(self.labels.length_class)

    @property
    def sampled_trace_id(self) -> str | None:
        """The id of its trace, where that can be looked up."""
        return None if self.trace is None else self.trace.sampled_id


@dataclass(eq=False, slots=True)
class Aside:
    """One request that takes no engine time, from its head to its end. engine: that was asked; None: none was.

    route: None where there is no such route. refusal: the gateway's own answer, where that was one.
    """

    request_id: str
    route: str | None
    arrived_at: float
    service_class: str = UNKNOWN
    engine: str | None = None
    status: int | None = None
    refusal: Refusal | None = None
    ended_at: float | None = None


class Exchanges:
    """Every request that was offered and has not ended."""

    def __init__(self) -> None:
        self._alive: set[Exchange] = set()
        self._by_assignment: dict[int, Exchange] = {}

    def __len__(self) -> int:
        return len(self._alive)

    def __iter__(self) -> Iterator[Exchange]:
        return iter(self._alive)

    def open(self, exchange: Exchange) -> None:
        self._alive.add(exchange)

    def assigned(self, exchange: Exchange, assignment: Assignment, pool: str) -> None:
        """Let core events about this assignment find the request; the exchange keeps the assignment alive."""
        exchange.assignment = assignment
        exchange.labels = Labels(assignment.service_class, assignment.length_class.value, pool)
        self._by_assignment[id(assignment)] = exchange

    def of(self, assignment: Assignment) -> Exchange:
        return self._by_assignment[id(assignment)]

    def close(self, exchange: Exchange, outcome: Outcome, now: float) -> None:
        assert exchange.phase is not Phase.ENDED, "a request ends once"
        exchange.phase, exchange.outcome, exchange.ended_at = Phase.ENDED, outcome, now
        self._alive.discard(exchange)
        if exchange.assignment is not None:
            del self._by_assignment[id(exchange.assignment)]

    def in_phase(self, phase: Phase) -> Counter[Labels]:
        """Count the living by labels, from the living themselves."""
        return Counter(exchange.labels for exchange in self._alive if exchange.phase is phase)
