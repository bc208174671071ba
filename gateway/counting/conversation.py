"""A request's messages, tools and template variables as the engine hands them to the chat template.

Owns the changes that the engine makes on the way: which parts of content stay, in which order members come, that call
arguments become objects, whose value wins where a variable is given twice. Follows vLLM 0.32 on what it accepts; what
that refuses may come out in any form, since no prompt comes of it. Renders nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.counting.chat_template import ContentFormat
from gateway.counting.counter import uncountable
from gateway.wire import media

Message = dict[str, Any]

_TEXT_MEMBER_OF_PART = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
# Members of a part that have a meaning of their own; all others go along to the template.
_KNOWN_PART_MEMBERS = frozenset(
    {
        *("type", "text", "refusal", "thinking", "closed", "name", "data", "file", "uuid", "prompt_cache_breakpoint"),
        *("image_url", "image_pil", "image_embeds", "audio_url", "input_audio", "audio_embeds"),
        *("video_url", "video_embeds"),
    }
)
# Attribution lines of one client that change with every request; the engine drops them.
DROPPED_SYSTEM_LINE = "x-anthropic-billing-header"
# Variables that would reach the rendering function itself instead of the template.
_RESERVED_VARIABLES = (
    "chat_template",
    "tokenize",
    "conversation",
    "messages",
    "tokenizer",
    "model_config",
    "return_assistant_tokens_mask",
)
# Without them a message is its role and its content.
_FURTHER_MEMBERS = frozenset({"tool_calls", "reasoning", "reasoning_content", "tool_call_id", "name", "task"})
_VARIABLE_HOLDERS = frozenset({"chat_template_kwargs", "documents", "reasoning_effort"})


def conversation_of(messages: Sequence[Mapping[str, Any]], content_format: ContentFormat) -> list[Message]:
    """The messages as the template gets them."""
    as_parts = content_format is ContentFormat.PARTS
    return [_message(message, as_parts) for message in messages]


def with_system_for_developer(conversation: list[Message]) -> list[Message]:
    """For a template that does not know the developer role: system messages instead, all in one at the front."""
    if "developer" not in [message["role"] for message in conversation]:
        return conversation
    renamed = [_as_system(message) if message["role"] == "developer" else message for message in conversation]
    systems = [index for index, message in enumerate(renamed) if message["role"] == "system"]
    if systems in ([], [0]):
        return renamed
    texts = [_joined_text(renamed[index]["content"]) for index in systems]
    merged = {"role": "system", "content": "\n\n".join(text for text in texts if text)}
    return [merged, *(message for message in renamed if message["role"] != "system")]


def tools_of(members: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """The tools in the engine's own order of members; unknown ones do not reach the template."""
    tools = members.get("tools")
    return None if tools is None else [_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools)]


def variables_of(members: Mapping[str, Any]) -> dict[str, Any]:
    """What the caller gives to the template besides the conversation: null and "auto" count as not given."""
    if _VARIABLE_HOLDERS.isdisjoint(members):
        return {}
    own = members.get("chat_template_kwargs") or {}
    for name in _RESERVED_VARIABLES:
        if own.get(name) is not None:
            param = f"chat_template_kwargs.{name}"
            raise uncountable("unsupported_parameter", f"{param} is not accepted here.", param)
    stated = {name: members.get(name) for name in ("documents", "reasoning_effort")}
    if stated["reasoning_effort"] is not None and "enable_thinking" not in own:
        stated["enable_thinking"] = stated["reasoning_effort"] != "none"
    variables = own | {name: value for name, value in stated.items() if _is_given(value)}
    variables.pop("add_generation_prompt", None)
    variables.pop("continue_final_message", None)
    return {name: value for name, value in variables.items() if _is_given(value)}


def _is_given(value: Any) -> bool:
    return value is not None and value != "auto"


def _message(message: Mapping[str, Any], as_parts: bool) -> Message:
    role, content = message["role"], message.get("content")
    built: Message = {"role": role}
    if not as_parts and isinstance(content, str) and not (role == "system" and content.startswith(DROPPED_SYSTEM_LINE)):
        built["content"] = content
    else:
        # An empty text leaves no line.
        pieces = [piece for part in _parts(content, role) if (piece := _piece(part, as_parts))]
        if as_parts:
            built["content"] = _tool_content(pieces) if role == "tool" else pieces
        else:
            built["content"] = "\n".join(pieces)
    if role != "developer" and _FURTHER_MEMBERS.isdisjoint(message):
        return built
    if role == "assistant":
        _add_assistant_members(built, message)
    elif role == "tool" and "tool_call_id" in message:
        built["tool_call_id"] = message["tool_call_id"]
    for name in ("name", "task"):
        if isinstance(message.get(name), str):
            built[name] = message[name]
    if role == "developer":
        tools = message.get("tools")
        built["tools"] = [_developer_tool(tool) for tool in tools] if isinstance(tools, list) else tools
    return built


def _parts(content: Any, role: str) -> list[Any]:
    parts = (
        [] if content is None else [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
    )
    if role != "system":
        return parts
    kept = []
    for part in parts:
        text = part if isinstance(part, str) else part.get("text") if part.get("type") == "text" else None
        if not (isinstance(text, str) and text.startswith(DROPPED_SYSTEM_LINE)):
            kept.append(part)
        elif rest := text.partition("\n")[2]:
            kept.append(rest if isinstance(part, str) else {**part, "text": rest})
    return kept


def _piece(part: Any, as_object: bool) -> Any:
    """One part as the template gets it: a string, an object, or None where it leaves no trace."""
    if isinstance(part, str):
        return {"type": "text", "text": part} if as_object else part
    kind = part.get("type")
    if kind in _TEXT_MEMBER_OF_PART:
        text = part.get(_TEXT_MEMBER_OF_PART[kind])
        if text is None:
            return None
        return {"type": "text", "text": text, **_extra_members(part)} if as_object else text
    if kind == "tool_reference" or (kind is None and "tool_reference" in part):
        return {"type": "tool_reference", "name": part.get("name")} if as_object else part.get("name")
    medium = media.medium(part)
    if medium is None or not as_object:
        return None
    return {"type": medium.value, **_extra_members(part)}


def _extra_members(part: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in part.items() if name not in _KNOWN_PART_MEMBERS}


def _tool_content(pieces: list[Any]) -> Any:
    """A tool's answer is one string to the template, but where it refers to tools."""
    if any(piece.get("type") != "text" for piece in pieces):
        return pieces
    return "\n".join(piece.get("text", "") for piece in pieces)


def _add_assistant_members(built: Message, message: Mapping[str, Any]) -> None:
    if message.get("tool_calls"):
        built["tool_calls"] = [_tool_call(call) for call in message["tool_calls"]]
    reasoning = message.get("reasoning")
    if reasoning is None:
        reasoning = message.get("reasoning_content")
    if reasoning is not None:
        built["reasoning"] = reasoning
        built["reasoning_content"] = reasoning


def _tool_call(call: Any) -> Any:
    """A call with its members in the engine's order and its arguments as an object."""
    if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
        raise uncountable("invalid_value", "tool_calls have to be calls of functions.", "messages")
    function = _reordered(call["function"], ("arguments", "name"))
    function["arguments"] = _arguments(function.get("arguments"))
    return _reordered({**call, "function": function}, ("id", "function", "type"))


def _developer_tool(tool: Any) -> Any:
    """A developer message's tool with its members in the engine's order, which is not that of the request's tools."""
    if not isinstance(tool, dict) or not isinstance(tool.get("function"), dict):
        raise uncountable("invalid_value", "tools have to be functions.", "messages")
    function = _reordered(tool["function"], ("name", "description", "parameters", "strict"))
    return _reordered({**tool, "function": function}, ("function", "type"))


def _arguments(stated: Any) -> dict[str, Any]:
    """What is no JSON object counts as an empty one, so that one broken call does not end a conversation."""
    if isinstance(stated, str):
        try:
            stated = json.loads(stated) if stated else {}
        except json.JSONDecodeError:
            return {}
    return stated if isinstance(stated, dict) else {}


def _tool(tool: Mapping[str, Any], path: str) -> dict[str, Any]:
    function = tool.get("function")
    if not isinstance(function, dict):
        raise uncountable("invalid_type", f"{path}.function has to be an object.", f"{path}.function")
    stated = {
        "name": (function.get("name"), str),
        "description": (function.get("description"), str | None),
        "parameters": (function.get("parameters"), dict | None),
        "strict": (function.get("strict"), bool | None),
        "defer_loading": (function.get("defer_loading"), bool | None),
    }
    for name, (value, kind) in stated.items():
        if not isinstance(value, kind):
            param = f"{path}.function.{name}"
            raise uncountable("invalid_type", f"{param} has the wrong type.", param)
    built = {name: value for name, (value, _) in stated.items()}
    deferred = tool.get("defer_loading")
    if built["defer_loading"] is None:
        built["defer_loading"] = deferred
    for name in ("strict", "defer_loading"):
        if built[name] is None:
            del built[name]
    whole = {"type": tool.get("type", "function"), "function": built}
    return whole if deferred is None else {**whole, "defer_loading": deferred}


def _reordered(members: Mapping[str, Any], first: Sequence[str]) -> dict[str, Any]:
    ordered = {name: members[name] for name in first if name in members}
    return ordered | {name: value for name, value in members.items() if name not in ordered}


def _as_system(message: Message) -> Message:
    return {name: "system" if name == "role" else value for name, value in message.items() if name != "tools"}


def _joined_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if "text" in part)
