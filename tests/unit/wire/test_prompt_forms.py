"""What a body of each form has to hold, where the form is not that of chat or completions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.core.plan import RequestBounds
from gateway.wire.dialects import COUNT_TOKENS, MESSAGES, Route
from gateway.wire.fields import BadRequest
from gateway.wire.requests import Call, parse

BOUNDS = RequestBounds(sequences_max=16, stop_max=4, list_items_max=8)
HELLO = [{"role": "user", "content": "hello"}]
ELSEWHERE = {"type": "url", "url": "https://example.com/a.png"}


def judged(route: Route, **members: Any) -> Call:
    return parse(route, json.dumps({"model": "m", **members}).encode(), BOUNDS, frozenset())


def refused(route: Route, **members: Any) -> tuple[str | None, str | None]:
    with pytest.raises(BadRequest) as caught:
        judged(route, **members)
    return caught.value.refusal.code, caught.value.refusal.param


def says(*blocks: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(blocks)}]


def test_a_message_states_its_output_and_may_be_computed_in_parts() -> None:
    call = judged(MESSAGES, messages=HELLO, max_tokens=7, stream=True)
    assert (call.output_tokens_stated, call.output_member, call.prompt_member) == (7, "max_tokens", "messages")
    assert call.stream
    assert call.is_divisible


def test_a_count_states_no_output() -> None:
    assert judged(COUNT_TOKENS, messages=HELLO).output_member is None


@pytest.mark.parametrize(
    ("members", "code", "param"),
    [
        ({"messages": HELLO}, "missing_required_parameter", "max_tokens"),
        ({"max_tokens": 5}, "missing_required_parameter", "messages"),
        ({"messages": HELLO, "max_tokens": 0}, "integer_below_min_value", "max_tokens"),
        ({"messages": [{"content": "x"}], "max_tokens": 5}, "invalid_type", "messages[0].role"),
        ({"messages": HELLO, "max_tokens": 5, "tools": [{}]}, "invalid_type", "tools[0].name"),
        ({"messages": HELLO, "max_tokens": 5, "system": [{"text": 5}]}, "invalid_type", "system[0].text"),
        ({"messages": HELLO, "max_tokens": 5, "tools": ["x"]}, "invalid_type", "tools[0]"),
        (
            {"messages": says({"type": "tool_addition"}), "max_tokens": 5},
            "invalid_type",
            "messages[0].content[0].tool",
        ),
        (
            {"messages": says({"type": "tool_addition", "tool": {"type": "tool_definition"}}), "max_tokens": 5},
            "invalid_type",
            "messages[0].content[0].tool.definition.name",
        ),
        (
            {"messages": says({"type": "image", "source": ELSEWHERE}), "max_tokens": 5},
            "unsupported_url",
            "messages[0].content[0].source.url",
        ),
        (
            {
                "messages": says({"type": "tool_result", "content": [{"type": "image", "source": ELSEWHERE}]}),
                "max_tokens": 5,
            },
            "unsupported_url",
            "messages[0].content[0].content[0].source.url",
        ),
    ],
)
def test_a_message_that_cannot_be_served_is_refused_by_its_member(
    members: dict[str, Any], code: str, param: str
) -> None:
    assert refused(MESSAGES, **members) == (code, param)
