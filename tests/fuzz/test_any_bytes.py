"""The claims of gateway.testing.fuzz on drawn bytes: random ones, and valid ones with a few of their bytes changed."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.testing.forms import an_audio_form, field
from gateway.testing.fuzz import ENTRIES, event_stream, json_body, request_form

CHAT = {"model": "m", "messages": [{"role": "user", "content": "é 😀"}], "n": 2, "stream": True, "stop": ["a"]}
BODIES = [
    json.dumps(CHAT).encode(),
    json.dumps(CHAT, ensure_ascii=False, indent=1).encode(),
    b'{"model":"m","prompt":[[1,2],[3]],"max_tokens":5,"priority":1,"logit_bias":{"1":2.5}}',
    b'{"model":"m","input":[{"type":"message","role":"user","content":"x"}],"max_output_tokens":9007199254740993}',
    b'{"model":"m","messages":[],"max_tokens":1,"system":"\\ud83d\\ude00"}',
    b'{"model":"m","query":"a","documents":["b","c"],"text_1":"a","text_2":["b"],"tokens":[1]}',
    an_audio_form(field("n", "2"), field("stream", "true")),
]
STREAMS = [
    b'data: {"choices":[{"delta":{"content":"a"}}]}\n\ndata: {"usage":{"prompt_tokens":3}}\n\ndata: [DONE]\n\n',
    b'event: message_start\ndata: {"type":"message_start"}\n\nevent: error\ndata: {"error":{"type":"x"}}\n\n',
    b'event: response.created\r\ndata: {"type":"response.created","response":{"id":"r"}}\r\n\r\n: ka\r\r\n\r\n',
    b"data: " + b"x" * 200 + b"\n\ndata: [DONE]\n\n",
]


@st.composite
def changed(draw, seeds):
    """A valid piece with bytes replaced, taken out, repeated or put in."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        length = draw(st.integers(0, 8))
        data[at : at + length] = draw(st.binary(max_size=8) | st.just(bytes(data[at : at + length]) * 2))
    return bytes(data)


@settings(max_examples=150, deadline=None)
@given(changed(BODIES) | st.binary(max_size=80))
@example(b'{"n":1}')
def test_json_bodies(data):
    json_body(data)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 255), changed(BODIES))
def test_forms_of_requests(route, data):
    request_form(bytes([route]) + data)


@settings(max_examples=200, deadline=None)
@given(st.binary(min_size=5, max_size=5), changed(STREAMS) | st.binary(max_size=300))
def test_event_streams(head, data):
    event_stream(head + data)


@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.parametrize("data", [b"", b"\x00", b"\xff" * 400])
def test_the_smallest_and_the_strangest(name, data):
    ENTRIES[name](data)
