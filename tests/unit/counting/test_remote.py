from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gateway.core.plan import RequestBounds
from gateway.core.types import Reason
from gateway.counting.counter import (
    Count,
    CountingMethod,
    CountingOverloaded,
    EngineCannotCount,
    Uncountable,
    shape_of,
)
from gateway.counting.estimate import ByteEstimate
from gateway.counting.prompts import MEDIA_TOKENS
from gateway.counting.remote import EngineTokenizer
from gateway.server.tasks import spawn
from gateway.wire.dialects import CHAT_COMPLETIONS, COMPLETIONS
from gateway.wire.media import Medium
from gateway.wire.requests import Call, parse

BOUNDS = RequestBounds(sequences_max=16, stop_max=4, list_items_max=64)
ADA = {"role": "user", "content": "who was ada"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def chat(**members: Any) -> Call:
    body = {"model": "m", "messages": [ADA], **members}
    return parse(CHAT_COMPLETIONS, json.dumps(body).encode(), BOUNDS, frozenset())


def completion(prompt: Any, **members: Any) -> Call:
    body = {"model": "m", "prompt": prompt, **members}
    return parse(COMPLETIONS, json.dumps(body).encode(), BOUNDS, frozenset())


class Engine:
    """Counts the characters of what it is asked, and remembers it. `answer` replaces its answers."""

    def __init__(self, answer: dict[str, Any] | None = None) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self._answer = answer

    async def post_json(self, path: str, question: dict[str, Any]) -> dict[str, Any]:
        self.asked.append((path, question))
        return {"count": len(question.get("prompt", "")) or 100} if self._answer is None else self._answer


async def test_a_chat_is_asked_with_all_that_decides_its_prompt() -> None:
    engine = Engine()
    tool = {"type": "function", "function": {"name": "f"}}
    call = chat(
        tools=[tool],
        add_generation_prompt=False,
        continue_final_message=True,
        documents=[{"a": "b"}],
        reasoning_effort="low",
        chat_template_kwargs={"x": 1},
        temperature=0.5,
        max_tokens=3,
    )
    assert await EngineTokenizer(engine.post_json).count(call) == Count(100, 100, CountingMethod.ENGINE)
    variables = {"x": 1, "documents": [{"a": "b"}], "reasoning_effort": "low", "enable_thinking": True}
    question = {
        "model": "m",
        "messages": [ADA],
        "tools": [tool],
        "add_generation_prompt": False,
        "continue_final_message": True,
        "chat_template_kwargs": variables,
    }
    assert engine.asked == [("/tokenize", question)]


async def test_texts_are_asked_one_by_one_and_token_ids_not_at_all() -> None:
    engine = Engine()
    counter = EngineTokenizer(engine.post_json)
    assert await counter.count(completion(["ab", "abcd"], add_special_tokens=False)) == Count(
        6, 4, CountingMethod.ENGINE
    )
    assert [question for _, question in engine.asked] == [
        {"model": "m", "prompt": prompt, "add_special_tokens": False} for prompt in ("ab", "abcd")
    ]
    assert await counter.count(completion([[1, 2], [3]])) == Count(3, 2, CountingMethod.ENGINE)
    assert len(engine.asked) == 2


async def test_the_engines_answer_is_cut_where_the_caller_says() -> None:
    counted = await EngineTokenizer(Engine().post_json).count(completion("abcd", truncate_prompt_tokens=3))
    assert counted.prompt_tokens == 3


async def test_media_are_declared_instead_of_sent_to_be_measured() -> None:
    engine = Engine()
    call = chat(messages=[{"role": "user", "content": ["a", IMAGE]}, ADA])
    counted = await EngineTokenizer(engine.post_json).count(call)
    assert counted == Count(100 + MEDIA_TOKENS[Medium.IMAGE], 100 + MEDIA_TOKENS[Medium.IMAGE], CountingMethod.ESTIMATE)
    assert engine.asked[0][1]["messages"] == [{"role": "user", "content": ["a"]}, ADA]


@pytest.mark.parametrize(
    "answer", [{}, {"count": "5"}, {"count": -1}, {"count": True}, {"error": "odd"}, {"error": {"code": 500}}]
)
async def test_an_answer_without_a_count_is_the_engines_fault_and_not_the_prompts(answer: dict[str, Any]) -> None:
    with pytest.raises(EngineCannotCount) as caught:
        await EngineTokenizer(Engine(answer).post_json).count(chat())
    assert caught.value.refusal.reason is Reason.NO_ENGINE


@pytest.mark.parametrize("code", [400, 422])
async def test_an_error_inside_of_an_answer_may_be_the_prompts(code: int) -> None:
    with pytest.raises(Uncountable) as caught:
        await EngineTokenizer(Engine({"error": {"code": code}}).post_json).count(chat())
    assert (caught.value.refusal.reason, caught.value.refusal.param) == (Reason.BAD_REQUEST, "messages")


async def test_questions_and_calls_are_bounded_and_freed() -> None:
    open_now, most = 0, 0
    both_open, release = asyncio.Event(), asyncio.Event()

    async def post_json(_path: str, _question: dict[str, Any]) -> dict[str, Any]:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        if open_now == 2:
            both_open.set()
        try:
            await release.wait()
        finally:
            open_now -= 1
        return {"count": 1}

    counter = EngineTokenizer(post_json, questions_max=2, calls_max=3)
    tasks = [spawn(counter.count(chat()), name="count") for _ in range(3)]
    await both_open.wait()
    with pytest.raises(CountingOverloaded):
        await counter.count(chat())
    tasks[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await tasks[0]
    assert counter.calls == 2
    release.set()
    await asyncio.gather(*tasks[1:])
    assert (counter.calls, most) == (0, 2)


async def test_a_failure_of_the_transport_passes_through_and_frees_the_call() -> None:
    async def post_json(_path: str, _question: dict[str, Any]) -> dict[str, Any]:
        raise ConnectionResetError

    counter = EngineTokenizer(post_json)
    with pytest.raises(ConnectionResetError):
        await counter.count(chat())
    assert counter.calls == 0


async def test_an_estimate_grows_with_the_bytes_and_says_what_it_is() -> None:
    counter = ByteEstimate(bytes_per_token=4)
    assert await counter.count(completion("x" * 400)) == Count(101, 101, CountingMethod.ESTIMATE)
    assert await counter.count(completion([1, 2, 3])) == Count(3, 3, CountingMethod.ESTIMATE)
    short, long = await counter.count(chat()), await counter.count(chat(tools=[{"function": {"name": "f" * 400}}]))
    assert long.prompt_tokens >= short.prompt_tokens + 100
    calls = [{"function": {"name": "f", "arguments": "x" * 400}}]
    called = await counter.count(chat(messages=[{"role": "assistant", "tool_calls": calls}]))
    assert called.prompt_tokens >= 100
    seen = await counter.count(
        chat(messages=[{"role": "user", "content": [IMAGE, {"type": "text", "text": "a"}, "b"]}])
    )
    assert seen.prompt_tokens > MEDIA_TOKENS[Medium.IMAGE]


@pytest.mark.parametrize("counter", [ByteEstimate(), EngineTokenizer(Engine().post_json)])
async def test_what_no_rule_covers_is_refused_everywhere(counter: Any) -> None:
    with pytest.raises(Uncountable):
        await counter.count(chat(chat_template="x"))


@pytest.mark.parametrize(("method", "is_exact"), [("local", True), ("engine", True), ("estimate", False)])
def test_an_estimate_is_not_taken_for_a_count(method: str, is_exact: bool) -> None:
    assert shape_of(chat(), Count(9, 9, CountingMethod(method))).is_exact is is_exact


async def test_the_bytes_that_wait_to_be_counted_are_bounded_and_freed() -> None:
    release, asked = asyncio.Event(), asyncio.Event()

    async def post_json(_path: str, _question: dict[str, Any]) -> dict[str, Any]:
        asked.set()
        await release.wait()
        return {"count": 1}

    call = chat()
    counter = EngineTokenizer(post_json, call_bytes_max=len(call.body))
    counting = spawn(counter.count(call), name="count")
    await asked.wait()
    with pytest.raises(CountingOverloaded):
        await counter.count(call)
    release.set()
    await counting
    assert counter.call_bytes == 0


async def test_one_limit_is_around_all_of_a_calls_questions() -> None:
    asked = []

    async def post_json(_path: str, _question: dict[str, Any]) -> dict[str, Any]:
        asked.append(1)
        if len(asked) == 3:
            await asyncio.Event().wait()
        return {"count": 1}

    counter = EngineTokenizer(post_json, count_s_max=0.01)
    with pytest.raises(CountingOverloaded):
        await counter.count(completion(["a", "b", "c", "d"]))
    assert (len(asked), counter.calls, counter.call_bytes) == (3, 0, 0)


async def test_a_timeout_of_the_transports_own_is_not_mistaken_for_the_limit() -> None:
    async def post_json(_path: str, _question: dict[str, Any]) -> dict[str, Any]:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        await EngineTokenizer(post_json).count(chat())
