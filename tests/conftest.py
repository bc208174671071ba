"""The real engine for the tests that need one: started on a free port at first use, ended by its process id at the end.

Skips only where the platform cannot run it. An install or a start that fails is an error.
"""

from __future__ import annotations

import os

import pytest

from deploy.engine import home as homes
from deploy.engine import install, launch
from deploy.engine.flags import EngineFlags


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
