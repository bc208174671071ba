"""What is wrong with a configuration, in words that lead to the fix.

Owns ConfigError, Fault and `problem`, with which validators state a fault. Reads nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic_core import PydanticCustomError

PROBLEM_TYPE = "gateway_problem"
SHOWN_KEY_CHARS_MAX = 64
FAULTS_TOLD_MAX = 10

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_.-]{1,64}")
# Longer words may be keys; the gateway's own have 46 characters.
_PLAIN_VALUE = re.compile(r"[A-Za-z0-9_.-]{1,24}")


@dataclass(frozen=True, slots=True)
class Fault:
    """key_path is empty where the whole file is meant. Both texts come without a full stop at the end."""

    key_path: str
    problem: str
    fix: str


class ConfigError(Exception):
    """What is wrong with one file: its first fault by its parts, and the others.

    others: FAULTS_TOLD_MAX - 1 at most. untold: how many more there are.
    """

    def __init__(
        self, file: str, key_path: str, problem: str, fix: str, *, others: Sequence[Fault] = (), untold: int = 0
    ) -> None:
        super().__init__(file, key_path, problem, fix)
        self.file = file
        self.key_path = key_path
        self.problem = problem
        self.fix = fix
        self.others = tuple(others)
        self.untold = untold

    def __str__(self) -> str:
        return self._line(Fault(self.key_path, self.problem, self.fix))

    def lines(self) -> list[str]:
        """`FILE: KEY.PATH: problem. Fix.` for each fault, and how many are left out."""
        told = [str(self), *map(self._line, self.others)]
        if self.untold:
            told.append(f"{self.file}: {self.untold} more.")
        return told

    def _line(self, fault: Fault) -> str:
        place = f"{self.file}: {fault.key_path}" if fault.key_path else self.file
        return f"{place}: {fault.problem}. {fault.fix}."


def problem(text: str, *, fix: str, at: str = "") -> PydanticCustomError:
    """A fault for a validator to raise. `at` is the key path below the value that is validated.

    Both texts come without a full stop at the end.
    """
    return PydanticCustomError(PROBLEM_TYPE, "{problem}", {"problem": text, "fix": fix, "at": at})


def quoting(value: str, problem: str) -> str:
    """`problem` with the value in front of it, where that is a short plain word. Only for values that are choices."""
    return f"'{value}' {problem}" if _PLAIN_VALUE.fullmatch(value) else problem


def joined(path: str, key: str) -> str:
    """The key path of `key` below `path`; a key with unusual characters is quoted and cut."""
    if not _PLAIN_KEY.fullmatch(key):
        return f"{path}[{json.dumps(key[:SHOWN_KEY_CHARS_MAX])}]"
    return f"{path}.{key}" if path else key
