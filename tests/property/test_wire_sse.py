"""The tap says the same of a stream however its bytes are cut."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from gateway.wire.dialects import Dialect
from gateway.wire.sse import StreamTap

VALUES: list[Any] = [
    {"choices": [{"delta": {"content": "hi"}}]},
    {"choices": [{"delta": {"content": 'a "usage": { [DONE] "error"\n\n'}}]},
    {"usage": {"prompt_tokens": 3, "completion_tokens": 4}},
    {"usage": None},
    {"choices": [{"delta": {}, "finish_reason": "abort"}]},
    {"error": {"message": "x", "code": 503}},
    {"type": "ping"},
    {"type": "message_stop"},
    {"type": "response.created", "response": {"x": "y" * 90}},
    {"type": "response.completed", "response": {"usage": {"input_tokens": 1}}},
    {"long": "z" * 130},
    {"long": "z" * 130, "finish_reason": "abort", "usage": {"prompt_tokens": 3}},
    {"type": "response.completed", "response": {"output": "z" * 130, "usage": {"input_tokens": 1}}},
]
LINE_ENDS = st.sampled_from(["\n", "\r\n", "\r"])


@st.composite
def events(draw: st.DrawFn) -> str:
    end = draw(LINE_ENDS)
    lines = []
    if draw(st.booleans()):
        lines.append(draw(st.sampled_from([": ka", ":", "event: ping", "event:message_stop", "id: 1", "retry: 3", ""])))
    if draw(st.booleans()):
        value = draw(st.sampled_from([*map(json.dumps, VALUES), "[DONE]", "not json", ""]))
        lines.append(draw(st.sampled_from(["data: ", "data:"])) + value)
    return "".join(line + end for line in lines) + end


STREAMS = st.lists(events(), max_size=8).map("".join)


def said(dialect: Dialect, chunks: list[bytes]) -> tuple[object, ...]:
    tap = StreamTap(dialect, event_bytes_max=100)
    for chunk in chunks:
        tap.feed(chunk)
    state = (
        tap.first_event,
        tap.error,
        tap.opens_with_error,
        tap.given_up,
        tap.usage,
        tap.ended,
        tap.overflowed,
        tap.mid_event,
    )
    tap.finish()
    return (*state, tap.ended, tap.usage)


@given(st.sampled_from(Dialect), STREAMS, st.lists(st.integers(0, 1000), max_size=12), st.integers(0, 30))
@example(Dialect.OPENAI, "data: x\r\n\r\ndata: [DONE]\r\n\r\n", [10, 11], 0)
@example(Dialect.OPENAI, "data: x\r\rdata: [DONE]\n\r\n", [8, 9], 0)
def test_any_split_gives_the_same_answers(dialect: Dialect, stream: str, cuts: list[int], missing: int) -> None:
    raw = stream.encode()
    raw = raw[: max(0, len(raw) - missing)]
    at = sorted({0, len(raw), *(cut for cut in cuts if cut < len(raw))})
    chunks = [raw[start:end] for start, end in pairwise(at)]
    whole = said(dialect, [raw])
    assert said(dialect, chunks) == whole
    assert said(dialect, [raw[index : index + 1] for index in range(len(raw))]) == whole


@given(st.binary(max_size=300), st.sampled_from(Dialect))
def test_no_bytes_make_the_tap_fail(raw: bytes, dialect: Dialect) -> None:
    said(dialect, [raw, raw])
