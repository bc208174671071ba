from __future__ import annotations

from typing import Any

import pytest

from gateway.counting.chat_template import ContentFormat
from gateway.counting.conversation import conversation_of, tools_of, variables_of, with_system_for_developer
from gateway.counting.counter import Uncountable

STRING, PARTS = ContentFormat.STRING, ContentFormat.PARTS


def one(message: dict[str, Any], content_format: ContentFormat = STRING) -> dict[str, Any]:
    (built,) = conversation_of([message], content_format)
    return built


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


@pytest.mark.parametrize(
    ("content", "text", "parts"),
    [
        ("hi", "hi", [{"type": "text", "text": "hi"}]),
        (None, "", []),
        ([], "", []),
        ("", "", [{"type": "text", "text": ""}]),
        (["a", {"type": "text", "text": "b"}], "a\nb", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": ""}, "c"], "a\nc", None),
        ([{"type": "refusal", "refusal": "no"}], "no", [{"type": "text", "text": "no"}]),
        ([{"type": "thinking", "thinking": "hm", "closed": True}], "hm", [{"type": "text", "text": "hm"}]),
        ([{"type": "text", "text": None}], "", []),
        ([{"type": "text", "text": "a", "cache": 1}], "a", [{"type": "text", "text": "a", "cache": 1}]),
        ([{"type": "tool_reference", "name": "f"}], "f", [{"type": "tool_reference", "name": "f"}]),
        ([{"type": "image_url", "image_url": {"url": "data:,"}, "x": 1}, "a"], "a", [{"type": "image", "x": 1}, {"type": "text", "text": "a"}]),
    ],
)  # fmt: skip
def test_content_takes_the_form_that_the_template_reads(content: Any, text: str, parts: Any) -> None:
    assert one(user(content))["content"] == text
    if parts is not None:
        assert one(user(content), PARTS)["content"] == parts


def test_a_tools_answer_is_one_string_unless_it_refers_to_tools() -> None:
    texts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    answer = {"role": "tool", "tool_call_id": "c1", "content": texts}
    assert one(answer, PARTS) == {"role": "tool", "content": "a\nb", "tool_call_id": "c1"}
    reference = {"type": "tool_reference", "name": "f"}
    assert one({**answer, "content": [reference]}, PARTS)["content"] == [reference]
    assert one({"role": "tool", "content": []}, PARTS)["content"] == ""


def test_only_what_the_engine_passes_on_reaches_the_template() -> None:
    message = {"extra": 1, "name": "bob", "content": "x", "role": "user", "tool_calls": [], "tool_call_id": "c"}
    assert list(one(message).items()) == [("role", "user"), ("content", "x"), ("name", "bob")]
    assert "name" not in one({**message, "name": 5})


@pytest.mark.parametrize(
    ("arguments", "read"),
    [
        ('{"b": 1, "a": {"x": [2]}}', {"b": 1, "a": {"x": [2]}}),
        ("", {}),
        ("[]", {}),
        ("{bad", {}),
        ('"s"', {}),
        (None, {}),
        ({"a": 1}, {"a": 1}),
    ],
)
def test_call_arguments_become_an_object(arguments: Any, read: dict[str, Any]) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}, "id": "c"}
    (built,) = one({"role": "assistant", "tool_calls": [call]})["tool_calls"]
    assert built["function"]["arguments"] == read
    assert (list(built), list(built["function"])) == (["id", "function", "type"], ["arguments", "name"])
    assert call["function"]["arguments"] == arguments, "the body's own members are left as they were"


def test_no_calls_are_no_member() -> None:
    assert "tool_calls" not in one({"role": "assistant", "content": "x", "tool_calls": []})
    assert "tool_calls" not in one({"role": "assistant", "content": "x", "tool_calls": None})


def test_reasoning_comes_under_both_names() -> None:
    for name in ("reasoning", "reasoning_content"):
        built = one({"role": "assistant", "content": "x", name: "why"})
        assert (built["reasoning"], built["reasoning_content"]) == ("why", "why")
    both = one({"role": "assistant", "content": "x", "reasoning": "a", "reasoning_content": "b"})
    assert both["reasoning"] == "a"
    assert "reasoning" not in one(user("x") | {"reasoning": "why"})


def test_a_system_line_that_changes_with_every_request_is_dropped() -> None:
    line = "x-anthropic-billing-header: cch=1;"
    assert one({"role": "system", "content": line})["content"] == ""
    assert one({"role": "system", "content": line + "\nBe brief."})["content"] == "Be brief."
    parts = [line + "\nrest", {"type": "text", "text": line}, {"type": "text", "text": line + "\nb", "c": 1}]
    assert one({"role": "system", "content": parts})["content"] == "rest\nb"
    assert one(user(line))["content"] == line


def test_a_developer_becomes_a_system_message_at_the_front() -> None:
    conversation = conversation_of(
        [{"role": "system", "content": "a"}, user("q"), {"role": "developer", "content": "b", "tools": []}], STRING
    )
    assert with_system_for_developer(conversation) == [{"role": "system", "content": "a\n\nb"}, user("q")]
    alone = conversation_of([{"role": "developer", "content": "b", "name": "n"}, user("q")], STRING)
    assert with_system_for_developer(alone) == [{"role": "system", "content": "b", "name": "n"}, user("q")]
    parts = conversation_of([user("q"), {"role": "developer", "content": ["b", "c"]}], PARTS)
    assert with_system_for_developer(parts)[0] == {"role": "system", "content": "b\nc"}
    nobody = conversation_of([user("q"), {"role": "system", "content": "late"}], STRING)
    assert with_system_for_developer(nobody) is nobody


def test_a_developers_tools_come_in_an_order_of_their_own() -> None:
    tool = {"type": "function", "function": {"parameters": {}, "odd": 1, "name": "f"}, "odd": 2}
    (built,) = one({"role": "developer", "content": "x", "tools": [tool]})["tools"]
    assert (list(built), list(built["function"])) == (["function", "type", "odd"], ["name", "parameters", "odd"])
    assert one({"role": "developer", "content": "x"})["tools"] is None


def test_tools_come_in_the_engines_order_with_nulls_and_without_strangers() -> None:
    tools = [{"function": {"parameters": {"b": 1}, "name": "f", "odd": 1}, "odd": 2}]
    (tool,) = tools_of({"tools": tools}) or []
    assert list(tool) == ["type", "function"]
    assert list(tool["function"].items()) == [("name", "f"), ("description", None), ("parameters", {"b": 1})]
    (strict,) = tools_of({"tools": [{"type": "function", "function": {"name": "f", "strict": False}}]}) or []
    assert strict["function"]["strict"] is False
    (deferred,) = tools_of({"tools": [{"function": {"name": "f"}, "defer_loading": True}]}) or []
    assert (deferred["defer_loading"], deferred["function"]["defer_loading"]) == (True, True)
    assert tools_of({}) is None


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({}, "tools[0].function"),
        ({"function": {"name": 5}}, "tools[0].function.name"),
        ({"function": {"name": "f", "strict": "true"}}, "tools[0].function.strict"),
        ({"function": {"name": "f", "parameters": []}}, "tools[0].function.parameters"),
    ],
)
def test_a_tool_that_the_engine_would_read_otherwise_is_refused_by_name(tool: dict[str, Any], param: str) -> None:
    with pytest.raises(Uncountable) as caught:
        tools_of({"tools": [tool]})
    assert caught.value.refusal.param == param


def test_a_call_that_is_no_function_is_refused() -> None:
    for call in ("x", {}, {"function": "f"}):
        with pytest.raises(Uncountable):
            one({"role": "assistant", "tool_calls": [call]})
    with pytest.raises(Uncountable):
        one({"role": "developer", "content": "x", "tools": ["f"]})


@pytest.mark.parametrize(
    ("members", "variables"),
    [
        ({}, {}),
        ({"chat_template_kwargs": {"a": 1, "b": None, "c": "auto", "d": False}}, {"a": 1, "d": False}),
        ({"documents": [{"t": 1}]}, {"documents": [{"t": 1}]}),
        ({"documents": [{"t": 1}], "chat_template_kwargs": {"documents": []}}, {"documents": [{"t": 1}]}),
        ({"reasoning_effort": "low"}, {"reasoning_effort": "low", "enable_thinking": True}),
        ({"reasoning_effort": "none"}, {"reasoning_effort": "none", "enable_thinking": False}),
        ({"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}}, {"reasoning_effort": "low", "enable_thinking": False}),
        ({"chat_template_kwargs": {"add_generation_prompt": False, "continue_final_message": True}}, {}),
    ],
)  # fmt: skip
def test_variables_are_merged_as_the_engine_merges_them(members: dict[str, Any], variables: dict[str, Any]) -> None:
    assert variables_of(members) == variables


@pytest.mark.parametrize("name", ["chat_template", "tokenize", "messages", "return_assistant_tokens_mask"])
def test_a_variable_that_would_reach_the_renderer_itself_is_refused(name: str) -> None:
    with pytest.raises(Uncountable) as caught:
        variables_of({"chat_template_kwargs": {name: True}})
    assert caught.value.refusal.param == f"chat_template_kwargs.{name}"
