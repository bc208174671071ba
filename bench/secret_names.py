"""Which names are those of secrets: of arguments and of variables. What bears one stands in no record. Pure."""

from __future__ import annotations

import re

_WORDS = re.compile(r"password|passwd|secret|api_?key|access_?key|private_?key|(?:^|_)token$")


def is_secret(name: str) -> bool:
    """Whether a flag, an argument or a variable of this name holds one. A file that does may be named."""
    return _WORDS.search(name.lower().replace("-", "_").strip("_")) is not None
