"""One engine's budgets: long prefills, short prefill tokens, sequence slots, KV-cache tokens.

Owns every charge: made before the bytes leave, given back exactly once. Slots and KV are reserved in both directions:
each length class may use all but the other's reserve, so the two caps overlap and idle capacity is lent. A request
larger than a whole budget is let in where that budget is idle, alone; otherwise it could never go.

Sets of budgets are bit masks and amounts are indexed by budget: this is the innermost loop of every dispatch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from gateway.core.plan import AdmissionKind, AdmissionPlan
from gateway.core.ticket import Assignment, Needs, Ticket
from gateway.core.types import EngineLimits, LengthClass


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
_OWN = {
    LengthClass.SHORT: (Budget.SHORT_PREFILL_TOKENS, Budget.SHORT_SLOTS, Budget.SHORT_KV_TOKENS),
    LengthClass.LONG: (Budget.LONG_PREFILLS, Budget.LONG_SLOTS, Budget.LONG_KV_TOKENS),
}
_SHARED = (Budget.SLOTS, Budget.KV_TOKENS)

USED_BY: Mapping[LengthClass, int] = {
    length_class: sum(1 << budget for budget in (*own, *_SHARED)) for length_class, own in _OWN.items()
}
"""The budgets that a request of each length class uses, as a mask."""


def needs_of(assignment: Assignment, kv_block_tokens: int) -> Needs:
    """Return what the request takes: prefill (tokens of a short, 1 for a long), sequences, KV in whole blocks."""
    sequences = assignment.sequences
    kv_tokens = -(-assignment.kv_tokens // (sequences * kv_block_tokens)) * kv_block_tokens * sequences
    prefill = assignment.prompt_tokens if assignment.length_class is LengthClass.SHORT else 1
    return assignment.length_class, prefill, sequences, kv_tokens


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
        if admission.kv is not None:
            caps[Budget.SHORT_KV_TOKENS] = max(1, limits.kv_tokens - admission.kv.long_reserve_tokens)
            caps[Budget.LONG_KV_TOKENS] = max(1, limits.kv_tokens - admission.kv.short_reserve_tokens)
    return caps


@dataclass(slots=True)
class _Charge:
    needs: Needs
    in_prefill: bool = True


class Ledger:
    """The charges of one engine against its caps. Every total is changed here alone.

    prefills: requests whose prefill charge is still held.
    """

    def __init__(self, caps: Mapping[Budget, int]) -> None:
        self.set_caps(caps)
        self._used = [0] * len(Budget)
        self._charges: dict[int, _Charge] = {}
        self._running: Counter[tuple[str, LengthClass]] = Counter()
        self._prefill_tokens = dict.fromkeys(LengthClass, 0)
        self.prefills = 0

    def set_caps(self, caps: Mapping[Budget, int]) -> None:
        """Hold all further charges against these; what is charged beyond a smaller cap leaves by attrition."""
        self._caps = [caps.get(budget, _UNBOUND) for budget in Budget]

    def lacking(self, needs: Needs) -> int:
        """Return the budgets that stand in the way, as a mask; 0: it fits."""
        length_class, prefill, sequences, kv_tokens = needs
        own_prefill, own_slots, own_kv = _OWN[length_class]
        return (
            self._lacks(own_prefill, prefill)
            | self._lacks(Budget.SLOTS, sequences)
            | self._lacks(own_slots, sequences)
            | self._lacks(Budget.KV_TOKENS, kv_tokens)
            | self._lacks(own_kv, kv_tokens)
        )

    def charge(self, ticket: Ticket) -> None:
        assert ticket.id not in self._charges, "a ticket is charged once"
        self._charges[ticket.id] = _Charge(ticket.needs)
        length_class, prefill, _, _ = ticket.needs
        self._used[_OWN[length_class][0]] += prefill
        self._hold(ticket.needs, +1)
        assignment = ticket.assignment
        self._running[assignment.service_class, length_class] += 1
        self._prefill_tokens[length_class] += assignment.prompt_tokens
        self.prefills += 1

    def release_prefill(self, ticket: Ticket) -> None:
        """Give back what only the prefill holds. Again, or after `release`: nothing happens."""
        charge = self._charges.get(ticket.id)
        if charge is None or not charge.in_prefill:
            return
        charge.in_prefill = False
        length_class, prefill, _, _ = charge.needs
        self._used[_OWN[length_class][0]] -= prefill
        self._prefill_tokens[length_class] -= ticket.assignment.prompt_tokens
        self.prefills -= 1

    def release(self, ticket: Ticket) -> None:
        """Give back everything that is still held. Again: nothing happens."""
        self.release_prefill(ticket)
        charge = self._charges.pop(ticket.id, None)
        if charge is not None:
            self._hold(charge.needs, -1)

    def left(self, ticket: Ticket) -> None:
        """The request has ended; its charges stay until `release`, because the step in flight still holds them."""
        self._running[ticket.assignment.service_class, ticket.assignment.length_class] -= 1

    def used(self, budget: Budget) -> int:
        return self._used[budget]

    def prefill_tokens(self, length_class: LengthClass) -> int:
        """Prompt tokens dispatched whose prefill charge is still held."""
        return self._prefill_tokens[length_class]

    def running(self) -> Mapping[tuple[str, LengthClass], int]:
        return dict(self._running)

    def budgets(self) -> Mapping[str, int]:
        """Return the caps that bind, by lower-case budget name."""
        return {budget.name.lower(): self._caps[budget] for budget in Budget if self._caps[budget] != _UNBOUND}

    def __len__(self) -> int:
        return len(self._charges)

    def _lacks(self, budget: Budget, amount: int) -> int:
        held = self._used[budget]
        return 1 << budget if held and held + amount > self._caps[budget] else 0

    def _hold(self, needs: Needs, sign: int) -> None:
        length_class, _, sequences, kv_tokens = needs
        _, own_slots, own_kv = _OWN[length_class]
        used = self._used
        used[Budget.SLOTS] += sign * sequences
        used[own_slots] += sign * sequences
        used[Budget.KV_TOKENS] += sign * kv_tokens
        used[own_kv] += sign * kv_tokens
