"""One headless Chromium for the tests of this folder; where there is none they skip."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import structlog

from gateway.engines import watch
from gateway.testing import raw_client

sys.path.insert(0, str(Path(__file__).parent))  # what these tests share stands beside them

NAMES = ("chromium", "chromium-browser", "google-chrome")
START_S_MAX = 30.0
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
    *("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--remote-debugging-port=0", "about:blank"),
)


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    """The address of a browser's DevTools."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"needs a Chromium: none of {', '.join(NAMES)} is on the PATH")
    home = tmp_path_factory.mktemp("chromium")
    opened, deadline = home / "DevToolsActivePort", time.monotonic() + START_S_MAX
    log = home / "log"
    with (
        log.open("wb") as output,
        subprocess.Popen([program, f"--user-data-dir={home}", *FLAGS], stdout=output, stderr=output) as process,
    ):
        try:
            while not (opened.exists() and opened.read_text().count("\n") == 1):
                assert process.poll() is None and time.monotonic() < deadline, log.read_text(errors="replace")
                time.sleep(0.02)
            port, path = opened.read_text().split("\n")
            yield f"ws://127.0.0.1:{port}{path}"
        finally:
            process.terminate()


@pytest.fixture(autouse=True)
def quiet_patient_gateway(monkeypatch):
    """A hundred engines in one process: looked at seldom; callers that wait for all of a test; no log to be written."""
    monkeypatch.setattr(watch, "LOOK_INTERVAL_S", 30.0)
    monkeypatch.setattr(raw_client, "READ_S_MAX", 120.0)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()
