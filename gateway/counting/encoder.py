"""From a text to its number of tokens, as the model's tokenizer.json says.

Owns the choice between two encoders of the same file: the reference, which is what the engine's own loader uses, and a
much faster one, which is taken only where it has just been seen to give the reference's tokens for every probe. Both
let go of the interpreter lock while they work. Knows no template and no request.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterator
from random import Random
from typing import Any, Protocol

from tokenizers import Tokenizer

from gateway.counting.counter import as_ids

SEGMENT_CACHE_BYTES_MAX = 64 * 1024 * 1024
SHORT_TEXT_CHARS_MAX = 16 * 1024
PROBES = 256
_PROBE_SEED = 1
_SPECIAL_EACH = 4  # what comes around a text does not depend on it
_TOKEN_ID_BYTES = 4
# Where pre-tokenizers and normalizers differ: cases, marks, digits, spaces, joined emoji, folded forms, controls.
_PIECES = (
    *("the quick brown fox ", "I'LL don't we've ", "Größe ", "x=={}();// ", "1234567 ", "3.14159", "http://a.b/c?d=e "),
    *(
        "漢字かな",
        "한국어 ",
        "عربى ",
        "नमस्ते ",
        "ไทย",
        "😀👩‍👩‍👧 ",
        "e\u0301",
        "ﬁ Å ½",
        "\u200b\u00a0\u3000",
        "\u0000\u001f",
    ),
    *(" ", "   ", "\t", "\n", "\r\n", "\n\n  \n", "_", "--", "...", "\u2581", "\ufffd", "A", "ß", "Ǆ", "\U000e0041"),
)


class Encoder(Protocol):
    """Counts tokens. `name` is the library's. is_quick: a short text takes less than handing it to a thread would."""

    name: str
    is_quick: bool

    def count(self, text: str, *, add_special_tokens: bool) -> int: ...

    def ids(self, text: str, *, add_special_tokens: bool) -> array[int]: ...


class ReferenceEncoder:
    """The library that the engine loads the file with."""

    name = "tokenizers"
    is_quick = False

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def count(self, text: str, *, add_special_tokens: bool) -> int:
        # The batch form alone lets go of the interpreter lock.
        (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return len(encoding)

    def ids(self, text: str, *, add_special_tokens: bool) -> array[int]:
        """The token ids themselves."""
        (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return as_ids(encoding.ids)


class FastEncoder:
    """A faster library on the same file, with a bounded cache of the texts between special tokens: turns repeat."""

    name = "fastokens"
    is_quick = True

    def __init__(self, native: Any) -> None:
        self._native = native
        native.enable_segment_cache(SEGMENT_CACHE_BYTES_MAX)

    def count(self, text: str, *, add_special_tokens: bool) -> int:
        of_length = self.count_short if len(text) <= SHORT_TEXT_CHARS_MAX else self.count_long
        return of_length(text, add_special_tokens=add_special_tokens)

    def count_short(self, text: str, *, add_special_tokens: bool) -> int:
        """Up to a third cheaper, for a tokenizer without words."""
        return len(self._native.encode(text, add_special_tokens=add_special_tokens))

    def count_long(self, text: str, *, add_special_tokens: bool) -> int:
        """Without an object for each token: a list of millions would hold the interpreter lock."""
        ids, _ = self._native.encode_batch_flat([text], add_special_tokens=add_special_tokens)
        return len(ids) // _TOKEN_ID_BYTES

    def ids(self, text: str, *, add_special_tokens: bool) -> array[int]:
        """The token ids themselves."""
        return as_ids(self._native.encode(text, add_special_tokens=add_special_tokens).ids)


def encoder_of(tokenizer: Tokenizer) -> Encoder:
    """The fastest encoder that is exact for this tokenizer. Takes seconds for a large vocabulary."""
    reference = ReferenceEncoder(tokenizer)
    fast = _fast_encoder(tokenizer)
    return fast if fast is not None and agrees(reference, fast, probes(tokenizer)) else reference


def agrees(reference: ReferenceEncoder, other: FastEncoder, texts: Iterator[str]) -> bool:
    """Whether both give the same tokens for every text, however they are counted; for some with special tokens too."""
    for index, text in enumerate(texts):
        for special in (False, True)[: 1 if index % _SPECIAL_EACH else 2]:
            ids = reference.ids(text, add_special_tokens=special)
            counts = (form(text, add_special_tokens=special) for form in (other.count_short, other.count_long))
            if other.ids(text, add_special_tokens=special) != ids or any(count != len(ids) for count in counts):
                return False
    return True


def probes(tokenizer: Tokenizer) -> Iterator[str]:
    """Texts in which encoders of one file would differ: the same ones for the same tokenizer."""
    random = Random(_PROBE_SEED)  # noqa: S311 - nothing secret is drawn
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    pieces = (*_PIECES, *added)
    yield from itertools.chain(("",), _PIECES, (f"a {token} b{token}\n{token}" for token in added[:PROBES]))
    for _ in range(PROBES):
        yield "".join(random.choice(pieces) for _ in range(random.randrange(1, 40)))
        yield "".join(_any_character(random) for _ in range(random.randrange(1, 60)))
    yield from (piece * 500 for piece in ("a", " ", "\n", "1", "ab", "😀", "ก"))


def _any_character(random: Random) -> str:
    """Any character but the surrogates, which no text that came as UTF-8 has; the common planes more often."""
    first, last = random.choice(
        ((0x20, 0x24F), (0x370, 0x1FFF), (0x2000, 0xD7FF), (0xE000, 0xFFFF), (0x10000, 0x2FFFF))
    )
    return chr(random.randint(first, last))


def _fast_encoder(tokenizer: Tokenizer) -> FastEncoder | None:
    """None where the library is not there for this platform, or does not carry every step of the file."""
    try:
        from fastokens import Tokenizer as NativeTokenizer
    except ImportError:
        return None
    try:
        return FastEncoder(NativeTokenizer.from_json_str(tokenizer.to_str()))
    except ValueError:  # what it says of a step that it does not know
        return None
