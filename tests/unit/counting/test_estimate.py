"""An estimate of bytes finds a prompt's text wherever the engine does."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.core.plan import RequestBounds
from gateway.counting.counter import Uncountable
from gateway.counting.estimate import ByteEstimate
from gateway.wire.dialects import CHAT_COMPLETIONS, MESSAGES, RESPONSES, Route
from gateway.wire.requests import parse

BOUNDS = RequestBounds(sequences_max=16, stop_max=4, list_items_max=64)
LONG = "word " * 1000
HI = {"role": "user", "content": "hi"}


async def estimated(route: Route, **members: Any) -> int:
    call = parse(route, json.dumps({"model": "m", **members}).encode(), BOUNDS, frozenset())
    return (await ByteEstimate().count(call)).prompt_tokens


def chat_of(message: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [HI, message]}


@pytest.mark.parametrize(
    ("route", "members"),
    [
        (CHAT_COMPLETIONS, chat_of({"role": "assistant", "content": [{"type": "refusal", "refusal": LONG}]})),
        (CHAT_COMPLETIONS, chat_of({"role": "assistant", "content": [{"type": "thinking", "thinking": LONG}]})),
        (CHAT_COMPLETIONS, chat_of({"role": "assistant", "content": "hi", "reasoning": LONG})),
        (CHAT_COMPLETIONS, chat_of({"role": "assistant", "content": "hi", "reasoning_content": LONG})),
        (CHAT_COMPLETIONS, chat_of({"role": "user", "content": "hi", "name": LONG})),
        (CHAT_COMPLETIONS, chat_of({"role": "user", "content": "hi", "task": LONG})),
        (CHAT_COMPLETIONS, chat_of({"role": "tool", "content": "hi", "tool_call_id": LONG})),
        (CHAT_COMPLETIONS, chat_of({"role": "tool", "content": [{"type": "tool_reference", "name": LONG}]})),
        (CHAT_COMPLETIONS, chat_of({"role": "developer", "content": "", "tools": [{"function": {"name": LONG}}]})),
        (CHAT_COMPLETIONS, {"messages": [HI], "documents": [{"text": LONG}]}),
        (CHAT_COMPLETIONS, {"messages": [HI], "reasoning_effort": LONG}),
        (CHAT_COMPLETIONS, {"messages": [HI], "chat_template_kwargs": {"date_string": LONG}}),
        (CHAT_COMPLETIONS, {"messages": [HI], "chat_template_kwargs": {"documents": [{"text": LONG}]}}),
        (MESSAGES, {"messages": [HI], "max_tokens": 1, "system": LONG}),
        (
            MESSAGES,
            {"max_tokens": 1, **chat_of({"role": "assistant", "content": [{"type": "thinking", "thinking": LONG}]})},
        ),
        (RESPONSES, {"input": "hi", "instructions": LONG}),
        (RESPONSES, {"input": [{"type": "reasoning", "content": [{"type": "reasoning_text", "text": LONG}]}, HI]}),
        (RESPONSES, {"input": "hi", "chat_template_kwargs": {"date_string": LONG}}),
    ],
)
async def test_a_long_text_makes_a_prompt_long_wherever_it_stands(route: Route, members: dict[str, Any]) -> None:
    assert await estimated(route, **members) >= len(LONG) / 3


async def test_switches_for_the_template_are_no_text() -> None:
    plain = await estimated(CHAT_COMPLETIONS, messages=[HI])
    assert await estimated(CHAT_COMPLETIONS, messages=[HI], chat_template_kwargs={"enable_thinking": False}) == plain


async def test_a_variable_that_would_replace_the_template_or_the_conversation_is_refused() -> None:
    with pytest.raises(Uncountable):
        await estimated(CHAT_COMPLETIONS, messages=[HI], chat_template_kwargs={"chat_template": "{{ 1 }}"})
