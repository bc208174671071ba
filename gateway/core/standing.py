"""What stands in a request's way at one engine at one moment, to be told later.

Owns the record. Cheap to take: it is taken for every request that waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gateway.core.engine import Engine
from gateway.core.ledger import Budget
from gateway.core.ticket import Ticket

STANDINGS_MAX = 8


class Standing(NamedTuple):
    """One engine before one request: lacking is a mask of budgets; used is in their order.

    takes_work: up, not paused, and with a weight.
    """

    engine: str
    takes_work: bool
    lacking: int
    used: Sequence[int]
    caps: Mapping[Budget, int]

    def lacks(self) -> list[Budget]:
        return [budget for budget in Budget if self.lacking & 1 << budget]


class Ahead(NamedTuple):
    """A request in its line. in_line: requests that wait in its class and length, itself included where it waits."""

    in_line: int
    in_lane: int
    engines: Sequence[Standing]


def standing_at(engine: Engine, ticket: Ticket) -> Standing:
    takes_work = engine.up and not engine.retired and engine.paused_until is None and engine.weight > 0
    used, caps = engine.ledger.amounts()
    return Standing(engine.name, takes_work, engine.lacking(ticket), used, caps)
