"""One engine as admission sees it: its ledger, whether it takes work, and how long its prefills take.

Owns the charges that outlive their request (an abort takes effect at a step border) and those that end before it is
heard of (a whole answer's first byte comes long after its prefill). Chooses nothing; its long prompts in parts are
`parts`' own.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from gateway.core.drift import Drift
from gateway.core.dues import Due, FirstTokens, HoldEnd, LongPause
from gateway.core.estimate import Quantile
from gateway.core.feedback import LongControl
from gateway.core.lazy_heap import LazyHeap
from gateway.core.ledger import EVERYTHING, NO_LONG_PREFILL, Budget, Ledger, caps_of
from gateway.core.parts import Parts
from gateway.core.plan import Plan
from gateway.core.steptime import Fit, PrefillSample, StepFit
from gateway.core.ticket import RUNNING, Assignment, Event, Ticket
from gateway.core.types import SHORT, DividingSnapshot, EngineLoad, EngineSpec

_STEPS_IN_FLIGHT = 2


class Engine:
    """paused_until: it gets nothing new before. retired: gone from the configuration, dropped once idle.

    `due` is the fleet's: what this engine puts there comes back through `settle` at its time.
    """

    __slots__ = (
        "_alone",
        "_chunk_tokens",
        "_control",
        "_drift",
        "_due",
        "_long_pause",
        "_plan",
        "_short_ttfts_s",
        "first_tokens",
        "fit",
        "ledger",
        "limits",
        "name",
        "parts",
        "paused_until",
        "retired",
        "up",
        "weight",
    )

    def __init__(self, spec: EngineSpec, plan: Plan, due: LazyHeap[Due]) -> None:
        self.name = spec.name
        self.fit: Fit = StepFit()
        self.ledger = Ledger({})
        self.first_tokens = FirstTokens(due)
        self.parts = Parts(spec.name, self.ledger, self.first_tokens, due)
        self.up = spec.up
        self.retired = False
        self.paused_until: float | None = None
        self._short_ttfts_s = (Quantile(), Quantile())
        self._drift = Drift()
        self._alone: Ticket | None = None
        self._due = due
        self._control: LongControl | None = None
        self._long_pause: LongPause | None = None
        self.configure(spec, plan)

    def configure(self, spec: EngineSpec, plan: Plan) -> None:
        """Take the limits of `spec` and the budgets of `plan`; what was learned of the engine stays."""
        self.limits = spec.limits
        self.weight = spec.weight
        self._chunk_tokens = spec.limits.chunk_tokens
        self._plan = plan
        self.parts.configure(spec.limits, plan)
        self.first_tokens.configure(plan.admission.non_stream_release)
        prefills_max = caps_of(plan.admission, spec.limits).get(Budget.LONG_PREFILLS)
        if plan.feedback is None or prefills_max is None:
            self._control = None
            self._end_long_pause()
        else:
            self._control = self._control or LongControl()
            self._control.configure(prefills_max=prefills_max, ttft_s=plan.feedback.short_ttft_ms / 1000)
        self._set_caps()

    def lacking(self, ticket: Ticket) -> int:
        """Return the budgets that stand in the ticket's way, as a mask; 0: it can be sent now."""
        only_at = ticket.assignment.engine
        if only_at is not None and only_at != self.name:
            return EVERYTHING
        mask = self.ledger.lacking(ticket.needs)
        if ticket.is_long and self._long_pause is not None:
            mask |= NO_LONG_PREFILL
        return mask

    def cost_s(self, assignment: Assignment) -> float:
        """Predict the engine seconds that a request takes: its prefill, and what its decoding adds to the steps."""
        model, longest = self.fit.model, assignment.longest_prompt_tokens
        prefill_s = model.prefill_s(longest, self._chunk_tokens)
        if assignment.prompt_tokens != longest:
            prefill_s *= assignment.prompt_tokens / longest
        return prefill_s + assignment.sequences * model.decode_s(assignment.output_tokens_max, longest)

    def unused_s(self, assignment: Assignment, output_tokens: int) -> float:
        """Predict the engine seconds of the reserved output that was not generated; output_tokens: of all sequences."""
        reserved = assignment.sequences * assignment.output_tokens_max
        model, longest = self.fit.model, assignment.longest_prompt_tokens
        left = max(0, reserved - output_tokens)
        return left * model.decode_s(1, longest + (reserved + output_tokens) / (2 * assignment.sequences))

    def short_ttft_s(self, confidence: float) -> float | None:
        """Return the engine's time to a short's first token that this share of them keeps, in the state it is in.

        The states, a long prompt in prefill or none, are kept apart: what is slow beside a long says nothing of an
        engine that is free. None: not known.
        """
        return self._short_ttfts_s[self._has_long].at(confidence)

    def predicted_step_s(self, ticket: Ticket) -> float:
        """Predict the step that would compute the ticket's first chunk beside all that is charged here."""
        ledger, model = self.ledger, self.fit.model
        long_tokens = ledger.long_prefills * self._chunk_tokens
        short_tokens = ledger.short_prefill_tokens + ledger.slots
        own_tokens = min(ticket.assignment.prompt_tokens, self._chunk_tokens)
        long_context = ledger.long_prefill_tokens / 2
        attention_s = model.per_token_context_s * long_tokens * long_context
        return model.step_s(long_tokens + short_tokens + own_tokens) + attention_s

    def take(self, ticket: Ticket, now: float) -> None:
        """Charge a ticket that is sent now."""
        ledger = self.ledger
        self._alone = None if ledger.prefills else ticket
        ticket.beside_long = ledger.long_prefills > 0
        ledger.charge(ticket)
        self.parts.courses.disturb(now, by_short=not ticket.is_long)
        ticket.prefill_s = self.fit.model.prefill_s(ticket.assignment.prompt_tokens, self._chunk_tokens)
        if not ticket.assignment.stream:
            self.first_tokens.expect(ticket, ticket.prefill_s, now)

    def make_way(self, now: float, *, shorts_in_line: bool, longs_in_line: bool) -> list[Event]:
        """Let the next part of a long prompt go, or take one back for shorts."""
        is_paused = self.paused_until is not None
        return self.parts.make_way(
            self.fit.model, now, shorts_in_line=shorts_in_line, longs_in_line=longs_in_line, is_paused=is_paused
        )

    def dividing(self) -> DividingSnapshot | None:
        """Return whether long prompts are divided here, and how far each is."""
        return self.parts.snapshot(self.fit.model)

    def first_token(self, ticket: Ticket, engine_ttft_s: float, now: float) -> None:
        """Give the prefill charge back, and learn from it where the prefill had the engine to itself."""
        self.ledger.release_prefill(ticket)
        self._due.discard(ticket)
        course = self.parts.courses.answered(ticket, self.fit.model, now)
        if course is not None:
            engine_ttft_s = course.busy_s  # of its parts, without the holds between them
        elif ticket.assignment.stream:
            self.first_tokens.seen(ticket, engine_ttft_s)
            if not ticket.is_long:
                self._short_ttfts_s[ticket.beside_long].add(engine_ttft_s)
            if self._alone is ticket:
                self._learn(ticket, engine_ttft_s)
        if self._alone is ticket:
            self._alone = None
        if self._control is not None:
            self._steer(self._control, ticket, engine_ttft_s, now)

    def calibrated(self, samples: Sequence[PrefillSample]) -> None:
        """Start the step model anew from probes."""
        self.fit.calibrate(samples)
        self.first_tokens.forget()

    def judge(self, now: float, *, longs_wait: bool) -> None:
        """Adjust the long-prefill budget to what shorts got, where the plan asks for it."""
        if self._control is not None and self._control.judge(now, longs_wait=longs_wait):
            self._set_caps()

    def observe(self, load: EngineLoad, now: float) -> None:
        """Correct the budgets by what the engine says of itself."""
        changed = self._drift.look(load, self.ledger.slots, now)
        if self._drift.has_no_room and self._control is not None:
            changed |= self._control.no_room()
        if changed:
            self._set_caps()

    def leave(self, ticket: Ticket, now: float, *, cut: bool, output_tokens: int | None = None) -> None:
        """End a ticket's stay; `cut`: the gateway aborted it, so it holds its place until the steps in flight end."""
        self.parts.courses.left(ticket, output_tokens)
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
        elif isinstance(due, HoldEnd):
            pass  # `make_way` is asked after every settling, and finds that the hold has ended
        elif due.state is RUNNING:
            self.ledger.release_prefill(due)
            self.parts.courses.served(due)
        else:
            self.ledger.release(due)

    def forget_timers(self) -> None:
        """Take back what would come due: the engine is gone."""
        self.parts.forget_timers()
        self._end_long_pause()

    def _end_long_pause(self) -> None:
        if self._long_pause is not None:
            self._due.discard(self._long_pause)
            self._long_pause = None

    def _set_caps(self) -> None:
        caps = caps_of(self._plan.admission, self.limits)
        if self._control is not None:
            caps[Budget.LONG_PREFILLS] = self._control.allowance.prefills
        self.ledger.set_caps(caps | self._drift.corrected(caps))

    @property
    def _has_long(self) -> bool:
        return self.ledger.long_prefills > 0

    def _steer(self, control: LongControl, ticket: Ticket, engine_ttft_s: float, now: float) -> None:
        if ticket.assignment.length_class is SHORT:
            if ticket.assignment.stream and ticket.dispatched_at is not None:
                waited_s = ticket.dispatched_at - ticket.offered_at
                control.short_served(now, waited_s=waited_s, engine_ttft_s=engine_ttft_s)
        else:
            pause_s = control.allowance.pause_s(engine_ttft_s)
            if pause_s > 0.0:
                self._long_pause = LongPause(self.name)
                self._due.push(self._long_pause, now + pause_s)

    def _learn(self, ticket: Ticket, engine_ttft_s: float) -> None:
        tokens = ticket.assignment.prompt_tokens
        # vLLM does not apply the threshold to a request that has the engine to itself.
        chunk = self.limits.step_tokens if len(self.ledger) == 1 else self._chunk_tokens
        self.fit.observe(prompt_tokens=tokens, steps=ceil(tokens / chunk), seconds=engine_ttft_s)
