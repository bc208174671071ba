"""The form of an audio request as the members that are judged.

Owns which of its fields are read, and how their text is read: as the engine surely reads it, else it is refused. A
form goes on byte for byte, so what a caller may not send is refused and not taken out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gateway.wire.fields import CONTROL_MEMBERS, OPERATOR_MEMBERS, bad, unsupported
from gateway.wire.form_data import read_form, with_field

_FLAGS = ("stream", "use_beam_search")
_COUNTS = ("n", "max_completion_tokens")
_TRUTHS = {"true": True, "1": True, "false": False, "0": False}
_REFUSED = CONTROL_MEMBERS | {*OPERATOR_MEMBERS, "vllm_xargs"}
_COUNT = re.compile(r"[0-9]{1,9}")


def members_of(body: bytes, content_type: str) -> Mapping[str, Any]:
    """The form's members, the judged ones as values. Raises BadRequest."""
    members: dict[str, Any] = dict(read_form(body, content_type, file="file"))
    for name in sorted(_REFUSED & members.keys()):
        raise unsupported(name)
    for name in _FLAGS:
        if name in members:
            members[name] = _flag(name, members[name])
    for name in _COUNTS:
        if name in members:
            members[name] = _count(name, members[name])
    return members


def rewritten(body: bytes, set_members: Mapping[str, Any]) -> bytes:
    """The form with these fields, none of which it has; all else as it came."""
    for name, value in set_members.items():
        body = with_field(body, name, str(value))
    return body


def _flag(name: str, text: str) -> bool:
    if text.lower() not in _TRUTHS:
        raise bad("invalid_type", f"{name} has to be true or false.", name)
    return _TRUTHS[text.lower()]


def _count(name: str, text: str) -> int:
    if not _COUNT.fullmatch(text):
        raise bad("invalid_type", f"{name} has to be an integer.", name)
    return int(text)
