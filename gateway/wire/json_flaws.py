"""What is wrong with a body that the strict parser refused, and in which member.

Owns the slow second look: it reads the text again with decoders that put a marker where the fault is, and walks to it.
Runs for refused bodies only, never judges a body that was accepted, and never quotes more of it than a member's name.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1
NESTING_MAX = 64
PARAM_CHARS_MAX = 128
_SURROGATE = re.compile("[\ud800-\udfff]")
_SPACE = re.compile(r"[ \t\n\r]*")
_INT64_DIGITS_MAX = 20

_MESSAGES = {
    "duplicate_key": "The body names {param} twice; name each member once.",
    "non_finite_number": "{param} is not a finite number.",
    "integer_out_of_range": "{param} is outside the range of a 64-bit integer.",
    "lone_surrogate": "{param} holds half of a surrogate pair, which is no character.",
    "nesting_too_deep": f"{{param}} is nested more than {NESTING_MAX} levels deep.",
}


class Malformed(Exception):  # noqa: N818  a body's state, not an error of ours
    """The body is not one unambiguous JSON object. `param` names the member, "body" where no member can be named."""

    def __init__(self, code: str, message: str, param: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param


class Flaw(ValueError):  # noqa: N818  names what is in the text, also as a marker in its tree
    """One fault inside a value. `key` is the repeated one where a key is repeated."""

    def __init__(self, code: str, key: str | None = None) -> None:
        super().__init__(code)
        self.code = code
        self.key = key


def diagnose(text: str, error: Exception) -> Malformed:
    """The refusal for `error`, which parsing `text` raised, with the member's name."""
    if isinstance(error, Malformed):
        return error
    if isinstance(error, json.JSONDecodeError):
        message = f"The body is not valid JSON: {error.msg} at character {error.pos}."
        return Malformed("invalid_json", message, "body")
    try:
        root = _MARKING.decode(text)
    except RecursionError:
        return _malformed("nesting_too_deep", _nested_member(text))
    except json.JSONDecodeError as broken:
        # A flaw was met before the syntax breaks: the syntax is the fault to name.
        return diagnose(text, broken)
    code, path = _first_flaw(root)
    return _malformed(code, path or "body")


def _malformed(code: str, param: str) -> Malformed:
    param = param[:PARAM_CHARS_MAX]
    return Malformed(code, _MESSAGES[code].format(param=param), param)


def _first_flaw(root: Any) -> tuple[str, str]:
    """Code and path of the first fault in document order."""
    names: list[str | int] = []  # of the containers that are being walked; the root has none
    walks: list[Iterator[tuple[str | int, Any]]] = [iter((("", root),))]
    while walks:
        for name, value in walks[-1]:
            kind = type(value)
            if kind is str:
                if _SURROGATE.search(value):
                    return "lone_surrogate", _path([*names, name])
            elif kind is dict or kind is list:
                if len(walks) > NESTING_MAX:
                    return "nesting_too_deep", _path([*names, name])
                if kind is dict and any(map(_SURROGATE.search, value)):
                    return "lone_surrogate", _path([*names, name])
                if value:
                    names.append(name)
                    walks.append(iter(value.items() if kind is dict else enumerate(value)))
                    break
            elif kind is Flaw:
                return value.code, _path([*names, name] if value.key is None else [*names, name, value.key])
        else:
            walks.pop()
            del names[-1:]
    raise AssertionError("a refused body has a flaw")


def _path(names: Iterable[str | int]) -> str:
    """How a member is named, from the root on, whose own name is empty."""
    path = ""
    for name in names:
        path += f"[{name}]" if isinstance(name, int) else f".{name}" if path else name
    return path


def _nested_member(text: str) -> str:
    """The top-level member inside which the text nests deeper than can be read, or "body"."""
    name = "body"
    at = _skip(text, 0)
    if text[at : at + 1] != "{":
        return name
    try:
        while text[at : at + 1] in ("{", ","):
            key, end = _MARKING.raw_decode(text, _skip(text, at + 1))
            at = _skip(text, end)
            if text[at : at + 1] != ":" or not isinstance(key, str):
                break
            name = key[:PARAM_CHARS_MAX]
            _, end = _MARKING.raw_decode(text, _skip(text, at + 1))
            at = _skip(text, end)
    except (json.JSONDecodeError, RecursionError):
        return name
    return "body" if text[at : at + 1] == "}" else name


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()


def _mark_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any] | Flaw:
    members: dict[str, Any] = {}
    for key, value in pairs:
        if key in members:
            return Flaw("duplicate_key", key)
        members[key] = value
    return members


def _mark_infinite(digits: str) -> float | Flaw:
    value = float(digits)
    return value if math.isfinite(value) else Flaw("non_finite_number")


def _mark_oversized(digits: str) -> int | Flaw:
    if len(digits) <= _INT64_DIGITS_MAX and INT64_MIN <= int(digits) <= INT64_MAX:
        return int(digits)
    return Flaw("integer_out_of_range")


def _mark_constant(_: str) -> Flaw:
    return Flaw("non_finite_number")


_MARKING = json.JSONDecoder(
    object_pairs_hook=_mark_repeated,
    parse_float=_mark_infinite,
    parse_int=_mark_oversized,
    parse_constant=_mark_constant,
)
