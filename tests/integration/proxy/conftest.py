"""These tests run on asyncio and on uvloop, log as production does, and fail where a call blocks the loop.

Those that wait for a long time to pass run on asyncio alone, whose clock can be put ahead: `@pytest.mark.asyncio(loop_factories=["asyncio"])`.
"""

from __future__ import annotations

import io
import logging
import sys
import time

import pytest
import structlog
import uvloop
from blockbuster import blockbuster_ctx

from gateway.observe import logs
from gateway.server import clock
from gateway.testing.skipping_loop import SkippingLoop


def pytest_asyncio_loop_factories():
    return {"asyncio": SkippingLoop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
def nothing_blocks_the_loop():
    with blockbuster_ctx("gateway.server") as detector:
        for function in detector.functions.values():
            # The kernel answers from memory: reading /proc waits for no disk.
            function.can_block_in("prometheus_client/process_collector.py", "collect")
        yield


@pytest.fixture(autouse=True)
def logged():
    """A call that ends the log and returns it; shown where a test fails."""
    stream = io.StringIO()
    writer = logs.LineWriter(stream)
    before = structlog.get_config()
    handlers, level = logging.root.handlers[:], logging.root.level
    logs.configure(writer)

    def written():
        writer.close()
        return stream.getvalue()

    yield written
    structlog.configure(**before)
    logging.root.handlers, logging.root.level = handlers, level
    sys.stdout.write(written())


class WallClock:
    """The gateway's wall clock, which a test may set: `now`, in seconds since the epoch."""

    def __init__(self):
        self.now = time.time()  # noqa: TID251 - it stands for the machine's

    def time(self):
        return self.now

    @staticmethod
    def monotonic():
        return time.monotonic()


@pytest.fixture
def wall_clock(monkeypatch):
    """The wall clock of gateways that are made from here on; it stands still until it is set."""
    wall_clock = WallClock()
    monkeypatch.setattr(clock, "time", wall_clock)
    return wall_clock
