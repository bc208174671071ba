"""One engine's budgets: long prefills, short prefill tokens, sequence slots, KV-cache tokens.

Owns every charge: made before the bytes leave, given back exactly once. Slots and KV are reserved in both directions:
each length class may use all but the other's reserve, so the two caps overlap and idle capacity is lent. A request
larger than a whole budget is let in where that budget is idle, alone; otherwise it could never go.

Sets of budgets are bit masks, and what fits is found by five comparisons: this is the innermost of every dispatch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from math import inf

from gateway.core.plan import AdmissionKind, AdmissionPlan, KvBudget
from gateway.core.ticket import Assignment, Needs, Ticket
from gateway.core.types import LONG, EngineLimits


class Budget(IntEnum):
    """What a request can lack; the lower-case name is the `resource` label of gateway_budget."""

    LONG_PREFILLS = 0
    SHORT_PREFILL_TOKENS = 1
    SLOTS = 2
    SHORT_SLOTS = 3
    LONG_SLOTS = 4
    KV_TOKENS = 5
    SHORT_KV_TOKENS = 6
    LONG_KV_TOKENS = 7


_UNBOUND = 1 << 62
_SHARED = (Budget.SLOTS, Budget.KV_TOKENS)
_NO_SLOTS, _NO_KV = (1 << budget for budget in _SHARED)
_OWN = (
    (Budget.SHORT_PREFILL_TOKENS, Budget.SHORT_SLOTS, Budget.SHORT_KV_TOKENS),
    (Budget.LONG_PREFILLS, Budget.LONG_SLOTS, Budget.LONG_KV_TOKENS),
)
NO_LONG_PREFILL = 1 << Budget.LONG_PREFILLS

USED_BY = tuple(sum(1 << budget for budget in (*own, *_SHARED)) for own in _OWN)
"""The budgets that a request uses, as a mask, by the first of its needs: a short's, a long's."""
EVERYTHING = -1
"""The mask of all budgets."""


def needs_of(assignment: Assignment, kv_block_tokens: int) -> Needs:
    """Return what the request takes: prefill (a short's tokens, a long's sequences), sequences, KV in whole blocks."""
    sequences = assignment.sequences
    kv_tokens = -(-assignment.kv_tokens // (sequences * kv_block_tokens)) * kv_block_tokens * sequences
    if assignment.length_class is LONG:
        return 1, sequences, sequences, kv_tokens
    return 0, assignment.prompt_tokens, sequences, kv_tokens


def caps_of(admission: AdmissionPlan, limits: EngineLimits) -> dict[Budget, int]:
    """Compute what the plan allows on an engine with these limits; a budget without a bound is absent."""
    caps: dict[Budget, int] = {}
    if admission.kind is AdmissionKind.NONE:
        return caps
    assert admission.slots is not None
    total = caps[Budget.SLOTS] = sequences_of(admission, limits)
    if admission.kind is AdmissionKind.SLOTS:
        return caps
    if admission.long_prefills_max is not None:
        caps[Budget.LONG_PREFILLS] = admission.long_prefills_max
    if admission.short_prefill_tokens_max is not None:
        caps[Budget.SHORT_PREFILL_TOKENS] = admission.short_prefill_tokens_max
    caps[Budget.SHORT_SLOTS] = max(1, total - admission.slots.long_reserve)
    caps[Budget.LONG_SLOTS] = max(1, total - admission.slots.short_reserve)
    if limits.kv_tokens is not None:
        caps[Budget.KV_TOKENS] = limits.kv_tokens
        kept = kv_reserves(admission, limits.kv_tokens)
        caps[Budget.SHORT_KV_TOKENS] = max(1, limits.kv_tokens - kept.long_reserve_tokens)
        caps[Budget.LONG_KV_TOKENS] = max(1, limits.kv_tokens - kept.short_reserve_tokens)
    return caps


def sequences_of(admission: AdmissionPlan, limits: EngineLimits) -> int:
    """Return the sequences that a plan with a gate lets an engine run: the smaller of the plan's and the engine's."""
    assert admission.slots is not None, "only a plan without a gate has none"
    total = admission.slots.total
    return total if limits.max_num_seqs is None else min(total, limits.max_num_seqs)


def kv_reserves(admission: AdmissionPlan, kv_tokens: int) -> KvBudget:
    """Return the KV tokens kept for each length class: as planned, else the share of the cache that its slots are."""
    slots = admission.slots
    if admission.kv is not None or slots is None:
        return admission.kv or KvBudget()
    return KvBudget(kv_tokens * slots.short_reserve // slots.total, kv_tokens * slots.long_reserve // slots.total)


class _Side:
    """What one length class holds of an engine, and how much it may hold, in the budgets that are its own.

    no_prefill, no_slots, no_kv: the masks of these budgets.
    """

    __slots__ = (
        "kv_max",
        "kv_tokens",
        "no_kv",
        "no_prefill",
        "no_slots",
        "prefill",
        "prefill_max",
        "slots",
        "slots_max",
    )

    def __init__(self, own: Sequence[Budget]) -> None:
        self.prefill = self.slots = self.kv_tokens = 0
        self.prefill_max = self.slots_max = self.kv_max = _UNBOUND
        self.no_prefill, self.no_slots, self.no_kv = (1 << budget for budget in own)


class Ledger:
    """The charges of one engine against its caps. Every total is changed here alone.

    slots, kv_tokens: held by both length classes. in_prefill: the ids of those whose prefill charge is still held;
    long_prefill_tokens: of the long prompts among them.
    """

    __slots__ = (
        "_caps",
        "_charged",
        "_kv_max",
        "_sides",
        "_slots_max",
        "in_prefill",
        "kv_tokens",
        "long_prefill_tokens",
        "slots",
    )

    def __init__(self, caps: Mapping[Budget, int]) -> None:
        self.slots = self.kv_tokens = self.long_prefill_tokens = 0
        self._sides = tuple(map(_Side, _OWN))
        self._charged: set[int] = set()
        self.in_prefill: set[int] = set()
        self.set_caps(caps)

    def set_caps(self, caps: Mapping[Budget, int]) -> None:
        """Hold all further charges against these; what is charged beyond a smaller cap leaves by attrition."""
        self._caps = dict(caps)
        self._slots_max, self._kv_max = (caps.get(budget, _UNBOUND) for budget in _SHARED)
        for side, own in zip(self._sides, _OWN, strict=True):
            side.prefill_max, side.slots_max, side.kv_max = (caps.get(budget, _UNBOUND) for budget in own)

    def is_full(self, is_long: int) -> bool:
        """Whether no request of this length fits, however small: each takes a slot."""
        own = self._sides[is_long]
        return own.slots >= own.slots_max or self.slots >= self._slots_max

    def lacking(self, needs: Needs) -> int:
        """Return the budgets that stand in the way, as a mask; 0: it fits."""
        is_long, prefill, sequences, kv_tokens = needs
        own = self._sides[is_long]
        mask = 0
        if own.prefill + prefill > own.prefill_max and own.prefill:
            mask |= own.no_prefill
        if own.slots + sequences > own.slots_max and own.slots:
            mask |= own.no_slots
        if own.kv_tokens + kv_tokens > own.kv_max and own.kv_tokens:
            mask |= own.no_kv
        if self.slots + sequences > self._slots_max and self.slots:
            mask |= _NO_SLOTS
        if self.kv_tokens + kv_tokens > self._kv_max and self.kv_tokens:
            mask |= _NO_KV
        return mask

    def charge(self, ticket: Ticket) -> None:
        assert ticket.id not in self._charged, "a ticket is charged once"
        self._charged.add(ticket.id)
        self.in_prefill.add(ticket.id)
        is_long, prefill, sequences, kv_tokens = ticket.needs
        own = self._sides[is_long]
        own.prefill += prefill
        own.slots += sequences
        own.kv_tokens += kv_tokens
        self.slots += sequences
        self.kv_tokens += kv_tokens
        if is_long:
            self.long_prefill_tokens += ticket.assignment.prompt_tokens

    def release_prefill(self, ticket: Ticket) -> None:
        """Give back what only the prefill holds. Again, or after `release`: nothing happens."""
        if ticket.id in self.in_prefill:
            self.in_prefill.remove(ticket.id)
            is_long, prefill, _, _ = ticket.needs
            self._sides[is_long].prefill -= prefill
            if is_long:
                self.long_prefill_tokens -= ticket.assignment.prompt_tokens

    def release(self, ticket: Ticket) -> None:
        """Give back everything that is still held. Again: nothing happens."""
        self.release_prefill(ticket)
        if ticket.id in self._charged:
            self._charged.remove(ticket.id)
            is_long, _, sequences, kv_tokens = ticket.needs
            own = self._sides[is_long]
            own.slots -= sequences
            own.kv_tokens -= kv_tokens
            self.slots -= sequences
            self.kv_tokens -= kv_tokens

    def amounts(self) -> tuple[Sequence[int], Mapping[Budget, int]]:
        """Return what is used now, in the order of budgets, and what is allowed; neither changes any more."""
        short, long = self._sides
        slots, kv_tokens = (self.slots, short.slots, long.slots), (self.kv_tokens, short.kv_tokens, long.kv_tokens)
        return (long.prefill, short.prefill, *slots, *kv_tokens), self._caps

    def cap(self, budget: Budget) -> float:
        """Return what a budget allows; infinity where it does not bind."""
        return self._caps.get(budget, inf)

    @property
    def short_prefill_tokens(self) -> int:
        return self._sides[0].prefill

    @property
    def long_prefills(self) -> int:
        return self._sides[1].prefill

    def budgets(self) -> Mapping[str, int]:
        """Return the caps that bind, by lower-case budget name."""
        return {budget.name.lower(): self._caps[budget] for budget in Budget if budget in self._caps}

    def __len__(self) -> int:
        return len(self._charged)
