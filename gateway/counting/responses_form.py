"""A Responses request as the chat request that the engine makes of it.

Owns the way from `input` items, instructions and flat tools to messages and chat tools, as vLLM 0.32 goes it: which
items join one assistant message, which final item is continued. What the engine keeps of earlier responses is not in
the body: such a request says so by `continues_elsewhere`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.counting.counter import uncountable

Members = Mapping[str, Any]

_NAMESPACE_SEPARATOR = "__"
_CUSTOM_INPUT = "input"
_CUSTOM_PARAMETERS = {
    "type": "object",
    "properties": {_CUSTOM_INPUT: {"type": "string", "description": "The freeform text payload for this tool."}},
    "required": [_CUSTOM_INPUT],
    "additionalProperties": False,
}
_TOOL_MEMBERS = ("name", "description", "parameters", "strict", "defer_loading")


def chat_of_response(members: Members) -> dict[str, Any]:
    """The members of the chat request. Raises Uncountable for items that the engine refuses."""
    stated = members.get("input")
    continues = isinstance(stated, list) and bool(stated) and _is_partial(stated[-1])
    reasoning = members.get("reasoning")
    effort = reasoning.get("effort") if isinstance(reasoning, dict) else None
    return {
        "messages": _messages(members.get("instructions"), stated),
        "tools": _tools(members.get("tools")),
        "add_generation_prompt": not continues,
        "continue_final_message": continues,
        "add_special_tokens": True,  # besides those of the template: the engine does so in this form alone
        "reasoning_effort": effort,
        "chat_template_kwargs": members.get("chat_template_kwargs"),
    }


def continues_elsewhere(members: Members) -> bool:
    """Whether part of the prompt is kept by the engine, so that the body does not tell its length."""
    return bool(members.get("previous_response_id")) or bool(members.get("previous_input_messages"))


def _is_partial(item: Any) -> bool:
    return (
        isinstance(item, dict)
        and item.get("type", "message") in ("message", "reasoning")
        and item.get("status") in ("in_progress", "incomplete")
    )


def _messages(instructions: Any, stated: Any) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    if isinstance(stated, str):
        messages.append({"role": "user", "content": stated})
        return messages
    first = len(messages)
    for item in stated or ():
        if not isinstance(item, dict):
            raise uncountable("invalid_type", "input items have to be objects.", "input")
        previous = messages[-1] if len(messages) > first and messages[-1].get("role") == "assistant" else None
        _add_item(messages, item, previous)
    return messages


def _add_item(messages: list[dict[str, Any]], item: dict[str, Any], previous: dict[str, Any] | None) -> None:
    """One item as a message of its own, or as a member of the assistant message before it that lacks this member."""
    kind = item.get("type")
    if kind in ("function_call", "custom_tool_call"):
        call = _tool_call(item)
        if previous is not None:
            previous.setdefault("tool_calls", []).append(call)
        else:
            messages.append({"role": "assistant", "tool_calls": [call]})
    elif kind in ("function_call_output", "custom_tool_call_output"):
        output = _chat_content(item.get("output"))
        messages.append({"role": "tool", "content": output, "tool_call_id": item.get("call_id")})
    elif kind == "reasoning":
        _join(messages, previous, "reasoning", _reasoning(item))
    elif item.get("role") == "assistant" and (text := _first_text(item.get("content"))) is not None:
        _join(messages, previous, "content", text)
    elif "role" in item:
        messages.append({**item, "content": _chat_content(item.get("content"))})
    else:
        raise uncountable("invalid_value", f"input items of type {kind!r} are not known to the engine.", "input")


def _chat_content(content: Any) -> Any:
    """Text parts under the name that chat requests give them; what is no text stays as it is."""
    if not isinstance(content, list):
        return content
    return [
        {"type": "text", "text": part.get("text")}
        if isinstance(part, dict) and part.get("type") in ("input_text", "output_text")
        else part
        for part in content
    ]


def _join(messages: list[dict[str, Any]], previous: dict[str, Any] | None, name: str, value: str) -> None:
    if previous is not None and previous.get(name) is None:
        previous[name] = value
    else:
        messages.append({"role": "assistant", name: value})


def _tool_call(item: Members) -> dict[str, Any]:
    name, arguments = item.get("name"), item.get("arguments")
    if item["type"] == "custom_tool_call":
        arguments = json.dumps({_CUSTOM_INPUT: item.get("input") or ""}, ensure_ascii=False)
    elif item.get("namespace"):
        name = f"{item['namespace']}{_NAMESPACE_SEPARATOR}{name}"
    return {"id": item.get("call_id"), "function": {"name": name, "arguments": arguments}, "type": "function"}


def _reasoning(item: Members) -> str:
    """Its own text, else its summary's; of several only the first counts."""
    if item.get("encrypted_content"):
        raise uncountable("invalid_value", "Encrypted reasoning has no token count.", "input")
    return next((text for name in ("content", "summary") if (text := _first_text(item.get(name))) is not None), "")


def _first_text(content: Any) -> str | None:
    if isinstance(content, list):
        content = content[0].get("text") if content and isinstance(content[0], dict) else None
    return content if isinstance(content, str) else None


def _tools(stated: Any) -> list[dict[str, Any]] | None:
    if not stated:
        return None
    return [_chat_tool(function) for tool in stated for function in _functions(tool)]


def _functions(tool: Any) -> Sequence[Members]:
    """The functions that the model is shown of one tool: none for a kind that the engine runs itself."""
    if not isinstance(tool, dict):
        raise uncountable("invalid_type", "tools have to be objects.", "tools")
    match tool.get("type"):
        case "function":
            return [tool]
        case "custom":
            return [{**tool, "parameters": _CUSTOM_PARAMETERS, "strict": None, "defer_loading": None}]
        case "namespace":
            inner = [function for function in tool.get("tools") or () if function.get("type") == "function"]
            prefix = f"{tool.get('name')}{_NAMESPACE_SEPARATOR}"
            return [{**function, "name": f"{prefix}{function.get('name')}"} for function in inner]
        case _:
            return []


def _chat_tool(function: Members) -> dict[str, Any]:
    return {"type": "function", "function": {name: function.get(name) for name in _TOOL_MEMBERS}}
