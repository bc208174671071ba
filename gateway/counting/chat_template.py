"""A model's chat template, rendered as the engine renders it.

Owns the template environment (the one that model authors write for), the shape in which the template wants content, and
the cut of a final message that is to be continued. Templates are the operator's, yet run in a sandbox: what they are
given is the caller's. Never renders a template that came with a request.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from enum import StrEnum
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.meta
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gateway.counting.shapes import Shapes
from gateway.counting.verbatim import keeps_content_verbatim

Conversation = Sequence[Mapping[str, Any]]

_CONTINUE_MARK = "CONTINUE_FINAL_MESSAGE_TAG "
_METHODS_OF_OBJECTS = frozenset(dir(dict))


class ContentFormat(StrEnum):
    """How the template reads a message's content: one string, or a list of parts."""

    STRING = "string"
    PARTS = "parts"


class ChatTemplate:
    """One compiled template.

    content_format: what its loops over content tell. knows_developer: whether it names the developer role.
    variables: every name that it looks up; others given to it have no effect. shapes: where it keeps content verbatim.
    """

    def __init__(self, source: str) -> None:
        """Compile. Raises jinja2.TemplateSyntaxError."""
        environment = _environment()
        tree = environment.parse(source)
        self._template = environment.from_string(source)
        # Copied for every prompt: out of a plain mapping that costs a fifth of what the library's chained one does.
        self._template.globals = dict(self._template.globals)
        self._source = source
        self.content_format = ContentFormat.PARTS if _loops_over_content(tree) else ContentFormat.STRING
        self.knows_developer = '"developer"' in source or "'developer'" in source
        is_kept = self.content_format is ContentFormat.STRING and keeps_content_verbatim(tree)
        self.shapes = Shapes() if is_kept else None
        self.variables = frozenset(jinja2.meta.find_undeclared_variables(tree))  # last: it folds the tree's constants

    def render(
        self,
        conversation: Conversation,
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        documents: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        continue_final_message: bool,
        variables: Mapping[str, Any],
    ) -> list[str]:
        """The prompt's text, in pieces. Raises whatever the template raises for what it does not take."""
        if continue_final_message:
            conversation, final_text = _marked(conversation, self._source)
        else:
            final_text = ""
        given = {
            "messages": conversation,
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
            **variables,
        }
        pieces = list(self._template.root_render_func(self._template.new_context(given)))
        return [_cut("".join(pieces), final_text)] if continue_final_message else pieces


def _marked(conversation: Conversation, source: str) -> tuple[Conversation, str]:
    """The conversation with a mark after the last text of its final message, and that text."""
    marked = list(deepcopy(conversation))
    final = dict(marked[-1])
    content = final.get("content")
    if content is None or "content" not in source:
        raise ValueError("the final message has no content to continue")
    if isinstance(content, str):
        final_text = content
        final["content"] = content + _CONTINUE_MARK
    else:
        part = next((part for part in reversed(content) if "text" in part), None)
        if part is None:
            raise ValueError("the final message has no text to continue")
        final_text = part["text"]
        part["text"] += _CONTINUE_MARK
    marked[-1] = final
    return marked, final_text


def _cut(text: str, final_text: str) -> str:
    mark = _CONTINUE_MARK.strip()
    if final_text.strip() not in text or mark not in text:
        raise ValueError("the template does not keep the final message, so that it cannot be continued")
    at = text.rindex(mark)
    # A template that trims its messages takes the mark's space away, and with it the space before the mark.
    return text[:at] if text[at : at + len(_CONTINUE_MARK)] == _CONTINUE_MARK else text[:at].rstrip()


class _Generation(jinja2.ext.Extension):
    """The block that marks an assistant's words for training; for a prompt it is what it holds."""

    tags = {"generation"}  # noqa: RUF012  the base class wants a plain set

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with a short way to what templates look up most: a member of a JSON object, often one that is not
    there. What could be a method goes the sandbox's own way, which decides whether it may be called.
    """

    def getitem(self, obj: Any, argument: Any) -> Any:
        if type(obj) is dict and type(argument) is str and argument not in _METHODS_OF_OBJECTS:
            return obj[argument] if argument in obj else self.undefined(obj=obj, name=argument)
        return super().getitem(obj, argument)

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is dict and attribute not in _METHODS_OF_OBJECTS:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = time.strftime
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: the template engine's own filter escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _loops_over_content(tree: nodes.Template) -> bool:
    """Whether some loop goes through a message's content, so that it is expected as a list of parts."""
    message_names = _message_names(tree)
    macro_loops: dict[int, set[str]] = {}
    for macro in tree.find_all(nodes.Macro):
        parameters = _content_parameters(tree, macro, message_names)
        for loop in macro.find_all(nodes.For):
            macro_loops[id(loop)] = parameters or macro_loops.get(id(loop), parameters)
    return any(_loops_over(loop.iter, message_names, macro_loops.get(id(loop))) for loop in tree.find_all(nodes.For))


def _loops_over(iterable: nodes.Node, message_names: Sequence[str], parameters: set[str] | None) -> bool:
    """Whether a loop's iterable is content. parameters: those of the macro around the loop that hold content."""
    if any(_reads(iterable, name, "content") for name in message_names):
        return True
    if not isinstance(iterable, nodes.Name):
        return False
    return iterable.name == "content" if parameters is None else iterable.name in parameters


def _message_names(tree: nodes.Template) -> list[str]:
    """The names that loops over the messages give to each of them."""
    lists = ["messages"]
    for name in lists:  # grows while it is walked: an alias of an alias counts
        for assignment in tree.find_all(nodes.Assign):
            target = assignment.target
            if isinstance(target, nodes.Name) and _reads(assignment.node, name) and target.name not in lists:
                lists.append(target.name)
    loops = (loop for loop in tree.find_all(nodes.For) if any(_reads(loop.iter, name) for name in lists))
    return [loop.target.name for loop in loops if isinstance(loop.target, nodes.Name)]


def _content_parameters(tree: nodes.Template, macro: nodes.Macro, message_names: Sequence[str]) -> set[str]:
    """The parameters of a macro that some call gives a message's content to."""
    return {
        parameter
        for call in tree.find_all(nodes.Call)
        if isinstance(call.node, nodes.Name) and call.node.name == macro.name
        for parameter, value in _arguments(macro, call)
        if any(_reads(value, name, "content") for name in message_names)
    }


def _arguments(macro: nodes.Macro, call: nodes.Call) -> Iterator[tuple[str, nodes.Expr]]:
    names = [argument.name for argument in macro.args]
    yield from zip(names, call.args, strict=False)
    yield from ((keyword.key, keyword.value) for keyword in call.kwargs if keyword.key in names)


def _reads(node: nodes.Node | None, name: str, member: str | None = None) -> bool:
    """Whether an expression is the variable, or its member, also sliced, filtered or tested."""
    while True:
        match node:
            case nodes.Filter() | nodes.Test():
                node = node.node
            case nodes.Getitem(arg=nodes.Slice()):
                node = node.node
            case nodes.Getitem(node=nodes.Name(name=held, ctx="load"), arg=nodes.Const(value=key)):
                return held == name and member is not None and bool(key == member)
            case nodes.Getattr(node=nodes.Name(name=held, ctx="load"), attr=key):
                return held == name and member is not None and key == member
            case nodes.Name(name=held, ctx="load"):
                return held == name and member is None
            case _:
                return False
