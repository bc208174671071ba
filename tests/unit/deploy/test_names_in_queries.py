"""Every metric and label that an alert, a recording rule or a dashboard names is one that docs/metrics.md promises.

What the table promises is compared with a real scrape elsewhere, both ways.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
COMMON = {"service_class", "length_class", "pool"}
BY_PROMETHEUS = {"job", "instance", "le"}


def promised():
    rows = re.findall(r"^\| `(gateway_\w+)` \| (\w+) \|(.*?)\|", (ROOT / "docs/metrics.md").read_text(), re.MULTILINE)
    names = {}
    for name, kind, words in rows:
        labels = (COMMON if "common" in words else set()) | set(re.findall(r"`(\w+)`", words))
        for ending in ("_bucket", "_sum", "_count") if kind == "histogram" else ("",):
            names[name + ending] = labels
    return names


def rules():
    for file in ("alerts.yaml", "scorecard.yaml"):
        for group in yaml.safe_load((ROOT / "deploy/prometheus" / file).read_text())["groups"]:
            yield from group["rules"]


RECORDED = {rule["record"] for rule in rules() if "record" in rule}


def queries():
    for rule in rules():
        yield rule.get("alert") or rule["record"], rule["expr"]
    for path in sorted((ROOT / "deploy/grafana").glob("*.json")):
        board = json.loads(path.read_text())
        for panel in board["panels"]:
            for target in panel.get("targets", ()):
                yield f"{panel['title']} {target['refId']}", target["expr"]
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                yield f"${variable['name']}", variable["query"]["query"]


@pytest.mark.parametrize(("where", "query"), list(queries()))
def test_a_query_names_what_is_there(where, query):
    table = promised()
    named = re.findall(r"\b(gateway_\w+)(?:\{([^}]*)\})?", query)
    is_constant = re.fullmatch(r"vector\([\d.]+\)", query) is not None
    assert named or is_constant or re.search(r"gateway:[\w:]+", query) or 'up{job="gateway"}' in query
    for recorded in re.findall(r"gateway:[\w:]+", query):
        assert recorded in RECORDED
    known = set(BY_PROMETHEUS)
    for name, matchers in named:
        assert name in table
        known |= table[name]
        assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers)) <= table[name] | BY_PROMETHEUS
    grouped = {
        label.strip()
        for labels in re.findall(r"\b(?:by|on|ignoring)\s*\(([^)]*)\)", query)
        for label in labels.split(",")
        if label.strip()
    }
    if named:
        assert grouped <= known
