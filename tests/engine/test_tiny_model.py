"""The kit's promises: a real vLLM with a model that renders tools, counts as it says, and is the same each time."""

from __future__ import annotations

import hashlib
import json
import urllib.request

import pytest

from deploy.engine import install

pytestmark = pytest.mark.engine

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a town, by <día>.",
        "parameters": {"type": "object", "properties": {"town": {"type": "string"}}},
    },
}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"town": "Oslo"}'}}
CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Is it raining in Oslo?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "sun, 21 degrees"},
]


def ask(engine, path, **body):
    request = urllib.request.Request(  # noqa: S310 - loopback
        engine.base_url + path,
        json.dumps({"model": engine.model, **body}).encode(),
        {"content-type": "application/json"},
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=120) as reply:
        return json.load(reply)


def rendered(engine, **body):
    tokens = ask(engine, "/tokenize", messages=CONVERSATION, **body)["tokens"]
    return ask(engine, "/detokenize", tokens=tokens)["prompt"]


def digests(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_every_role_and_the_tools_are_rendered(engine):
    prompt = rendered(engine, tools=[TOOL])
    assert "<|system|>\nBe brief.<|end|>" in prompt
    assert "<|user|>\nIs it raining in Oslo?<|end|>" in prompt
    assert '{"name": "weather", "arguments": {"town": "Oslo"}}<|end|>' in prompt
    assert "<|tool|>\nsun, 21 degrees<|end|>" in prompt
    assert json.dumps(TOOL, ensure_ascii=False) in prompt


def test_the_generation_prompt_is_there_when_asked_for_and_only_then(engine):
    assert rendered(engine).endswith("<|assistant|>\n")
    assert rendered(engine, add_generation_prompt=False).endswith("<|end|>\n")


@pytest.mark.parametrize("tools", [[], [TOOL], [TOOL] * 20], ids=["no tools", "one tool", "twenty tools"])
def test_tokenize_says_what_usage_says(engine, tools):
    extra = {"tools": tools} if tools else {}
    counted = ask(engine, "/tokenize", messages=CONVERSATION, **extra)["count"]
    choice = {"tool_choice": "none"} if tools else {}
    answer = ask(engine, "/v1/chat/completions", messages=CONVERSATION, max_tokens=1, **extra, **choice)
    assert answer["usage"]["prompt_tokens"] == counted


def test_a_completion_begins_with_the_opening_token(engine):
    counted = ask(engine, "/tokenize", prompt="the city")
    bare = ask(engine, "/tokenize", prompt="the city", add_special_tokens=False)
    assert counted["tokens"][1:] == bare["tokens"]
    usage = ask(engine, "/v1/completions", prompt="the city", max_tokens=1)["usage"]
    assert usage["prompt_tokens"] == counted["count"]


def test_the_same_question_at_temperature_zero_has_the_same_answer_of_the_length_asked_for(engine):
    answers = [
        ask(engine, "/v1/completions", prompt="the weather in the city", max_tokens=64, temperature=0) for _ in range(2)
    ]
    assert [answer["usage"]["completion_tokens"] for answer in answers] == [64, 64]
    assert answers[0]["choices"][0]["text"] == answers[1]["choices"][0]["text"] != ""


def test_the_engine_has_room_for_the_prompts_that_are_measured(engine):
    assert engine.effective["max_model_len"] == 16384
    assert engine.effective["kv_tokens"] >= 128 * 4096


def test_the_model_is_the_same_bytes_at_each_build(engine_home, tmp_path):
    install.build_model(engine_home, tmp_path / "again")
    assert digests(tmp_path / "again") == digests(engine_home.model)


def test_an_engine_runs_with_other_flags_beside_the_first(engine, stock_engine):
    prompt = "the weather in the city and the river " * 100
    ask(stock_engine, "/v1/completions", prompt=prompt, max_tokens=1)
    again = ask(stock_engine, "/v1/completions", prompt=prompt, max_tokens=1)["usage"]["prompt_tokens_details"]
    first = ask(engine, "/v1/completions", prompt=prompt, max_tokens=1)["usage"]["prompt_tokens_details"]
    assert (again["cached_tokens"] > 0, first["cached_tokens"]) == (True, 0)
    taken = {name: stock_engine.effective[name] for name in ("scheduling_policy", "max_num_seqs")}
    assert taken == {"scheduling_policy": "fcfs", "max_num_seqs": 64}
