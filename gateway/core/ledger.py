"""One engine's budgets: long prefills, short prefill tokens, sequence slots, KV-cache tokens.

Owns every charge: made before the bytes leave, given back exactly once. Slots and KV are reserved in both
directions: each length class may use all but the other's reserve, so the two caps overlap and idle capacity is
lent. A request larger than a whole budget is let in where that budget is idle, alone; otherwise it could never go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from gateway.core.plan import AdmissionKind, AdmissionPlan
from gateway.core.types import Assignment, EngineLimits, LengthClass, Ticket


class Budget(StrEnum):
    """What a request can lack, as the `resource` label of gateway_budget says it."""

    LONG_PREFILLS = "long_prefills"
    SHORT_PREFILL_TOKENS = "short_prefill_tokens"
    SLOTS = "slots"
    SHORT_SLOTS = "short_slots"
    LONG_SLOTS = "long_slots"
    KV_TOKENS = "kv_tokens"
    SHORT_KV_TOKENS = "short_kv_tokens"
    LONG_KV_TOKENS = "long_kv_tokens"


USED_BY: Mapping[LengthClass, frozenset[Budget]] = {
    LengthClass.SHORT: frozenset(
        {
            Budget.SHORT_PREFILL_TOKENS,
            Budget.SLOTS,
            Budget.SHORT_SLOTS,
            Budget.KV_TOKENS,
            Budget.SHORT_KV_TOKENS,
        },
    ),
    LengthClass.LONG: frozenset(
        {Budget.LONG_PREFILLS, Budget.SLOTS, Budget.LONG_SLOTS, Budget.KV_TOKENS, Budget.LONG_KV_TOKENS},
    ),
}
_PREFILL = frozenset({Budget.LONG_PREFILLS, Budget.SHORT_PREFILL_TOKENS})


def caps_of(admission: AdmissionPlan, limits: EngineLimits) -> dict[Budget, int]:
    """Compute what the plan allows on an engine with these limits; a budget without a bound is absent."""
    caps: dict[Budget, int] = {}
    if admission.kind is AdmissionKind.NONE:
        return caps
    totals = [
        bound
        for bound in (admission.slots.total if admission.slots else None, limits.max_num_seqs)
        if bound is not None
    ]
    if totals:
        caps[Budget.SLOTS] = min(totals)
    if admission.kind is AdmissionKind.SLOTS:
        return caps
    if admission.long_prefills_max is not None:
        caps[Budget.LONG_PREFILLS] = admission.long_prefills_max
    if admission.short_prefill_tokens_max is not None:
        caps[Budget.SHORT_PREFILL_TOKENS] = admission.short_prefill_tokens_max
    if totals and admission.slots:
        caps[Budget.SHORT_SLOTS] = max(1, min(totals) - admission.slots.long_reserve)
        caps[Budget.LONG_SLOTS] = max(1, min(totals) - admission.slots.short_reserve)
    if limits.kv_tokens is not None:
        reserve = admission.kv
        caps[Budget.KV_TOKENS] = limits.kv_tokens
        if reserve is not None:
            caps[Budget.SHORT_KV_TOKENS] = max(1, limits.kv_tokens - reserve.long_reserve_tokens)
            caps[Budget.LONG_KV_TOKENS] = max(1, limits.kv_tokens - reserve.short_reserve_tokens)
    return caps


@dataclass(slots=True)
class _Charge:
    amounts: dict[Budget, int]
    length_class: LengthClass
    service_class: str
    prompt_tokens: int
    in_prefill: bool


class Ledger:
    """The charges of one engine against its caps. Every total is changed here alone."""

    def __init__(self, caps: Mapping[Budget, int], kv_block_tokens: int) -> None:
        self.caps = dict(caps)
        self._kv_block_tokens = kv_block_tokens
        self._used: Counter[Budget] = Counter()
        self._charges: dict[int, _Charge] = {}
        self._running: Counter[tuple[str, LengthClass]] = Counter()
        self._prefill_tokens: Counter[LengthClass] = Counter()

    def lacking(self, assignment: Assignment) -> frozenset[Budget]:
        """Return the budgets that stand in the way; empty: it fits."""
        if not self.caps:
            return frozenset()
        return frozenset(
            budget
            for budget, amount in self._needs(assignment).items()
            if budget in self.caps and self._used[budget] and self._used[budget] + amount > self.caps[budget]
        )

    def charge(self, ticket: Ticket) -> None:
        assignment = ticket.assignment
        assert ticket.id not in self._charges, "a ticket is charged once"
        amounts = self._needs(assignment)
        self._charges[ticket.id] = _Charge(
            amounts,
            assignment.length_class,
            assignment.service_class,
            assignment.prompt_tokens,
            in_prefill=True,
        )
        self._used.update(amounts)
        self._running[assignment.service_class, assignment.length_class] += 1
        self._prefill_tokens[assignment.length_class] += assignment.prompt_tokens

    def release_prefill(self, ticket: Ticket) -> None:
        """Give back what only the prefill holds. Again, or after `release`: nothing happens."""
        charge = self._charges.get(ticket.id)
        if charge is None or not charge.in_prefill:
            return
        charge.in_prefill = False
        self._prefill_tokens[charge.length_class] -= charge.prompt_tokens
        for budget in _PREFILL & charge.amounts.keys():
            self._used[budget] -= charge.amounts.pop(budget)

    def release(self, ticket: Ticket) -> None:
        """Give back everything that is still held. Again: nothing happens."""
        self.release_prefill(ticket)
        charge = self._charges.pop(ticket.id, None)
        if charge is not None:
            self._used.subtract(charge.amounts)
            self._running[charge.service_class, charge.length_class] -= 1

    def used(self, budget: Budget) -> int:
        return self._used[budget]

    def prefill_tokens(self, length_class: LengthClass) -> int:
        """Prompt tokens dispatched whose first token has not come."""
        return self._prefill_tokens[length_class]

    def running(self) -> Mapping[tuple[str, LengthClass], int]:
        return dict(self._running)

    def __len__(self) -> int:
        return len(self._charges)

    def _needs(self, assignment: Assignment) -> dict[Budget, int]:
        block = self._kv_block_tokens
        kv_tokens = -(-assignment.kv_tokens // (assignment.sequences * block)) * block * assignment.sequences
        if assignment.length_class is LengthClass.SHORT:
            return {
                Budget.SHORT_PREFILL_TOKENS: assignment.prompt_tokens,
                Budget.SLOTS: assignment.sequences,
                Budget.SHORT_SLOTS: assignment.sequences,
                Budget.KV_TOKENS: kv_tokens,
                Budget.SHORT_KV_TOKENS: kv_tokens,
            }
        return {
            Budget.LONG_PREFILLS: 1,
            Budget.SLOTS: assignment.sequences,
            Budget.LONG_SLOTS: assignment.sequences,
            Budget.KV_TOKENS: kv_tokens,
            Budget.LONG_KV_TOKENS: kv_tokens,
        }
