"""Completion requests of the gateway's own, with prompts that no earlier one shares a beginning with.

Owns the token ids: drawn from a range that every vocabulary has, above the usual special ones. So no prefix cache
shortens a prompt, and no tokenizer is needed.
"""

from __future__ import annotations

import hashlib
from typing import Any

_FIRST_ID, _IDS = 32, 192


class ProbePrompts:
    """Bodies for `/v1/completions` that ask for one token. salt: new bytes for each series."""

    def __init__(self, model: str, salt: bytes) -> None:
        self._model = model
        self._salt = salt
        self._made = 0

    def of(self, prompt_tokens: int) -> dict[str, Any]:
        self._made += 1
        stream = hashlib.shake_128(self._salt + self._made.to_bytes(2, "big")).digest(prompt_tokens)
        ids = [_FIRST_ID + byte % _IDS for byte in stream]
        return {"model": self._model, "prompt": ids, "max_tokens": 1, "temperature": 0, "stream": False}
