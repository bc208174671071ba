"""A request's twin: all that it asks for, on a prompt of one word, with one token to generate.

Owns what of a request stays in its twin. An engine refuses the twin where it would refuse the request, for anything but
its prompt and its lengths.
"""

from __future__ import annotations

import json
from typing import Any

from gateway.wire.dialects import PromptForm
from gateway.wire.fields import CONTROL_MEMBERS
from gateway.wire.requests import Call

_WORD = "."
_LEFT_OUT = CONTROL_MEMBERS | {"stream", "stream_options"}
_ONE_MESSAGE = [{"role": "user", "content": _WORD}]


def twin(call: Call) -> bytes:
    """Write the twin of a call of one text prompt that still has its members."""
    assert call.output_member is not None, "only what generates has a twin"
    members = {name: value for name, value in call.members.items() if name not in _LEFT_OUT}
    members |= {call.prompt_member: _prompt(call), call.output_member: 1}
    if call.route.form is PromptForm.RESPONSES:
        members |= {"store": False}
        members.pop("instructions", None)
    elif call.route.form is PromptForm.MESSAGES:
        members.pop("system", None)
    return json.dumps(members, separators=(",", ":")).encode()


def _prompt(call: Call) -> Any:
    match call.route.form:
        case PromptForm.CHAT | PromptForm.MESSAGES:
            return _ONE_MESSAGE
        case _ if (ids := stated_ids(call)) is not None:
            return [max(ids)]  # an id beyond the vocabulary is refused by it too
        case _:
            return _WORD


def stated_ids(call: Call) -> list[int] | None:
    """Return the token ids that a body states as its one prompt, or None."""
    prompt = call.members.get("prompt") if call.route.form is PromptForm.COMPLETION else None
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], list):
        prompt = prompt[0]
    return prompt if isinstance(prompt, list) and prompt and type(prompt[0]) is int else None
