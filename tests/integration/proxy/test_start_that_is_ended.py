"""A start that is told to end, in each of its stages: it does so at once, as a clean end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import pytest

from gateway.testing.harness import settings_text, write_configuration

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])  # the process has a loop of its own, whatever the test's is

END_S_MAX = 90.0
BLOCKING = "import os; open(os.environ['GATE']).read()"


async def ended_at(folder, gate, number, *, passes=0):
    """Start, end it while it reads `gate` after `passes` times, and return its exit status. The gate is a named pipe."""
    text = gate.read_text() if gate.exists() else ""
    gate.unlink(missing_ok=True)
    os.mkfifo(gate)
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "serve", "--config", str(folder / "gateway.yaml")),
        env={**os.environ, "PYTHONPATH": str(folder / "modules"), "GATE": str(gate)},
    )
    try:
        async with asyncio.timeout(END_S_MAX):
            for _ in range(passes):
                await asyncio.to_thread(gate.write_text, text)
            with await asyncio.to_thread(gate.open, "w"):
                child.send_signal(number)
                return await child.wait()
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


@pytest.fixture
def configured(tmp_path):
    write_configuration(tmp_path, settings_text({"a": "http://127.0.0.1:9"}))
    (tmp_path / "modules").mkdir()
    return tmp_path


@pytest.mark.parametrize("module", ["pydantic", "uvloop"])
async def test_while_it_is_being_imported(configured, module):
    (configured / "modules" / f"{module}.py").write_text(BLOCKING)
    assert await ended_at(configured, configured / "gate", signal.SIGTERM) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_while_it_reads_its_configuration(configured, number):
    assert await ended_at(configured, configured / "gateway.yaml", number) == 0


async def test_while_it_makes_itself_ready_on_its_event_loop(configured):
    """The keys are read a second time then."""
    assert await ended_at(configured, configured / "keys.yaml", signal.SIGTERM, passes=1) == 0
