"""The walk of one generation: judged, let in, computed, written, and let go of however it ends.

Owns the order of these. Every await is a place where the client may leave: what the engine holds for it is aborted.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence

from aiohttp import web

from bench.simulation.emulator.asking import Answer, answer_of
from bench.simulation.emulator.dialects import Dialect
from bench.simulation.emulator.errors import ApiError, failed
from bench.simulation.emulator.generation import EngineFailedError, Generation, LiveSequence, News
from bench.simulation.emulator.life import Life
from bench.simulation.emulator.live_engine import DEAD
from bench.simulation.emulator.routes import Asked, Asker
from bench.simulation.emulator.spoken import Spoken
from bench.simulation.emulator.words import Vocabulary

PRIORITY_HEADER = "X-Vllm-Priority"
STREAM_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8"}


class Exchange:
    """One HTTP request at one life of the engine. model: the name that it is answered under."""

    def __init__(self, request: web.Request, life: Life, model: str, *, details: bool, arrived_at: float) -> None:
        self._request = request
        self._life = life
        self._model = model
        self._details = details
        self._arrived_at = arrived_at

    async def answer(self, asked: Asked, vocabulary: Vocabulary, asker: Asker) -> web.StreamResponse:
        """Raises ApiError before anything was sent."""
        generation, dialect = self._prepared(asked, vocabulary, asker)
        try:
            if asked.stream:
                return await self._stream(generation, dialect)
            return await self._whole(generation, dialect)
        finally:
            self._life.engine.abort(generation)

    def _prepared(self, asked: Asked, vocabulary: Vocabulary, asker: Asker) -> tuple[Generation, Dialect]:
        generation = Generation(self._arrived_at, asked.sampling.max_tokens)
        priority = _priority(self._request, asked.priority)
        answers: list[Answer] = []
        for prompt in asked.prompts:
            sampling = asker.prompter.room(prompt, asked.sampling)
            for number in range(sampling.sequences):
                answer = answer_of(vocabulary, prompt, sampling, number)
                generation.sequences.append(
                    LiveSequence(
                        prompt,
                        answer.made,
                        answer.tokens,
                        index=len(answers),
                        finish=answer.finish,
                        priority=priority,
                        salt=asked.salt,
                        generation=generation,
                    )
                )
                answers.append(answer)
        name = self._request.headers.get("X-Request-Id") if asked.id_prefix != "resp_" else None
        request_id = f"{asked.id_prefix}{name or secrets.token_hex(16)}"
        spoken = Spoken(request_id, self._model, asked.prompts, answers, generation, self._details)
        return generation, asked.dialect(spoken)

    def _admit(self, generation: Generation) -> None:
        error = self._life.admit(len(generation.sequences))
        if error is not None:
            raise error
        self._life.submit(generation)

    async def _whole(self, generation: Generation, dialect: Dialect) -> web.Response:
        self._admit(generation)
        left = len(generation.sequences)
        try:
            while left:
                left -= sum(news.finish is not None for news in await generation.news())
        except EngineFailedError as error:
            raise failed(str(error)) from error
        pieces = [dialect.spoken.whole(index) for index in range(len(generation.sequences))]
        return web.json_response(dialect.body(pieces))

    async def _stream(self, generation: Generation, dialect: Dialect) -> web.StreamResponse:
        """The 200 goes out at once, as vLLM's does: whatever goes wrong from here on is told inside it."""
        response = web.StreamResponse(headers=STREAM_HEADERS)
        response.enable_chunked_encoding()
        await response.prepare(self._request)
        try:
            if opening := dialect.opening():
                await response.write(opening)
            self._admit(generation)
            await self._write(response, generation, dialect)
            await response.write_eof(dialect.closing())
        except ApiError as error:
            await self._break_off(response, dialect, error)
        except EngineFailedError as error:
            await self._break_off(response, dialect, failed(str(error)))
        return response

    async def _write(self, response: web.StreamResponse, generation: Generation, dialect: Dialect) -> None:
        left, spoken = len(generation.sequences), dialect.spoken
        while left:
            told: Sequence[News] = await generation.news()
            left -= sum(news.finish is not None for news in told)
            await response.write(dialect.pieces([spoken.piece(news) for news in told]))
            if self._life.take_break():
                raise EngineFailedError(DEAD)

    async def _break_off(self, response: web.StreamResponse, dialect: Dialect, error: ApiError) -> None:
        told = dialect.broken(error)
        if told is not None:
            await response.write_eof(told)
        elif self._request.transport is not None:
            # Without the last chunk: a reader sees that it was cut.
            self._request.transport.close()
            await asyncio.sleep(0)


def _priority(request: web.Request, stated: int) -> int:
    """The header wins where it is an integer, as in vLLM; one beyond 64 bits cannot be sent to the engine."""
    try:
        priority = int(request.headers.get(PRIORITY_HEADER, ""))
    except ValueError:
        return stated
    if not -(2**63) <= priority < 2**63:
        raise failed("")
    return priority
