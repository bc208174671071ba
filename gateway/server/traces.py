"""The export of traces as a part of the process: begun before the first request, flushed after the last.

Owns how long the flush may take. Nothing of the export runs on the loop.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from gateway.observe.metrics import Observer

if TYPE_CHECKING:
    from gateway.observe.trace_export import TraceExport
    from gateway.observe.tracing import Tracing

FLUSH_S_MIN = 1.0  # also where a drain has used all of its time: the spans of what it cut are among those that wait
FLUSH_S_MAX = 5.0


class CannotTrace(Exception):  # noqa: N818 - the state that it names
    """The environment does not say how to export. Its text says why."""


class Traces:
    """The export, where tracing is on."""

    def __init__(self, observer: Observer) -> None:
        self._spans = observer.families.trace_spans
        self._export: TraceExport | None = None

    async def begin(self) -> Tracing:
        """Set the export up by the environment; files are read off the loop. Raises CannotTrace."""
        from gateway.observe.trace_export import Sent, TraceExport
        from gateway.observe.tracing import Tracing

        series = {sent: self._spans.at(sent.value) for sent in Sent}
        try:
            self._export = await asyncio.to_thread(TraceExport, lambda sent, spans: series[sent].inc(spans))
        except ValueError as error:
            raise CannotTrace(str(error)) from error
        return Tracing(self._export.tracer())

    async def end(self, left_s: float) -> None:
        """Flush, for what is left of a drain's time; what the collector has not taken by then is lost."""
        if self._export is None:
            return
        export, loop, flushed = self._export, asyncio.get_running_loop(), asyncio.Event()

        def flush() -> None:
            export.flush_and_end()
            with suppress(RuntimeError):  # the loop has not waited for it
                loop.call_soon_threadsafe(flushed.set)

        # No thread of the loop's own pool: the process would not end before that one does.
        threading.Thread(target=flush, name="trace-flush", daemon=True).start()
        try:
            async with asyncio.timeout(min(FLUSH_S_MAX, max(FLUSH_S_MIN, left_s))):
                await flushed.wait()
        except TimeoutError:
            structlog.get_logger().warning("traces_not_flushed")
