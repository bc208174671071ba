"""How an engine ends, and what is said of one that was there before: whose it is, and who may end it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench import children
from deploy.engine import launch
from deploy.engine.flags import EngineFlags
from deploy.engine.running import Engine


def an_engine(owner_pid):
    return Engine("default", 1, 0, 8000, "tiny", Path("model"), Path("log"), EngineFlags(), owner_pid, effective={})


NO_PID = (1 << 22) + 1  # above every process id that the kernel gives out


def test_the_engine_of_another_run_is_not_to_be_stopped():
    words = launch._how_to_end(an_engine(os.getpid()))
    assert f"pid {os.getpid()}" in words
    assert "make engine-stop" not in words


def test_an_engine_of_nobodys_is_stopped_by_hand():
    for owner in (None, NO_PID):
        assert "make engine-stop" in launch._how_to_end(an_engine(owner))


@pytest.mark.usefixtures("signals_as_in_a_terminal")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_child_ends_with_whoever_is_told_to_end_by_any_signal(number):
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), children.child([sys.executable, "-c", "input()"]) as process:
        os.kill(os.getpid(), number)
    assert process.returncode is not None
    assert signal.getsignal(number) is before


def test_a_signal_that_was_ignored_before_ends_no_child():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with children.child([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process, process.stdin:
            os.kill(os.getpid(), signal.SIGHUP)
            assert process.poll() is None
    finally:
        signal.signal(signal.SIGHUP, before)


def test_an_engine_that_does_not_end_in_time_is_killed(monkeypatch):
    monkeypatch.setattr(children, "END_S_MAX", 0.05)
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"
    with children.child([sys.executable, "-c", deaf], stdout=subprocess.PIPE) as engine, engine.stdout:
        engine.stdout.readline()
    assert engine.returncode == -signal.SIGKILL
