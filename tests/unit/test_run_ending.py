"""What is said of an engine that was there before: whose it is, and who may end it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy import run
from deploy.engine import launch
from deploy.engine.flags import EngineFlags
from deploy.engine.running import Engine


def an_engine(owner_pid):
    return Engine("default", 1, 0, 8000, "tiny", Path("model"), Path("log"), EngineFlags(), owner_pid, effective={})


@pytest.fixture(scope="module")
def ended_pid():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def test_the_engine_of_another_run_is_not_to_be_stopped():
    engine = an_engine(os.getpid())
    for words in (run.whose_end(engine), launch._how_to_end(engine)):
        assert f"pid {os.getpid()}" in words
        assert "make engine-stop" not in words


def test_an_engine_of_nobodys_is_stopped_by_hand(ended_pid):
    for owner in (None, ended_pid):
        engine = an_engine(owner)
        for words in (run.whose_end(engine), launch._how_to_end(engine)):
            assert "make engine-stop" in words
