"""The gateway's own request ids: short, unique, and never a caller's."""

from __future__ import annotations

import secrets

_RANDOM_BYTES = 12


def new_request_id() -> str:
    return f"req-{secrets.token_hex(_RANDOM_BYTES)}"
