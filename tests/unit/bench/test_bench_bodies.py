"""Requests as they are made ready: credentials, priorities, ids, bodies that ask for an exact output."""

import json

from bench.corpus.prompts import Corpus
from bench.corpus.tokenizer import PromptForm
from bench.load.bodies import BodyStyle, body, prepare
from bench.load.pacing import Windows
from bench.load.target import Target
from bench.records.request import Phase
from bench.trace.arrivals import Arrival, Trace

TARGET = Target(
    name="t",
    base_url="http://h",
    key_names={"short": "A"},
    priority={"short": -3, "long": 10},
    keys={"short": "gw-secret"},
)
STYLE = BodyStyle(PromptForm.CHAT, "m", cache_salt="run-1")


def prepared(run_id: str) -> list:
    trace = Trace((Arrival(0.5, "short", 4, 8), Arrival(1.5, "long", 4, 8)), 2.0, {})
    return prepare(
        trace, Corpus(("one", "two"), ""), style=STYLE, target=TARGET, windows=Windows(1.0, 1.0, 5.0), run_id=run_id
    )


def test_each_class_has_its_own_credential_and_priority() -> None:
    short, long = prepared("r")
    assert short.headers == {"Authorization": "Bearer gw-secret", "X-Vllm-Priority": "-3", "X-Request-Id": "r-0"}
    assert long.headers == {"X-Vllm-Priority": "10", "X-Request-Id": "r-1"}
    assert [request.phase for request in (short, long)] == [Phase.WARMUP, Phase.WINDOW]


def test_two_runs_never_send_the_same_request_id() -> None:
    first, second = prepared("run-a"), prepared("run-b")
    assert not {each.request_id for each in first} & {each.request_id for each in second}


def test_a_key_shows_in_no_repr_and_no_record() -> None:
    assert "gw-secret" not in repr(TARGET) + json.dumps(TARGET.public())


def test_bodies_ask_for_an_exact_output_and_a_running_count() -> None:
    chat = body("hello", 8, STYLE)
    assert chat["messages"] == [{"role": "user", "content": "hello"}]
    assert (chat["max_tokens"], chat["min_tokens"], chat["ignore_eos"], chat["cache_salt"]) == (8, 8, True, "run-1")
    assert chat["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    completion = body("hello", 8, BodyStyle(PromptForm.COMPLETIONS, "m", cache_salt=None))
    assert completion["prompt"] == "hello"
    assert "cache_salt" not in completion
