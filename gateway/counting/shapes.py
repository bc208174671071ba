"""What a template writes around the contents of a conversation, kept for conversations of the same roles.

Owns the kept texts and their bound. Serves plain conversations alone, and templates that are proved to keep content
verbatim; anything else is rendered. Each kept shape has been seen to give what rendering gave.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

SHAPES_MAX = 1024
MESSAGES_MAX = 16
_BLANK_CHARS = 256  # a text that begins with so much space counts as blank, which to find out takes no time
_ROLES = frozenset({"system", "user", "assistant", "tool"})
_EDGE = "\u2003\u2004\u2002"  # space, of a kind that stands in no template

Render = Callable[[Sequence[Mapping[str, Any]], bool], str]


class _Place(NamedTuple):
    """Which of the pieces is which content, and at which of its ends the template takes space away."""

    at: int
    content: int
    strips_left: bool
    strips_right: bool


class _Shape(NamedTuple):
    """pieces: the fixed texts, with an empty one for each content."""

    pieces: list[str]
    places: list[_Place]

    def filled(self, contents: Sequence[str]) -> list[str]:
        pieces = self.pieces.copy()
        for at, number, strips_left, strips_right in self.places:
            content = contents[number]
            if strips_left:
                content = content.lstrip()
            pieces[at] = content.rstrip() if strips_right else content
        return pieces


class Plain(NamedTuple):
    """A conversation of nothing but roles and texts that are not blank."""

    roles: tuple[str, ...]
    contents: list[str]


class Shapes:
    """The shapes of one template. Threads may ask at once: what two of them find out is the same."""

    def __init__(self) -> None:
        self._kept: dict[tuple[bool, tuple[str, ...]], _Shape] = {}
        self._mark = secrets.token_hex(16)  # no caller's text holds it
        self._marks = re.compile(rf"((?:{_EDGE})?){self._mark}(\d+){self._mark}((?:{_EDGE})?)")

    def pieces(self, plain: Plain, add_generation_prompt: bool, render: Render) -> list[str]:
        """The prompt's text, in pieces. render: gives the text of any such conversation."""
        key = (add_generation_prompt, plain.roles)
        shape = self._kept.get(key)
        if shape is None:
            whole = render(_messages(plain.roles, plain.contents), add_generation_prompt)
            shape = self._shape(plain.roles, add_generation_prompt, render)
            if "".join(shape.filled(plain.contents)) != whole:
                return [whole]
            if len(self._kept) >= SHAPES_MAX:
                self._kept.clear()
            self._kept[key] = shape
        return shape.filled(plain.contents)

    def _shape(self, roles: Sequence[str], add_generation_prompt: bool, render: Render) -> _Shape:
        marks = [f"{_EDGE}{self._mark}{index}{self._mark}{_EDGE}" for index in range(len(roles))]
        fixed_left_index_right = self._marks.split(render(_messages(roles, marks), add_generation_prompt))
        shape = _Shape([fixed_left_index_right[0]], [])
        rest = iter(fixed_left_index_right[1:])
        for left, index, right, fixed in zip(rest, rest, rest, rest, strict=True):
            shape.places.append(_Place(len(shape.pieces), int(index), not left, not right))
            shape.pieces.extend(("", fixed))
        return shape


def plain_of(messages: Sequence[Mapping[str, Any]], dropped_system_line: str) -> Plain | None:
    """The conversation, where it is plain. dropped_system_line: with which a system text does not stay as it is."""
    if len(messages) > MESSAGES_MAX:
        return None
    roles, contents = [], []
    for message in messages:
        if len(message) != 2:
            return None
        role, content = message.get("role"), message.get("content")
        if role not in _ROLES or type(content) is not str or not content or content[:_BLANK_CHARS].isspace():
            return None
        if role == "system" and content.startswith(dropped_system_line):
            return None
        roles.append(role)
        contents.append(content)
    return Plain(tuple(roles), contents)


def _messages(roles: Sequence[str], contents: Sequence[str]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)]
