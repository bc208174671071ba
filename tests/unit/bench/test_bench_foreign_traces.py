"""Traces of others: read as they are written, malformed ones refused with their place, every change recorded."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.cli import main
from bench.errors import UsageError
from bench.trace import anonymous, foreign, groups, jsonl, shaping
from bench.trace.arrivals import Arrival, Trace
from bench.trace.foreign import Format
from bench.trace.portrait import portrait

TRACES_ENV = "BENCH_TRACES"

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:17:03.9799600,4808,10\r\n"
    "2023-11-16 18:17:04.0319600,110,8\r\n"
    "2023-11-16 18:17:04.5319600,120,0"
)
BURSTGPT = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,12,3.0,ChatGPT,472,18,490,Conversation log\n"
    "45,12,3.0,GPT-4,1087,230,1317,API log\n"
    "118,13,,GPT-4,417,0,417,API log\n"
)
MOONCAKE = "".join(
    json.dumps({"timestamp": at_ms, "input_length": tokens, "output_length": 9, "hash_ids": ids}) + "\n"
    for at_ms, tokens, ids in ((0, 1100, [0, 1, 2]), (0, 1024, [0, 1]), (3000, 600, [0, 7]), (3000, 100, [9]))
)
LOG = "".join(
    json.dumps({"event": "request", "timestamp": "2026-01-01T00:00:00Z", "level": "info", **row}) + "\n"
    for row in (
        {"arrived_at": 50.5, "prompt_tokens": 700, "output_tokens": 12, "length_class": "long", "tenant": "acme",
         "service_class": "batch", "outcome": "completed", "request_s": 2.0},
        {"arrived_at": 50.0, "counted_prompt_tokens": 90, "output_tokens": None, "length_class": "short",
         "tenant": "acme", "service_class": "interactive", "outcome": "refused", "request_s": 0.1},
        {"arrived_at": 52.0, "prompt_tokens": 80, "output_tokens": 3, "length_class": "short", "tenant": "b",
         "service_class": "interactive", "outcome": "client_gone", "request_s": 1.25},
    )
) + json.dumps({"event": "reloaded", "timestamp": "2026-01-01T00:00:00Z"})  # fmt: skip


def rows(text: str, **options: int) -> list[tuple[float, int, int]]:
    kind = foreign.detect(text, "file")
    return [
        (row.at_s, row.prompt_tokens, row.output_tokens) for row in foreign.parse(text, kind, "file", **options).rows
    ]


def test_the_azure_csv_is_read_with_its_seven_decimals_and_line_ends() -> None:
    (first, *_), (second, *_) = rows(AZURE)
    assert second - first == pytest.approx(0.052)
    assert [row[1:] for row in rows(AZURE)] == [(4808, 10), (110, 8)]
    assert foreign.parse(AZURE, Format.AZURE, "file").left_out == {"no output tokens": 1}


def test_burstgpt_rows_keep_their_session_and_failures_are_left_out() -> None:
    assert rows(BURSTGPT) == [(5.0, 472, 18), (45.0, 1087, 230)]
    found = foreign.parse(BURSTGPT, Format.BURSTGPT, "file")
    assert [row.session for row in found.rows] == ["s12", "s12"]
    assert found.left_out == {"no output tokens": 1}
    assert rows(BURSTGPT, unknown_output_tokens=64)[-1] == (118.0, 417, 64)


def test_mooncake_rows_keep_whole_prefix_blocks_alone() -> None:
    found = foreign.parse(MOONCAKE, foreign.detect(MOONCAKE, "file"), "file")
    assert [row.prefix for row in found.rows] == [("0", "1"), ("0", "1"), ("0",), ()]
    assert found.prefix_block_tokens == 512


@pytest.mark.parametrize(
    "stamps",
    [
        ["2024-05-10 00:00:00.009930+00:00", "2024-05-10 00:00:01+00:00"],
        ["2023-11-16 18:17:03.9903650", "2023-11-16 18:17:04.9804350"],
        ["2024-05-10 02:00:00+02:00", "2024-05-10 00:00:00.990070+00:00"],
    ],
)
def test_a_time_stamp_is_read_with_or_without_decimals_and_time_zone(stamps: list[str]) -> None:
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(f"{stamp},100,5\n" for stamp in stamps)
    first, second = rows(text)
    assert second[0] - first[0] == pytest.approx(0.99007, abs=1e-5)


def test_hash_ids_of_smaller_blocks_are_not_taken_for_larger_ones() -> None:
    """Two prompts of 1,024 tokens that share their first 512: of 16 tokens each, as vLLM writes them."""
    shared = list(range(32))
    text = "".join(
        json.dumps({"timestamp": 0, "input_length": 1024, "output_length": 9, "hash_ids": [*shared, *own]}) + "\n"
        for own in (range(100, 132), range(200, 232))
    )
    with pytest.raises(UsageError, match="line 1: 64 hash_ids are more than 1024 tokens have blocks of 512"):
        foreign.parse(text, Format.MOONCAKE, "file")
    read = foreign.parse(text, Format.MOONCAKE, "file", block_tokens=16)
    assert read.prefix_block_tokens == 16
    assert [row.prefix[:32] for row in read.rows] == [tuple(map(str, shared))] * 2


def test_a_gateway_log_becomes_its_own_traffic_again() -> None:
    found = foreign.parse(LOG, foreign.detect(LOG, "file"), "file", 128)
    arrivals = shaping.arrivals_of(found.rows, shaping.parse_rule(["short:640", "long"], "x"))
    assert [(each.at_s, each.class_name, each.prompt_tokens, each.output_tokens) for each in arrivals] == [
        (0.0, "short", 90, 128),
        (0.5, "long", 700, 12),
        (2.0, "short", 80, 3),
    ]
    assert [each.cancel_after_s for each in arrivals] == [None, None, 1.25]
    assert [each.service_class for each in arrivals] == ["interactive", "batch", "interactive"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1,2\n", "line 1 is of no known trace"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,1,2\n", "line 2: TIMESTAMP"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9,x,2\n", "line 2: ContextTokens"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9\n", "line 2: no value for ContextTokens"),
        ("Request tokens,Response tokens\n1,2\n", "line 1: no column 'Timestamp'"),
        ("Timestamp,Request tokens,Response tokens\nnan,1,2\n", "line 2: Timestamp must be a number"),
        ('{"timestamp": 0, "input_length": -1, "output_length": 1}', "line 1: input_length must be"),
        ('{"timestamp": true, "input_length": 1, "output_length": 1, "hash_ids": "no"}', "line 1: hash_ids must be"),
        ('{"timestamp": 0, "input_length": 1, "output_length": 1}\nnope', "line 2: not JSON"),
    ],
)
def test_a_malformed_file_is_refused_with_its_line(text: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        foreign.parse(text, foreign.detect(text, "file"), "file")
    assert str(refused.value).startswith("file: ") and said in str(refused.value)


def a_line(count: int, gap_s: float = 1.0, **changes: object) -> list[Arrival]:
    return [replace(Arrival(number * gap_s, "short", 100, 10), **changes) for number in range(count)]


def test_times_on_ticks_are_spread_inside_their_tick_and_the_trace_says_so(tmp_path: Path) -> None:
    source, out = tmp_path / "m.jsonl", tmp_path / "t.jsonl"
    source.write_text(MOONCAKE)
    assert main(["trace", "convert", str(source), "--seed", "4", "--out", str(out)]) == 0
    made = jsonl.read(out)
    assert made.origin["spread"] == {"tick_s": 3.0, "seed": 4}
    assert sorted(int(each.at_s // 3) for each in made.arrivals) == [0, 0, 1, 1]
    assert len({each.at_s for each in made.arrivals}) == 4
    assert main(["trace", "convert", str(source), "--keep-ticks", "--out", str(out)]) == 0
    assert {each.at_s for each in jsonl.read(out).arrivals} == {0.0, 3.0}


def test_times_that_a_clock_said_are_left_alone() -> None:
    assert shaping.tick_s(a_line(20)) is None


def test_thinning_keeps_the_asked_share_and_a_seed_decides_which() -> None:
    kept = shaping.thinned(a_line(4000), 0.25, 1)
    assert 900 < len(kept) < 1100
    assert kept == shaping.thinned(a_line(4000), 0.25, 1) != shaping.thinned(a_line(4000), 0.25, 2)


def test_a_converted_trace_has_the_asked_rate_and_says_how(tmp_path: Path) -> None:
    source, out = tmp_path / "a.csv", tmp_path / "t.jsonl"
    source.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        + "".join(f"2023-11-16 18:17:{number:02}.0,{700 if number % 5 else 90},10\n" for number in range(60))
    )
    words = ["--request-rate", "4", "--prompt-tokens-min", "100", "--cancel", "long:0.5:3", "--out", str(out)]
    assert main(["trace", "convert", str(source), *words]) == 0
    made = jsonl.read(out)
    assert len(made.arrivals) / made.span_s == pytest.approx(4)
    assert {each.prompt_tokens for each in made.arrivals} == {100, 700}
    assert {each.class_name for each in made.arrivals if each.cancel_after_s is not None} == {"long"}
    assert {"classes", "time_scale", "cancels", "prompt_tokens"} <= set(made.origin)


@pytest.mark.parametrize("words", [["short"] * 2, ["short:640"], ["short:9", "mid:9", "long"], ["Short:1", "l"], []])
def test_a_class_rule_that_leaves_a_prompt_without_class_is_refused(words: Sequence[str]) -> None:
    with pytest.raises((UsageError, StopIteration)):
        shaping.parse_rule(words, "--classes").class_of(10**6)


@pytest.mark.parametrize("word", ["short", "short:2:1", "short:0:1", "short:0.5:0", "short:0.5", "short:0.5:1:1"])
def test_a_cancel_rule_that_is_none_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="--cancel"):
        shaping.parse_cancels([word], "--cancel")


def test_an_anonymized_trace_keeps_times_lengths_classes_and_salted_hashes_alone() -> None:
    named = [replace(each, prefix=("secret-doc",), tenant="acme", session="s1") for each in a_line(3)]
    named.append(Arrival(5.0, "long", 900, 20, 2.5, service_class="gold"))
    trace = Trace(tuple(named), 5.0, {"source": "acme.log"}, 64)
    made = anonymous.anonymized(trace, b"salt")
    written = jsonl.encode(made).decode()
    assert not any(word in written for word in ("secret", "acme", "s1", "gold"))
    assert [(each.at_s, each.class_name, each.prompt_tokens, each.output_tokens) for each in made.arrivals] == [
        (each.at_s, each.class_name, each.prompt_tokens, each.output_tokens) for each in trace.arrivals
    ]
    assert made.arrivals[3].cancel_after_s == 2.5
    (shared,) = {each.prefix for each in made.arrivals[:3]}
    assert shared != anonymous.anonymized(trace, b"other").arrivals[0].prefix
    assert jsonl.decode(written.encode(), "t") == made


def test_the_three_groups_are_the_same_from_a_seed_and_one_does_not_change_another() -> None:
    alone = groups.generate({"chat": 3.0}, span_s=60.0, seed=5)
    mixed = groups.generate({"agent": 1.0, "document": 0.5, "chat": 3.0}, span_s=60.0, seed=5)
    assert [each for each in mixed.arrivals if each.class_name == "chat"] == list(alone.arrivals)
    assert mixed == groups.generate({"agent": 1.0, "document": 0.5, "chat": 3.0}, span_s=60.0, seed=5)
    assert mixed != groups.generate({"agent": 1.0, "document": 0.5, "chat": 3.0}, span_s=60.0, seed=6)
    assert jsonl.decode(jsonl.encode(mixed), "t") == mixed


def test_agents_share_prefixes_grow_turn_by_turn_and_some_leave() -> None:
    trace = groups.generate({"agent": 1.0}, span_s=300.0, seed=1)
    assert 0.4 < portrait(trace).shared_tokens_share < 0.9
    assert sum(each.cancel_after_s is not None for each in trace.arrivals) > 20
    sessions: dict[str | None, list[Arrival]] = {}
    for each in trace.arrivals:
        sessions.setdefault(each.session, []).append(each)
    turns = next(own for own in sessions.values() if len({each.prefix for each in own}) > 2)
    for earlier, later in pairwise(turns):
        assert later.prefix[: len(earlier.prefix)] == earlier.prefix


@given(st.lists(st.floats(0, 100), min_size=2, max_size=30))
def test_the_peak_is_the_most_in_any_second(times: list[float]) -> None:
    trace = shaping.finished([Arrival(at_s, "short", 9, 9) for at_s in sorted(times)], 100.0, {}, None)
    rounded = [each.at_s for each in trace.arrivals]
    assert portrait(trace).peak_in_one_second == max(sum(at <= other < at + 1 for other in rounded) for at in rounded)


def test_clumped_gaps_show_in_the_variation() -> None:
    times = [0.0, 0.1, 5.0, 5.1, 10.0]
    gaps = [0.1, 4.9, 0.1, 4.9]
    trace = Trace(tuple(Arrival(at_s, "short", 9, 9) for at_s in times), 10.0, {})
    assert portrait(trace).gap_variation == pytest.approx(pstdev(gaps) / fmean(gaps))


@pytest.mark.skipif(TRACES_ENV not in os.environ, reason=f"{TRACES_ENV} names no folder with published traces")
@pytest.mark.parametrize(
    ("name", "requests", "rate_per_s"),
    [
        ("AzureLLMInferenceTrace_conv.csv", 19_366, 5.53),
        ("AzureLLMInferenceTrace_code.csv", 8_819, 2.57),
        ("mooncake_fast25_conversation_trace.jsonl", 12_031, 3.40),
    ],
)
def test_published_traces_are_read_whole(name: str, requests: int, rate_per_s: float) -> None:
    text = (Path(os.environ[TRACES_ENV]) / name).read_bytes().decode()
    found = foreign.parse(text, foreign.detect(text, name), name)
    assert len(found.rows) + sum(found.left_out.values()) == requests
    arrivals = shaping.arrivals_of(found.rows, shaping.parse_rule(["short:640", "long"], "x"))
    assert len(arrivals) / arrivals[-1].at_s == pytest.approx(rate_per_s, rel=0.01)
    assert (shaping.tick_s(arrivals) is not None) == name.startswith("mooncake")
