"""One request in both worlds: its ticket in the shadow, and what is known of how long an engine takes for it.

Owns the record, and the typical times that stand in where none will ever be known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gateway.core.ticket import Ticket, TicketState
from gateway.core.types import Outcome
from gateway.shadow.counts import Fate, Line

_MEMORY = 1 / 64
"""How much one request moves the typical times: about the last 64 count."""


class Span(NamedTuple):
    """From a dispatch to something that followed from it."""

    began_at: float
    ended_at: float

    def after(self, at: float) -> float:
        """Return when it follows from a dispatch at another moment; from the same one exactly when it did."""
        return self.ended_at if at == self.began_at else at + (self.ended_at - self.began_at)


class Ending(NamedTuple):
    """How a request's stay at its engine ended."""

    span: Span
    outcome: Outcome
    output_tokens: int | None


@dataclass(eq=False, slots=True)
class Pair:
    """age: its place in the order of arrival. real, shadow: None until decided. counts: whether it is compared.

    is_assumed: its times in the shadow are typical ones, not its own. sent_at: the real dispatch, the last where there
    were several; None while it waits. prefill, ending: as they really were, or are assumed to be, once they are known.
    """

    age: int
    line: Line
    counts: bool
    is_assumed: bool = False
    twin: Ticket | None = None
    real: Fate | None = None
    shadow: Fate | None = None
    sent_at: float | None = None
    prefill: Span | None = None
    ending: Ending | None = None

    @property
    def running_twin(self) -> tuple[Ticket, float] | None:
        """Return the shadow's ticket and when it was sent, while it is at an engine there."""
        twin = self.twin
        if twin is None or twin.state is not TicketState.RUNNING or twin.dispatched_at is None:
            return None
        return twin, twin.dispatched_at


class Typical:
    """What an engine has taken lately for the requests of one line; None: none has ended yet."""

    def __init__(self) -> None:
        self._engine_ttft_s: float | None = None
        self._service_s: float | None = None

    def saw_first_token(self, engine_ttft_s: float) -> None:
        self._engine_ttft_s = _moved(self._engine_ttft_s, engine_ttft_s)

    def saw_end(self, service_s: float) -> None:
        self._service_s = _moved(self._service_s, service_s)

    def of(self, twin: Ticket, sent_at: float) -> tuple[Span, Ending]:
        """Return what to assume of a request whose own times are not known: typical ones, else what is predicted."""
        engine_ttft_s = twin.prefill_s if self._engine_ttft_s is None else self._engine_ttft_s
        service_s = twin.cost_s if self._service_s is None else self._service_s
        span = Span(sent_at, sent_at + max(engine_ttft_s, service_s))
        return Span(sent_at, sent_at + engine_ttft_s), Ending(span, Outcome.COMPLETED, None)


def _moved(mean: float | None, value: float) -> float:
    return value if mean is None else mean + _MEMORY * (value - mean)
