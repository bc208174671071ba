"""A request body into a Call that has been judged, and back into the bytes that are sent.

Owns which members the gateway reads, refuses, takes out and writes. Judges form alone: who may ask and what waits is
decided elsewhere. What was judged is what is sent: a body that needs no change goes on byte for byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from gateway.core.plan import RequestBounds
from gateway.wire import media, strict_json
from gateway.wire.dialects import PromptForm, Route
from gateway.wire.fields import (
    BadRequest,
    bad,
    missing,
    read_bool,
    read_int,
    read_list,
    read_object,
    read_str,
)
from gateway.wire.json_flaws import Malformed

__all__ = ["BadRequest", "Call", "Draft", "judge", "parse", "read"]

# The engine would obey these: its order and its placement are the gateway's to decide, and its ids too.
CONTROL_MEMBERS = frozenset({"priority", "request_id", "data_parallel_rank", "session_id"})
# Meant for the engine's own operator: tensors, cache transfers, code. Refused unless the configuration allows them.
OPERATOR_MEMBERS = (
    "kv_transfer_params",
    "ec_transfer_params",
    "logits_processors",
    "prompt_embeds",
    "mm_processor_kwargs",
)
# Lists that the policy's list_items_max does not bound: the prompt's own length is bounded in tokens.
_UNBOUNDED_LISTS = frozenset({"messages", "prompt", "stop"})
# With these the engine's answer depends on computing the prompt in one go, or the prompt is not what it seems.
_WHOLE_PROMPT_MEMBERS = ("echo", "prompt_logprobs", "truncate_prompt_tokens", "use_beam_search", *OPERATOR_MEMBERS)
_NEWER_OUTPUT_MEMBER = "max_completion_tokens"
_FLAGS = ("add_generation_prompt", "continue_final_message", "add_special_tokens", "echo", "use_beam_search")


@dataclass(frozen=True, slots=True)
class Draft:
    """A body read strictly, of which only the model is judged: enough to say whether the model exists."""

    route: Route
    body: bytes
    members: Mapping[str, Any]
    model: str


@dataclass(frozen=True, slots=True)
class Call:
    """One judged request.

    sequences: what the engine will run at once, prompts x n. output_tokens_stated: per sequence, None: not stated.
    output_tokens_default: what the engine takes where nothing is stated, None: all the context left.
    is_divisible: one prompt, of which prefixes can be computed beforehand without any effect on the answer.
    output_member: the member that states the output limit, or in which one has to be set where none is stated.
    members: the parsed body, empty once `released`. present: the names of all its members.
    """

    route: Route
    body: bytes
    members: Mapping[str, Any]
    present: frozenset[str]
    model: str
    stream: bool
    prompts: int
    sequences: int
    output_tokens_stated: int | None
    output_tokens_default: int | None
    output_member: str
    is_divisible: bool = False

    @property
    def prompt_member(self) -> str:
        """The member that holds the prompt."""
        return "messages" if self.route.form is PromptForm.CHAT else "prompt"

    def rewritten(self, *, set_members: Mapping[str, Any]) -> bytes:
        """The bytes to send: without control members, with `set_members`; all else as it came, byte for byte."""
        return strict_json.rewrite(self.body, remove=CONTROL_MEMBERS, put=set_members, present=self.present)

    def released(self) -> Call:
        """The same call without its parsed members: what is kept while it waits and runs."""
        return replace(self, members=MappingProxyType({}))


def parse(route: Route, body: bytes, bounds: RequestBounds, allowed_engine_fields: frozenset[str]) -> Call:
    """The whole judgement of a body. BadRequest: the refusal, with code and param."""
    return judge(read(route, body), bounds, allowed_engine_fields)


def read(route: Route, body: bytes) -> Draft:
    """The body's members and its model, before anything else of it is judged."""
    try:
        members = strict_json.parse(body)
    except Malformed as malformed:
        raise bad(malformed.code, malformed.message, malformed.param) from None
    model = read_str(members, "model")
    if not model:
        raise missing("model")
    return Draft(route, body, members, model)


def judge(draft: Draft, bounds: RequestBounds, allowed_engine_fields: frozenset[str]) -> Call:
    """The draft's other members, as far as the gateway goes by them."""
    members = draft.members
    _refuse_operator_members(members, allowed_engine_fields)
    prompts = _judge_prompt(draft.route.form, members, allowed_engine_fields)
    _judge_lists(members, bounds)
    output_member = _output_member(members, draft.route)
    return Call(
        route=draft.route,
        body=draft.body,
        members=members,
        present=frozenset(members),
        model=draft.model,
        stream=read_bool(members, "stream"),
        prompts=prompts,
        sequences=_sequences(members, prompts, bounds),
        output_tokens_stated=_output_tokens(members, output_member),
        output_tokens_default=draft.route.output_tokens_default,
        output_member=output_member,
        is_divisible=prompts == 1 and not any(members.get(name) for name in _WHOLE_PROMPT_MEMBERS),
    )


def _refuse_operator_members(members: Mapping[str, Any], allowed: frozenset[str]) -> None:
    extra = members.get("vllm_xargs")  # vLLM reads some of these members from here too
    for name in OPERATOR_MEMBERS:
        if name not in allowed:
            if members.get(name) is not None:
                raise _unsupported(name)
            if isinstance(extra, Mapping) and extra.get(name) is not None:
                raise _unsupported(f"vllm_xargs.{name}")


def _unsupported(param: str) -> BadRequest:
    return bad("unsupported_parameter", f"{param} is not accepted here.", param)


def _judge_prompt(form: PromptForm, members: Mapping[str, Any], allowed: frozenset[str]) -> int:
    """How many prompts the body holds; the members that decide their length are judged with them."""
    for name in _FLAGS:
        read_bool(members, name)
    read_int(members, "truncate_prompt_tokens", minimum=-1)
    match form:
        case PromptForm.CHAT:
            _judge_messages(members)
            _judge_parts(members, allowed)
            _judge_template_inputs(members)
            return 1
        case PromptForm.COMPLETION:
            return _judge_completion_prompt(members)
        case _:
            raise AssertionError(f"no route's body is judged in the form {form}")


def _judge_messages(members: Mapping[str, Any]) -> None:
    messages = read_list(members, "messages")
    if not messages:
        raise missing("messages")
    for index, message in enumerate(messages):
        if type(message) is not dict:
            raise bad("invalid_type", f"messages[{index}] has to be an object.", f"messages[{index}]")
        if type(message.get("role")) is not str:
            raise bad("invalid_type", f"messages[{index}].role has to be a string.", f"messages[{index}].role")


def _judge_parts(members: Mapping[str, Any], allowed: frozenset[str]) -> None:
    for path, part in media.parts(members["messages"]):
        name = media.embedded(part)
        if name is not None and name not in allowed:
            raise _unsupported(path)
        foreign = media.foreign_url(part)
        if foreign is not None:
            message = f"{path}.{foreign} has to be a data: URL; nothing is fetched on a caller's behalf."
            raise bad("unsupported_url", message, f"{path}.{foreign}")


def _judge_template_inputs(members: Mapping[str, Any]) -> None:
    for name in ("tools", "documents"):
        for index, item in enumerate(read_list(members, name) or ()):
            if type(item) is not dict:
                raise bad("invalid_type", f"{name}[{index}] has to be an object.", f"{name}[{index}]")
    read_object(members, "chat_template_kwargs")
    read_str(members, "reasoning_effort")


def _judge_completion_prompt(members: Mapping[str, Any]) -> int:
    prompt = members.get("prompt")
    if prompt is None:
        embeds = members.get("prompt_embeds")
        if embeds is None:
            raise missing("prompt")
        return len(embeds) if isinstance(embeds, list) else 1
    if type(prompt) is str:
        return 1
    if type(prompt) is not list:
        raise bad("invalid_type", "prompt has to be a string or an array.", "prompt")
    if not prompt:
        raise bad("invalid_value", "prompt is empty.", "prompt")
    kinds = set(map(type, prompt))
    if kinds == {int}:
        _judge_token_ids(prompt, "prompt")
        return 1
    if kinds == {list}:
        for index, ids in enumerate(prompt):
            _judge_token_ids(ids, f"prompt[{index}]")
    elif kinds != {str}:
        message = "prompt has to hold strings alone, token ids alone, or arrays of token ids alone."
        raise bad("invalid_type", message, "prompt")
    return len(prompt)


def _judge_token_ids(ids: list[Any], param: str) -> None:
    if set(map(type, ids)) != {int}:
        raise bad("invalid_type", f"{param} has to be a non-empty array of token ids.", param)
    if min(ids) < 0:
        raise bad("integer_below_min_value", f"{param} holds a negative token id.", param, limit=0)


def _judge_lists(members: Mapping[str, Any], bounds: RequestBounds) -> None:
    stop = members.get("stop")
    if type(stop) is list:
        _bound(len(stop), bounds.stop_max, "stop")
    for name, value in members.items():
        if type(value) is list and name not in _UNBOUNDED_LISTS:
            _bound(len(value), bounds.list_items_max, name)
    logit_bias = read_object(members, "logit_bias")
    if logit_bias is not None:
        _bound(len(logit_bias), bounds.list_items_max, "logit_bias")


def _bound(items: int, items_max: int, param: str) -> None:
    if items > items_max:
        message = f"{param} holds {items} items; at most {items_max} are accepted."
        raise bad("array_above_max_length", message, param, limit=items_max, observed=items)


def _sequences(members: Mapping[str, Any], prompts: int, bounds: RequestBounds) -> int:
    each = read_int(members, "n", minimum=1) or 1
    param = "n" if each > 1 or prompts == 1 else "prompt"
    best_of = read_int(members, "best_of", minimum=1) or 1
    if best_of > each:
        each, param = best_of, "best_of"
    sequences = prompts * each
    if sequences > bounds.sequences_max:
        message = f"The request asks for {sequences} sequences at once; at most {bounds.sequences_max} are accepted."
        raise bad("too_many_sequences", message, param, limit=bounds.sequences_max, observed=sequences)
    return sequences


def _output_member(members: Mapping[str, Any], route: Route) -> str:
    """Chat has a newer name beside the one that every form has, and it wins where it is stated."""
    assert route.output_member is not None
    if route.form is PromptForm.CHAT and members.get(_NEWER_OUTPUT_MEMBER) is not None:
        read_int(members, route.output_member, minimum=1)
        return _NEWER_OUTPUT_MEMBER
    return route.output_member


def _output_tokens(members: Mapping[str, Any], name: str) -> int | None:
    """The stated output limit of one sequence."""
    # Echo alone generates nothing for the caller, and the engine runs one token for it.
    only_echo = members.get("echo") is True and "prompt" in members and members.get(name) == 0
    return 1 if only_echo else read_int(members, name, minimum=1)
