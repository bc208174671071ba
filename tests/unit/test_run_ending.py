"""What is said of an engine that was there before: whose it is, and who may end it."""

from __future__ import annotations

import os
from pathlib import Path

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
