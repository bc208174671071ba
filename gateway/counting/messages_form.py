"""A Messages request as the chat request that the engine makes of it.

Owns the way from content blocks and tools to chat messages and chat tools, as vLLM 0.32 goes it: which blocks become
messages of their own, which lines of a system prompt are dropped, which tools are in force at the end. Two things
depend on the model's template and are given: whether system messages may stand in the middle, and what a request that
turns thinking off says to the template.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gateway.counting.counter import uncountable

Members = Mapping[str, Any]
Message = dict[str, Any]

_ATTRIBUTION = "x-anthropic-billing-header"
_TOOL_CHANGES = ("tool_addition", "tool_removal")
_IMAGE = {"type": "image_url"}  # its data stay where they are: they are never decoded


def chat_of_messages(members: Members, *, merges_system: bool, effort_when_disabled: str) -> dict[str, Any]:
    """The members of the chat request. Raises Uncountable for tool changes that the engine refuses.

    merges_system: all system text goes to the front. effort_when_disabled: the reasoning effort without thinking.
    """
    messages = [message for message in members["messages"] if isinstance(message, dict)]
    return {
        "messages": _conversation(members.get("system"), messages, merges_system),
        "tools": _tools(members.get("tools"), messages),
        "reasoning_effort": _effort(members, effort_when_disabled),
        "chat_template_kwargs": members.get("chat_template_kwargs"),
    }


def _effort(members: Members, when_disabled: str) -> Any:
    thinking, output = members.get("thinking"), members.get("output_config")
    if isinstance(thinking, dict) and thinking.get("type") == "disabled":
        return when_disabled
    return output.get("effort") if isinstance(output, dict) else None


def _conversation(system: Any, messages: Sequence[Members], merges_system: bool) -> list[Message]:
    leading = list(_system_texts(system))
    if merges_system:
        leading += [text for message in messages if message["role"] == "system" for text in _inline(message)]
    converted: list[Message] = [{"role": "system", "content": "".join(leading)}] if leading else []
    for message in messages:
        if message["role"] == "system":
            if not merges_system:
                converted += [{"role": "system", "content": text} for text in _inline(message)]
        elif isinstance(message.get("content"), str):
            converted.append({"role": message["role"], "content": message["content"]})
        else:
            _add_blocks(converted, message)
    return converted


def _system_texts(content: Any) -> Iterator[str]:
    """The texts of a system prompt, without those that change with every request of one client."""
    texts = [content] if isinstance(content, str) else [block.get("text") for block in _blocks(content, "text")]
    is_list = not isinstance(content, str)
    yield from (text for text in texts if text and not (is_list and text.startswith(_ATTRIBUTION)))


def _inline(message: Members) -> Iterator[str]:
    """The one text of a system message inside the conversation, where it has any."""
    content = message.get("content")
    texts = [content] if isinstance(content, str) else [block.get("text") for block in _blocks(content, "text")]
    joined = "".join(text for text in texts if text and not text.startswith(_ATTRIBUTION))
    if joined:
        yield joined


def _blocks(content: Any, *kinds: str) -> Iterator[Members]:
    for block in content if isinstance(content, list) else ():
        if isinstance(block, dict) and (not kinds or block.get("type") in kinds):
            yield block


def _add_blocks(converted: list[Message], message: Members) -> None:
    """One message of blocks; the tool results in it come first, each as a message of its own."""
    built: Message = {"role": message["role"]}
    parts: list[dict[str, Any]] = []
    for block in _blocks(message.get("content")):
        match block.get("type"):
            case "text" if block.get("text"):
                parts.append({"type": "text", "text": block["text"]})
            case "image" if block.get("source"):
                parts.append(_IMAGE)
            case "thinking" if block.get("thinking") is not None:
                built["reasoning"] = built.get("reasoning", "") + block["thinking"]
            case "tool_use":
                built.setdefault("tool_calls", []).append(_tool_call(block))
            case "tool_result" if message["role"] == "user":
                converted.extend(_tool_result(block))
            case "tool_result":
                parts.append({"type": "text", "text": f"Tool result: {block.get('content') or ''}"})
            case _:
                pass  # what is redacted, or says something of the tools, leaves no trace
    if parts:
        is_one_text = len(parts) == 1 and parts[0]["type"] == "text"
        built["content"] = parts[0]["text"] if is_one_text else parts
    if message["role"] != "user" or "content" in built:
        converted.append(built)


def _tool_call(block: Members) -> dict[str, Any]:
    function = {"name": block.get("name") or "", "arguments": json.dumps(block.get("input") or {})}
    return {"id": block.get("id"), "type": "function", "function": function}


def _tool_result(block: Members) -> Iterator[Message]:
    content, call_id = block.get("content"), block.get("tool_use_id") or ""
    texts = [part.get("text", "") for part in _blocks(content, "text")]
    yield {
        "role": "tool",
        "tool_call_id": call_id,
        "content": content if isinstance(content, str) else "\n".join(texts),
    }
    images = [_IMAGE for _ in _blocks(content, "image")]
    if images:
        yield {"role": "user", "content": images}
    names = [part.get("tool_name") or part.get("name") for part in _blocks(content, "tool_reference")]
    references = [{"type": "tool_reference", "name": name} for name in names if name]
    if references:
        yield {"role": "tool", "tool_call_id": call_id, "content": references}


def _tools(stated: Any, messages: Sequence[Members]) -> list[dict[str, Any]] | None:
    """The tools at the end of the conversation: its changes are applied in turn."""
    changes = [block for message in messages for block in _blocks(message.get("content"), *_TOOL_CHANGES)]
    if stated is None and not changes:
        return None
    if not changes:
        return [_chat_tool(tool) for tool in stated]
    tools: dict[str, Members] = {tool["name"]: tool for tool in stated or ()}
    removed: set[str] = set()
    for change in changes:
        name = _changed(tools, change)
        if change["type"] == "tool_removal":
            removed.add(name)
        else:
            removed.discard(name)
    return [_chat_tool(tool) for name, tool in tools.items() if name not in removed]


def _changed(tools: dict[str, Members], change: Members) -> str:
    """Apply one change that adds to `tools`; the name of the tool that it is about."""
    tool = change.get("tool") or {}
    if tool.get("type") == "tool_definition":
        definition = tool["definition"]
        tools[definition["name"]] = definition
        return str(definition["name"])
    name = str(tool.get("name"))
    if name not in tools:
        raise uncountable("invalid_value", "A changed tool is not declared in tools.", "messages")
    if change["type"] == "tool_addition":
        tools[name] = {**tools[name], "defer_loading": None}
    return name


def _chat_tool(tool: Members) -> dict[str, Any]:
    schema = tool.get("input_schema")
    if isinstance(schema, dict) and "type" not in schema:
        schema = {**schema, "type": "object"}
    function = {
        "name": tool.get("name"),
        "description": tool.get("description"),
        "parameters": schema,
        "strict": tool.get("strict"),
        "defer_loading": tool.get("defer_loading"),
    }
    return {"type": "function", "function": function}
