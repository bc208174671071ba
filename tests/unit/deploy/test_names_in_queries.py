"""Every metric and label that an alert, a recording rule or a dashboard names is one that docs/metrics.md promises.

What the table promises is compared with a real scrape elsewhere, both ways.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from gateway.observe.families import Families

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


def test_a_query_of_a_bucket_names_an_end_that_the_histogram_has():
    ends = {f"{family._name}_bucket": set(map(repr, map(float, family._bounds))) for family in Families()._all}
    named = [
        (where, name, end)
        for where, query in queries()
        for name, matchers in re.findall(r"\b(gateway_\w+_bucket)\{([^}]*)\}", query)
        for end in re.findall(r'\ble="([^"]*)"', matchers)
    ]
    assert named
    assert [entry for entry in named if entry[2] not in ends[entry[1]] | {"+Inf"}] == []


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
