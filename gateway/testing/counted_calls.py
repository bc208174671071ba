"""Calls to be counted, made straight from a body's members: for tests of counting alone, whatever route bears them.

Owns nothing of the judgement of bodies: what stands in the members is taken as it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gateway.wire.dialects import CHAT_COMPLETIONS, PromptForm, Route
from gateway.wire.requests import Call

_OUTPUT_MEMBERS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


def a_counted_call(form: PromptForm, members: Mapping[str, Any]) -> Call:
    """Return a call of this form; its output limit is whichever member states one."""
    route = Route(
        f"/{form}", "POST", f"/{form}", CHAT_COMPLETIONS.dialect, generation=True, form=form, output_member="max_tokens"
    )
    stated = next((members[name] for name in _OUTPUT_MEMBERS if members.get(name) is not None), None)
    return Call(
        route=route,
        body=json.dumps(members).encode(),
        members=members,
        present=frozenset(members),
        model="m",
        stream=False,
        prompts=1,
        sequences=1,
        output_tokens_stated=stated,
        output_tokens_default=None,
        output_member="max_tokens",
    )
