"""What is worked on beside the loop: a body that is sound is read at once, one that is not while others have turns."""

from __future__ import annotations

import asyncio

import pytest

from gateway.server.heavy import IN_LOOP_BYTES_MAX, drafted
from gateway.wire.dialects import CHAT_COMPLETIONS
from gateway.wire.fields import BadRequest

SOUND = b'{"model": "m", "text": "%b"}'


def turns_of_others() -> list[int]:
    turns: list[int] = []
    asyncio.get_running_loop().call_soon(turns.append, 1)
    return turns


@pytest.mark.parametrize(("text_bytes", "waits"), [(9, False), (IN_LOOP_BYTES_MAX, True)])
async def test_a_sound_body_is_read_at_once_unless_it_is_large(text_bytes: int, waits: bool) -> None:
    turns = turns_of_others()
    draft = await drafted(CHAT_COMPLETIONS, SOUND % (b"x" * text_bytes))
    assert (draft.model, len(draft.members["text"]), bool(turns)) == ("m", text_bytes, waits)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"model": "m"', "invalid_json"),
        (b'{"model": "m", "n": 1, "n": 2}', "duplicate_key"),
        (b'{"model": "m", "n": 1e999}', "non_finite_number"),
        (b'{"model": "m", "n": 9223372036854775808}', "integer_out_of_range"),
        (b'{"model": "m", "text": "\\ud800"}', "lone_surrogate"),
        (b'{"model": "m", "n": ' + b"[" * 99 + b"]" * 99 + b"}", "nesting_too_deep"),
        (b"[]", "invalid_type"),
    ],
)
async def test_what_is_wrong_with_a_body_is_found_out_while_others_have_turns(body: bytes, code: str) -> None:
    turns = turns_of_others()
    with pytest.raises(BadRequest) as refused:
        await drafted(CHAT_COMPLETIONS, body)
    assert (refused.value.refusal.code, bool(turns)) == (code, True)
