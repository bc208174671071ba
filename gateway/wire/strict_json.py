"""Bytes into one JSON object, read strictly, and the same bytes with single members changed.

Owns what counts as an unambiguous body: UTF-8 without BOM, no repeated key at any level, finite numbers, integers
within 64 bits, whole Unicode characters, bounded depth and size. Never repairs what it reads, never looks at a field's
meaning, and never re-serialises a member that it was not asked to change.

The good path is one pass of a compiled reader and one short walk over containers; naming the member that is wrong costs
a second pass, which only a refused body pays (gateway.wire.json_flaws). A large body is read in pieces
(gateway.wire.large_json).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import isfinite
from typing import Any, NoReturn

import jiter

from gateway.wire.json_flaws import INT64_MAX, INT64_MIN, NESTING_MAX, Flaw, Malformed, diagnose
from gateway.wire.large_json import Outline

VALUES_MAX = 2**21
MEMBERS_MAX = 2**17  # an object is made in one go, in which no other thread has a turn: not the loop's either
QUICK_BYTES_MAX = 2**18  # read in one step, which holds the interpreter lock to its end: a millisecond or two
_VALUES_COUNTED_FROM_BYTES = 2**20  # a smaller body cannot hold enough values to matter
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_SPACE = re.compile(r"[ \t\n\r]*")
_JSON_SPACE = b" \t\n\r"
_LOOPED_ITEMS_MAX = 32
_COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")  # how gzip and zstd begin
_BETWEEN_VALUES = bytes(set(range(256)) - set(b",[{"))


def parse(body: bytes) -> dict[str, Any]:
    """The body's members; Malformed where it is not one unambiguous object."""
    if (members := parsed_quickly(body)) is not None:
        return members
    if body.startswith(b"\xef\xbb\xbf"):
        raise Malformed("invalid_encoding", "The body begins with a byte order mark; send plain UTF-8.", "body")
    if body.startswith(_COMPRESSED):
        message = "The body is not JSON but looks compressed: name the coding in Content-Encoding."
        raise Malformed("invalid_encoding", message, "body")
    return _read_whole(body) if len(body) <= QUICK_BYTES_MAX else _read_in_pieces(body)


def parsed_quickly(body: bytes) -> dict[str, Any] | None:
    """The body's members, where one pass gives them. None: it is large or faulty, and `parse` takes much longer.

    By a reader that takes what the strict one takes, and numbers out of range; its refusals say little.
    """
    if len(body) > QUICK_BYTES_MAX:
        return None
    try:
        root = jiter.from_json(body, allow_inf_nan=False, cache_mode="keys", catch_duplicate_keys=True)
        if type(root) is dict:
            _examine(root)
            return root
    except ValueError:
        pass
    return None


def _read_whole(body: bytes) -> dict[str, Any]:
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        message = f"The body is not UTF-8: byte {error.start} cannot be decoded."
        raise Malformed("invalid_encoding", message, "body") from None
    try:
        root = _object(_decoder(_refuse_constant).decode(text))
        _examine(root)
        if _SURROGATE_ESCAPE.search(text):
            json.dumps(root, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise diagnose(text, error) from None
    return root


def _read_in_pieces(body: bytes) -> dict[str, Any]:
    outline = Outline(body)
    if len(body) >= _VALUES_COUNTED_FROM_BYTES:
        _refuse_too_many_values(outline.pieces)
    try:
        root = _object(outline.root(_decoder))
        _examine(root)
        outline.refuse_lone_surrogates()
    except (ValueError, RecursionError) as error:
        raise outline.refusal(body, error) from None
    return root


def _object(root: Any) -> dict[str, Any]:
    if type(root) is not dict:
        raise Malformed("invalid_type", "The body has to be one JSON object.", "body")
    return root


def rewrite(body: bytes, *, remove: Collection[str], put: Mapping[str, Any], present: Collection[str]) -> bytes:
    """The body without the members of `remove` and with those of `put`; everything else byte for byte.

    `body` is one that `parse` accepted, `present` its member names. A member of `put` keeps its place where the body
    has it, else it becomes the last one. Nothing to do: the very same object comes back.
    """
    added = "".join(f",{json.dumps(name)}:{_dumps(value)}" for name, value in put.items() if name not in present)
    if any(name in present for name in chain(remove, put)):
        return _respliced(body.decode(), frozenset(remove) - put.keys(), put, added).encode()
    if not added:
        return body
    kept = body.rstrip(_JSON_SPACE)[:-1].rstrip(_JSON_SPACE)
    return b"".join((kept, (added if present else added[1:]).encode(), body[len(kept) :]))


@dataclass(frozen=True, slots=True)
class _Span:
    """Where one top-level member lies in the text, in characters: its key, its value, its end."""

    name: str
    key_at: int
    value_at: int
    end: int


def _respliced(text: str, remove: Collection[str], put: Mapping[str, Any], added: str) -> str:
    pieces: list[str] = []
    opening_end = previous_end = 0
    for span in _spans(text):
        if not previous_end:
            opening_end = previous_end = span.key_at
        if span.name not in remove:
            # The first member that stays follows the opening brace as the body's own first member did.
            gap = text[previous_end : span.key_at] if pieces else ""
            value = _dumps(put[span.name]) if span.name in put else text[span.value_at : span.end]
            pieces += [gap, text[span.key_at : span.value_at], value]
        previous_end = span.end
    return "".join((text[:opening_end], *pieces, added if pieces else added[1:], text[previous_end:]))


def _spans(text: str) -> Iterator[_Span]:
    """Each top-level member, in order, of a text that `parse` accepted."""
    at = _skip(text, _skip(text, 0) + 1)
    while text[at] != "}":
        name, key_end = _PLAIN.raw_decode(text, at)
        value_at = _skip(text, _skip(text, key_end) + 1)
        _, end = _PLAIN.raw_decode(text, value_at)
        yield _Span(name, at, value_at, end)
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()


def _dumps(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _refuse_too_many_values(pieces: Sequence[bytes]) -> None:
    """Memory and loop time of a parse follow the number of values, not of bytes: bound it before parsing.

    pieces: of the body, each with whole strings.
    """
    if _values_upper_bound(pieces) <= VALUES_MAX and _colons(pieces) <= MEMBERS_MAX:
        return
    # Most brackets, commas and colons of ordinary text are inside strings: count again without them.
    bare = [b"".join(piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2]) for piece in pieces]
    if _values_upper_bound(bare) > VALUES_MAX:
        raise Malformed("body_too_complex", f"The body holds more than {VALUES_MAX} JSON values.", "body")
    if _colons(bare) > MEMBERS_MAX:
        raise Malformed("body_too_complex", f"The body's objects hold more than {MEMBERS_MAX} members.", "body")


def _values_upper_bound(pieces: Iterable[bytes]) -> int:
    """Every value but the root follows a comma or an opening bracket."""
    return sum(len(piece.translate(None, delete=_BETWEEN_VALUES)) for piece in pieces)


def _colons(pieces: Iterable[bytes]) -> int:
    return sum(piece.count(b":") for piece in pieces)


def _examine(root: dict[str, Any]) -> None:
    """Level by level: depth within its bound, numbers within theirs. The walk touches containers and numbers only."""
    level: list[Any] = [root]
    for _ in range(NESTING_MAX):
        below: list[Any] = []
        for container in level:
            if type(container) is dict:
                _examine_each(container.values(), below)
            elif len(container) <= _LOOPED_ITEMS_MAX:
                _examine_each(container, below)
            else:
                _examine_list(container, below)
        if not below:
            return
        level = below
    raise Flaw("nesting_too_deep")


def _examine_each(values: Iterable[Any], below: list[Any]) -> None:
    for value in values:
        kind = type(value)
        if kind is str:
            continue
        if kind is dict or kind is list:
            below.append(value)
        elif kind is int:
            if not INT64_MIN <= value <= INT64_MAX:
                raise Flaw("integer_out_of_range")
        elif kind is float and not isfinite(value):
            raise Flaw("non_finite_number")


def _examine_list(values: list[Any], below: list[Any]) -> None:
    """At C speed: a prompt of token ids may have a million of them."""
    kinds = set(map(type, values))
    if dict in kinds or list in kinds:
        below += (
            values if len(kinds) == 1 else [value for value in values if type(value) is dict or type(value) is list]
        )
    if int in kinds:
        numbers = values if len(kinds) == 1 else [value for value in values if type(value) is int]
        if min(numbers) < INT64_MIN or max(numbers) > INT64_MAX:
            raise Flaw("integer_out_of_range")
    if float in kinds and not all(map(isfinite, [value for value in values if type(value) is float])):
        raise Flaw("non_finite_number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise Flaw("duplicate_key")
    return members


def _finite(digits: str) -> float:
    value = float(digits)
    if not isfinite(value):
        raise Flaw("non_finite_number")
    return value


def _refuse_constant(_: str) -> NoReturn:
    raise Flaw("non_finite_number")


def _decoder(constant: Callable[[str], Any]) -> json.JSONDecoder:
    return json.JSONDecoder(object_pairs_hook=_unique, parse_float=_finite, parse_constant=constant)


_PLAIN = json.JSONDecoder()
