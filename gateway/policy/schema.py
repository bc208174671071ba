"""A policy file as a model: every key, its unit, its bounds, its default and a sentence on what it does.

Owns what a policy may say, and so the JSON Schema. Decides nothing: gateway.policy.compile makes the plan.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from gateway.core.plan import NonStreamRelease, OrderKind
from gateway.strict_yaml import Name, Strict, problem

AMOUNT_MAX = 1 << 40
WAIT_S_MAX = 86_400
CLASSES_MAX = 64

Amount = Annotated[int, Field(ge=0, le=AMOUNT_MAX)]
AtLeastOne = Annotated[int, Field(ge=1, le=AMOUNT_MAX)]
WaitSeconds = Annotated[float, Field(ge=0, le=WAIT_S_MAX)]
Milliseconds = Annotated[float, Field(gt=0, le=WAIT_S_MAX * 1000)]


class ShortLength(Strict):
    prompt_tokens_max: Amount = Field(
        default=640, description="Longest prompt, in tokens after the chat template, that counts as short."
    )


class LongLength(Strict):
    """Every prompt that is not short."""


class LengthClasses(Strict):
    short: ShortLength = ShortLength()
    long: LongLength = LongLength()


class Queue(Strict):
    requests_max: Amount = Field(default=256, description="Waiting requests; 0: dispatch now or refuse.")
    prompt_tokens_max: Amount = Field(default=200_000, description="Prompt tokens of all that wait.")
    bytes_max: Amount = Field(default=67_108_864, description="Body bytes of all that wait.")
    newest_first_in_overload: bool = Field(
        default=False,
        description="Serve a tenant's newest first while its oldest has waited over half its limit; where the queue "
        "is full the oldest gives way.",
    )


class WaitLimits(Strict):
    short: WaitSeconds = Field(default=2, description="Longest wait of a short prompt, seconds; 0: now or never.")
    long: WaitSeconds = Field(default=30, description="Longest wait of a long prompt, seconds; 0: now or never.")


class PerTenant(Strict):
    queued_requests_max: Amount | None = Field(
        default=None, description="Waiting requests of one tenant; null: no bound of its own."
    )
    running_max: AtLeastOne | None = Field(
        default=None, description="Running requests of one tenant, others pass it; null: no bound."
    )


class Objectives(Strict):
    ttft_ms: Milliseconds | None = Field(default=None, description="Arrival to first token, milliseconds.")
    stall_ms: Milliseconds | None = Field(default=None, description="Longest gap in a stream, milliseconds.")
    e2e_ms: Milliseconds | None = Field(default=None, description="Arrival to last byte, milliseconds.")


class ClassObjectives(Strict):
    short: Objectives = Objectives()
    long: Objectives = Objectives()


class ServiceClass(Strict):
    weight: Annotated[float, Field(gt=0, le=1_000_000)] = Field(
        description="Share under weighted_fair, and rank (highest first) in priority."
    )
    queue: Queue = Queue()
    wait_s_max: WaitLimits = WaitLimits()
    per_tenant: PerTenant = PerTenant()
    output_tokens_max: AtLeastOne | None = Field(
        default=4096, description="Most output tokens of one sequence; null: what the engine allows."
    )
    slo: ClassObjectives = Field(
        default=ClassObjectives(),
        description="Objectives: counted; feedback, purge and hold_max_s: auto go by ttft_ms.",
    )


class TotalSlots(Strict):
    total: AtLeastOne = Field(default=128, description="Sequences at one engine; max_num_seqs where smaller.")


class ReservedSlots(TotalSlots):
    short_reserve: Amount = Field(default=32, description="Sequences that long prompts may not use.")
    long_reserve: Amount = Field(default=16, description="Sequences that short prompts may not use.")

    @model_validator(mode="after")
    def _leave_room(self) -> Self:
        if self.short_reserve + self.long_reserve > self.total:
            raise problem("holds reserves that are more than total", fix="Lower short_reserve or long_reserve")
        if self.total in {self.short_reserve, self.long_reserve}:
            raise problem("reserves every slot for one length class", fix="Leave at least 1 for the other")
        return self


class KvReserves(Strict):
    short_reserve_tokens: Amount = Field(default=0, description="KV-cache tokens that long prompts may not use.")
    long_reserve_tokens: Amount = Field(default=0, description="KV-cache tokens that short prompts may not use.")


def _auto_is_none(value: Any) -> Any:
    return None if value == "auto" else value


class LongPrefill(Strict):
    mode: Literal["whole", "sliced", "recalled"] = Field(
        default="whole", description="How a long prompt is computed: in one go, in slices, or put aside and sent again."
    )
    slice_ms: Milliseconds = Field(default=300, description="Aimed time of one slice, milliseconds.")
    hold_max_s: Annotated[
        WaitSeconds | None,
        BeforeValidator(_auto_is_none),
        WithJsonSchema({"anyOf": [{"const": "auto"}, {"type": "number", "minimum": 0, "maximum": WAIT_S_MAX}]}),
    ] = Field(default=None, description="Longest a long prompt is held back for short ones, seconds, or auto.")
    recalls_max: Amount = Field(default=8, description="How often one request may be put aside.")


class NoAdmission(Strict):
    """No gate: every request goes to the engine at once and is only counted."""

    kind: Literal["none"]


class SlotAdmission(Strict):
    """A number of sequences at each engine, whatever their length."""

    kind: Literal["slots"]
    slots: TotalSlots = TotalSlots()


class TokenBudgetAdmission(Strict):
    """Budgets of each engine in long prefills, short prefill tokens, sequences and KV cache."""

    kind: Literal["token_budget"] = "token_budget"
    long_prefills_max: AtLeastOne = Field(default=1, description="Long prompts in prefill at one engine.")
    short_prefill_tokens_max: AtLeastOne = Field(
        default=1024, description="Short prompts' tokens in prefill at one engine."
    )
    non_stream_release: NonStreamRelease = Field(
        default=NonStreamRelease.ESTIMATE,
        description="When a request without stream gives its prefill budget back: at the first byte of the answer, "
        "or earlier by estimate.",
    )
    slots: ReservedSlots = ReservedSlots()
    kv: KvReserves | None = Field(
        default=None, description="Null: of the KV cache the same shares are kept as slots keeps of the sequences."
    )
    long_prefill: LongPrefill = LongPrefill()


Admission = Annotated[NoAdmission | SlotAdmission | TokenBudgetAdmission, Field(discriminator="kind")]


class Order(Strict):
    kind: OrderKind = Field(
        default=OrderKind.WEIGHTED_FAIR, description="Which waiting request goes next when a budget is free."
    )


class EarlyRejection(Strict):
    enabled: bool = Field(default=True, description="Refuse at arrival what is predicted to miss wait_s_max.")
    confidence: Annotated[float, Field(gt=0, lt=1)] = Field(default=0.9, description="How sure the prediction must be.")
    purge: bool = Field(
        default=False,
        description="Refuse also, just before its dispatch, a short that would miss its class's slo.short.ttft_ms.",
    )


class AimdFeedback(Strict):
    kind: Literal["aimd"]
    target: Literal["short.ttft_ms"] = Field(
        default="short.ttft_ms", description="The objective that long_prefills_max is steered by."
    )


class NoFeedback(Strict):
    kind: Literal["none"] = "none"


Feedback = Annotated[AimdFeedback | NoFeedback, Field(discriminator="kind")]


class RequestLimits(Strict):
    sequences_max: AtLeastOne = Field(
        default=16, description="Sequences of one request: prompts times n; of an embedding batch its texts."
    )
    stop_max: Amount = Field(default=64, description="Stop strings of one request.")
    list_items_max: AtLeastOne = Field(default=1024, description="Items of any list in a request.")
    repeat_cost: Annotated[float, Field(ge=1, le=100)] = Field(
        default=1, description="What a request counts for under weighted_fair, times its cost, once it was refused."
    )


class Policy(Strict):
    """One policy: who waits how long, in which order, and what each engine is given at a time."""

    version: Literal[1] = Field(description="Version of this format.")
    name: Name = Field(description="The policy's name in metrics and in the status.")
    length_classes: LengthClasses = LengthClasses()
    service_classes: Annotated[dict[Name, ServiceClass], Field(min_length=1, max_length=CLASSES_MAX)] = Field(
        description="Who is served, by the class of the caller's key."
    )
    admission: Admission = TokenBudgetAdmission()
    order: Order = Order()
    early_rejection: EarlyRejection = EarlyRejection()
    feedback: Feedback = NoFeedback()
    request: RequestLimits = RequestLimits()

    @model_validator(mode="after")
    def _every_short_prompt_fits(self) -> Self:
        short_max = self.length_classes.short.prompt_tokens_max
        admission = self.admission
        if isinstance(admission, TokenBudgetAdmission) and admission.short_prefill_tokens_max < short_max:
            raise problem(
                f"is below the longest short prompt ({short_max})",
                fix=f"Give {short_max} or more, or lower length_classes.short.prompt_tokens_max",
                at="admission.short_prefill_tokens_max",
            )
        return self
