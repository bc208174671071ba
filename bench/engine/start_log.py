"""The two lines of vLLM's log that tell of its start: what it was asked for, and the configuration that it runs with.

Owns their form; the last start in a log counts. Reads, and judges nothing: what a line leaves out is for its reader.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

LINE_BYTES_MAX = 1024 * 1024  # of a log that may be no log at all
# Of a log that has its line of arguments and not these among them: vLLM's defaults that no hardware changes.
ABSENT_MEANS = {"scheduling_policy": "fcfs", "long_prefill_token_threshold": 0}
_ASKED, _RUNS = "non-default args: ", "Initializing a V1 LLM engine "
_ARGUMENTS = re.compile(_ASKED + r"(\{.*\})\s*$", re.MULTILINE)
_CONFIG = re.compile(_RUNS + r".*? with config: (.*)$", re.MULTILINE)
# Of a line that has objects of vLLM's own in it: what is a plain word all the same.
_PLAIN = re.compile(
    r"'(\w+)': ('(?:[^'\\]|\\.)*'|\['(?:[^'\\]|\\.)*'\]|True|False|None|-?[\d.]+(?:e[+-]?\d+)?)(?=[,}])"
)


def last_start(path: Path) -> str:
    """What a log has of these lines, of its last start; it is read line by line, whatever its size. Raises OSError."""
    asked = runs = b""
    with path.open("rb") as file:
        while line := file.readline(LINE_BYTES_MAX):
            if _ASKED.encode() in line:
                asked, runs = line, b""  # the configuration before it is of an earlier start
            elif _RUNS.encode() in line:
                runs = line
    return (asked + runs).decode("utf-8", errors="replace")


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
