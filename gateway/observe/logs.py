"""JSON lines: one for each request at its end, and the gateway's own events.

Owns the shape of the request line, the sampling of refusal floods, and a bounded hand-over to the thread that
writes, so that a reader of the log who stalls never stalls a request. Never writes a prompt, an answer, a key or a
header value, but for the caller's own request id, cut to safe characters.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections import Counter, deque
from collections.abc import Callable, MutableMapping
from typing import Any, TextIO

import structlog

from gateway.core.types import FallbackReason, Outcome, Reason
from gateway.observe.exchange import Exchange

LINES_WAITING_MAX = 10_000
BATCH_S = 0.05
REFUSAL_LINES_MAX = 20
REFUSAL_INTERVAL_S = 10.0
CALLER_ID_CHARACTERS_MAX = 128

_ENCODER = json.JSONEncoder(default=repr)  # made once: `json.dumps` makes one for each line that has a default
_UNSAFE = re.compile(r"[^A-Za-z0-9._:/+=@-]")


class LineWriter:
    """A file that never makes its caller wait: one thread takes what was written every `BATCH_S`.

    Lines beyond `LINES_WAITING_MAX` are dropped. dropped: called with the number of lines lost, from whichever thread
    loses them.
    """

    def __init__(self, stream: TextIO) -> None:
        self.dropped: Callable[[int], object] = _nobody_counts
        self._stream = stream
        # Appending is atomic and wakes nobody: waking a thread for each line would hand it the interpreter each time.
        self._lines: deque[str] = deque()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        if len(self._lines) >= LINES_WAITING_MAX:
            self.dropped(1)
        else:
            self._lines.append(line)

    def flush(self) -> None:
        """Do nothing: the thread flushes after each batch."""

    def close(self, timeout_s: float = 2.0) -> None:
        """Write what waits, for at most `timeout_s`, and stop."""
        self._closing.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._closing.wait(BATCH_S):
            self._write_batch()
        self._write_batch()

    def _write_batch(self) -> None:
        batch = [self._lines.popleft() for _ in range(len(self._lines))]
        if not batch:
            return
        try:
            self._stream.write("".join(batch))
            self._stream.flush()
        except OSError:
            self.dropped(len(batch))


def _nobody_counts(_lines: int) -> None:
    pass


def configure(writer: LineWriter) -> None:
    """Send structlog's lines, and the libraries' warnings and errors, to `writer` as JSON."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _stack_without_values,
            _as_json,
        ],
        logger_factory=lambda *_names: structlog.WriteLogger(writer),  # type: ignore[arg-type]
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(handlers=[_ToStructlog()], level=logging.WARNING, force=True)


def _as_json(_logger: Any, _method: str, entry: MutableMapping[str, Any]) -> str:
    return _ENCODER.encode(entry)


def _stack_without_values(_logger: Any, _method: str, entry: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Replace an exception by its type and the places it passed: its text may hold what a caller sent."""
    error = entry.pop("exc_info", None)
    if isinstance(error, BaseException):
        places = []
        trace = error.__traceback__
        while trace is not None:
            places.append(f"{trace.tb_frame.f_code.co_qualname} ({trace.tb_lineno})")
            trace = trace.tb_next
        entry["exception"], entry["stack"] = type(error).__name__, places
    return entry


class _ToStructlog(logging.Handler):
    """Carries library log records over, without their formatted arguments or exception texts."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        structlog.get_logger().warning(
            "library", logger=record.name, text=str(record.msg).partition("\n")[0], exc_info=error
        )


class RefusalSampler:
    """Lets the first lines of each reason in each interval through and counts the rest."""

    def __init__(self) -> None:
        self._interval_began_at = float("-inf")
        self._seen: Counter[Reason] = Counter()

    def lets_through(self, reason: Reason) -> bool:
        self._seen[reason] += 1
        return self._seen[reason] <= REFUSAL_LINES_MAX

    def ended_interval(self, now: float) -> dict[Reason, int]:
        """Begin a new interval where the last is over; return the lines held back in it, by reason."""
        if now < self._interval_began_at + REFUSAL_INTERVAL_S:
            return {}
        held_back = {reason: seen - REFUSAL_LINES_MAX for reason, seen in self._seen.items()}
        self._interval_began_at = now
        self._seen.clear()
        return {reason: count for reason, count in held_back.items() if count > 0}


class RequestLog:
    """Writes the line of each ended request; refusal floods are sampled and summarised, and say so."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._sampler = RefusalSampler()
        self._log = structlog.get_logger().bind()

    def ended(self, exchange: Exchange) -> None:
        self.summarise()
        reason = exchange.reason
        refused = exchange.outcome in (Outcome.REFUSED, Outcome.EXPIRED)
        if refused and reason is not None and not self._sampler.lets_through(reason):
            return
        self._log.info("request", **_fields(exchange))

    def dividing_changed(self, engine: str, reason: FallbackReason | None) -> None:
        """Write that an engine begins to get long prompts whole, or in parts again.

        Trust is won back by a try a minute, so that no engine makes more than two such lines in one.
        """
        if reason is None:
            self._log.info("long_prompts_in_parts_again", engine=engine)
        else:
            self._log.warning("long_prompts_go_whole", engine=engine, reason=reason.value)

    def summarise(self) -> None:
        """Write how many refusal lines the last interval held back; to be called now and then, and at the end."""
        for reason, count in self._sampler.ended_interval(self._now()).items():
            self._log.info("refusals_not_logged", reason=reason.value, count=count, interval_s=REFUSAL_INTERVAL_S)


def safe_caller_id(value: str | None) -> str | None:
    """Return a caller's own request id as the log may hold it."""
    return None if value is None else _UNSAFE.sub("_", value[:CALLER_ID_CHARACTERS_MAX])


def _fields(exchange: Exchange) -> dict[str, Any]:
    identity = exchange.identity
    ended_at = exchange.arrived_at if exchange.ended_at is None else exchange.ended_at
    return {
        "request_id": exchange.request_id,
        "caller_request_id": exchange.caller_request_id,
        "route": exchange.route,
        "stream": exchange.stream,
        "key_id": None if identity is None else identity.key_id,
        "tenant": None if identity is None else identity.tenant,
        **({} if exchange.trace is None else {"trace_id": exchange.trace.id}),
        "service_class": exchange.labels.service_class,
        "length_class": exchange.labels.length_class,
        "pool": exchange.labels.pool,
        "engine": exchange.engine,
        "outcome": None if exchange.outcome is None else exchange.outcome.value,
        "reason": None if exchange.reason is None else exchange.reason.value,
        "status": exchange.status,
        "counted_prompt_tokens": exchange.counted_prompt_tokens,
        "prompt_tokens": exchange.prompt_tokens,
        "output_tokens": exchange.output_tokens,
        "requeues": exchange.requeues,
        "arrived_at": exchange.arrived_at,
        "queued_s": _seconds(exchange.waited_s),
        "ttft_s": _between(exchange.arrived_at, exchange.first_token_at),
        "engine_ttft_s": _between(exchange.dispatched_at, exchange.first_token_at),
        "longest_stall_s": _seconds(exchange.longest_stall_s),
        "request_s": _seconds(ended_at - exchange.arrived_at),
    }


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else _seconds(end - start)


def _seconds(value: float | None) -> float | None:
    # To whole microseconds; `round` with a number of digits goes by way of a decimal string.
    return None if value is None else round(value * 1e6) / 1e6
