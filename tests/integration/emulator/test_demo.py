"""`gateway demo` as a user starts it, for a few seconds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deploy.engine.launch import free_port

pytestmark = pytest.mark.timeout(300, func_only=True)

ROOT = Path(__file__).parents[3]


def test_the_demonstration_leaves_a_table_a_picture_a_page_and_the_commands(tmp_path):
    out = tmp_path / "demo"
    command = [sys.executable, "-m", "gateway", "demo", "--seconds", "2", "--request-rate", "5", "--out", str(out)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    # 3 and 4: requests left over, or a client that was late; a busy machine does that, and it is said.
    assert ended.returncode in (0, 3, 4), ended.stderr
    assert (out / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert "data:image/png;base64," in (out / "demo.html").read_text()
    assert "figures of the embedded engine, not of a real one" in ended.stdout
    assert ended.stdout.rstrip().endswith(f"bench compare {out / 'scenario.yaml'}")
    assert [line[:6] for line in ended.stderr.splitlines() if line.startswith("[")] == ["[1/2] ", "[2/2] "]
    (run,) = list((out / "runs").glob("*/*/run.json"))[:1]
    assert json.loads(run.read_text())["engine_version"].endswith("+emulator")
    arms = {json.loads(path.read_text())["target"]["name"] for path in (out / "runs").glob("*/*/run.json")}
    assert arms == {"passthrough", "short-first"}


STARTS = {
    "demo": ("-m", "gateway", "demo", "--out", "demo"),
    "run": ("-m", "deploy.run"),
}


@pytest.mark.parametrize("command", STARTS)
def test_what_was_started_ends_with_whoever_is_told_to_end_before_all_of_it_serves(tmp_path, command):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "ENGINE_URL": "", "ENGINE_PORT": str(free_port())}
    with (tmp_path / "said").open("wb") as said:
        starter = subprocess.Popen(
            [sys.executable, *STARTS[command]], cwd=tmp_path, env=environment, stdout=said, stderr=said
        )
    children = Path(f"/proc/{starter.pid}/task/{starter.pid}/children")
    while not (begun := children.read_text().split()):
        time.sleep(0.02)
    starter.terminate()
    starter.wait()
    left = [pid for pid in begun if Path(f"/proc/{pid}").exists()]
    for pid in left:
        os.kill(int(pid), signal.SIGTERM)
    assert left == []
