"""vLLM 0.32's errors: what a fault of the caller's or of the engine's looks like on the wire.

Owns the envelope and the words for pydantic's findings, which vLLM passes on as they are. Judges nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

REPORTED_MAX = 10
INPUT_CHARS_MAX = 200
_BRANCH = re.compile(r"[\[\]{}()]")
_BRANCHES = frozenset({"str", "int", "float", "bool", "list", "dict", "none", "nullable", "union", "constrained-int"})


class ApiError(Exception):
    """An answer that is an error. kind: `error.type`; code: the HTTP status too."""

    def __init__(self, code: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.kind, self.message, self.param = code, kind, message, param

    def body(self) -> dict[str, Any]:
        """Return the envelope of the OpenAI routes."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def anthropic(self) -> dict[str, Any]:
        """Return the envelope of the Messages route."""
        return {"type": "error", "error": {"type": self.kind, "message": self.message}}


def invalid(message: str, parameter: str | None = None, value: object = None) -> ApiError:
    """Return what vLLM's own checks say; the parameter stands in the message where it is named."""
    named = {"parameter": parameter, "value": value}
    said = ", ".join(f"{name}={each}" for name, each in named.items() if each is not None)
    return ApiError(400, "BadRequestError", f"{message} ({said})" if said else message, parameter)


def malformed(*findings: Mapping[str, Any]) -> ApiError:
    """Return what the body's schema says."""
    number = len(findings)
    label = "error" if number == 1 else "errors"
    lines = [f"{number} validation {label}:", *(f"  {_shown(each)}" for each in findings[:REPORTED_MAX])]
    if number > REPORTED_MAX:
        lines.append(f"  ...and {number - REPORTED_MAX} more {label}")
    return ApiError(400, "Bad Request", "\n".join(lines), _place(findings[0]["loc"]))


def of_validation(error: ValidationError) -> ApiError:
    """Return pydantic's findings on a body, as FastAPI's handler would have them: every place lies under `body`."""
    return malformed(*({**found, "loc": ("body", *found["loc"])} for found in error.errors(include_url=False)))


def unknown_model(model: str, served: Sequence[str]) -> ApiError:
    aliases = ", ".join(served)
    message = f"The model `{model}` does not exist. Valid aliases: {aliases}."
    return ApiError(404, "NotFoundError", message, "model")


def busy(reason: str) -> ApiError:
    """Return vLLM's refusal by its own limits."""
    what = {
        "max_num_queued_reqs": "The engine is currently busy and cannot accept new requests.",
        "max_num_queued_tokens": "The engine has reached its prefill token backlog limit.",
    }[reason]
    return ApiError(503, "Service Unavailable", f"{what} Please try again later or on a different instance.")


def failed(message: str) -> ApiError:
    return ApiError(500, "InternalServerError", message)


def _shown(finding: Mapping[str, Any]) -> str:
    shown = dict(finding)
    shown["loc"] = _place(shown["loc"])
    if "input" in shown:
        shown["input"] = _input(shown["input"])
    return str(shown)


def _place(loc: Sequence[object]) -> str:
    parts = [str(part) for part in loc]
    return ".".join(part for part in parts if not (_BRANCH.search(part) or part.lower() in _BRANCHES))


def _input(value: object) -> str:
    if isinstance(value, list | dict):
        return f"<{type(value).__name__} of {len(value)} items>"
    text = str(value)
    return text[:INPUT_CHARS_MAX] + "...[truncated]" if len(text) > INPUT_CHARS_MAX else text
