"""Request targets in their two forms: a path, or a whole address as clients write it that take us for a proxy.

Owns the reading of the second as the first. Judges no path: what is neither form is no route's.
"""

from __future__ import annotations

import re

_ABSOLUTE = re.compile(r"(?i:https?)://[A-Za-z0-9._~:\[\]-]+(?P<rest>[/?].*)?")


def origin_form(target: str) -> str:
    """The path and query of a request target, still percent-encoded. An address's host is not looked at."""
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is None:
        return target
    rest = absolute["rest"] or ""
    return rest if rest.startswith("/") else f"/{rest}"
