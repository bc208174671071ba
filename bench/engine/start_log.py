"""The two lines of vLLM's log that tell of its start: what it was asked for, and the configuration that it runs with.

Owns their form; the last start in a log counts. Judges nothing: what a line leaves out is for whoever reads it. Pure.
"""

from __future__ import annotations

import ast
import json
import re
from typing import Any

_ARGUMENTS = re.compile(r"non-default args: (\{.*\})\s*$", re.MULTILINE)
_CONFIG = re.compile(r"Initializing a V1 LLM engine .*? with config: (.*)$", re.MULTILINE)
# Of a line that has objects of vLLM's own in it: what is a plain word all the same.
_PLAIN = re.compile(
    r"'(\w+)': ('(?:[^'\\]|\\.)*'|\['(?:[^'\\]|\\.)*'\]|True|False|None|-?[\d.]+(?:e[+-]?\d+)?)(?=[,}])"
)


def arguments(log: str) -> dict[str, Any] | None:
    """What the engine was asked for that is not its default, as values of JSON; None: the log does not say."""
    lines = _ARGUMENTS.findall(log)
    if not lines:
        return None
    try:
        said = ast.literal_eval(lines[-1])
    except (ValueError, SyntaxError):
        said = {name: ast.literal_eval(text) for name, text in _PLAIN.findall(lines[-1])}
    return dict(json.loads(json.dumps(said, default=str)))


def config_word(log: str, name: str) -> str | None:
    """A word of the configuration, as it is written there; None: the log does not say."""
    for line in _CONFIG.findall(log)[-1:]:
        if found := re.search(rf"(?:^|[ (]){name}=([^,\s()]+)", line):
            return found[1]
    return None
