"""What an engine's pages are read as, also when they are not what they should be."""

from __future__ import annotations

import json
from urllib.parse import parse_qs

import pytest

from gateway.engines import reading
from gateway.testing import answers

RANK = '{{engine="{}",model_name="tiny"}}'


def test_a_metrics_page_is_read_without_the_rest_of_it():
    page = answers.metrics_text({"running": 3, "waiting": 2, "kv_usage": 0.5, "started": 7, "preemptions": 1})
    load = reading.load(b"python_info 1.0\n" + page)
    assert (load.running, load.waiting, load.kv_usage, load.started_at, load.preemptions) == (3, 2, 0.5, 7, 1)
    assert (load.kv_tokens, load.kv_block_tokens) == (65536, 16)


def test_the_filtered_page_tells_all_that_the_whole_one_does():
    page = answers.metrics_text({"running": 3, "waiting": 2, "kv_usage": 0.5, "started": 7, "preemptions": 1})
    names = parse_qs(reading.FILTERED_METRICS_PATH.partition("?")[2])["name[]"]
    assert reading.load(answers.metrics_of(page, names)) == reading.load(page)


@pytest.mark.parametrize("started", ["nan", "inf", "1e999"])
def test_a_value_that_is_no_number_is_not_taken(started):
    page = answers.metrics_text({"running": 0, "waiting": 0, "kv_usage": 0, "started": started})
    assert reading.load(page).started_at is None


@pytest.mark.parametrize("read", [reading.models, reading.version])
@pytest.mark.parametrize("body", [b"[" * 200_000, b'{"data":' * 200_000, b"1" * 10_000, b"\xff"])
def test_whatever_an_engine_says_it_is_read_without_an_error(read, body):
    assert read(body) is None


def test_numbers_without_measure_are_none():
    page = answers.metrics_text({"running": 0, "waiting": 0, "kv_usage": 0, "started": 1})
    assert reading.load(page.replace(b"65536", b"9" * 10_000)).kv_tokens is None
    assert not reading.reads_priority_header("9" * 10_000 + ".1")
    for length in (10**40, True, 0, -1, "4096"):
        assert reading.context_tokens([{"id": "m", "max_model_len": length}], "m") is None
    assert reading.context_tokens([{"id": "m", "parent": [["m"]]}], "m") is None


def test_ranks_are_added_up_and_the_fullest_cache_counts():
    page = "".join(
        f"vllm:num_requests_running{RANK.format(rank)} {running}\nvllm:kv_cache_usage_perc{RANK.format(rank)} {usage}\n"
        for rank, running, usage in ((0, 2.0, 0.25), (1, 3.0, 0.75))
    )
    load = reading.load(page.encode())
    assert (load.running, load.kv_usage) == (5, 0.75)


def test_counters_of_a_billion_are_read_in_any_notation():
    page = answers.metrics_text({"running": 0, "waiting": 0, "kv_usage": 0, "started": "1.7e+09"})
    assert reading.load(page).started_at == 1.7e9


@pytest.mark.parametrize(
    "page", [b"", b"# HELP x y\n", b"python_info 1.0\n", b"\xff\xfe garbage", b"vllm:num_requests_running{} x"]
)
def test_a_page_without_the_gauges_is_no_reading(page):
    assert reading.load(page) is None


def test_idle_is_neither_running_nor_waiting_and_unknown_is_not_idle():
    assert reading.Load(running=0, waiting=0).is_idle
    assert not reading.Load(running=1, waiting=0).is_idle
    assert not reading.Load().is_idle


@pytest.mark.parametrize("body", [b"", b"no json", b"[]", b'{"data": 3}', b'{"error": "Unauthorized"}'])
def test_what_is_no_list_of_models_is_none(body):
    assert reading.models(body) is None


def test_an_adapter_has_its_parents_context():
    cards = reading.models(
        json.dumps(
            {
                "data": [
                    answers.model_card("base", 4096),
                    {"id": "adapter", "parent": "base", "max_model_len": None},
                    {"id": "orphan", "parent": None, "max_model_len": None},
                    "no card",
                ]
            }
        ).encode()
    )
    assert [card["id"] for card in cards] == ["base", "adapter", "orphan"]
    assert reading.context_tokens(cards, "adapter") == 4096
    assert reading.context_tokens(cards, "orphan") is None
    assert reading.context_tokens(cards, "nowhere") is None


@pytest.mark.parametrize(
    ("version", "header"),
    [("0.32.0", True), ("0.33.1rc1", True), ("1.0", True), ("0.11.2", False), ("dev", False), (None, False)],
)
def test_the_header_is_for_releases_that_read_it(version, header):
    assert reading.reads_priority_header(version) is header
