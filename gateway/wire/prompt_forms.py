"""The prompt in a body of each form: what has to be there, and how many prompts it is.

Owns the judgement of the members that hold a prompt or decide its length. Judges form alone, and counts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
    PromptForm.EMBEDDING: "input",
    PromptForm.RERANK: "documents",
    PromptForm.SCORE: "documents",
    PromptForm.TOKENIZE: "prompt",
    PromptForm.DETOKENIZE: "tokens",
    PromptForm.AUDIO: "file",
}
# The names under which the two sides of a score may stand; the first that are both there are meant.
SCORE_SIDES = (("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2"))
TOKEN_ID_MAX = 2**32 - 1  # beyond every vocabulary; ids are held in four bytes each
# Such a request is answered before its work begins, which would then go on outside of all admission.
BACKGROUND = "background"
_FLAGS = ("add_generation_prompt", "continue_final_message", "add_special_tokens", "echo", "use_beam_search")
# Most bodies have none of them: one look then stands for a look at each.
_FRAMING = frozenset({*_FLAGS, "truncate_prompt_tokens"})
_TEMPLATE_INPUTS = frozenset({"tools", "documents", "chat_template_kwargs", "reasoning_effort"})


def judge_prompt(form: PromptForm, members: Mapping[str, Any], allowed: frozenset[str]) -> int:
    """How many prompts the body holds. allowed: the engine's own fields that may pass. Raises BadRequest."""
    if not _FRAMING.isdisjoint(members):
        for name in _FLAGS:
            read_bool(members, name)
        read_int(members, "truncate_prompt_tokens", minimum=-1)
    return _JUDGES[form](members, allowed)


def _judge_chat(members: Mapping[str, Any], allowed: frozenset[str]) -> int:
    _judge_messages(members)
    _judge_parts(media.parts(members["messages"]), allowed)
    _judge_template_inputs(members)
    return 1


def _judge_anthropic(members: Mapping[str, Any], allowed: frozenset[str]) -> int:
    _judge_messages(members)
    _judge_parts(media.parts(members["messages"]), allowed)
    _judge_blocks(members)
    return 1


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
    if _TEMPLATE_INPUTS.isdisjoint(members):
        return
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


def _judge_input(members: Mapping[str, Any], allowed: frozenset[str]) -> int:
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
    return 1


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


def _judge_texts(members: Mapping[str, Any], name: str) -> int:
    """How many prompts it is: a text, token ids, or an array of either."""
    prompt = members.get(name)
    if prompt is None:
        embeds = members.get("prompt_embeds")
        if embeds is None:
            raise missing(name)
        return len(embeds) if isinstance(embeds, list) else 1
    if type(prompt) is str:
        return 1
    if type(prompt) is not list:
        raise bad("invalid_type", f"{name} has to be a string or an array.", name)
    if not prompt:
        raise bad("invalid_value", f"{name} is empty.", name)
    kinds = set(map(type, prompt))
    if kinds == {int}:
        _judge_token_ids(prompt, name)
        return 1
    if kinds == {list}:
        for index, ids in enumerate(prompt):
            _judge_token_ids(ids, f"{name}[{index}]")
    elif kinds != {str}:
        message = f"{name} has to hold strings alone, token ids alone, or arrays of token ids alone."
        raise bad("invalid_type", message, name)
    return len(prompt)


def _judge_embedded(members: Mapping[str, Any], allowed: frozenset[str]) -> int:
    """How many prompts it is: texts, or conversations, whose member the engine also lets be `input`."""
    name = "messages" if "messages" in members else "input"
    conversations = _conversations(members.get(name))
    if name == "input" and not conversations:
        return _judge_texts(members, name)
    for messages in conversations or [members.get(name)]:
        _judge_messages({"messages": messages})
        _judge_parts(media.parts(messages, name), allowed)
    _judge_template_inputs(members)
    return len(conversations)


def _conversations(stated: Any) -> list[Any]:
    if type(stated) is not list or not stated:
        return []
    if all(type(message) is dict for message in stated):
        return [stated]
    is_batch = all(type(one) is list and one and all(type(message) is dict for message in one) for one in stated)
    return stated if is_batch else []


def _judge_sides(members: Mapping[str, Any], names: tuple[str, str], allowed: frozenset[str]) -> int:
    """How many pairs it is: each query with each document, or one by one where there are as many."""
    sizes = []
    for name in names:
        stated = members.get(name)
        if stated is None or stated == []:
            raise missing(name)
        texts = stated if type(stated) is list else [stated]
        for index, text in enumerate(texts):
            if type(text) is not str and (type(text) is not dict or type(text.get("content")) is not list):
                message = f"{name}[{index}] has to be a string, or an object with an array of content parts."
                raise bad("invalid_type", message, f"{name}[{index}]")
        _judge_parts(media.parts(texts, name), allowed)
        sizes.append(len(texts))
    queries, documents = sizes
    if queries not in (1, documents):
        message = f"{names[0]} has to be one, or as many as {names[1]}."
        raise bad("invalid_value", message, names[0], limit=documents, observed=queries)
    return documents


def _judge_token_ids(ids: list[Any], param: str) -> None:
    if set(map(type, ids)) != {int}:
        raise bad("invalid_type", f"{param} has to be a non-empty array of token ids.", param)
    if min(ids) < 0:
        raise bad("integer_below_min_value", f"{param} holds a negative token id.", param, limit=0)
    if max(ids) > TOKEN_ID_MAX:
        raise bad("integer_out_of_range", f"{param} holds a token id that no model has.", param, limit=TOKEN_ID_MAX)


def _judge_rerank(members: Mapping[str, Any], allowed: frozenset[str]) -> int:
    return _judge_sides(members, ("query", "documents"), allowed)


def _judge_score(members: Mapping[str, Any], allowed: frozenset[str]) -> int:
    sides = next((sides for sides in SCORE_SIDES if all(side in members for side in sides)), SCORE_SIDES[0])
    return _judge_sides(members, sides, allowed)


def _judge_tokenize(members: Mapping[str, Any], allowed: frozenset[str]) -> int:
    if members.get("chat_template") is not None:
        raise unsupported("chat_template")
    if "messages" in members:
        return _judge_chat(members, allowed)
    if read_str(members, "prompt") is None:
        raise missing("prompt")
    return 1


def _judge_detokenize(members: Mapping[str, Any], _allowed: frozenset[str]) -> int:
    ids = read_list(members, "tokens")
    if ids is None:
        raise missing("tokens")
    if ids:
        _judge_token_ids(ids, "tokens")
    return 1


_JUDGES: Mapping[PromptForm, Callable[[Mapping[str, Any], frozenset[str]], int]] = {
    PromptForm.CHAT: _judge_chat,
    PromptForm.COMPLETION: lambda members, _: _judge_texts(members, "prompt"),
    PromptForm.MESSAGES: _judge_anthropic,
    PromptForm.RESPONSES: _judge_input,
    PromptForm.EMBEDDING: _judge_embedded,
    PromptForm.RERANK: _judge_rerank,
    PromptForm.SCORE: _judge_score,
    PromptForm.TOKENIZE: _judge_tokenize,
    PromptForm.DETOKENIZE: _judge_detokenize,
    PromptForm.AUDIO: lambda _members, _allowed: 1,
}
