"""The routes of the public port, and which API dialect each speaks.

Owns the exact allow-list of method and path: what is not listed here does not exist. Matches the raw path, so that an
encoded spelling of a route is not the route; the path that was judged is the path that is forwarded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from urllib.parse import unquote_to_bytes


class Dialect(StrEnum):
    """Whose envelopes, headers and stream events a route uses."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    RESPONSES = "responses"


class PromptForm(StrEnum):
    """How a request's body states its prompt; it decides how tokens are counted."""

    NONE = "none"
    CHAT = "chat"
    COMPLETION = "completion"
    RESPONSES = "responses"
    MESSAGES = "messages"
    EMBEDDING = "embedding"
    RERANK = "rerank"
    SCORE = "score"


@dataclass(frozen=True, slots=True)
class Route:
    """One method and path of the public port.

    name: the path template, the label of metrics. path: what is sent to the engine, percent-encoded as it came.
    generation: whether the request takes engine time, so that it is offered to admission.
    output_member: where the output limit stands in the body; output_tokens_default: what the engine takes where the
    body states none, None: all the context left.
    model_id: the decoded id of GET /v1/models/{id}, else None.
    """

    name: str
    method: str
    path: str
    dialect: Dialect
    generation: bool
    form: PromptForm
    output_member: str | None = None
    output_tokens_default: int | None = None
    model_id: str | None = None


@dataclass(frozen=True, slots=True)
class WrongMethod:
    """The path exists, the method does not. `allow`: the methods it has, as the Allow header lists them."""

    allow: str
    dialect: Dialect


COMPLETION_OUTPUT_TOKENS_DEFAULT = 16

CHAT_COMPLETIONS = Route(
    name="/v1/chat/completions",
    method="POST",
    path="/v1/chat/completions",
    dialect=Dialect.OPENAI,
    generation=True,
    form=PromptForm.CHAT,
    output_member="max_tokens",
)
COMPLETIONS = Route(
    name="/v1/completions",
    method="POST",
    path="/v1/completions",
    dialect=Dialect.OPENAI,
    generation=True,
    form=PromptForm.COMPLETION,
    output_member="max_tokens",
    output_tokens_default=COMPLETION_OUTPUT_TOKENS_DEFAULT,
)
MODELS = Route(
    name="/v1/models",
    method="GET",
    path="/v1/models",
    dialect=Dialect.OPENAI,
    generation=False,
    form=PromptForm.NONE,
)
MODEL = Route(
    name="/v1/models/{id}",
    method="GET",
    path="/v1/models/",
    dialect=Dialect.OPENAI,
    generation=False,
    form=PromptForm.NONE,
)

ROUTES = (CHAT_COMPLETIONS, COMPLETIONS, MODELS, MODEL)
_BY_PATH = {route.path: route for route in ROUTES if route is not MODEL}
_MODEL_ID = re.compile(r"(?:[A-Za-z0-9._~:@+,=!$&'()*/-]|%[0-9A-Fa-f]{2})+")


def find_route(method: str, raw_path: str) -> Route | WrongMethod | None:
    """The route of a request target's path, still percent-encoded and without its query.

    The id of /v1/models/{id} may hold slashes, plain or as %2F; nothing else may be encoded. None: no such path.
    """
    route = _BY_PATH.get(raw_path)
    if route is None and raw_path.startswith(MODEL.path):
        route = _model_route(raw_path.removeprefix(MODEL.path))
    if route is None:
        return None
    if method != route.method:
        return WrongMethod(route.method, route.dialect)
    return route


def dialect_of(raw_path: str) -> Dialect:
    """Whose envelope a refusal of this path wears, also where the path is no route."""
    return Dialect.ANTHROPIC if raw_path.startswith("/v1/messages") else Dialect.OPENAI


def _model_route(raw_id: str) -> Route | None:
    if not _MODEL_ID.fullmatch(raw_id):
        return None
    try:
        model_id = unquote_to_bytes(raw_id).decode()
    except UnicodeDecodeError:
        return None
    if not model_id.isprintable() or any(part in ("", ".", "..") for part in model_id.split("/")):
        return None
    return replace(MODEL, path=MODEL.path + raw_id, model_id=model_id)
