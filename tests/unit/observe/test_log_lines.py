"""How a line reaches the writer."""

from __future__ import annotations

import json
import logging

import pytest
import structlog

from gateway.observe import logs


@pytest.fixture
def configured():
    before, handlers, level = structlog.get_config(), logging.root.handlers[:], logging.root.level
    yield logs.configure
    structlog.configure(**before)
    logging.root.handlers, logging.root.level = handlers, level


class Written:
    """Takes what is written, a piece at a time."""

    def __init__(self):
        self.pieces = []

    def write(self, piece):
        self.pieces.append(piece)

    def flush(self):
        pass


def test_a_line_is_one_write_so_that_none_is_dropped_by_half(configured):
    written = Written()
    configured(written)
    structlog.get_logger().info("one")
    structlog.get_logger().info("two")
    assert [json.loads(piece)["event"] for piece in written.pieces] == ["one", "two"]
    assert all(piece.endswith("\n") for piece in written.pieces)
