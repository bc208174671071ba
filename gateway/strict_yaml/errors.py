"""What is wrong with a configuration, in words that lead to the fix.

Owns ConfigError and `problem`, with which validators state a fault. Reads nothing.
"""

from __future__ import annotations

import json
import re

from pydantic_core import PydanticCustomError

PROBLEM_TYPE = "gateway_problem"
SHOWN_KEY_CHARS_MAX = 64

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class ConfigError(Exception):
    """One fault in one file. key_path is empty where the whole file is meant."""

    def __init__(self, file: str, key_path: str, problem: str, fix: str) -> None:
        super().__init__(file, key_path, problem, fix)
        self.file = file
        self.key_path = key_path
        self.problem = problem
        self.fix = fix

    def __str__(self) -> str:
        place = f"{self.file}: {self.key_path}" if self.key_path else self.file
        return f"{place}: {self.problem}. {self.fix}."


def problem(text: str, *, fix: str, at: str = "") -> PydanticCustomError:
    """A fault for a validator to raise. `at` is the key path below the value that is validated.

    Both texts come without a full stop at the end.
    """
    return PydanticCustomError(PROBLEM_TYPE, "{problem}", {"problem": text, "fix": fix, "at": at})


def joined(path: str, key: str) -> str:
    """The key path of `key` below `path`; a key with unusual characters is quoted and cut."""
    if not _PLAIN_KEY.fullmatch(key):
        return f"{path}[{json.dumps(key[:SHOWN_KEY_CHARS_MAX])}]"
    return f"{path}.{key}" if path else key
