"""From a chat request's members to the text that the engine tokenises.

Owns which of the model's templates a request gets, what goes into it, and the two traits of it that the engine finds
out by rendering short conversations. Tokenises nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from gateway.counting.chat_template import ChatTemplate
from gateway.counting.conversation import (
    DROPPED_SYSTEM_LINE,
    conversation_of,
    tools_of,
    variables_of,
    with_system_for_developer,
)
from gateway.counting.counter import Uncountable, uncountable
from gateway.counting.model_files import DEFAULT_TEMPLATE, TOOLS_TEMPLATE, ModelFiles
from gateway.counting.prompts import TemplateTraits
from gateway.counting.shapes import plain_of

REASON_CHARS_MAX = 300
# What a template raises for a conversation that it does not take: it is a model author's code over a caller's values.
_TEMPLATE_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
# With any of them the prompt is more than its messages.
_SHAPING = frozenset({"tools", "documents", "chat_template_kwargs", "reasoning_effort", "continue_final_message"})
_EFFORTS = ("low", "medium", "high", "xhigh", "max")


class ChatRenderer:
    """The templates of one model. `traits`: what they say of Messages requests."""

    def __init__(self, files: ModelFiles) -> None:
        """Compile the templates. Raises jinja2.TemplateSyntaxError."""
        self._templates = {name: ChatTemplate(source) for name, source in files.templates.items()}
        self._default = self._templates.get(DEFAULT_TEMPLATE)
        self._for_tools = self._templates.get(TOOLS_TEMPLATE, self._default)
        self._special_tokens = files.special_tokens
        self.traits = TemplateTraits(self._merges_system(), "none" if self._heeds_no_effort() else "low")

    def rendered(self, members: Mapping[str, Any]) -> str:
        """The prompt's text. Raises Uncountable where the template refuses the conversation."""
        return "".join(self.pieces(members))

    def pieces(self, members: Mapping[str, Any]) -> list[str]:
        """The prompt's text, in pieces: to join those of a long one takes a while. Raises what `rendered` does."""
        try:
            return self._kept_pieces(members) or self._rendered_pieces(members)
        except _TEMPLATE_ERRORS as error:
            reason = str(error)[:REASON_CHARS_MAX]
            raise uncountable(
                "invalid_messages", f"The model's chat template refuses them: {reason}", "messages"
            ) from error

    def _kept_pieces(self, members: Mapping[str, Any]) -> list[str] | None:
        """The pieces, where the template and the conversation are so plain that what is around contents is known."""
        shapes = None if self._default is None else self._default.shapes
        if shapes is None or not _SHAPING.isdisjoint(members):
            return None
        plain = plain_of(members["messages"], DROPPED_SYSTEM_LINE)
        if plain is None:
            return None
        return shapes.pieces(plain, members.get("add_generation_prompt") is not False, self._shape_rendered)

    def _shape_rendered(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool) -> str:
        return "".join(self._rendered_pieces({"messages": messages, "add_generation_prompt": add_generation_prompt}))

    def _rendered_pieces(self, members: Mapping[str, Any]) -> list[str]:
        variables = variables_of(members)
        tools = variables.pop("tools") if "tools" in variables else tools_of(members)
        documents = variables.pop("documents", None)
        template = self._default if tools is None else self._for_tools
        if template is None:
            raise uncountable("unsupported_parameter", "The model has no chat template.", "messages")
        conversation = conversation_of(members["messages"], template.content_format)
        if not template.knows_developer:
            conversation = with_system_for_developer(conversation)
        return template.render(
            conversation,
            tools=tools,
            documents=documents,
            add_generation_prompt=members.get("add_generation_prompt") is not False,
            continue_final_message=members.get("continue_final_message") is True,
            variables={**self._special_tokens, **_looked_up(variables, template)},
        )

    def _merges_system(self) -> bool:
        """Whether a template refuses a system message that is not the first."""
        return not all(_takes_system_later(self._templates.get(name)) for name in {*self._templates, DEFAULT_TEMPLATE})

    def _heeds_no_effort(self) -> bool:
        """Whether the effort "none" renders, and otherwise than every other effort."""
        without = self._rendered_with_effort("none")
        return without is not None and all(self._rendered_with_effort(effort) != without for effort in _EFFORTS)

    def _rendered_with_effort(self, effort: str) -> str | None:
        try:
            return self.rendered({"messages": [{"role": "user", "content": "Hi"}], "reasoning_effort": effort})
        except Uncountable:
            return None


def _takes_system_later(template: ChatTemplate | None) -> bool:
    if template is None:
        return False
    conversation = [{"role": role, "content": "t"} for role in ("system", "user", "system", "user")]
    try:
        template.render(
            conversation,
            tools=None,
            documents=None,
            add_generation_prompt=False,
            continue_final_message=False,
            variables={},
        )
    except _TEMPLATE_ERRORS:
        return False
    return True


def _looked_up(variables: Mapping[str, Any], template: ChatTemplate) -> dict[str, Any]:
    return {name: value for name, value in variables.items() if name in template.variables}
