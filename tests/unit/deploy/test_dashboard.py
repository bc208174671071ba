"""The dashboard as Grafana will read it."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

BOARD = json.loads((Path(__file__).parents[3] / "deploy/grafana/gateway.json").read_text())
PLOTS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]


def test_each_panel_has_a_place_and_a_number_of_its_own():
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    places = [panel["gridPos"] for panel in BOARD["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for one, other in itertools.combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above


def test_each_panel_says_what_it_shows_and_names_no_data_source_of_its_own():
    assert all(panel["description"].endswith(".") for panel in PLOTS)
    assert {panel["datasource"]["uid"] for panel in PLOTS} == {"${datasource}"}


def test_the_first_panel_is_the_oldest_wait_against_its_limit():
    assert "gateway_queue_oldest_age_seconds" in PLOTS[0]["targets"][0]["expr"]


def test_each_query_is_of_the_job_that_is_looked_at():
    assert all('job=~"$job"' in target["expr"] for panel in PLOTS for target in panel["targets"])
