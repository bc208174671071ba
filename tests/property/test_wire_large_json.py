"""A body read quickly, and in pieces wherever the cuts fall, against the same body read by the plain JSON library."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.wire import large_json, strict_json
from gateway.wire.json_flaws import Malformed

PIECE_BYTES = st.integers(8, 40)
CHARACTERS = st.sampled_from([*'ab "\\/\n\x7f:,{}[]', "é", "漢", "😀", "\ud83d"])
TEXT = st.text(CHARACTERS, max_size=60)
VALUES = st.recursive(
    st.none() | st.integers(-9, 2**64) | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
FRAGMENTS = [
    *('"', '\\"', "\\\\", "\\u", "\\ud83d", "\\ude00", "\\u0041", "\\x", "é", "😀", "ab", "\x01"),
    *(
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        " ",
        "1",
        "-",
        "1e999",
        "NaN",
        "Infinity",
        "-Infinity",
        "true",
        '"a":',
        '"' + "x" * 70,
    ),
]
BROKEN = st.lists(st.sampled_from(FRAGMENTS), max_size=24).map(lambda parts: '{"a":' + "".join(parts) + "}")


class NoQuickReader:
    @staticmethod
    def from_json(_body: bytes, **_options: Any) -> Any:
        raise ValueError


def outcome(body: bytes) -> str:
    try:
        return repr(strict_json.parse(body))  # 1, 1.0 and true are equal, as are 0.0 and -0.0
    except Malformed as malformed:
        return f"{malformed.code} {malformed.param}"


def assert_the_same(body: bytes, piece_bytes: int) -> None:
    quickly = outcome(body)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strict_json, "jiter", NoQuickReader)
        assert quickly == outcome(body)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strict_json, "QUICK_BYTES_MAX", 0)
        patch.setattr(large_json, "PIECE_BYTES", piece_bytes)
        assert quickly == outcome(body)


@given(st.dictionaries(TEXT, VALUES, max_size=4), st.booleans(), PIECE_BYTES)
@example({"a": "😀" * 9}, True, 8)
@example({"a" * 50: "b" * 50}, False, 8)
def test_what_json_writes_is_read_alike_in_pieces(value: dict[str, Any], ascii_only: bool, piece_bytes: int) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only).encode(errors="surrogatepass")
    assert_the_same(body, piece_bytes)


@given(BROKEN, PIECE_BYTES)
@example('{"a":Infinity,"b":"' + "x" * 70 + '"}', 8)
@example('{"a":-"' + "x" * 70 + '"}', 8)
@example('{"a":"' + "x" * 70 + "\\", 8)
def test_what_is_broken_is_refused_alike_in_pieces(text: str, piece_bytes: int) -> None:
    assert_the_same(text.encode(), piece_bytes)


@given(st.binary(max_size=60), PIECE_BYTES)
def test_a_misplaced_byte_is_found_in_pieces(inside: bytes, piece_bytes: int) -> None:
    assert_the_same(b'{"a":"%b"}' % inside, piece_bytes)


@given(st.lists(st.sampled_from(["\\ud83d", "\\ude00", "\\\\", "\\n", "x", "é"]), max_size=40), PIECE_BYTES)
def test_no_pair_of_surrogates_is_cut(parts: list[str], piece_bytes: int) -> None:
    assert_the_same(f'{{"a":"{"".join(parts)}"}}'.encode(), piece_bytes)
