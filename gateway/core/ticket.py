"""One request inside admission: its assignment, its ticket, and the events that say what became of it.

Owns the life of a ticket, WAITING → RUNNING → ENDED, as records; Admission alone changes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from gateway.core.plan import ClassPlan, Plan
from gateway.core.tenants import Tenant
from gateway.core.types import FallbackReason, LengthClass, Outcome, Refusal


@dataclass(frozen=True, slots=True)
class Assignment:
    """One classified request, pinned to the plan it was judged by.

    prompt_tokens: sum over prompts. kv_tokens: KV-cache tokens to reserve in all, whole blocks not yet rounded.
    wait_s_max: longest wait in line, seconds; a caller's own shorter wish is already in it.
    output_tokens_set: the output limit to write into the request, or None to leave it as it is.
    fingerprint: a hash of the body, to know a refused request again; None: it is not looked for.
    says_retry: the caller's own word that this is not its first try.
    is_divisible: its prompt may be computed in parts, where the plan does so.
    engine: the only one that can serve it, which keeps what it goes on from; None: any of the pool.
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
    fingerprint: int | None = None
    says_retry: bool = False
    is_divisible: bool = False
    engine: str | None = None

    @property
    def service_class(self) -> str:
        return self.class_plan.name


Needs = tuple[int, int, int, int]
"""What a request takes of its length class's budgets: (1 for a long and 0 for a short, prefill, sequences, KV)."""


class Forecast(NamedTuple):
    """What was expected of a ticket's line at its offer: work a second; moved_s: what had left the line by then."""

    work_per_s: float
    moved_s: float

    def ratio(self, waited_s: float, moved_s: float, cost_s: float) -> float:
        """Return how much longer work took than was expected; cost_s: so much of it counts at least."""
        return waited_s * self.work_per_s / max(moved_s - self.moved_s, cost_s)


class TicketState(StrEnum):
    """WAITING in line → RUNNING at an engine → ENDED. An engine's own 429/503 leads back from RUNNING to WAITING."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


# As plain names: on Python 3.11 an enum's member is found at the cost of several calls.
WAITING, RUNNING, ENDED = TicketState


class Ticket:
    """One request inside admission, from offer to its single end. Changed by Admission alone.

    backlog, class_backlog: of its length class, what waits of its tenant, and of all tenants of its service class.
    is_long: 1 or 0, the place of its length class wherever there are two.
    deadline: of the wait, seconds since the epoch. cost_s: predicted engine seconds, what fair queueing charges.
    prefill_s: its own prefill as predicted at dispatch, seconds. forecast: at offer; None: none was made.
    beside_long: dispatched while the engine had a long prompt in prefill. is_repeat: of a request that was refused.
    """

    __slots__ = (
        "assignment",
        "backlog",
        "beside_long",
        "class_backlog",
        "cost_s",
        "deadline",
        "dispatched_at",
        "engine",
        "first_token_at",
        "forecast",
        "id",
        "is_long",
        "is_repeat",
        "needs",
        "offered_at",
        "prefill_s",
        "requeues",
        "state",
        "tenant",
    )

    def __init__(self, number: int, assignment: Assignment, tenant: Tenant, needs: Needs, offered_at: float) -> None:
        is_long = needs[0]
        self.id = number
        self.assignment = assignment
        self.tenant = tenant
        self.backlog = tenant.backlogs[is_long]
        self.class_backlog = tenant.class_backlogs[is_long]
        self.offered_at = offered_at
        self.deadline = offered_at + assignment.wait_s_max
        self.state = WAITING
        self.needs = needs
        self.is_long = is_long
        self.cost_s = 0.0
        self.engine: str | None = None
        self.dispatched_at: float | None = None
        self.first_token_at: float | None = None
        self.forecast: Forecast | None = None
        self.prefill_s = 0.0
        self.beside_long = False
        self.is_repeat = False
        self.requeues = 0

    @property
    def kv_tokens(self) -> int:
        """What it takes of the KV cache, in whole blocks."""
        return self.needs[3]


class SliceResult(StrEnum):
    """What became of one slice: the closed label of gateway_slices_total.

    CANCELLED: its request left. FALLBACK: none was sent, because the engine's cache does not carry slices now.
    """

    COMPUTED = "computed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    FALLBACK = "fallback"


@dataclass(slots=True)
class Queued:
    """The ticket waits in line: it joined just now, or came back to the head because its engine refused it."""

    ticket: Ticket


@dataclass(slots=True)
class Dispatched:
    """The ticket's budgets are charged on `engine`: send it now, with `priority` (int64, lower is sooner).

    divided: not at once; `Proceed` says what of it, of a prompt in slices once `Admission.accepted` was told.
    """

    ticket: Ticket
    engine: str
    priority: int
    waited_s: float
    divided: bool = False


@dataclass(slots=True)
class Proceed:
    """Send a divided prompt's next part: its first `prefix_tokens`; None: the request itself, as the caller sent it."""

    ticket: Ticket
    prefix_tokens: int | None


@dataclass(slots=True)
class Recalled:
    """Take the request back from its engine, now, and wait for `Proceed`: a short one has come."""

    ticket: Ticket


@dataclass(slots=True)
class SliceEnded:
    """One slice of a divided prompt has come to its end, in whatever way."""

    ticket: Ticket
    result: SliceResult


@dataclass(slots=True)
class DividingChanged:
    """With this ticket an engine began to get long prompts whole, for a reason; None: in parts again."""

    ticket: Ticket
    engine: str
    reason: FallbackReason | None


@dataclass(slots=True)
class Refused:
    """The ticket ended without an engine: outcome REFUSED (queue full, drain …) or EXPIRED (its wait deadline).

    `waited_s` is 0 where it never waited.
    """

    ticket: Ticket
    refusal: Refusal
    waited_s: float
    outcome: Outcome


@dataclass(slots=True)
class FirstToken:
    """The engine's first token for a dispatched ticket: its prefill charge has gone back."""

    ticket: Ticket
    engine_ttft_s: float


@dataclass(slots=True)
class Finished:
    """A ticket ended by its own end (not by Refused): all its charges have gone back.

    waited_s: seconds in line, where it left while it waited; None where it was at an engine.
    output_tokens: what the engine generated, over all sequences; None: not known.
    """

    ticket: Ticket
    outcome: Outcome
    waited_s: float | None
    output_tokens: int | None = None


Event = Queued | Dispatched | Proceed | Recalled | SliceEnded | DividingChanged | Refused | FirstToken | Finished
