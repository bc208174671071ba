"""What the ops port answers: whole answers, JSON but for the page and the metrics."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

JSON = {"Content-Type": "application/json; charset=utf-8"}


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer, but for its framing."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


def json_answer(value: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Answer:
    return Answer(status, JSON | (headers or {}), json.dumps(value).encode())


def problem(status: int, message: str, fix: str, *, headers: dict[str, str] | None = None) -> Answer:
    return json_answer({"error": {"message": message, "fix": f"{fix}."}}, status=status, headers=headers)
