"""How the tests on the real engine run: each with time of its own, and with clients that wait for it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gateway.testing import raw_client

sys.path.insert(0, str(Path(__file__).parent))  # what these tests share stands beside them

TEST_S_MAX = 180
ANSWER_S_MAX = 120.0


def pytest_collection_modifyitems(items):
    """The time limit is each test's own: an engine that starts for the first of them has a deadline of its own."""
    for item in items:
        if Path(__file__).parent in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_S_MAX, func_only=True))


@pytest.fixture(autouse=True)
def patient_clients(monkeypatch):
    """An engine on a busy CPU takes its time, and compiles a kernel at its first sampled token."""
    monkeypatch.setattr(raw_client, "READ_S_MAX", ANSWER_S_MAX)
