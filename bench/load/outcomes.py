"""How a request ended, from what was seen. Pure: one place for statuses, gateway reasons and errors inside a 200."""

from __future__ import annotations

from typing import NamedTuple

from bench.load.reading import StreamReading
from bench.records.request import Outcome

_OVERLOAD_STATUS = frozenset({429, 503, 529})
_TIMEOUT_STATUS = frozenset({408, 504})
# Reasons of the gateway that are no plain refusal; every other reason it gives is one.
_GATEWAY_REASONS = {
    "wait_deadline": Outcome.EXPIRED,
    "engine_timeout": Outcome.TIMED_OUT,
    "body_timeout": Outcome.TIMED_OUT,
    "engine_unreachable": Outcome.FAILED,
    "engine_broken": Outcome.FAILED,
}


# What an engine says that gave a request up itself, as at its end: the answer stops there, in a stream without a fault.
_GIVEN_UP = frozenset({"abort", "cancelled", "error"})


class Ending(NamedTuple):
    """An outcome and its reason; a completed request has no reason."""

    outcome: Outcome
    reason: str | None = None


def of_status(status: int, gateway_reason: str | None) -> Ending:
    """The end of a request whose status is not 200."""
    if gateway_reason is not None:
        return Ending(_GATEWAY_REASONS.get(gateway_reason, Outcome.REFUSED), gateway_reason)
    if status in _OVERLOAD_STATUS:
        return Ending(Outcome.REFUSED, f"http_{status}")
    if status in _TIMEOUT_STATUS:
        return Ending(Outcome.TIMED_OUT, f"http_{status}")
    return Ending(Outcome.FAILED, f"http_{status}")


def of_stream(reading: StreamReading) -> Ending:
    """The end of a 200 whose stream closed as HTTP wants it, or after an error event in any way.

    `[DONE]` proves nothing, a finish reason does.
    """
    error = reading.error
    if error is None:
        if reading.finish_reason is None:
            return Ending(Outcome.FAILED, "no_finish_reason")
        if reading.finish_reason in _GIVEN_UP:
            return Ending(Outcome.FAILED, f"finish_{reading.finish_reason}")
        return Ending(Outcome.COMPLETED)
    if error.reason in _GATEWAY_REASONS:
        return Ending(_GATEWAY_REASONS[error.reason], f"in_band_{error.reason}")
    reason = f"in_band_{error.reason if error.code is None else error.code}"
    # An overload before the first token is a refusal that came late; after it, an answer was broken.
    refused = error.code in _OVERLOAD_STATUS and not reading.chunk_times
    return Ending(Outcome.REFUSED if refused else Outcome.FAILED, reason)
