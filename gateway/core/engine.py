"""One engine as admission sees it: its ledger, whether it takes work, and how long its prefills take.

Owns the charges that outlive their request (an abort takes effect at a step border) and those that end before it is
heard of (a whole answer's first byte comes long after its prefill). Chooses nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from gateway.core.estimate import Quantile
from gateway.core.feedback import LongControl
from gateway.core.lazy_heap import LazyHeap
from gateway.core.ledger import Budget, Ledger, caps_of
from gateway.core.plan import NonStreamRelease, Plan
from gateway.core.steptime import StepFit
from gateway.core.ticket import Assignment, Ticket, TicketState
from gateway.core.types import EngineSpec, LengthClass

_RELEASE_CONFIDENCE = 0.95
_STEPS_IN_FLIGHT = 2
_BELIEVED_RATIOS = (0.5, 3.0)


@dataclass(frozen=True, slots=True)
class LongPause:
    """The end of a pause between two longs at an engine."""

    engine: str


Due = Ticket | LongPause
"""What comes due by itself; both say their engine."""


class Engine:
    """paused_until: it gets nothing new before. retired: gone from the configuration, dropped once idle.

    `due` is the fleet's: what this engine puts there comes back through `settle` at its time.
    """

    __slots__ = (
        "_alone",
        "_chunk_tokens",
        "_control",
        "_due",
        "_long_pause",
        "_plan",
        "_ratios",
        "fit",
        "ledger",
        "limits",
        "name",
        "paused_until",
        "retired",
        "up",
    )

    def __init__(self, spec: EngineSpec, plan: Plan, due: LazyHeap[Due]) -> None:
        self.name = spec.name
        self.fit = StepFit()
        self.ledger = Ledger({})
        self.up = spec.up
        self.retired = False
        self.paused_until: float | None = None
        self._ratios = {length: Quantile() for length in LengthClass}
        self._alone: Ticket | None = None
        self._due = due
        self._control: LongControl | None = None
        self._long_pause: LongPause | None = None
        self.configure(spec, plan)

    def configure(self, spec: EngineSpec, plan: Plan) -> None:
        """Take the limits of `spec` and the budgets of `plan`; what was learned of the engine stays."""
        self.limits = spec.limits
        self._chunk_tokens = spec.limits.chunk_tokens
        self._plan = plan
        prefills_max = plan.admission.long_prefills_max
        if plan.feedback is None or prefills_max is None:
            self._control = None
            self._end_long_pause()
        else:
            self._control = self._control or LongControl()
            self._control.configure(prefills_max=prefills_max, ttft_s=plan.feedback.short_ttft_ms / 1000)
        self._set_caps()

    def lacking(self, ticket: Ticket) -> int:
        """Return the budgets that stand in the ticket's way, as a mask; 0: it can be sent now."""
        mask = self.ledger.lacking(ticket.needs)
        if self._long_pause is not None and ticket.needs[0] is LengthClass.LONG:
            mask |= 1 << Budget.LONG_PREFILLS
        return mask

    def cost_s(self, assignment: Assignment) -> float:
        """Predict the engine seconds that a request takes: its prefill, and what its decoding adds to the steps."""
        model, longest = self.fit.model, assignment.longest_prompt_tokens
        repeats = assignment.prompt_tokens / longest if longest else 0.0
        prefill_s = repeats * model.prefill_s(longest, self._chunk_tokens)
        return prefill_s + assignment.sequences * model.decode_s(assignment.output_tokens_max, longest)

    def take(self, ticket: Ticket, now: float) -> None:
        """Charge a ticket that is sent now."""
        self._alone = None if self.ledger.prefills else ticket
        self.ledger.charge(ticket)
        ticket.prefill_s = self.fit.model.prefill_s(ticket.assignment.prompt_tokens, self._chunk_tokens)
        if self._plan.admission.non_stream_release is NonStreamRelease.ESTIMATE and not ticket.assignment.stream:
            ratio = self._ratios[ticket.assignment.length_class].at(_RELEASE_CONFIDENCE)
            if ratio is not None:
                self._due.push(ticket, now + ratio * ticket.prefill_s)

    def first_token(self, ticket: Ticket, engine_ttft_s: float, now: float) -> None:
        """Give the prefill charge back, and learn from it where the prefill had the engine to itself."""
        self.ledger.release_prefill(ticket)
        self._due.discard(ticket)
        if ticket.assignment.stream:
            self._ratios[ticket.assignment.length_class].add(engine_ttft_s / ticket.prefill_s)
            if self._alone is ticket:
                self._learn(ticket, engine_ttft_s)
        if self._alone is ticket:
            self._alone = None
        if self._control is not None:
            self._steer(self._control, ticket, engine_ttft_s, now)

    def judge(self, now: float, *, longs_wait: bool) -> None:
        """Adjust the long-prefill budget to what shorts got, where the plan asks for it."""
        if self._control is not None and self._control.judge(now, longs_wait=longs_wait):
            self._set_caps()

    def leave(self, ticket: Ticket, now: float, *, cut: bool) -> None:
        """End a ticket's stay; `cut`: the gateway aborted it, so it holds its place until the steps in flight end."""
        self.ledger.left(ticket)
        self._due.discard(ticket)
        if self._alone is ticket:
            self._alone = None
        model = self.fit.model
        if model.fitted and cut:
            context = ticket.assignment.longest_prompt_tokens
            self._due.push(ticket, now + _STEPS_IN_FLIGHT * model.step_s(self._chunk_tokens, context))
        else:
            self.ledger.release(ticket)

    def settle(self, due: Due) -> None:
        """Give back what is due: the charge of a ticket that ended, the prefill charge of one that runs, a pause."""
        if isinstance(due, LongPause):
            self._long_pause = None
        elif due.state is TicketState.RUNNING:
            self.ledger.release_prefill(due)
        else:
            self.ledger.release(due)

    def _end_long_pause(self) -> None:
        if self._long_pause is not None:
            self._due.discard(self._long_pause)
            self._long_pause = None

    def _set_caps(self) -> None:
        caps = caps_of(self._plan.admission, self.limits)
        if self._control is not None:
            caps[Budget.LONG_PREFILLS] = self._control.allowance.prefills
        self.ledger.set_caps(caps)

    def _steer(self, control: LongControl, ticket: Ticket, engine_ttft_s: float, now: float) -> None:
        if ticket.assignment.length_class is LengthClass.SHORT:
            if ticket.assignment.stream and ticket.dispatched_at is not None:
                control.short_served(waited_s=ticket.dispatched_at - ticket.offered_at, engine_ttft_s=engine_ttft_s)
        else:
            pause_s = control.allowance.pause_s(engine_ttft_s)
            if pause_s > 0.0:
                self._long_pause = LongPause(self.name)
                self._due.push(self._long_pause, now + pause_s)

    def _learn(self, ticket: Ticket, engine_ttft_s: float) -> None:
        low, high = _BELIEVED_RATIOS
        if self.fit.model.fitted and not low <= engine_ttft_s / ticket.prefill_s <= high:
            return
        tokens = ticket.assignment.prompt_tokens
        # vLLM does not apply the threshold to a request that has the engine to itself.
        chunk = self.limits.step_tokens if len(self.ledger) == 1 else self._chunk_tokens
        self.fit.observe(prompt_tokens=tokens, steps=ceil(tokens / chunk), seconds=engine_ttft_s)
