"""One request under way: the clock readings that the client notes, and the record that they become.

Changed by the client alone, read once at the end. A flight that never ended is unfinished, one never sent is unsent:
so each planned request gives exactly one record.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from bench.load.bodies import PreparedRequest
from bench.load.outcomes import Ending
from bench.load.reading import StreamReading
from bench.records.request import TIME_DIGITS, Outcome, RequestRecord


@dataclass(slots=True)
class Flight:
    """Times are readings of the client's clock in seconds; None: not happened."""

    request: PreparedRequest
    planned_at: float
    dispatched_at: float | None = None
    connect_began_at: float | None = None
    connect_s: float | None = None
    headers_at: float | None = None
    ended_at: float | None = None
    ending: Ending | None = None
    status: int | None = None
    answer_id: str | None = None
    gateway_queue_ms: int | None = None
    gateway_length_class: str | None = None
    gateway_reason: str | None = None
    retry_after_s: float | None = None
    reading: StreamReading = field(default_factory=StreamReading)

    def seen(self) -> tuple[Any, ...]:
        """All but the request: what another process needs of it."""
        return tuple(getattr(self, name) for name in _SEEN)

    def take(self, seen: tuple[Any, ...]) -> None:
        """What `seen` of the same request gave, elsewhere."""
        for name, value in zip(_SEEN, seen, strict=True):
            setattr(self, name, value)

    def record(self, started_at: float) -> RequestRecord:
        """Freeze into a record with times relative to `started_at`."""
        ending = self.ending
        if ending is None:
            ending = Ending(Outcome.UNSENT if self.dispatched_at is None else Outcome.UNFINISHED)
        arrival, reading = self.request.arrival, self.reading

        def since_start_ms(at: float | None) -> float | None:
            return None if at is None else round((at - started_at) * 1000, TIME_DIGITS)

        stall_s = None if self.ended_at is None else reading.longest_stall_s(self.ended_at)
        return RequestRecord(
            index=self.request.index,
            request_id=self.request.request_id,
            class_name=arrival.class_name,
            phase=self.request.phase,
            outcome=ending.outcome,
            reason=ending.reason,
            status=self.status,
            answer_id=self.answer_id,
            planned_ms=round((self.planned_at - started_at) * 1000, TIME_DIGITS),
            prompt_tokens_planned=arrival.prompt_tokens,
            output_tokens_planned=arrival.output_tokens,
            dispatched_ms=since_start_ms(self.dispatched_at),
            connect_ms=None if self.connect_s is None else round(self.connect_s * 1000, TIME_DIGITS),
            headers_ms=since_start_ms(self.headers_at),
            first_token_ms=since_start_ms(reading.first_token_at),
            first_content_ms=since_start_ms(reading.first_content_at),
            last_token_ms=since_start_ms(reading.last_token_at),
            ended_ms=since_start_ms(self.ended_at),
            prompt_tokens=reading.prompt_tokens,
            output_tokens=reading.output_tokens,
            cached_tokens=reading.cached_tokens,
            finish_reason=reading.finish_reason,
            chunk_gaps_ms=tuple(round(gap * 1000, TIME_DIGITS) for gap in reading.gaps_s()),
            longest_stall_ms=None if stall_s is None else round(stall_s * 1000, TIME_DIGITS),
            malformed_events=reading.malformed_events,
            gateway_queue_ms=self.gateway_queue_ms,
            gateway_length_class=self.gateway_length_class,
            retry_after_s=self.retry_after_s,
        )


_SEEN = tuple(each.name for each in fields(Flight) if each.name != "request")
