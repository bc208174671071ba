"""The gateway's own count against the engine's `usage.prompt_tokens`, form by form, on the real engine."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.core.plan import RequestBounds
from gateway.core.types import Reason
from gateway.counting.counter import Uncountable
from gateway.counting.local import LocalTokenizer
from gateway.counting.remote import EngineTokenizer
from gateway.wire import requests
from gateway.wire.dialects import CHAT_COMPLETIONS, COMPLETIONS, Route
from gateway.wire.requests import Call

pytestmark = pytest.mark.engine

BOUNDS = RequestBounds(sequences_max=16, stop_max=64, list_items_max=1024)
ADA = {"role": "user", "content": "Who was Ada Lovelace?"}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a town, by día.",
        "parameters": {"type": "object", "properties": {"town": {"type": "string"}, "days": {"type": "integer"}}},
    },
}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"town": "Oslo", "days": 2}'}}
WORDS = "the quick brown fox jumps over the lazy dog while it rains in Spain "

CHATS: dict[str, dict[str, Any]] = {
    "one user message": {"messages": [ADA]},
    "system and user": {"messages": [{"role": "system", "content": "Be brief."}, ADA]},
    "several turns": {"messages": [ADA, {"role": "assistant", "content": "A mathematician."}, ADA] * 5},
    "empty content": {"messages": [{"role": "user", "content": ""}]},
    "no content": {"messages": [ADA, {"role": "assistant", "content": None}, ADA]},
    "other scripts": {"messages": [{"role": "user", "content": "Größe 漢字かな عربى 😀👩‍👩‍👧 \u0000 e\u0301"}]},
    "spaces and lines": {"messages": [{"role": "user", "content": "  a\n\n\tb\r\n   c  "}]},
    "special tokens as text": {"messages": [{"role": "user", "content": "<|end|><|begin|> <|user|>\n<|assist"}]},
    "content as parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, "b", {"type": "text", "text": ""}, {"type": "text", "text": "c"}]}]},
    "a name": {"messages": [ADA | {"name": "bob"}]},
    "a role of its own": {"messages": [{"role": "critic", "content": "Too long."}]},
    "developer": {"messages": [ADA, {"role": "developer", "content": "Be brief."}, ADA]},
    "reasoning": {"messages": [ADA, {"role": "assistant", "content": "x", "reasoning_content": "why"}, ADA]},
    "tools": {"messages": [ADA], "tools": [TOOL], "tool_choice": "none"},
    "twenty tools": {"messages": [ADA], "tools": [TOOL] * 20, "tool_choice": "none"},
    "tools with odd members": {"messages": [ADA], "tools": [{"function": {"parameters": None, "strict": True, "name": "f", "x": 1}, "y": 2}], "tool_choice": "none"},
    "a tool call and its answer": {"messages": [ADA, {"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "sun"}]}]},
    "broken call arguments": {"messages": [ADA, {"role": "assistant", "content": "", "tool_calls": [{**CALL, "function": {"name": "weather", "arguments": "{bad"}}]}]},
    "no generation prompt": {"messages": [ADA], "add_generation_prompt": False},
    "a final message to continue": {"messages": [ADA, {"role": "assistant", "content": "She was "}], "add_generation_prompt": False, "continue_final_message": True},
    "special tokens added": {"messages": [ADA], "add_special_tokens": True},
    "template variables": {"messages": [ADA], "chat_template_kwargs": {"bos_token": "<|user|><|user|>", "unused": 1}},
    "generation prompt by variable": {"messages": [ADA], "chat_template_kwargs": {"add_generation_prompt": False}},
    "documents": {"messages": [ADA], "documents": [{"title": "t", "text": "x"}]},
    "reasoning effort": {"messages": [ADA], "reasoning_effort": "low"},
    "cut to five": {"messages": [ADA], "truncate_prompt_tokens": 5},
    "cut beyond its length": {"messages": [ADA], "truncate_prompt_tokens": 500},
    "cut from the right": {"messages": [{"role": "user", "content": WORDS * 9}], "truncate_prompt_tokens": 40, "truncation_side": "right"},
    "both output limits": {"messages": [ADA], "max_completion_tokens": 2},
    "several answers": {"messages": [ADA], "n": 2, "stop": ["x"], "seed": 1},
    "a long prompt": {"messages": [{"role": "user", "content": WORDS * 300}]},
}  # fmt: skip
COMPLETION_PROMPTS: dict[str, dict[str, Any]] = {
    "text": {"prompt": "Once upon a time"},
    "text of one token": {"prompt": "a"},
    "text without special tokens": {"prompt": "Once upon a time", "add_special_tokens": False},
    "special tokens as text": {"prompt": "<|begin|>Once<|end|>"},
    "other scripts": {"prompt": "漢字 😀 \u0000 ß"},
    "texts": {"prompt": ["Once", "upon a time there was", "a"]},
    "token ids": {"prompt": [5, 6, 7, 300]},
    "arrays of token ids": {"prompt": [[5, 6], [7], [8, 9, 10]]},
    "cut to three": {"prompt": "Once upon a time there was", "truncate_prompt_tokens": 3},
    "token ids cut to two": {"prompt": [5, 6, 7, 300], "truncate_prompt_tokens": 2},
    "several answers": {"prompt": "Once upon", "n": 3},
    "a long prompt": {"prompt": WORDS * 300},
    "an overlong prompt cut to the context": {"prompt": WORDS * 3000, "truncate_prompt_tokens": -1},
}  # fmt: skip

FORMS = [(CHAT_COMPLETIONS, name, body) for name, body in CHATS.items()] + [
    (COMPLETIONS, name, body) for name, body in COMPLETION_PROMPTS.items()
]
EACH_FORM = pytest.mark.parametrize(("route", "body"), [pytest.param(r, b, id=f"{r.name} {n}") for r, n, b in FORMS])


@pytest.fixture(scope="module")
def tokenizer(engine: Any):
    loaded = LocalTokenizer.load(Path(engine.tokenizer_path))
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def known_usage() -> dict[bytes, int]:
    """What the engine said of a body, so that no form is run twice."""
    return {}


async def _post(engine: Any, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
    headers = {"Content-Type": "application/json"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(engine.base_url + path, data=io.BytesIO(body), headers=headers) as answer,
    ):
        return answer.status, await answer.json()


async def _context_tokens(engine: Any) -> int:
    async with aiohttp.ClientSession() as session, session.get(engine.base_url + "/v1/models") as answer:
        (card, *_) = (await answer.json())["data"]
        return card["max_model_len"]


def _call(engine: Any, route: Route, body: dict[str, Any]) -> Call:
    raw = json.dumps({"model": engine.model, "max_tokens": 1, **body}).encode()
    return requests.parse(route, raw, BOUNDS, frozenset())


async def _usage(engine: Any, call: Call, known_usage: dict[bytes, int]) -> int:
    sent = call.rewritten(set_members={})
    if sent not in known_usage:
        status, answer = await _post(engine, call.route.path, sent)
        assert status == 200, answer
        known_usage[sent] = answer["usage"]["prompt_tokens"]
    return known_usage[sent]


@EACH_FORM
async def test_the_local_count_is_what_the_engine_counts(
    engine: Any, tokenizer: LocalTokenizer, known_usage: dict[bytes, int], route: Route, body: dict[str, Any]
) -> None:
    call = _call(engine, route, body)
    count = await tokenizer.count(call, context_tokens=await _context_tokens(engine))
    assert count.prompt_tokens == await _usage(engine, call, known_usage)


@EACH_FORM
async def test_the_engines_own_tokenizer_agrees_with_its_usage(
    engine: Any, known_usage: dict[bytes, int], route: Route, body: dict[str, Any]
) -> None:
    async def post_json(path: str, question: dict[str, Any]) -> dict[str, Any]:
        _, answer = await _post(engine, path, json.dumps(question).encode())
        return answer

    call = _call(engine, route, body)
    count = await EngineTokenizer(post_json).count(call, context_tokens=await _context_tokens(engine))
    assert count.prompt_tokens == await _usage(engine, call, known_usage)


@pytest.mark.parametrize(
    ("route", "members"),
    [
        (CHAT_COMPLETIONS, {"max_tokens": 3}),
        (CHAT_COMPLETIONS, {"max_tokens": 9, "max_completion_tokens": 4}),
        (CHAT_COMPLETIONS, {"max_tokens": 3, "max_completion_tokens": None}),
        (COMPLETIONS, {"max_tokens": 3}),
        (COMPLETIONS, {"max_tokens": 3, "max_completion_tokens": 9}),
        (COMPLETIONS, {"max_tokens": None}),
        (COMPLETIONS, {"max_tokens": 5.0}),
    ],
)
async def test_the_output_limit_that_is_read_is_the_one_that_the_engine_obeys(
    engine: Any, route: Route, members: dict[str, Any]
) -> None:
    prompt = {"messages": [ADA]} if route is CHAT_COMPLETIONS else {"prompt": "Once"}
    call = _call(engine, route, {**prompt, "ignore_eos": True, **members})
    status, answer = await _post(engine, route.path, call.rewritten(set_members={}))
    assert status == 200, answer
    stated = call.output_tokens_default if call.output_tokens_stated is None else call.output_tokens_stated
    assert answer["usage"]["completion_tokens"] == stated


@pytest.mark.parametrize("route", [CHAT_COMPLETIONS, COMPLETIONS])
@pytest.mark.parametrize("absent", [{}, {"max_tokens": None, "max_completion_tokens": None}])
async def test_an_output_limit_that_is_written_is_obeyed(engine: Any, route: Route, absent: dict[str, Any]) -> None:
    prompt = {"messages": [ADA]} if route is CHAT_COMPLETIONS else {"prompt": "Once"}
    raw = json.dumps({"model": engine.model, **prompt, "ignore_eos": True, **absent}).encode()
    call = requests.parse(route, raw, BOUNDS, frozenset())
    status, answer = await _post(engine, route.path, call.rewritten(set_members={call.output_member: 6}))
    assert status == 200, answer
    assert answer["usage"]["completion_tokens"] == 6


async def test_an_overlong_prompt_is_refused_for_its_length_as_the_engine_refuses_it(
    engine: Any, tokenizer: LocalTokenizer
) -> None:
    context_tokens = await _context_tokens(engine)
    call = _call(engine, COMPLETIONS, {"prompt": WORDS * context_tokens})
    with pytest.raises(Uncountable) as caught:
        await tokenizer.count(call, context_tokens=context_tokens)
    assert caught.value.refusal.reason is Reason.CONTEXT_LENGTH
    status, answer = await _post(engine, call.route.path, call.body)
    assert status == 400
    assert "maximum context length" in answer["error"]["message"]
