"""The real engine for the tests that need one, how random tests look, signals, and what of the suite runs in one process.

The engine starts on a free port at first use and is ended by its process id at the end. Its tests skip only where the
platform cannot run it: an install or a start that fails is an error.
"""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.internal.conjecture import engine as search
from xdist.scheduler import LoadScopeScheduling

from deploy.engine import home as homes
from deploy.engine import install, launch
from deploy.engine.flags import EngineFlags

STARTED_ONCE_IN = {
    "tests/engine/": "the real engine",
    "tests/conformance/test_sdks_on_vllm.py": "the real engine",
    "tests/integration/emulator/": "the emulator",
    "tests/browser/": "the browser",
    "tests/integration/bench/test_manifests.py": "two engines and a gateway of its own",
}
SHRINKING_S_MAX = 30  # of one failure, where five minutes are the default: no setting of a profile bounds it

# Random tests are judged by what they find, never by how long a busy machine takes over it. An example that fails is
# made smaller; what in it is irrelevant is not tried out. HYPOTHESIS_PROFILE=deep lets the machines look for longer.
settings.register_profile("suite", deadline=None, print_blob=True, phases=set(Phase) - {Phase.explain})
settings.register_profile("deep", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))
if settings.get_current_profile_name() == "suite":
    search.MAX_SHRINKING_SECONDS = SHRINKING_S_MAX


class ByProgram(LoadScopeScheduling):
    """Whoever is free takes the next test; those of one folder that share a program stay in one process."""

    def _split_scope(self, nodeid: str) -> str:
        return next((program for folder, program in STARTED_ONCE_IN.items() if nodeid.startswith(folder)), nodeid)


def pytest_xdist_make_scheduler(config, log):
    """Not by marks, which pytest-xdist writes where pytest 9.2 no longer reads. What is most is begun first."""
    return ByProgram(config, log)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config):
    """A run that is cut off ends its processes without their last words; their engines go with them."""
    if config.getoption("numprocesses", None):
        launch.stop_ownerless(homes.find())


@pytest.fixture
def signals_as_in_a_terminal():
    """SIGINT, SIGTERM and SIGHUP are heard, also where `nohup` or a shell's `&` started the suite."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


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


@pytest.fixture(scope="session")
def stock_engine(engine_factory):
    """First come, first served, no threshold and a cache of prefixes, as vLLM is by default; fewer at a time than there."""
    return engine_factory(
        scheduling_policy="fcfs", long_prefill_token_threshold=0, max_num_seqs=64, enable_prefix_caching=True
    )
