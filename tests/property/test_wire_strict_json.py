"""Strict reading and single-member rewriting against the plain JSON library."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.json_flaws import INT64_MAX, INT64_MIN, Malformed
from gateway.wire.strict_json import parse, rewrite

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(INT64_MIN, INT64_MAX)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=8
)
NAMES = TEXT | st.sampled_from(["priority", "n", "model"])
OBJECTS = st.dictionaries(NAMES, VALUES, max_size=5)
SEPARATORS = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " :\t")])


@given(OBJECTS, SEPARATORS, st.booleans())
def test_what_json_writes_is_read_back(value: dict[str, Any], separators: tuple[str, str], ascii_only: bool) -> None:
    body = json.dumps(value, separators=separators, ensure_ascii=ascii_only).encode()
    assert parse(body) == value


@given(OBJECTS, SEPARATORS, st.booleans(), st.sets(NAMES, max_size=3), st.dictionaries(NAMES, SCALARS, max_size=2))
def test_only_the_named_members_change(
    value: dict[str, Any], separators: tuple[str, str], ascii_only: bool, remove: set[str], put: dict[str, Any]
) -> None:
    body = json.dumps(value, separators=separators, ensure_ascii=ascii_only).encode()
    rewritten = rewrite(body, remove=remove, put=put, present=value.keys())
    expected = {name: member for name, member in value.items() if name not in remove} | put
    assert parse(rewritten) == expected
    if not put and not remove & value.keys():
        assert rewritten is body
    for name in value.keys() - remove - put.keys():
        member = json.dumps({name: value[name]}, separators=separators, ensure_ascii=ascii_only)[1:-1].encode()
        assert member in rewritten


@given(st.binary(max_size=60) | st.text('{}[]",:\\u0d8e1-. nN', max_size=40).map(str.encode))
def test_any_bytes_are_read_or_refused_with_a_name(body: bytes) -> None:
    refusals: list[Malformed] = []
    try:
        assert parse(body) == json.loads(body)
    except Malformed as malformed:
        refusals.append(malformed)
    assert all(refusal.code and refusal.param for refusal in refusals)
