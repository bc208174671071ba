"""The real engine for these tests: started on a free port at first use, ended by its process id at the end.

Skips only where the platform cannot run it. An install or a start that fails is an error.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from deploy.engine import home as homes
from deploy.engine import install, launch
from deploy.engine.flags import EngineFlags
from gateway.testing import raw_client

sys.path.insert(0, str(Path(__file__).parent))  # what these tests share stands beside them

TEST_S_MAX = 180
ANSWER_S_MAX = 120.0


def pytest_collection_modifyitems(items):
    """The time limit is each test's own: an engine that starts for the first of them has a deadline of its own."""
    for item in items:
        if Path(__file__).parent in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_S_MAX, func_only=True))


@pytest.fixture(scope="session")
def engine_home():
    """The installed kit."""
    problem = homes.platform_problem()
    if problem is not None:
        pytest.skip(problem)
    home = homes.find()
    install.ensure(home)
    launch.stop_ownerless(home)
    return home


@pytest.fixture(scope="session")
def engine_factory(engine_home):
    """Engines by flags: engine_factory(scheduling_policy="fcfs"); the same flags give the same engine."""
    started = {}

    def of(**flags):
        asked = EngineFlags(**flags)
        if asked not in started:
            name = f"tests-{os.getpid()}-{len(started)}"
            started[asked] = launch.start(name, launch.free_port(), asked, owner_pid=os.getpid(), home=engine_home)
        return started[asked]

    yield of
    for engine in started.values():
        launch.stop(engine.name, home=engine_home)


@pytest.fixture(scope="session")
def engine(engine_factory):
    """Priority, a threshold of 640 tokens, 2,048 tokens a step: what the shipped policies are written for."""
    return engine_factory()


@pytest.fixture(autouse=True)
def patient_clients(monkeypatch):
    """An engine on a busy CPU takes its time, and compiles a kernel at its first sampled token."""
    monkeypatch.setattr(raw_client, "READ_S_MAX", ANSWER_S_MAX)
