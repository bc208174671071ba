"""Every form of body as the chats, texts and pairs that are counted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.counting.counter import CountingMethod, Uncountable
from gateway.counting.local import LocalTokenizer
from gateway.counting.messages_form import chat_of_messages
from gateway.counting.pooling_form import embedded_chats, pairs_of
from gateway.counting.responses_form import chat_of_response
from gateway.testing.counted_calls import a_counted_call
from gateway.wire.dialects import PromptForm

CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
CHAT_CALL = {"id": "c", "function": {"name": "f", "arguments": "{}"}, "type": "function"}


def messages_of(items: Any, **members: Any) -> list[dict[str, Any]]:
    return chat_of_response({"input": items, **members})["messages"]


def conversation(messages: list[Any], *, merges_system: bool = False, **members: Any) -> dict[str, Any]:
    return chat_of_messages({"messages": messages, **members}, merges_system=merges_system, effort_when_disabled="none")


def test_a_text_is_a_user_message_after_the_instructions():
    assert messages_of("hi", instructions="be brief") == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hi"},
    ]


def test_reasoning_text_and_calls_in_a_row_are_one_assistant_message():
    items = [
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "why"}], "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
        CALL,
        {**CALL, "call_id": "d"},
        {"type": "function_call_output", "call_id": "c", "output": "sun"},
    ]
    assert messages_of(items) == [
        {
            "role": "assistant",
            "reasoning": "why",
            "content": "a",
            "tool_calls": [CHAT_CALL, {**CHAT_CALL, "id": "d"}],
        },
        {"role": "tool", "content": "sun", "tool_call_id": "c"},
    ]


def test_only_an_unfinished_final_message_is_continued():
    message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]}
    for status, continues in (("incomplete", True), ("in_progress", True), ("completed", False)):
        chat = chat_of_response({"input": [message | {"status": status}]})
        assert (chat["continue_final_message"], chat["add_generation_prompt"]) == (continues, not continues)


def test_tools_that_the_engine_runs_itself_are_not_shown_to_the_model():
    function = {"type": "function", "name": "f", "parameters": {}}
    named = {"type": "namespace", "name": "n", "tools": [function, {"type": "custom", "name": "x"}]}
    custom = {"type": "custom", "name": "c", "description": "d"}
    tools = chat_of_response({"input": "a", "tools": [function, {"type": "web_search"}, named, custom]})["tools"]
    assert [tool["function"]["name"] for tool in tools] == ["f", "n__f", "c"]
    assert chat_of_response({"input": "a", "tools": [{"type": "web_search"}]})["tools"] == []


@pytest.mark.parametrize("item", [{"type": "mystery"}, {"type": "reasoning", "encrypted_content": "x"}, "text"])
def test_an_item_that_the_engine_refuses_has_no_count(item: Any):
    with pytest.raises(Uncountable):
        messages_of([item])


def test_a_prompt_that_the_engine_keeps_part_of_is_an_estimate(tokenizer: LocalTokenizer):
    stated = a_counted_call(PromptForm.RESPONSES, {"input": "hi"})
    continued = a_counted_call(PromptForm.RESPONSES, {"input": "hi", "previous_response_id": "r"})
    assert tokenizer.count_now(stated).method is CountingMethod.LOCAL
    assert tokenizer.count_now(continued).method is CountingMethod.ESTIMATE


def test_tool_results_come_before_what_their_message_says():
    blocks = [
        {"type": "text", "text": "so?"},
        {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]  # fmt: skip
    assert conversation([{"role": "user", "content": blocks}])["messages"] == [
        {"role": "tool", "tool_call_id": "t", "content": "a\nb"},
        {"role": "user", "content": "so?"},
    ]


def test_thinking_and_tool_use_are_members_of_the_assistants_message():
    blocks = [
        {"type": "thinking", "thinking": "hm"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}},
    ]
    call = {"id": "t", "type": "function", "function": {"name": "f", "arguments": json.dumps({"a": 1})}}
    assert conversation([{"role": "assistant", "content": blocks}])["messages"] == [
        {"role": "assistant", "reasoning": "hm", "tool_calls": [call]}
    ]


def test_system_text_goes_to_the_front_where_the_template_wants_it_there():
    messages = [{"role": "user", "content": "a"}, {"role": "system", "content": "late"}]
    billing = {"type": "text", "text": "x-anthropic-billing-header: 1"}
    system = [billing, {"type": "text", "text": "early "}]
    assert [m["content"] for m in conversation(messages, system=system)["messages"]] == ["early ", "a", "late"]
    merged = conversation(messages, system=system, merges_system=True)["messages"]
    assert [m["content"] for m in merged] == ["early late", "a"]


def test_tools_are_those_in_force_at_the_end_of_the_conversation():
    tools = [{"name": name, "input_schema": {}} for name in ("a", "b")]
    added = {"type": "tool_definition", "definition": {"name": "c", "input_schema": {}}}
    changes = [
        {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "a"}},
        {"type": "tool_addition", "tool": added},
    ]
    shown = conversation([{"role": "system", "content": changes}], tools=tools)["tools"]
    assert [tool["function"]["name"] for tool in shown] == ["b", "c"]
    assert shown[0]["function"]["parameters"] == {"type": "object"}


def test_embeddings_prompt_for_nothing_unless_asked():
    turn = [{"role": "user", "content": "a"}]
    assert embedded_chats({"input": "a"}) == embedded_chats({"input": [1, 2]}) == []
    assert [chat["add_generation_prompt"] for chat in embedded_chats({"input": turn})] == [False]
    assert len(embedded_chats({"messages": [turn, turn]})) == 2


def test_one_query_makes_a_pair_with_each_document_and_is_cut_as_asked(tokenizer: LocalTokenizer):
    rerank = {"query": "who was ada", "documents": ["lovelace", {"content": [{"type": "text", "text": "fox"}]}]}
    assert [(pair.query, pair.document) for pair in pairs_of(rerank)] == [("who was ada", "lovelace"), ("who was ada", "fox")]  # fmt: skip
    whole = tokenizer.count_now(a_counted_call(PromptForm.RERANK, rerank))
    cut = tokenizer.count_now(a_counted_call(PromptForm.RERANK, rerank | {"max_tokens_per_query": 1}))
    assert (whole.method, cut.prompt_tokens < whole.prompt_tokens) == (CountingMethod.ESTIMATE, True)


@pytest.mark.parametrize("members", [{"queries": ["a", "b"], "documents": ["c"]}, {"text_1": "a"}, {"query": 1, "documents": ["a"]}])  # fmt: skip
def test_texts_that_make_no_pairs_have_no_count(members: dict[str, Any]):
    with pytest.raises(Uncountable):
        pairs_of(members)


def test_a_response_is_cut_to_the_context_only_where_it_says_so(tokenizer: LocalTokenizer):
    long = {"input": "the quick brown fox " * 50}
    assert tokenizer.count_now(a_counted_call(PromptForm.RESPONSES, long)).prompt_tokens > 100
    auto = a_counted_call(PromptForm.RESPONSES, long | {"truncation": "auto", "max_output_tokens": 5})
    assert tokenizer.count_now(auto, context_tokens=100).prompt_tokens == 99
