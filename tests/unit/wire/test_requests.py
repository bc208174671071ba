from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.core.plan import RequestBounds
from gateway.core.types import Reason, Refusal
from gateway.wire.dialects import (
    CHAT_COMPLETIONS,
    COMPLETIONS,
    COUNT_TOKENS,
    EMBEDDINGS,
    MESSAGES,
    RERANK,
    RESPONSES,
    TOKENIZE,
    Route,
)
from gateway.wire.fields import CONTROL_MEMBERS, OPERATOR_MEMBERS, BadRequest
from gateway.wire.requests import Call, judge, parse, read

BOUNDS = RequestBounds(sequences_max=16, stop_max=4, list_items_max=8)
HELLO = [{"role": "user", "content": "hello"}]
OPTIONAL = (
    *("stream", "stream_options", "n", "best_of", "max_tokens", "max_completion_tokens", "max_output_tokens", "stop"),
    *("logit_bias", "tools", "tool_choice", "documents", "chat_template", "chat_template_kwargs", "reasoning_effort"),
    *("reasoning", "instructions", "previous_response_id", "background", "system", "echo", "use_beam_search"),
    *("truncate_prompt_tokens", "prompt_logprobs", "add_generation_prompt", "add_special_tokens", "vllm_xargs"),
)


def chat(allowed: frozenset[str] = frozenset(), **members: Any) -> Call:
    return parse(CHAT_COMPLETIONS, _bytes({"model": "m", "messages": HELLO, **members}), BOUNDS, allowed)


def completion(allowed: frozenset[str] = frozenset(), **members: Any) -> Call:
    return parse(COMPLETIONS, _bytes({"model": "m", "prompt": "hello", **members}), BOUNDS, allowed)


def _bytes(members: dict[str, Any]) -> bytes:
    return json.dumps(members).encode()


def refused(route: Route, members: dict[str, Any]) -> Refusal:
    with pytest.raises(BadRequest) as caught:
        parse(route, _bytes(members), BOUNDS, frozenset())
    assert caught.value.refusal.reason is Reason.BAD_REQUEST
    return caught.value.refusal


def refused_chat(**members: Any) -> tuple[str | None, str | None]:
    refusal = refused(CHAT_COMPLETIONS, {"model": "m", "messages": HELLO, **members})
    return refusal.code, refusal.param


def refused_completion(**members: Any) -> tuple[str | None, str | None]:
    refusal = refused(COMPLETIONS, {"model": "m", "prompt": "hello", **members})
    return refusal.code, refusal.param


def test_a_plain_chat_is_read() -> None:
    call = chat(stream=True, max_tokens=7)
    assert (call.model, call.stream, call.prompts, call.sequences) == ("m", True, 1, 1)
    assert (call.output_tokens_stated, call.output_tokens_default) == (7, None)


def test_a_plain_completion_has_the_engines_default_output() -> None:
    call = completion(max_tokens=None)
    assert (call.output_tokens_stated, call.output_tokens_default, call.stream) == (None, 16, False)


@pytest.mark.parametrize(
    ("route", "prompt"),
    [
        (CHAT_COMPLETIONS, {"messages": HELLO}),
        (COMPLETIONS, {"prompt": "hello"}),
        (RESPONSES, {"input": "hello"}),
        (MESSAGES, {"messages": HELLO, "max_tokens": 5}),
        (COUNT_TOKENS, {"messages": HELLO}),
        (EMBEDDINGS, {"input": "hello"}),
        (RERANK, {"query": "who", "documents": ["hello"]}),
        (TOKENIZE, {"prompt": "hello"}),
    ],
    ids=lambda value: value.name if isinstance(value, Route) else "",
)
def test_a_member_that_is_null_is_one_that_is_not_there(route: Route, prompt: dict[str, Any]) -> None:
    """Serialisers of typed languages write every optional member."""
    optional = {*CONTROL_MEMBERS, *OPERATOR_MEMBERS, *OPTIONAL} - prompt.keys()
    plain = parse(route, _bytes({"model": "m", **prompt}), BOUNDS, frozenset())
    full = parse(route, _bytes({"model": "m", **prompt, **dict.fromkeys(optional)}), BOUNDS, frozenset())
    same = ("stream", "sequences", "output_tokens_stated", "output_member", "is_divisible")
    assert [getattr(full, name) for name in same] == [getattr(plain, name) for name in same]


@pytest.mark.parametrize("model", [None, ""])
def test_a_body_without_a_model_is_refused(model: str | None) -> None:
    refusal = refused(CHAT_COMPLETIONS, {"model": model, "messages": HELLO})
    assert (refusal.code, refusal.param) == ("missing_required_parameter", "model")


def test_a_body_that_is_no_json_is_refused_with_what_is_wrong() -> None:
    with pytest.raises(BadRequest) as caught:
        parse(COMPLETIONS, b'{"model":"m","top_k":1e999}', BOUNDS, frozenset())
    assert (caught.value.refusal.code, caught.value.refusal.param) == ("non_finite_number", "top_k")


def test_the_model_is_known_before_any_other_field_is_judged() -> None:
    draft = read(CHAT_COMPLETIONS, b'{"model":"nope","messages":null,"n":"x"}')
    assert draft.model == "nope"
    with pytest.raises(BadRequest):
        judge(draft, BOUNDS, frozenset())


@pytest.mark.parametrize(
    ("members", "code", "param"),
    [
        ({"model": 5}, "invalid_type", "model"),
        ({"stream": "true"}, "invalid_type", "stream"),
        ({"stream": 1}, "invalid_type", "stream"),
        ({"n": "2"}, "invalid_type", "n"),
        ({"n": True}, "invalid_type", "n"),
        ({"n": 1.5}, "invalid_type", "n"),
        ({"n": 0}, "integer_below_min_value", "n"),
        ({"n": 1e19}, "integer_out_of_range", "n"),
        ({"n": 1.7e308}, "integer_out_of_range", "n"),
        ({"best_of": -1}, "integer_below_min_value", "best_of"),
        ({"n": 17}, "too_many_sequences", "n"),
        ({"best_of": 17}, "too_many_sequences", "best_of"),
        ({"max_tokens": "5"}, "invalid_type", "max_tokens"),
        ({"max_tokens": 0}, "integer_below_min_value", "max_tokens"),
        ({"max_tokens": 1.7e308}, "integer_out_of_range", "max_tokens"),
        ({"use_beam_search": "yes"}, "invalid_type", "use_beam_search"),
        ({"add_special_tokens": 1}, "invalid_type", "add_special_tokens"),
        ({"truncate_prompt_tokens": -2}, "integer_below_min_value", "truncate_prompt_tokens"),
        ({"stop": ["a"] * 5}, "array_above_max_length", "stop"),
        ({"stop_token_ids": [1] * 9}, "array_above_max_length", "stop_token_ids"),
        ({"bad_words": ["x"] * 9}, "array_above_max_length", "bad_words"),
        ({"anything_else": [1] * 9}, "array_above_max_length", "anything_else"),
        ({"logit_bias": {str(i): 1 for i in range(9)}}, "array_above_max_length", "logit_bias"),
        ({"stop_sequences": ["a"] * 5}, "array_above_max_length", "stop_sequences"),
        ({"structured_outputs": {"choice": ["a"] * 9}}, "array_above_max_length", "structured_outputs.choice"),
        ({"logit_bias": []}, "invalid_type", "logit_bias"),
    ],
)
def test_a_member_that_both_forms_judge_is_refused_by_name(members: dict[str, Any], code: str, param: str) -> None:
    assert refused_chat(**members) == (code, param)
    assert refused_completion(**members) == (code, param)


@pytest.mark.parametrize(
    ("members", "code", "param"),
    [
        ({"messages": None}, "missing_required_parameter", "messages"),
        ({"messages": []}, "missing_required_parameter", "messages"),
        ({"messages": "hi"}, "invalid_type", "messages"),
        ({"messages": [*HELLO, "x"]}, "invalid_type", "messages[1]"),
        ({"messages": [{"content": "x"}]}, "invalid_type", "messages[0].role"),
        ({"max_completion_tokens": -1}, "integer_below_min_value", "max_completion_tokens"),
        ({"tools": {}}, "invalid_type", "tools"),
        ({"tools": [1]}, "invalid_type", "tools[0]"),
        ({"documents": ["x"]}, "invalid_type", "documents[0]"),
        ({"chat_template_kwargs": []}, "invalid_type", "chat_template_kwargs"),
        ({"reasoning_effort": 1}, "invalid_type", "reasoning_effort"),
        ({"add_generation_prompt": "no"}, "invalid_type", "add_generation_prompt"),
    ],
)
def test_a_member_that_a_chat_is_counted_by_is_refused_by_name(members: dict[str, Any], code: str, param: str) -> None:
    assert refused_chat(**members) == (code, param)


@pytest.mark.parametrize(
    ("prompt", "code", "param"),
    [
        (None, "missing_required_parameter", "prompt"),
        (5, "invalid_type", "prompt"),
        ({}, "invalid_type", "prompt"),
        ([], "invalid_value", "prompt"),
        ([1, "a"], "invalid_type", "prompt"),
        ([1, True], "invalid_type", "prompt"),
        ([1.0], "invalid_type", "prompt"),
        ([[1], "a"], "invalid_type", "prompt"),
        ([[]], "invalid_type", "prompt[0]"),
        ([[1], [2, "a"]], "invalid_type", "prompt[1]"),
        ([1, -1], "integer_below_min_value", "prompt"),
        ([[1], [-1]], "integer_below_min_value", "prompt[1]"),
        ([1, 2**32], "integer_out_of_range", "prompt"),
        ([[1], [2**40]], "integer_out_of_range", "prompt[1]"),
        ([None], "invalid_type", "prompt"),
        (["a"] * 17, "too_many_sequences", "prompt"),
        ([[1]] * 1000, "too_many_sequences", "prompt"),
    ],
)
def test_a_prompt_of_mixed_or_no_kind_is_refused(prompt: Any, code: str, param: str) -> None:
    assert refused_completion(prompt=prompt) == (code, param)


@pytest.mark.parametrize(
    ("members", "prompts", "sequences"),
    [
        ({"prompt": "a"}, 1, 1),
        ({"prompt": ["a", "b"]}, 2, 2),
        ({"prompt": [1, 2, 3]}, 1, 1),
        ({"prompt": [[1], [2, 3]]}, 2, 2),
        ({"prompt": ["a", "b"], "n": 3}, 2, 6),
        ({"n": 2, "best_of": 5}, 1, 5),
        ({"n": 4, "use_beam_search": True}, 1, 4),
        ({"n": None, "best_of": None}, 1, 1),
        ({"n": 2.0}, 1, 2),
    ],
)
def test_every_sequence_that_the_engine_will_run_is_counted(
    members: dict[str, Any], prompts: int, sequences: int
) -> None:
    call = completion(**members)
    assert (call.prompts, call.sequences) == (prompts, sequences)


def test_a_refusal_for_size_says_the_limit_and_what_was_seen() -> None:
    refusal = refused(COMPLETIONS, {"model": "m", "prompt": ["a"] * 9, "n": 2})
    assert (refusal.limit, refusal.observed) == (16, 18)


@pytest.mark.parametrize(
    ("members", "stated", "name"),
    [
        ({}, None, "max_tokens"),
        ({"max_tokens": 5}, 5, "max_tokens"),
        ({"max_completion_tokens": 6}, 6, "max_completion_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, 6, "max_completion_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": None}, 5, "max_tokens"),
        ({"max_tokens": 5.0}, 5, "max_tokens"),
    ],
)
def test_on_chat_the_newer_name_of_the_output_limit_wins(
    members: dict[str, Any], stated: int | None, name: str
) -> None:
    call = chat(**members)
    assert (call.output_tokens_stated, call.output_member) == (stated, name)


def test_an_output_limit_that_does_not_count_has_to_be_a_number_all_the_same() -> None:
    assert refused_chat(max_tokens="x", max_completion_tokens=5) == ("invalid_type", "max_tokens")
    assert refused_chat(max_tokens=0, echo=True) == ("integer_below_min_value", "max_tokens")


def test_on_completions_the_chats_name_of_the_limit_means_nothing() -> None:
    assert completion(max_completion_tokens=9).output_tokens_stated is None
    assert completion(max_completion_tokens=9, max_tokens=4).output_tokens_stated == 4


def test_an_echo_without_output_runs_one_token() -> None:
    assert completion(max_tokens=0, echo=True).output_tokens_stated == 1
    assert refused_completion(max_tokens=0, echo=False) == ("integer_below_min_value", "max_tokens")


@pytest.mark.parametrize("name", OPERATOR_MEMBERS)
def test_what_belongs_to_the_engines_operator_is_refused_unless_allowed(name: str) -> None:
    assert refused_chat(**{name: {"a": 1}}) == ("unsupported_parameter", name)
    assert refused_completion(**{name: "QUJD"}) == ("unsupported_parameter", name)
    assert refused_chat(vllm_xargs={name: "x"}) == ("unsupported_parameter", f"vllm_xargs.{name}")
    assert chat(frozenset({name}), **{name: {"a": 1}}).members[name] == {"a": 1}
    assert chat(**{name: None}).model == "m"


def test_tensors_inside_a_message_are_refused_unless_allowed() -> None:
    messages = [{"role": "user", "content": [{"type": "prompt_embeds", "data": "QUJD"}]}]
    assert refused_chat(messages=messages) == ("unsupported_parameter", "messages[0].content[0]")
    assert chat(frozenset({"prompt_embeds"}), messages=messages).prompts == 1


def test_a_prompt_of_tensors_alone_counts_each_of_them() -> None:
    assert completion(frozenset({"prompt_embeds"}), prompt=None, prompt_embeds=["QQ", "QQ"]).prompts == 2
    assert completion(frozenset({"prompt_embeds"}), prompt=None, prompt_embeds="QQ").prompts == 1


def test_a_medium_that_would_be_fetched_is_refused_where_it_stands() -> None:
    image = {"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}
    messages = [*HELLO, {"role": "user", "content": [{"type": "text", "text": "x"}, image]}]
    assert refused_chat(messages=messages) == ("unsupported_url", "messages[1].content[1].image_url.url")
    image["image_url"] = {"url": "data:image/png;base64,AAAA"}
    assert chat(messages=messages).prompts == 1


def test_a_call_that_needs_no_change_is_sent_byte_for_byte() -> None:
    body = b'{ "model":"m", "messages":[{"role":"user","content":"\\u0000 \xc3\xa9"}], "temperature":1.0, "seed":9007199254740993 }'
    call = parse(CHAT_COMPLETIONS, body, BOUNDS, frozenset())
    assert call.rewritten(set_members={}) is body


@pytest.mark.parametrize("name", sorted(CONTROL_MEMBERS))
def test_what_would_steer_the_engine_is_taken_out(name: str) -> None:
    call = chat(**{name: "5"}, top_p=0.5)
    assert json.loads(call.rewritten(set_members={})) == {"model": "m", "messages": HELLO, "top_p": 0.5}


def test_the_gateways_own_priority_takes_the_callers_place() -> None:
    call = chat(priority=-100)
    assert json.loads(call.rewritten(set_members={"priority": 3}))["priority"] == 3


@pytest.mark.parametrize("call", [chat(), completion(), chat(max_tokens=None, max_completion_tokens=None)])
def test_an_output_limit_is_written_where_the_engine_reads_it(call: Call) -> None:
    rewritten = call.rewritten(set_members={call.output_member: 64})
    again = parse(call.route, rewritten, BOUNDS, frozenset())
    assert again.output_tokens_stated == 64


def test_a_released_call_still_knows_what_to_send() -> None:
    call = chat(priority=1, stream=True)
    whole = call.rewritten(set_members={"priority": 2})
    call.release()
    assert not call.members
    assert call.rewritten(set_members={"priority": 2}) == whole
