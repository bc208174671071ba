"""The gateway's own request ids: short, unique, and never a caller's."""

from __future__ import annotations

import re
import secrets

from aiohttp import web

# The key under which a request carries its id, for whoever answers where its handler could not.
REQUEST_ID = web.RequestKey("request_id", str)
_RANDOM_BYTES = 12
_FORM = re.compile(rf"req-[0-9a-f]{{{2 * _RANDOM_BYTES}}}")


def new_request_id() -> str:
    return f"req-{secrets.token_hex(_RANDOM_BYTES)}"


def is_request_id(text: str) -> bool:
    """Tell whether it has the form of the gateway's own ids."""
    return _FORM.fullmatch(text) is not None
