"""What a body of each form has to hold, where the form is not that of chat or completions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.core.plan import RequestBounds
from gateway.wire.dialects import (
    COUNT_TOKENS,
    DETOKENIZE,
    EMBEDDINGS,
    MESSAGES,
    RERANK,
    RESPONSES,
    SCORE,
    TOKENIZE,
    Route,
)
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


def test_a_response_states_its_output_under_a_name_of_its_own() -> None:
    call = judged(RESPONSES, input="hello", max_output_tokens=7)
    assert (call.output_tokens_stated, call.output_member, call.prompt_member) == (7, "max_output_tokens", "input")
    assert call.is_divisible
    assert judged(RESPONSES, input=HELLO, max_tokens=7).output_tokens_stated is None


def test_a_response_that_continues_another_is_computed_whole() -> None:
    assert not judged(RESPONSES, input="x", previous_response_id="resp_1").is_divisible


IMAGE = {"type": "input_image", "image_url": "https://example.com/a.png"}
FILE = {"type": "input_file", "file_url": "https://example.com/a.pdf"}
SCREENSHOT = {"type": "computer_screenshot", "image_url": "https://example.com/a.png"}


@pytest.mark.parametrize(
    ("members", "code", "param"),
    [
        ({}, "missing_required_parameter", "input"),
        ({"input": 5}, "invalid_type", "input"),
        ({"input": ["x"]}, "invalid_type", "input[0]"),
        ({"input": "x", "background": True}, "unsupported_parameter", "background"),
        ({"input": "x", "background": 1}, "invalid_type", "background"),
        ({"input": "x", "tools": [{"type": "namespace", "tools": ["x"]}]}, "invalid_type", "tools[0].tools[0]"),
        ({"input": "x", "max_output_tokens": 0}, "integer_below_min_value", "max_output_tokens"),
        ({"input": [{"role": "user", "content": [IMAGE]}]}, "unsupported_url", "input[0].content[0].image_url"),
        ({"input": [{"role": "user", "content": [FILE]}]}, "unsupported_url", "input[0].content[0].file_url"),
        (
            {"input": [{"type": "function_call_output", "output": [IMAGE]}]},
            "unsupported_url",
            "input[0].output[0].image_url",
        ),
        (
            {"input": [{"type": "computer_call_output", "output": SCREENSHOT}]},
            "unsupported_url",
            "input[0].output.image_url",
        ),
        ({"input": "x", "kv_transfer_params": {}}, "unsupported_parameter", "kv_transfer_params"),
    ],
)
def test_a_response_that_cannot_be_served_is_refused_by_its_member(
    members: dict[str, Any], code: str, param: str
) -> None:
    assert refused(RESPONSES, **members) == (code, param)


def test_work_in_the_background_is_for_the_configuration_to_allow() -> None:
    body = json.dumps({"model": "m", "input": "x", "background": True}).encode()
    assert not parse(RESPONSES, body, BOUNDS, frozenset({"background"})).is_divisible
    assert judged(RESPONSES, input="x", background=False).is_divisible


PHOTO = {"content": [{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]}


@pytest.mark.parametrize(
    ("route", "members", "prompts"),
    [
        (EMBEDDINGS, {"input": "x"}, 1),
        (EMBEDDINGS, {"input": ["x", "y"]}, 2),
        (EMBEDDINGS, {"input": [1, 2, 3] * 9}, 1),
        (EMBEDDINGS, {"input": [[1], [2]]}, 2),
        (EMBEDDINGS, {"messages": HELLO}, 1),
        (EMBEDDINGS, {"messages": [HELLO, HELLO]}, 2),
        (EMBEDDINGS, {"input": [HELLO, HELLO]}, 2),
        (RERANK, {"query": "q", "documents": ["a", "b", {"content": [{"type": "text", "text": "c"}]}]}, 3),
        (RERANK, {"query": "q", "documents": "a"}, 1),
        (SCORE, {"queries": ["p", "q"], "documents": ["a", "b"]}, 2),
        (SCORE, {"queries": "p", "items": ["a", "b"]}, 2),
        (SCORE, {"data_1": "p", "data_2": ["a", "b"]}, 2),
        (SCORE, {"text_1": "p", "text_2": "a"}, 1),
    ],
)
def test_the_prompts_of_what_generates_nothing_are_its_texts_or_pairs(
    route: Route, members: dict[str, Any], prompts: int
) -> None:
    call = judged(route, **members)
    assert (call.prompts, call.sequences, call.output_member, call.output_tokens_default) == (prompts, prompts, None, 0)
    assert not call.is_divisible


@pytest.mark.parametrize(
    ("route", "members", "code", "param"),
    [
        (EMBEDDINGS, {}, "missing_required_parameter", "input"),
        (EMBEDDINGS, {"input": []}, "invalid_value", "input"),
        (EMBEDDINGS, {"input": ["x", 1]}, "invalid_type", "input"),
        (EMBEDDINGS, {"input": [[1], []]}, "invalid_type", "input[1]"),
        (EMBEDDINGS, {"messages": None}, "missing_required_parameter", "messages"),
        (EMBEDDINGS, {"messages": [{"content": "x"}]}, "invalid_type", "messages[0].role"),
        (
            EMBEDDINGS,
            {"messages": [{"role": "user", **PHOTO}]},
            "unsupported_url",
            "messages[0].content[0].image_url.url",
        ),
        (RERANK, {"documents": ["a"]}, "missing_required_parameter", "query"),
        (RERANK, {"query": "q", "documents": []}, "missing_required_parameter", "documents"),
        (RERANK, {"query": "q", "documents": [5]}, "invalid_type", "documents[0]"),
        (RERANK, {"query": ["q", "r"], "documents": ["a", "b", "c"]}, "invalid_value", "query"),
        (RERANK, {"query": "q", "documents": [PHOTO]}, "unsupported_url", "documents[0].content[0].image_url.url"),
        (SCORE, {"text_1": "p"}, "missing_required_parameter", "queries"),
    ],
)
def test_what_cannot_be_embedded_or_scored_is_refused_by_its_member(
    route: Route, members: dict[str, Any], code: str, param: str
) -> None:
    assert refused(route, **members) == (code, param)


@pytest.mark.parametrize(
    ("route", "members", "code", "param"),
    [
        (TOKENIZE, {}, "missing_required_parameter", "prompt"),
        (TOKENIZE, {"prompt": ["x"]}, "invalid_type", "prompt"),
        (TOKENIZE, {"messages": []}, "missing_required_parameter", "messages"),
        (TOKENIZE, {"messages": HELLO, "chat_template": "{{ x }}"}, "unsupported_parameter", "chat_template"),
        (
            TOKENIZE,
            {"messages": [{"role": "user", **PHOTO}]},
            "unsupported_url",
            "messages[0].content[0].image_url.url",
        ),
        (DETOKENIZE, {}, "missing_required_parameter", "tokens"),
        (DETOKENIZE, {"tokens": ["x"]}, "invalid_type", "tokens"),
        (DETOKENIZE, {"tokens": [-1]}, "integer_below_min_value", "tokens"),
        (DETOKENIZE, {"tokens": [2**32]}, "integer_out_of_range", "tokens"),
    ],
)
def test_what_cannot_be_tokenized_is_refused_by_its_member(
    route: Route, members: dict[str, Any], code: str, param: str
) -> None:
    assert refused(route, **members) == (code, param)


def test_token_ids_may_be_as_many_as_the_body_holds() -> None:
    assert judged(DETOKENIZE, tokens=[1] * 999).prompts == 1
    assert judged(DETOKENIZE, tokens=[]).prompts == 1
