"""A policy after compilation: frozen, complete, without defaults left to guess.

Owns the shape of a plan; gateway.policy.compile makes one from YAML. Limits say their unit last.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from gateway.core.types import LengthClass


class OrderKind(StrEnum):
    ARRIVAL = "arrival"
    STRICT_PRIORITY = "strict_priority"
    WEIGHTED_FAIR = "weighted_fair"
    EARLIEST_DEADLINE = "earliest_deadline"


class AdmissionKind(StrEnum):
    """none: no gate, counts only. slots: slots.total alone. token_budget: every budget of the ledger."""

    NONE = "none"
    SLOTS = "slots"
    TOKEN_BUDGET = "token_budget"


class NonStreamRelease(StrEnum):
    """When a non-streaming request gives its prefill charge back: at its first body byte, or as the model predicts."""

    LAST_BYTE = "last_byte"
    ESTIMATE = "estimate"


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """Bounds of one service class's waiting requests; 0 requests: dispatch now or refuse.

    newest_first_in_overload: while a tenant's oldest has waited half its limit its newest goes first, and where the
    queue is full the oldest gives way.
    """

    requests_max: int
    prompt_tokens_max: int
    bytes_max: int
    newest_first_in_overload: bool = False


@dataclass(frozen=True, slots=True)
class TenantBounds:
    """Bounds of one tenant inside its service class; None: no bound of its own."""

    queued_requests_max: int | None = None
    running_max: int | None = None


@dataclass(frozen=True, slots=True)
class Slo:
    """Objectives of one length class, milliseconds; None: not an objective."""

    ttft_ms: float | None = None
    stall_ms: float | None = None
    e2e_ms: float | None = None


@dataclass(frozen=True, slots=True)
class ClassPlan:
    """One service class. rank: 0 is the first class of the policy in priority (highest weight, then name).

    output_tokens_max: of one sequence; None: what the engine allows.
    """

    name: str
    rank: int
    weight: float
    queue: QueueBounds
    wait_s_max: Mapping[LengthClass, float]
    tenant: TenantBounds
    output_tokens_max: int | None
    slo: Mapping[LengthClass, Slo]


@dataclass(frozen=True, slots=True)
class SlotBudget:
    """Sequences at one engine. Each length class may use all but the other's reserve."""

    total: int
    short_reserve: int = 0
    long_reserve: int = 0


@dataclass(frozen=True, slots=True)
class KvBudget:
    """KV-cache tokens kept free for each length class. A plan without it keeps the share that the slot reserves are."""

    short_reserve_tokens: int = 0
    long_reserve_tokens: int = 0


class LongPrefillMode(StrEnum):
    """How a long prompt makes way: computed as growing prefixes, or taken back for shorts and sent again."""

    SLICED = "sliced"
    RECALLED = "recalled"


@dataclass(frozen=True, slots=True)
class LongPrefill:
    """How long prompts make way for short ones. slice_s: aimed time of one slice, seconds.

    hold_max_s: longest that a prompt is put aside at once, seconds; None: from its own deadline.
    """

    mode: LongPrefillMode
    slice_s: float
    hold_max_s: float | None
    recalls_max: int


@dataclass(frozen=True, slots=True)
class AdmissionPlan:
    """The budgets of each engine. None: that budget does not bind; of long_prefill: a long is computed whole."""

    kind: AdmissionKind
    long_prefills_max: int | None
    short_prefill_tokens_max: int | None
    slots: SlotBudget | None
    kv: KvBudget | None
    non_stream_release: NonStreamRelease
    long_prefill: LongPrefill | None = None


@dataclass(frozen=True, slots=True)
class EarlyRejection:
    """Refusing what would be late anyway, at this confidence, in (0, 1).

    purges: also at its dispatch, a short that would miss its class's time to first token; else at arrival alone, what
    would wait past its limit.
    """

    confidence: float
    purges: bool = False


@dataclass(frozen=True, slots=True)
class Feedback:
    """Steering of the long-prefill budget, between 1 and long_prefills_max, toward a short's time to first token."""

    short_ttft_ms: float


@dataclass(frozen=True, slots=True)
class RequestBounds:
    """Bounds of one request's own lists and multipliers."""

    sequences_max: int
    stop_max: int
    list_items_max: int


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole policy in force. sha256: over the policy file's bytes, hex.

    early_rejection: None: nothing is refused for being late before it is.
    feedback: None: long_prefills_max stands as it is.
    repeat_cost: what a repeat of a refused request counts for in fair queueing, times its cost; at least 1.
    """

    name: str
    sha256: str
    short_prompt_tokens_max: int
    classes: Mapping[str, ClassPlan]
    admission: AdmissionPlan
    order: OrderKind
    request: RequestBounds
    early_rejection: EarlyRejection | None = None
    feedback: Feedback | None = None
    repeat_cost: float = 1.0

    def length_class(self, longest_prompt_tokens: int) -> LengthClass:
        """Short while the longest prompt, counted after the chat template, is within the limit."""
        return LengthClass.SHORT if longest_prompt_tokens <= self.short_prompt_tokens_max else LengthClass.LONG
