"""One token counter for each pool, as the configuration says.

Owns their making and closing, and the way of a question to a pool's engine. Counts nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, assert_never

from gateway.core.types import Reason, Refusal
from gateway.counting.counter import TokenCounter
from gateway.counting.local import LocalTokenizer
from gateway.counting.model_files import TokenizerUnusable
from gateway.counting.remote import ByteEstimate, EngineTokenizer, PostJson
from gateway.engines.target import EngineHttp, EngineSilent, EngineUnreachable
from gateway.engines.watch import EngineWatch
from gateway.server.refusing import Refusing
from gateway.settings import EngineTokenizer as EngineTokenizerSettings
from gateway.settings import EstimateTokenizer, Pool, Settings
from gateway.settings import LocalTokenizer as LocalTokenizerSettings
from gateway.strict_yaml import ConfigError

QUESTION_S_MAX = 10.0


class Counters:
    """All counters. `by_pool` is filled by `load`."""

    def __init__(self, settings: Settings, watches: Mapping[str, EngineWatch], http: EngineHttp) -> None:
        self._settings = settings
        self._watches = watches
        self._http = http
        self._local: list[LocalTokenizer] = []
        self.by_pool: dict[str, TokenCounter] = {}

    async def load(self) -> None:
        """Make the counters; files are read off the loop. Raises ConfigError."""
        for name, pool in self._settings.pools.items():
            self.by_pool[name] = await self._make(name, pool)

    def close(self) -> None:
        for counter in self._local:
            counter.close()

    async def _make(self, name: str, pool: Pool) -> TokenCounter:
        match pool.tokenizer:
            case LocalTokenizerSettings(path=path, revision=revision):
                try:
                    counter = await asyncio.to_thread(LocalTokenizer.load, path, revision)
                except TokenizerUnusable as error:
                    where = f"pools.{name}.tokenizer.path"
                    raise ConfigError(str(error.path), where, error.problem, error.fix) from error
                self._local.append(counter)
                return counter
            case EngineTokenizerSettings():
                return EngineTokenizer(self._asking(name))
            case EstimateTokenizer():
                return ByteEstimate()
            case _:
                assert_never(pool.tokenizer)

    def _asking(self, pool: str) -> PostJson:
        async def ask(path: str, question: dict[str, Any]) -> dict[str, Any]:
            watch = self._engine_of(pool)
            try:
                answer = await self._http.post_json(watch.target, path, question, timeout_s=QUESTION_S_MAX)
            except EngineUnreachable:
                watch.refused()
                raise Refusing(_no_count()) from None
            except EngineSilent:
                raise Refusing(_no_count()) from None
            if 400 <= answer.status < 500:
                message = "The engine cannot read this prompt."
                raise Refusing(Refusal(Reason.BAD_REQUEST, message, code="invalid_prompt"))
            value = _object(answer.body)
            if answer.status != 200 or value is None:
                raise Refusing(_no_count())
            return value

        return ask

    def _engine_of(self, pool: str) -> EngineWatch:
        for watch in self._watches.values():
            if watch.target.pool == pool and watch.health.is_up:
                return watch
        raise Refusing(_no_count())


def _no_count() -> Refusal:
    return Refusal(Reason.NO_ENGINE, "No engine can serve this model now; the prompt could not be counted.")


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(body)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
