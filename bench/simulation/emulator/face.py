"""The emulator's HTTP face: vLLM's routes over one life of the engine.

Owns the routes and the order of the checks before a generation. `life` is replaced when the engine restarts.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, ValidationError

from bench.simulation.emulator.bodies import (
    ChatBody,
    CompletionBody,
    CountTokensBody,
    DetokenizeBody,
    MessagesBody,
    ResponsesBody,
    TokenizeBody,
    TokenizeChatBody,
)
from bench.simulation.emulator.errors import ApiError, malformed, of_validation, unknown_model
from bench.simulation.emulator.exchange import Exchange
from bench.simulation.emulator.flags import EmulatorSettings
from bench.simulation.emulator.life import Life
from bench.simulation.emulator.routes import AnyBody, Asker, shown_tools
from bench.simulation.emulator.words import Vocabulary

BODY_BYTES_MAX = 256 * 1024 * 1024
THREAD_BYTES_MIN = 64 * 1024
"""Bodies from here on are read and tokenized in a thread: the loop's steps have to stay on time."""
VERSION = "0.32.0+emulator"
_UNCOUNTED = ("/metrics", "/health", "/ping", "/load", "/version")

Body = TypeVar("Body", bound=BaseModel)


class Face:
    """The routes. asked: told of each generation, for faults that come after so many."""

    def __init__(self, settings: EmulatorSettings, life: Life, asked: Callable[[], None]) -> None:
        self._settings = settings
        self.life = life
        self._asked = asked
        self.still_metrics: Callable[[list[str]], bytes] | None = None
        self._vocabulary = Vocabulary()
        self._asker = Asker(self._vocabulary, settings.context_tokens)

    def app(self) -> web.Application:
        app = web.Application(client_max_size=BODY_BYTES_MAX, middlewares=[self._in_vllms_words])
        app.router.add_post("/v1/chat/completions", self._generates(ChatBody))
        app.router.add_post("/v1/completions", self._generates(CompletionBody))
        app.router.add_post("/v1/messages", self._generates(MessagesBody))
        app.router.add_post("/v1/responses", self._generates(ResponsesBody))
        app.router.add_post("/v1/messages/count_tokens", self._count_tokens)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/detokenize", self._detokenize)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/v1/responses/{id}", self._no_response)
        app.router.add_post("/v1/responses/{id}/cancel", self._no_response)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/metrics/{any:.*}", self._metrics)
        app.router.add_get("/version", self._version)
        app.router.add_get("/load", self._load)
        for path in ("/health", "/ping"):
            app.router.add_get(path, self._health)
        return app

    @web.middleware
    async def _in_vllms_words(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Answer errors as vLLM's server does, and count what was answered."""
        resource = request.match_info.route.resource
        try:
            response = await handler(request)
        except ApiError as error:
            response = web.json_response(error.body(), status=error.code)
        except web.HTTPException as error:
            detail = {404: "Not Found", 405: "Method Not Allowed"}.get(error.status, error.reason)
            headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
            response = web.json_response({"detail": detail}, status=error.status, headers=headers)
        if not request.path.startswith(_UNCOUNTED):
            name = "none" if resource is None else resource.canonical
            self.life.accounts.answered(name, request.method, response.status)
        return response

    def _generates(self, kind: type[AnyBody]) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            life = self.life
            arrived_at = life.clock()
            body = await self._body(request, kind)
            try:
                return await self._generate(request, life, body, arrived_at)
            except ApiError as error:
                shown = error.anthropic() if kind is MessagesBody else error.body()
                return web.json_response(shown, status=error.code)

        return handle

    async def _generate(self, request: web.Request, life: Life, body: AnyBody, arrived_at: float) -> web.StreamResponse:
        model = self._served(body.model)
        self._asked()
        refusal = life.admit(max(1, getattr(body, "n", None) or 1))
        if refusal is not None:
            raise refusal
        asked = await _apart(self._asker.asked, body, size=request.content_length or 0)
        exchange = Exchange(request, life, model, details=self._settings.prompt_tokens_details, arrived_at=arrived_at)
        return await exchange.answer(asked, self._vocabulary, self._asker)

    async def _body(self, request: web.Request, kind: type[Body]) -> Body:
        value = await self._value(request)
        return await _apart(_validated, value, kind, size=request.content_length or 0)

    async def _value(self, request: web.Request) -> Any:
        if request.content_type != "application/json":
            raise ApiError(
                400, "Bad Request", "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
            )
        raw = await request.read()
        return await _apart(_json, raw, size=len(raw))

    def _served(self, model: str | None) -> str:
        """The name to answer under: none stated is the first."""
        if model and model not in self._settings.models:
            raise unknown_model(model, self._settings.models)
        return model or self._settings.models[0]

    async def _count_tokens(self, request: web.Request) -> web.Response:
        body = await self._body(request, CountTokensBody)
        self._served(body.model)
        prompt = await _apart(self._asker.message_prompt, body, size=request.content_length or 0)
        return web.json_response(
            {"input_tokens": len(prompt), "context_management": {"original_input_tokens": len(prompt)}}
        )

    async def _tokenize(self, request: web.Request) -> web.Response:
        """The real count, however long: here the context is no bound."""
        value = await self._value(request)
        is_chat = isinstance(value, dict) and "messages" in value
        body = _validated(value, TokenizeChatBody) if is_chat else _validated(value, TokenizeBody)
        self._served(body.model)
        ids = await _apart(self._tokens_of, body, size=request.content_length or 0)
        return web.json_response(
            {
                "count": len(ids),
                "max_model_len": self._settings.context_tokens,
                "tokens": ids,
                "token_strs": self._vocabulary.names(ids) if body.return_token_strs else None,
            }
        )

    def _tokens_of(self, body: TokenizeBody | TokenizeChatBody) -> list[int]:
        if isinstance(body, TokenizeBody):
            return self._vocabulary.ids(body.prompt, add_special_tokens=body.add_special_tokens)
        options = dict(body.chat_template_kwargs or {}) | shown_tools(body.tools)
        text = self._asker.prompter.rendered(body.messages, add_generation_prompt=body.add_generation_prompt, **options)
        return self._vocabulary.ids(text, add_special_tokens=body.add_special_tokens)

    async def _detokenize(self, request: web.Request) -> web.Response:
        body = await self._body(request, DetokenizeBody)
        self._served(body.model)
        return web.json_response({"prompt": self._vocabulary.text(body.tokens)})

    async def _models(self, _request: web.Request) -> web.Response:
        created = int(self.life.started_at)
        cards = [
            {
                "id": model,
                "object": "model",
                "created": created,
                "owned_by": "vllm-emulator",
                "root": model,
                "parent": None,
                "max_model_len": self._settings.context_tokens,
                "permission": [
                    {"id": f"modelperm-{secrets.token_hex(8)}", "object": "model_permission", "created": created}
                ],
            }
            for model in self._settings.models
        ]
        return web.json_response({"object": "list", "data": cards})

    async def _no_response(self, request: web.Request) -> web.Response:
        message = f"Response with id '{request.match_info['id']}' not found."
        raise ApiError(404, "invalid_request_error", message, "response_id")

    async def _metrics(self, request: web.Request) -> web.Response:
        # Names choose where the path is any but /metrics itself, as in vLLM.
        names = request.query.getall("name[]", []) if request.path != "/metrics" else []
        page = (self.still_metrics or self.life.accounts.page)(names)
        return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _version(self, _request: web.Request) -> web.Response:
        about = f"No vLLM and no model: {self._settings.profile.about}."
        return web.json_response({"version": VERSION, "emulator": about})

    async def _load(self, _request: web.Request) -> web.Response:
        return web.json_response({"server_load": 0})

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response(status=503 if self.life.is_dead else 200)


def _json(raw: bytes) -> Any:
    """The body's value. Raises ApiError."""
    if not raw:
        raise malformed({"type": "missing", "loc": ("body",), "msg": "Field required", "input": None})
    try:
        return json.loads(raw)
    except json.JSONDecodeError as error:
        finding = {"type": "json_invalid", "loc": ("body", error.pos), "msg": "JSON decode error", "input": {}}
        raise malformed(finding | {"ctx": {"error": error.msg}}) from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, "Bad Request", "There was an error parsing the body") from error


def _validated(value: Any, kind: type[Body]) -> Body:
    try:
        return kind.model_validate(value, from_attributes=True)
    except ValidationError as error:
        raise of_validation(error) from error


T = TypeVar("T")


async def _apart(work: Callable[..., T], *arguments: Any, size: int) -> T:
    """Work on what came with a body: in a thread where it is large. Either way others have a turn before it goes on."""
    if size >= THREAD_BYTES_MIN:
        return await asyncio.to_thread(work, *arguments)
    done = work(*arguments)
    await asyncio.sleep(0)
    return done
