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


def request_id_headers(dialect: Dialect, request_id: str) -> list[tuple[str, str]]:
    """The gateway's id of a request as every answer bears it, and as Anthropic's SDK looks for it."""
    names = ("x-request-id", "request-id") if dialect is Dialect.ANTHROPIC else ("x-request-id",)
    return [(name, request_id) for name in names]


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
    TOKENIZE = "tokenize"
    DETOKENIZE = "detokenize"
    AUDIO = "audio"


@dataclass(frozen=True, slots=True)
class Route:
    """One method and path of the public port.

    name: the path template, the label of metrics. path: what is sent to the engine, percent-encoded as it came.
    generation: whether the request takes engine time, so that it is offered to admission.
    output_member: where the output limit stands in the body, None: nothing is generated; output_is_required: whether
    it has to; output_tokens_default: what the engine takes where the body states none, None: all the context left.
    priority_in_header, priority_in_body: where an engine that reads priorities looks for this route's.
    model_id: the decoded id of GET /v1/models/{id}, else None. response_id: of a route about one response, else None.
    """

    name: str
    method: str
    path: str
    dialect: Dialect
    generation: bool
    form: PromptForm
    output_member: str | None = None
    output_is_required: bool = False
    output_tokens_default: int | None = None
    priority_in_header: bool = True
    priority_in_body: bool = True
    model_id: str | None = None
    response_id: str | None = None


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
MESSAGES = Route(
    name="/v1/messages",
    method="POST",
    path="/v1/messages",
    dialect=Dialect.ANTHROPIC,
    generation=True,
    form=PromptForm.MESSAGES,
    output_member="max_tokens",
    output_is_required=True,
    priority_in_body=False,
)
COUNT_TOKENS = Route(
    name="/v1/messages/count_tokens",
    method="POST",
    path="/v1/messages/count_tokens",
    dialect=Dialect.ANTHROPIC,
    generation=False,
    form=PromptForm.MESSAGES,
)
RESPONSES = Route(
    name="/v1/responses",
    method="POST",
    path="/v1/responses",
    dialect=Dialect.RESPONSES,
    generation=True,
    form=PromptForm.RESPONSES,
    output_member="max_output_tokens",
)
RESPONSE = Route(
    name="/v1/responses/{id}",
    method="GET",
    path="/v1/responses/",
    dialect=Dialect.RESPONSES,
    generation=False,
    form=PromptForm.NONE,
)
RESPONSE_CANCEL = replace(RESPONSE, name="/v1/responses/{id}/cancel", method="POST")
EMBEDDINGS = Route(
    name="/v1/embeddings",
    method="POST",
    path="/v1/embeddings",
    dialect=Dialect.OPENAI,
    generation=True,
    form=PromptForm.EMBEDDING,
    output_tokens_default=0,
    priority_in_header=False,
)
RERANK = replace(EMBEDDINGS, name="/v1/rerank", path="/v1/rerank", form=PromptForm.RERANK)
SCORE = replace(EMBEDDINGS, name="/v1/score", path="/v1/score", form=PromptForm.SCORE)
TRANSCRIPTIONS = Route(
    name="/v1/audio/transcriptions",
    method="POST",
    path="/v1/audio/transcriptions",
    dialect=Dialect.OPENAI,
    generation=True,
    form=PromptForm.AUDIO,
    output_member="max_completion_tokens",
    priority_in_header=False,
    priority_in_body=False,
)
TRANSLATIONS = replace(TRANSCRIPTIONS, name="/v1/audio/translations", path="/v1/audio/translations")
TOKENIZE = Route(
    name="/tokenize",
    method="POST",
    path="/tokenize",
    dialect=Dialect.OPENAI,
    generation=False,
    form=PromptForm.TOKENIZE,
)
DETOKENIZE = replace(TOKENIZE, name="/detokenize", path="/detokenize", form=PromptForm.DETOKENIZE)
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

ROUTES = (
    *(CHAT_COMPLETIONS, COMPLETIONS, MESSAGES, COUNT_TOKENS),
    *(RESPONSES, RESPONSE, RESPONSE_CANCEL),
    *(EMBEDDINGS, RERANK, SCORE, TRANSCRIPTIONS, TRANSLATIONS),
    *(TOKENIZE, DETOKENIZE, MODELS, MODEL),
)
_BY_PATH = {route.path: route for route in ROUTES if not route.path.endswith("/")}
_RESPONSE_PATH = re.compile(r"/v1/responses/([A-Za-z0-9_-]{1,128})(/cancel)?")
_MODEL_ID = re.compile(r"(?:[A-Za-z0-9._~:@+,=!$&'()*/-]|%[0-9A-Fa-f]{2})+")


def find_route(method: str, raw_path: str) -> Route | WrongMethod | None:
    """The route of a request target's path, still percent-encoded and without its query.

    The id of /v1/models/{id} may hold slashes, plain or as %2F; nothing else may be encoded. None: no such path.
    """
    route = _BY_PATH.get(raw_path)
    if route is None and raw_path.startswith(MODEL.path):
        route = _model_route(raw_path.removeprefix(MODEL.path))
    elif route is None and (of_response := _RESPONSE_PATH.fullmatch(raw_path)):
        response_id, cancel = of_response.groups()
        route = replace(RESPONSE_CANCEL if cancel else RESPONSE, path=raw_path, response_id=response_id)
    if route is None:
        return None
    if method != route.method:
        return WrongMethod(route.method, route.dialect)
    return route


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
