"""A large body into its members, a piece at a time, so that no step of it holds the interpreter lock for long.

Owns the way around the JSON library's one step over the whole text: long strings are cut out, read in pieces and handed
to the library where it meets what stands for them, so that it reads no more than what is left of the body. Takes and
refuses what strict_json does, with the same codes; only where a syntax error lies is not told, and a member's name has
a bound of its own.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import jiter

from gateway.wire.json_flaws import Flaw, Malformed, diagnose

PIECE_BYTES = 2**18
NAME_BYTES_MAX = 2**16
# What lies around long strings: all that is no string, and the shorter strings. Groups are repeated inside of atomic
# ones: before Python 3.11.5 a possessive repetition of a group keeps what its last, failed turn had matched.
_AROUND = re.compile(rb'(?>(?:[^"]++|"[^"\\]{0,1024}+(?>(?:\\.[^"\\]{0,128}+){0,512})")*)', re.DOTALL)
_INSIDE = re.compile(rb'(?>(?:[^"\\]++|\\(?:[^u]|u.{4}))*)', re.DOTALL)
_LOW_SURROGATE = re.compile(rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_SPACE = re.compile(rb"[ \t\n\r]*")
_QUOTE = ord('"')
_CHARACTER_BYTES_MAX = 4
# The library asks what this word means, which is none of JSON's: so it stands for a long string.
_PLACEHOLDER = b"Infinity"


class Outline:
    """A body without its long strings, which are kept apart. `pieces`: what is left, each with whole strings."""

    def __init__(self, body: bytes) -> None:
        """Raises Malformed for a name that is too long."""
        self.pieces: list[bytes] = []
        self._texts: list[str] = []
        at = 0
        while at < len(body):
            end = _match_end(_AROUND, body, at)
            if end > at:
                self.pieces.append(body[at:end])
                at = end
            else:
                at = self._take_string(body, at)

    def root(self, decoder: Callable[[Callable[[str], str]], json.JSONDecoder]) -> Any:
        """What the body holds. decoder: makes one that asks for each constant. Raises ValueError and RecursionError."""
        texts = iter(self._texts)

        def text_of(word: str) -> str:
            text = next(texts, None)
            if text is None or word.encode() != _PLACEHOLDER:
                raise Flaw("non_finite_number")
            return text

        return decoder(text_of).decode(b"".join(self.pieces).decode())

    def refuse_lone_surrogates(self) -> None:
        """Raise ValueError where a string that is not long holds one; the long ones were read without."""
        if any(map(_SURROGATE.search, self.pieces)):
            jiter.from_json(self._sound_outline(), cache_mode="none")

    def refusal(self, body: bytes, error: Exception) -> Malformed:
        """Why the body is refused. error: what reading it raised."""
        misplaced = _misplaced_byte(body)
        if misplaced is not None:
            message = f"The body is not UTF-8: byte {misplaced} cannot be decoded."
            return Malformed("invalid_encoding", message, "body")
        malformed = diagnose(self._sound_outline().decode(), error)
        if malformed.code == "invalid_json":  # where it says the fault is, is not where it lies in the body
            return Malformed(malformed.code, "The body is not valid JSON.", malformed.param)
        return malformed

    def _sound_outline(self) -> bytes:
        """The outline as JSON, in which long strings are empty but for a faulty one's fault."""
        return b"".join([b'""' if piece is _PLACEHOLDER else piece for piece in self.pieces])

    def _take_string(self, body: bytes, at: int) -> int:
        """Keep the string that begins here apart, but a name, or one with a fault. Return where it ends."""
        text = ""
        start = at + 1
        for end in _piece_ends(body, start):
            piece = b'"%b"' % body[start:end]
            start = end
            try:
                # The string grows in its place, where to join its pieces at the end would be one step over all of it.
                text += jiter.from_json(piece, cache_mode="none")
            except ValueError:
                self.pieces.append(piece)
                return _string_end(body, end)
        if body[start : start + 1] != b'"':  # it never ends
            self.pieces.append(b'"')
            return len(body)
        after = _match_end(_SPACE, body, start + 1)
        if body[after : after + 1] != b":":
            self.pieces.append(_PLACEHOLDER)
            self._texts.append(text)
        elif start - at > NAME_BYTES_MAX:
            raise Malformed("body_too_complex", f"A member's name is over {NAME_BYTES_MAX} bytes.", "body")
        else:
            self.pieces.append(body[at : start + 1])
        return start + 1


def _piece_ends(body: bytes, at: int) -> Iterator[int]:
    """Where to cut what a string holds: never inside an escape, a pair of surrogates or a character."""
    while at < len(body) and body[at] != _QUOTE:
        end = _match_end(_INSIDE, body, at)
        if end == at:  # an escape without an end
            return
        if end == at + PIECE_BYTES:
            while end > at + PIECE_BYTES - _CHARACTER_BYTES_MAX and body[end : end + 1] and body[end] & 0xC0 == 0x80:
                end -= 1
        low = _LOW_SURROGATE.match(body, end)
        end = end if low is None else low.end()
        yield end
        at = end


def _string_end(body: bytes, at: int) -> int:
    """Behind the string that goes on here."""
    for end in _piece_ends(body, at):
        at = end
    return at + 1


def _match_end(pattern: re.Pattern[bytes], body: bytes, at: int) -> int:
    match = pattern.match(body, at, at + PIECE_BYTES)
    assert match is not None
    return match.end()


def _misplaced_byte(body: bytes) -> int | None:
    """The first byte that UTF-8 does not allow where it is."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    for at in range(0, len(body), PIECE_BYTES):
        kept = len(decoder.getstate()[0])
        try:
            decoder.decode(body[at : at + PIECE_BYTES], at + PIECE_BYTES >= len(body))
        except UnicodeDecodeError as error:
            return at - kept + error.start
    return None
