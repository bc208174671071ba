"""One request inside admission: its assignment, its ticket, and the events that say what became of it.

Owns the life of a ticket, WAITING → RUNNING → ENDED, as records; Admission alone changes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gateway.core.plan import ClassPlan, Plan
from gateway.core.types import LengthClass, Outcome, Refusal


@dataclass(frozen=True, slots=True)
class Assignment:
    """One classified request, pinned to the plan it was judged by.

    prompt_tokens: sum over prompts. kv_tokens: KV-cache tokens to reserve in all, whole blocks not yet rounded.
    wait_s_max: longest wait in line, seconds; a caller's own shorter wish is already in it.
    output_tokens_set: the output limit to write into the request, or None to leave it as it is.
    """

    plan: Plan
    class_plan: ClassPlan
    tenant: str
    length_class: LengthClass
    prompt_tokens: int
    longest_prompt_tokens: int
    output_tokens_max: int
    sequences: int
    kv_tokens: int
    body_bytes: int
    wait_s_max: float
    stream: bool
    output_tokens_set: int | None = None

    @property
    def service_class(self) -> str:
        return self.class_plan.name


Needs = tuple[LengthClass, int, int, int]
"""What a request takes of its length class's budgets: (length class, prefill, sequences, KV tokens)."""


@dataclass(eq=False, slots=True)
class Ticket:
    """One request inside admission, from offer to its single end. Changed by Admission alone.

    deadline: of the wait, seconds since the epoch. predicted_wait_s: at offer; None: no prediction.
    cost: engine seconds it was charged in fair queueing.
    prefill_s: its own prefill as predicted at dispatch, seconds.
    """

    id: int
    assignment: Assignment
    offered_at: float
    deadline: float
    state: TicketState
    needs: Needs = (LengthClass.SHORT, 0, 0, 0)
    engine: str | None = None
    dispatched_at: float | None = None
    first_token_at: float | None = None
    predicted_wait_s: float | None = None
    cost: float = 0.0
    prefill_s: float = 0.0
    requeues: int = 0


class TicketState(StrEnum):
    """WAITING in line → RUNNING at an engine → ENDED. An engine's own 429/503 leads back from RUNNING to WAITING."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Queued:
    """The ticket waits in line: it joined just now, or came back to the head because its engine refused it."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Dispatched:
    """The ticket's budgets are charged on `engine`: send it now, with `priority` (int64, lower is sooner)."""

    ticket: Ticket
    engine: str
    priority: int
    waited_s: float


@dataclass(frozen=True, slots=True)
class Refused:
    """The ticket ended without an engine: outcome REFUSED (queue full, drain …) or EXPIRED (its wait deadline).

    `waited_s` is 0 where it never waited.
    """

    ticket: Ticket
    refusal: Refusal
    waited_s: float
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class FirstToken:
    """The engine's first token for a dispatched ticket: its prefill charge has gone back."""

    ticket: Ticket
    engine_ttft_s: float


@dataclass(frozen=True, slots=True)
class Finished:
    """A ticket ended by its own end (not by Refused): all its charges have gone back.

    waited_s: seconds in line, where it left while it waited; None where it was at an engine.
    """

    ticket: Ticket
    outcome: Outcome
    waited_s: float | None


Event = Queued | Dispatched | Refused | FirstToken | Finished
