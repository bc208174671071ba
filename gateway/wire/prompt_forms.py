"""The prompt in a body of each form: what has to be there, and how many prompts it is.

Owns the judgement of the members that hold a prompt or decide its length. Judges form alone, and counts nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import NoneType
from typing import Any

from gateway.wire import media
from gateway.wire.dialects import PromptForm
from gateway.wire.fields import bad, missing, read_bool, read_int, read_list, read_object, read_str, unsupported

# The member that is named where the prompt itself is at fault.
PROMPT_MEMBERS: Mapping[PromptForm, str] = {
    PromptForm.CHAT: "messages",
    PromptForm.COMPLETION: "prompt",
    PromptForm.MESSAGES: "messages",
    PromptForm.RESPONSES: "input",
}
# Such a request is answered before its work begins, which would then go on outside of all admission.
BACKGROUND = "background"
_FLAGS = ("add_generation_prompt", "continue_final_message", "add_special_tokens", "echo", "use_beam_search")


def judge_prompt(form: PromptForm, members: Mapping[str, Any], allowed: frozenset[str]) -> int:
    """How many prompts the body holds. allowed: the engine's own fields that may pass. Raises BadRequest."""
    for name in _FLAGS:
        read_bool(members, name)
    read_int(members, "truncate_prompt_tokens", minimum=-1)
    match form:
        case PromptForm.CHAT:
            _judge_messages(members)
            _judge_parts(media.parts(members["messages"]), allowed)
            _judge_template_inputs(members)
            return 1
        case PromptForm.MESSAGES:
            _judge_messages(members)
            _judge_parts(media.parts(members["messages"]), allowed)
            _judge_blocks(members)
            return 1
        case PromptForm.RESPONSES:
            _judge_input(members, allowed)
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


def _judge_parts(parts: Iterable[tuple[str, Mapping[str, Any]]], allowed: frozenset[str]) -> None:
    for path, part in parts:
        tensors = media.embedded(part)
        if tensors is not None and tensors not in allowed:
            raise unsupported(path)
        foreign = media.foreign_url(part)
        if foreign is not None:
            message = f"{path}.{foreign} has to be a data: URL; nothing is fetched on a caller's behalf."
            raise bad("unsupported_url", message, f"{path}.{foreign}")


def _judge_template_inputs(members: Mapping[str, Any]) -> None:
    for name in ("tools", "documents"):
        _judge_objects(members, name)
    read_object(members, "chat_template_kwargs")
    read_str(members, "reasoning_effort")


def _judge_blocks(members: Mapping[str, Any]) -> None:
    for index, tool in enumerate(_judge_objects(members, "tools")):
        _judge_tool_name(tool, f"tools[{index}].name")
    for path, block in (*media.parts_of(members.get("system"), "system"), *media.parts(members["messages"])):
        for name in ("text", "thinking"):
            if type(block.get(name, "")) not in (str, NoneType):
                raise bad("invalid_type", f"{path}.{name} has to be a string.", f"{path}.{name}")
        if block.get("type") in ("tool_addition", "tool_removal"):
            change = block.get("tool")
            if type(change) is not dict:
                raise bad("invalid_type", f"{path}.tool has to be an object.", f"{path}.tool")
            if change.get("type") == "tool_definition":
                _judge_tool_name(change.get("definition"), f"{path}.tool.definition.name")
    read_object(members, "chat_template_kwargs")


def _judge_input(members: Mapping[str, Any], allowed: frozenset[str]) -> None:
    if read_bool(members, BACKGROUND) and BACKGROUND not in allowed:
        raise unsupported(BACKGROUND)
    stated = members.get("input")
    if stated is None:
        raise missing("input")
    if type(stated) is not str:
        for index, item in enumerate(_judge_objects(members, "input")):
            _judge_parts(media.parts_of(item.get("content"), f"input[{index}].content"), allowed)
            output, place = item.get("output"), f"input[{index}].output"
            _judge_parts([(place, output)] if type(output) is dict else media.parts_of(output, place), allowed)
    for name in ("instructions", "previous_response_id"):
        read_str(members, name)
    for name in ("reasoning", "chat_template_kwargs"):
        read_object(members, name)
    for index, tool in enumerate(_judge_objects(members, "tools")):
        if tool.get("type") == "namespace":
            _judge_objects(tool, "tools", f"tools[{index}].")


def _judge_tool_name(tool: Any, path: str) -> None:
    if type(tool) is not dict or type(tool.get("name")) is not str:
        raise bad("invalid_type", f"{path} has to be a string.", path)


def _judge_objects(members: Mapping[str, Any], name: str, within: str = "") -> Sequence[dict[str, Any]]:
    items = read_list(members, name) or []
    for index, item in enumerate(items):
        if type(item) is not dict:
            place = f"{within}{name}[{index}]"
            raise bad("invalid_type", f"{place} has to be an object.", place)
    return items


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
