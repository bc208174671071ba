"""Whatever stands in a body's place of something else, the prompt is counted or refused: nothing else comes of it."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gateway.core.plan import RequestBounds
from gateway.counting.counter import Uncountable
from gateway.counting.estimate import ByteEstimate
from gateway.counting.local import LocalTokenizer
from gateway.wire.dialects import CHAT_COMPLETIONS, COMPLETIONS, EMBEDDINGS, MESSAGES, RERANK, RESPONSES, Route
from gateway.wire.fields import BadRequest
from gateway.wire.requests import Call, parse

BOUNDS = RequestBounds(sequences_max=16, stop_max=4, list_items_max=64)
IMAGE = "data:image/png;base64,AAAA"
FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}
CALLED = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
CHAT = {
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "developer", "content": "d", "tools": [{"type": "function", "function": FUNCTION}]},
        {"role": "user", "name": "n", "content": [{"type": "text", "text": "t"}, {"image_url": {"url": IMAGE}}]},
        {"role": "assistant", "content": None, "reasoning": "r", "tool_calls": [CALLED]},
        {"role": "tool", "tool_call_id": "c", "content": "ok"},
    ],
    "tools": [{"type": "function", "function": FUNCTION}],
    "chat_template_kwargs": {"enable_thinking": False, "bos_token": "b"},
    "documents": [{"text": "t"}],
    "reasoning_effort": "low",
    "truncate_prompt_tokens": 5,
}
RESPONSE = {
    "instructions": "i",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "t"}, {"type": "input_image", "image_url": IMAGE}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "t"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "namespace": "n", "arguments": "{}"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "t"}]},
        {"role": "assistant", "status": "in_progress", "content": [{"type": "output_text", "text": "t"}]},
    ],
    "tools": [{"type": "function", **FUNCTION}, {"type": "namespace", "name": "n", "tools": [FUNCTION]}],
    "reasoning": {"effort": "low"},
    "truncation": "auto",
}
MESSAGE = {
    "max_tokens": 5,
    "system": [{"type": "text", "text": "s"}],
    "messages": [
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "t"}, {"type": "tool_use", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "content": [{"type": "text", "text": "t"}]}]},
    ],
    "tools": [{"name": "f", "input_schema": {"type": "object"}}],
    "thinking": {"type": "enabled", "budget_tokens": 5},
    "output_config": {"effort": "low"},
}
SEEDS: list[tuple[Route, dict[str, Any]]] = [
    (CHAT_COMPLETIONS, CHAT),
    (RESPONSES, RESPONSE),
    (MESSAGES, MESSAGE),
    (COMPLETIONS, {"prompt": ["t"]}),
    (COMPLETIONS, {"prompt": [[1, 2]]}),
    (EMBEDDINGS, {"input": ["t"], "truncate_prompt_tokens": -1}),
    (RERANK, {"query": "q", "documents": ["t", {"content": [{"type": "text", "text": "t"}]}]}),
]
HALF_A_CHARACTER = '{"a": "\\ud800"}'
ODD = st.sampled_from(
    [
        *(None, True, 0, -1, 1.5, 2**32, 2**63 - 1, "", "x", "[" * 5000, HALF_A_CHARACTER, "in_progress", "developer"),
        *([], [[]], [None], [True], ["x"], [1], [2**40], [[2**40]], [{}], [{"type": "text", "text": 5}]),
        *(
            {},
            {"type": "text"},
            {"type": ["x"]},
            {"type": "refusal", "refusal": 5},
            {"function": None},
            {"role": "user"},
        ),
    ]
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to everything in a body."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in inside:
        yield (*path, name)
        yield from places(each, (*path, name))


@st.composite
def changed(draw: st.DrawFn) -> tuple[Route, dict[str, Any]]:
    """A body in which something odd stands in one place or two."""
    route, seed = draw(st.sampled_from(SEEDS))
    body = copy.deepcopy(seed)
    for _ in range(draw(st.integers(1, 2))):
        *way, last = draw(st.sampled_from(list(places(body)) or [("x",)]))
        holder: Any = body
        for name in way:
            holder = holder[name]
        holder[last] = copy.deepcopy(draw(ODD))
    return route, body


def judged(route: Route, body: dict[str, Any]) -> Call | None:
    try:
        return parse(route, json.dumps({"model": "m", **body}).encode(), BOUNDS, frozenset())
    except BadRequest:
        return None


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(change=changed())
@example(change=(COMPLETIONS, {"prompt": [[2**40]]}))
@example(
    change=(
        CHAT_COMPLETIONS,
        {
            "messages": [
                {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": HALF_A_CHARACTER}}]}
            ]
        },
    )
)
async def test_a_prompt_of_any_members_is_counted_or_refused(
    tokenizer: LocalTokenizer, change: tuple[Route, dict[str, Any]]
) -> None:
    call = judged(*change)
    for counter in (tokenizer, ByteEstimate()) if call is not None else ():
        assert call is not None
        try:
            count = await counter.count(call, context_tokens=4000)
            await counter.prompt_ids(call)
        except Uncountable:
            continue
        assert count.prompt_tokens >= count.longest_prompt_tokens >= 0
