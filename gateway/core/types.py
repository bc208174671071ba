"""The words of admission: who asks, how large the request is, why it was refused, how it ended, what is seen of it.

Owns the closed enums and the frozen records that every other room passes around. Knows no policy and no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class LengthClass(StrEnum):
    """How long a prompt is, by tokens after the chat template."""

    SHORT = "short"
    LONG = "long"

    __hash__ = str.__hash__  # Enum's own is a Python call on every dict access


# As plain names: on Python 3.11 an enum's member is found at the cost of several calls.
SHORT, LONG = LengthClass


class Resource(StrEnum):
    """What a queue bound or a budget is counted in, as `details.resource` says it."""

    REQUESTS = "requests"
    PROMPT_TOKENS = "prompt_tokens"
    BYTES = "bytes"
    RUNNING = "running"


class Reason(StrEnum):
    """Why the gateway itself answered instead of the engine: the closed set of `x-gateway-reason`."""

    UNAUTHENTICATED = "unauthenticated"
    NOT_ALLOWED = "not_allowed"
    BAD_REQUEST = "bad_request"
    CONTEXT_LENGTH = "context_length"
    BODY_TOO_LARGE = "body_too_large"
    UNKNOWN_MODEL = "unknown_model"
    UNKNOWN_ROUTE = "unknown_route"
    QUEUE_FULL = "queue_full"
    TENANT_QUEUE_FULL = "tenant_queue_full"
    WAIT_DEADLINE = "wait_deadline"
    PREDICTED_MISS = "predicted_miss"
    NO_ENGINE = "no_engine"
    DRAINING = "draining"
    OVERLOADED = "overloaded"
    ENGINE_UNREACHABLE = "engine_unreachable"
    ENGINE_BROKEN = "engine_broken"
    ENGINE_TIMEOUT = "engine_timeout"


class Outcome(StrEnum):
    """How an offered request ended; every one ends in exactly one of these (CONTRACT: gateway_requests_total)."""

    COMPLETED = "completed"
    REFUSED = "refused"
    EXPIRED = "expired"
    CLIENT_GONE = "client_gone"
    ENGINE_ERROR = "engine_error"
    TIMED_OUT = "timed_out"


COMPLETED, _, _, CLIENT_GONE, _, TIMED_OUT = Outcome


class WaitOutcome(StrEnum):
    """How a wait in line ended (label of gateway_queue_wait_seconds)."""

    DISPATCHED = "dispatched"
    EXPIRED = "expired"
    REFUSED = "refused"
    CLIENT_GONE = "client_gone"


class FallbackReason(StrEnum):
    """Why an engine gets long prompts whole where the plan has them computed in parts."""

    NO_PREFIX_CACHING = "no_prefix_caching"
    FAILED = "failed"
    NOT_CACHED = "not_cached"


@dataclass(frozen=True, slots=True)
class Identity:
    """An authenticated caller. `models` is None where every model of the gateway is allowed."""

    key_id: str
    service_class: str
    tenant: str
    models: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of one request as the engine will see it.

    prompt_tokens: sum over all prompts of the request, after the chat template.
    longest_prompt_tokens: the longest single prompt; it decides the length class.
    output_tokens_stated: what the caller asked for, per sequence; None where the field is absent.
    output_tokens_default: what the engine would use where the caller stated nothing; None: all the context left; 0:
    nothing is generated, whatever is stated.
    sequences: how many sequences the engine will run (prompts x n).
    body_bytes: bytes of the body that a waiting request keeps in memory.
    is_exact: whether the prompt's tokens are those that the engine will count, not an estimate of them.
    """

    prompt_tokens: int
    longest_prompt_tokens: int
    output_tokens_stated: int | None
    output_tokens_default: int | None
    sequences: int
    body_bytes: int
    stream: bool
    is_exact: bool = True


@dataclass(frozen=True, slots=True)
class Refusal:
    """The gateway's own answer, as a value: rendered per dialect by gateway.wire.refusals.

    code and param override the row's own `error.code` and `error.param`; the numbers fill `details`.
    """

    reason: Reason
    message: str
    code: str | None = None
    param: str | None = None
    resource: Resource | None = None
    limit: float | None = None
    observed: float | None = None
    waited_s: float | None = None
    retry_after_s: float | None = None

    def completed(self, waited_s: float, retry_after_s: float) -> Refusal:
        """Return the refusal as it is told: how long the request waited, and when another try may be worth it."""
        return Refusal(
            self.reason,
            self.message,
            code=self.code,
            param=self.param,
            resource=self.resource,
            limit=self.limit,
            observed=self.observed,
            waited_s=waited_s,
            retry_after_s=retry_after_s,
        )


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What one engine can hold. None: not known, or without bound.

    max_num_batched_tokens, long_prefill_token_threshold, max_num_seqs: vLLM's own flags; kv_tokens: KV-cache size.
    prefix_caching: whether it keeps what it computed of a prefix.
    """

    max_num_batched_tokens: int | None = None
    long_prefill_token_threshold: int | None = None
    max_num_seqs: int | None = None
    kv_tokens: int | None = None
    kv_block_tokens: int = 16
    prefix_caching: bool | None = None

    @property
    def step_tokens(self) -> int:
        """Tokens of one whole step: vLLM's default for a server without a large GPU where it is not known."""
        return self.max_num_batched_tokens or 2048

    @property
    def chunk_tokens(self) -> int:
        """What one step computes of a prompt that shares the engine with others."""
        return min(self.long_prefill_token_threshold or self.step_tokens, self.step_tokens)


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One engine as admission knows it: a name and its limits. Routing by URL is the shell's.

    up: whether it takes work from the moment it is added; of an engine that is there already `set_up` decides.
    weight: its share of its pool's requests where the weights differ; 0: it takes nothing new.
    """

    name: str
    limits: EngineLimits = field(default_factory=EngineLimits)
    up: bool = True
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What an engine says of itself at one moment, whoever sent it the work. Nothing of it is needed.

    sequences: running and waiting inside. waiting_for_room: of these, for sequences or KV blocks.
    preemptions: since the engine's start.
    """

    sequences: int
    waiting_for_room: int
    preemptions: int


@dataclass(frozen=True, slots=True)
class LineSnapshot:
    """What waits now for one (service class, length class)."""

    requests: int
    prompt_tokens: int
    body_bytes: int
    oldest_offered_at: float | None


@dataclass(frozen=True, slots=True)
class CourseSnapshot:
    """One long prompt under way in parts. part: the one at the engine or next, of `parts` as it looks now.

    held_since: put aside for shorts since then, None: a part is at the engine, or the engine is being asked.
    """

    service_class: str
    prompt_tokens: int
    done_tokens: int
    part: int
    parts: int
    held_since: float | None
    recalls: int


@dataclass(frozen=True, slots=True)
class DividingSnapshot:
    """Whether long prompts go to an engine in parts now. reason: why they go whole, None: they do not.

    since, tries_at: when that began, and when one is tried in parts again; None: not by time alone.
    """

    mode: str
    reason: FallbackReason | None
    since: float | None
    tries_at: float | None
    courses: tuple[CourseSnapshot, ...]


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """One engine's ledger now, and the caps it is held against. Cap None: without bound.

    dividing: None where the plan has long prompts computed whole.
    """

    up: bool
    running: Mapping[tuple[str, LengthClass], int]
    prefill_tokens: Mapping[LengthClass, int]
    long_prefills: int
    slots: int
    kv_reserved_tokens: int
    budgets: Mapping[str, int]
    weight: float = 1.0
    dividing: DividingSnapshot | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One pool at one instant, derived from the containers; what metrics, status and tests read."""

    lines: Mapping[tuple[str, LengthClass], LineSnapshot]
    engines: Mapping[str, EngineSnapshot]
    draining: bool
