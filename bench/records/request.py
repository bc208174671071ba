"""One request's record: what was planned, what was seen, how it ended. Frozen; every number has its unit in its name.

Times are milliseconds from the start of the run. What was not seen is None here and absent on disk, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

TIME_DIGITS = 3  # of milliseconds: a record holds no more than its file does, so that both give the same figures


# Reasons that more than one room knows.
NOBODY_LISTENS = "connect_failed"
NO_SOCKET = "client_out_of_sockets"


class Outcome(StrEnum):
    """How an offered request ended; each one ends in exactly one of these."""

    COMPLETED = "completed"  # the whole answer, with a finish reason and no error
    REFUSED = "refused"  # the server said no before it worked: queue full, overload, a bad request
    EXPIRED = "expired"  # the gateway's wait deadline passed
    TIMED_OUT = "timed_out"  # a time limit of the gateway or of connecting
    CANCELLED = "cancelled"  # the client left, because the trace said so
    FAILED = "failed"  # an error, or an answer that was cut
    UNFINISHED = "unfinished"  # still open at the drain deadline
    UNSENT = "unsent"  # the run ended before its planned time


class Phase(StrEnum):
    """Whether a request's planned arrival lies before the measurement window or in it."""

    WARMUP = "warmup"
    WINDOW = "window"


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """See the module; `reason` refines the outcome, from a closed set or a short word of the server's.

    answer_id: the server's own name for it, which `gateway explain` finds it by.
    """

    index: int
    request_id: str
    class_name: str
    phase: Phase
    outcome: Outcome
    planned_ms: float
    prompt_tokens_planned: int
    output_tokens_planned: int
    reason: str | None = None
    status: int | None = None
    answer_id: str | None = None
    dispatched_ms: float | None = None
    connect_ms: float | None = None
    headers_ms: float | None = None
    first_token_ms: float | None = None
    first_content_ms: float | None = None
    last_token_ms: float | None = None
    ended_ms: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    chunk_gaps_ms: tuple[float, ...] = ()
    longest_stall_ms: float | None = None
    malformed_events: int = 0
    gateway_queue_ms: int | None = None
    gateway_length_class: str | None = None
    retry_after_s: float | None = None

    @property
    def lag_ms(self) -> float | None:
        """How late the client was: from planned arrival to actual dispatch."""
        return _minus(self.dispatched_ms, self.planned_ms)

    @property
    def ttft_ms(self) -> float | None:
        """From planned arrival, so that a late client cannot hide a wait."""
        return _minus(self.first_token_ms, self.planned_ms)

    @property
    def ttft_from_dispatch_ms(self) -> float | None:
        return _minus(self.first_token_ms, self.dispatched_ms)

    @property
    def e2e_ms(self) -> float | None:
        """From planned arrival to the last byte, for completed requests alone."""
        return _minus(self.ended_ms, self.planned_ms) if self.outcome is Outcome.COMPLETED else None

    @property
    def e2e_from_dispatch_ms(self) -> float | None:
        return _minus(self.ended_ms, self.dispatched_ms) if self.outcome is Outcome.COMPLETED else None

    @property
    def tpot_ms(self) -> float | None:
        """Mean time of an output token after the first; needs the server's own count and two tokens."""
        if self.output_tokens is None or self.output_tokens < 2 or self.outcome is not Outcome.COMPLETED:
            return None
        decoding_ms = _minus(self.last_token_ms, self.first_token_ms)
        return None if decoding_ms is None else decoding_ms / (self.output_tokens - 1)

    @property
    def accepted(self) -> bool:
        """The server's 200 came and did not turn into a refusal."""
        return self.status == 200 and self.outcome not in (Outcome.REFUSED, Outcome.EXPIRED)

    def to_row(self) -> dict[str, Any]:
        """The line of requests.jsonl: the fields, and the latencies that follow from them."""
        row = {("class" if f.name == "class_name" else f.name): getattr(self, f.name) for f in fields(self)}
        for name in ("lag_ms", "ttft_ms", "ttft_from_dispatch_ms", "e2e_ms", "e2e_from_dispatch_ms", "tpot_ms"):
            row[name] = getattr(self, name)
        return {
            key: (round(value, TIME_DIGITS) if isinstance(value, float) else value)
            for key, value in row.items()
            if value is not None and value != ()
        }


def from_row(row: Mapping[str, Any]) -> RequestRecord:
    """The record that `to_row` wrote. Raises KeyError, TypeError or ValueError where it is none."""
    values = {name: row[key] for name in _NAMES if (key := "class" if name == "class_name" else name) in row}
    values["phase"], values["outcome"] = Phase(row["phase"]), Outcome(row["outcome"])
    values["chunk_gaps_ms"] = tuple(row.get("chunk_gaps_ms", ()))
    return RequestRecord(**values)


_NAMES = tuple(each.name for each in fields(RequestRecord))


def _minus(later_ms: float | None, earlier_ms: float | None) -> float | None:
    return None if later_ms is None or earlier_ms is None else later_ms - earlier_ms
