"""Alert and recording rules: sound for Prometheus, each alert tried and explained, every name real."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy/prometheus"
GROUPS = [
    group
    for file in ("alerts.yaml", "scorecard.yaml")
    for group in yaml.safe_load((FOLDER / file).read_text())["groups"]
]
ALERTS = {rule["alert"]: rule for group in GROUPS for rule in group["rules"] if "alert" in rule}
RECORDED = {rule["record"]: rule["expr"] for group in GROUPS for rule in group["rules"] if "record" in rule}

promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed: on Debian, apt install prometheus"
)


def run(*arguments):
    done = subprocess.run(
        ["promtool", *arguments], cwd=FOLDER, capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, done.stdout + done.stderr


@promtool
@pytest.mark.timeout(150)
def test_the_rules_do_what_their_tests_say():
    assert run("check", "config", "--syntax-only", "prometheus.yaml")[0] == 0
    for arguments in (("check", "rules", "alerts.yaml", "scorecard.yaml"), ("test", "rules", "alerts_test.yaml")):
        status, words = run(*arguments)
        assert status == 0, words


def test_each_alert_is_made_to_fire_in_a_test():
    fired = set(re.findall(r'alertname="(\w+)"}\', value', (FOLDER / "alerts_test.yaml").read_text()))
    assert fired == ALERTS.keys()


def test_each_alert_says_what_is_wrong_and_leads_to_its_own_paragraph_of_the_runbook():
    paragraphs = re.findall(r"^## (\w+)$", (ROOT / "docs/runbook.md").read_text(), re.MULTILINE)
    assert sorted(paragraphs) == sorted(ALERTS)
    for name, rule in ALERTS.items():
        assert rule["annotations"]["summary"].endswith("."), name
        assert rule["annotations"]["runbook_url"] == f"docs/runbook.md#{name.lower()}"
        assert rule["labels"].keys() == {"severity"}
        assert rule["labels"]["severity"] in {"page", "ticket", "note"}


def test_the_oldest_queued_age_is_the_first_alert():
    assert next(iter(ALERTS)) == "OldestQueuedAge"


def test_no_two_rules_have_one_name():
    assert len(ALERTS) + len(RECORDED) == sum(len(group["rules"]) for group in GROUPS)
