"""One engine's budgets: long prefills, short prefill tokens, sequence slots, KV-cache tokens.

Owns every charge: made before the bytes leave, given back exactly once. Slots and KV are reserved in both directions:
each length class may use all but the other's reserve, so the two caps overlap and idle capacity is lent. A request
larger than a whole budget is let in where that budget is idle, alone; otherwise it could never go.

Sets of budgets are bit masks and amounts are indexed by budget: this is the innermost loop of every dispatch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum

from gateway.core.plan import AdmissionKind, AdmissionPlan, KvBudget
from gateway.core.ticket import Assignment, Needs, Ticket
from gateway.core.types import LONG, EngineLimits, LengthClass


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


UNBOUND = 1 << 62
# As plain numbers: an enum's member is found, and a list indexed by it, at several times the cost.
LONG_PREFILLS, SHORT_PREFILL_TOKENS = int(Budget.LONG_PREFILLS), int(Budget.SHORT_PREFILL_TOKENS)
SLOTS, _KV = int(Budget.SLOTS), int(Budget.KV_TOKENS)
_SHORT = (SHORT_PREFILL_TOKENS, int(Budget.SHORT_SLOTS), int(Budget.SHORT_KV_TOKENS))
_LONG = (LONG_PREFILLS, int(Budget.LONG_SLOTS), int(Budget.LONG_KV_TOKENS))
_OWN = (_SHORT, _LONG)

USED_BY = tuple(sum(1 << budget for budget in (*own, SLOTS, _KV)) for own in _OWN)
"""The budgets that a request uses, as a mask, by the first of its needs: a short's, a long's."""


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
    bounds = (admission.slots.total if admission.slots else None, limits.max_num_seqs)
    total = min((bound for bound in bounds if bound is not None), default=None)
    if total is not None:
        caps[Budget.SLOTS] = total
    if admission.kind is AdmissionKind.SLOTS:
        return caps
    if admission.long_prefills_max is not None:
        caps[Budget.LONG_PREFILLS] = admission.long_prefills_max
    if admission.short_prefill_tokens_max is not None:
        caps[Budget.SHORT_PREFILL_TOKENS] = admission.short_prefill_tokens_max
    if total is not None and admission.slots is not None:
        caps[Budget.SHORT_SLOTS] = max(1, total - admission.slots.long_reserve)
        caps[Budget.LONG_SLOTS] = max(1, total - admission.slots.short_reserve)
    if limits.kv_tokens is not None:
        caps[Budget.KV_TOKENS] = limits.kv_tokens
        kept = kv_reserves(admission, limits.kv_tokens)
        caps[Budget.SHORT_KV_TOKENS] = max(1, limits.kv_tokens - kept.long_reserve_tokens)
        caps[Budget.LONG_KV_TOKENS] = max(1, limits.kv_tokens - kept.short_reserve_tokens)
    return caps


def kv_reserves(admission: AdmissionPlan, kv_tokens: int) -> KvBudget:
    """Return the KV tokens kept for each length class: as planned, else the share of the cache that its slots are."""
    slots = admission.slots
    if admission.kv is not None or slots is None:
        return admission.kv or KvBudget()
    return KvBudget(kv_tokens * slots.short_reserve // slots.total, kv_tokens * slots.long_reserve // slots.total)


class Ledger:
    """The charges of one engine against its caps. Every total is changed here alone."""

    __slots__ = ("_caps", "_charges", "_in_prefill", "_prefill_tokens", "_used")

    def __init__(self, caps: Mapping[Budget, int]) -> None:
        self.set_caps(caps)
        self._used = [0] * len(Budget)
        self._charges: dict[int, Needs] = {}
        self._in_prefill: set[int] = set()
        self._prefill_tokens = [0, 0]

    def set_caps(self, caps: Mapping[Budget, int]) -> None:
        """Hold all further charges against these; what is charged beyond a smaller cap leaves by attrition."""
        self._caps = [caps.get(budget, UNBOUND) for budget in Budget]

    def lacking(self, needs: Needs) -> int:
        """Return the budgets that stand in the way, as a mask; 0: it fits."""
        is_long, prefill, sequences, kv_tokens = needs
        own_prefill, own_slots, own_kv = _OWN[is_long]
        used, caps = self._used, self._caps
        mask = 0
        if (held := used[own_prefill]) and held + prefill > caps[own_prefill]:
            mask = 1 << own_prefill
        if (held := used[SLOTS]) and held + sequences > caps[SLOTS]:
            mask |= 1 << SLOTS
        if (held := used[own_slots]) and held + sequences > caps[own_slots]:
            mask |= 1 << own_slots
        if (held := used[_KV]) and held + kv_tokens > caps[_KV]:
            mask |= 1 << _KV
        if (held := used[own_kv]) and held + kv_tokens > caps[own_kv]:
            mask |= 1 << own_kv
        return mask

    def charge(self, ticket: Ticket) -> None:
        assert ticket.id not in self._charges, "a ticket is charged once"
        needs = self._charges[ticket.id] = ticket.needs
        is_long, prefill, _, _ = needs
        self._in_prefill.add(ticket.id)
        self._used[_OWN[is_long][0]] += prefill
        self._prefill_tokens[is_long] += ticket.assignment.prompt_tokens
        self._hold(needs, +1)

    def release_prefill(self, ticket: Ticket) -> None:
        """Give back what only the prefill holds. Again, or after `release`: nothing happens."""
        if ticket.id in self._in_prefill:
            self._in_prefill.remove(ticket.id)
            is_long, prefill, _, _ = self._charges[ticket.id]
            self._used[_OWN[is_long][0]] -= prefill
            self._prefill_tokens[is_long] -= ticket.assignment.prompt_tokens

    def release(self, ticket: Ticket) -> None:
        """Give back everything that is still held. Again: nothing happens."""
        self.release_prefill(ticket)
        needs = self._charges.pop(ticket.id, None)
        if needs is not None:
            self._hold(needs, -1)

    def used(self, budget: int) -> int:
        return self._used[budget]

    def amounts(self) -> tuple[Sequence[int], Sequence[int]]:
        """Return what is used and what is allowed now, by budget; neither changes any more."""
        return tuple(self._used), self._caps

    @property
    def in_prefill(self) -> bool:
        """Whether any prefill charge is still held."""
        return bool(self._in_prefill)

    def prefill_tokens(self, length_class: LengthClass) -> int:
        """Prompt tokens dispatched whose prefill charge is still held."""
        return self._prefill_tokens[length_class is LONG]

    def budgets(self) -> Mapping[str, int]:
        """Return the caps that bind, by lower-case budget name."""
        return {budget.name.lower(): self._caps[budget] for budget in Budget if self._caps[budget] != UNBOUND}

    def __len__(self) -> int:
        return len(self._charges)

    def _hold(self, needs: Needs, sign: int) -> None:
        is_long, _, sequences, kv_tokens = needs
        _, own_slots, own_kv = _OWN[is_long]
        used = self._used
        used[SLOTS] += sign * sequences
        used[own_slots] += sign * sequences
        used[_KV] += sign * kv_tokens
        used[own_kv] += sign * kv_tokens
