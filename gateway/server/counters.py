"""One token counter for each pool, as the configuration says.

Owns their making and closing, and the way of a question to a pool's engine. Counts nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from functools import partial
from typing import Any, assert_never

import structlog

from gateway.core.types import Reason, Refusal
from gateway.counting.counter import TokenCounter
from gateway.counting.drift import WatchedCounter
from gateway.counting.estimate import ByteEstimate
from gateway.counting.local import LocalTokenizer
from gateway.counting.model_files import TokenizerUnusable
from gateway.counting.remote import EngineTokenizer, PostJson
from gateway.engines.target import EngineHttp, EngineSilent, EngineUnreachable
from gateway.engines.watch import EngineWatch
from gateway.observe.counting import CountingReading
from gateway.server.engine_turns import EngineTurns
from gateway.server.refusing import Refusing
from gateway.settings import EngineTokenizer as EngineTokenizerSettings
from gateway.settings import EstimateTokenizer, Pool, Settings
from gateway.settings import LocalTokenizer as LocalTokenizerSettings

QUESTION_S_MAX = 5.0  # below a whole count's limit, so that one engine's silence is told from a crowd before it
_PROMPT_REFUSED = frozenset({400, 422})
_KEY_REFUSED = frozenset({401, 403})
_NO_ROOM = frozenset({429, 503})


class PoolTokenizerUnusable(Exception):  # noqa: N818 - a state of the operator's files
    """A pool's own tokenizer cannot count. `cause` says why."""

    def __init__(self, pool: str, cause: TokenizerUnusable) -> None:
        super().__init__(f"pool {pool}: {cause}")
        self.pool = pool
        self.cause = cause


class Counters:
    """All counters. `by_pool` is filled by `load`."""

    def __init__(self, settings: Settings, watches: Mapping[str, EngineWatch], http: EngineHttp) -> None:
        self._settings = settings
        self._http = http
        self._local: dict[str, LocalTokenizer] = {}
        self._engine: dict[str, EngineTokenizer] = {}
        self._turns = EngineTurns(watches)
        self._status_told: dict[str, int] = {}
        self.by_pool: dict[str, TokenCounter] = {}

    async def load(self) -> None:
        """Make the counters; files are read off the loop. Raises PoolTokenizerUnusable."""
        for name, pool in self._settings.pools.items():
            self.by_pool[name] = await self._make(name, pool)

    def close(self) -> None:
        for counter in self._local.values():
            counter.close()

    def readings(self) -> Mapping[str, CountingReading]:
        """How each pool is counted at this instant."""
        return {name: self._reading(name, counter) for name, counter in self.by_pool.items()}

    def _reading(self, name: str, counter: TokenCounter) -> CountingReading:
        local, engine = self._local.get(name), self._engine.get(name)
        threads = None if local is None else local.threads
        return CountingReading(
            method=counter.method.value,
            library="" if local is None else local.encoder,
            sha256="" if local is None else local.fingerprint,
            jobs=(threads.jobs if threads else 0) + (engine.calls if engine else 0),
            job_bytes=(threads.job_bytes if threads else 0) + (engine.call_bytes if engine else 0),
            refused=(threads.refused if threads else 0) + (engine.refused if engine else 0),
            has_drifted=isinstance(counter, WatchedCounter) and counter.has_drifted,
        )

    async def _make(self, name: str, pool: Pool) -> TokenCounter:
        match pool.tokenizer:
            case LocalTokenizerSettings(path=path, revision=revision):
                try:
                    local = await asyncio.to_thread(LocalTokenizer.load, path, revision)
                except TokenizerUnusable as error:
                    raise PoolTokenizerUnusable(name, error) from error
                self._local[name] = local
                structlog.get_logger().info(
                    "tokenizer", pool=name, library=local.encoder, revision=revision, sha256=local.fingerprint
                )
                return WatchedCounter(local, self._asking_tokenizer(name), partial(_tell_drift, name))
            case EngineTokenizerSettings():
                return self._asking_tokenizer(name)
            case EstimateTokenizer():
                return ByteEstimate()
            case _:
                assert_never(pool.tokenizer)

    def _asking_tokenizer(self, pool: str) -> EngineTokenizer:
        self._engine[pool] = EngineTokenizer(self._asking(pool))
        return self._engine[pool]

    def _asking(self, pool: str) -> PostJson:
        async def ask(path: str, question: dict[str, Any]) -> dict[str, Any]:
            watch = self._turns.next_of(pool)
            if watch is None:
                raise Refusing(_no_count())
            try:
                answer = await self._http.post_json(watch.target, path, question, timeout_s=QUESTION_S_MAX)
            except EngineUnreachable:
                watch.refused()
                raise Refusing(_no_count()) from None
            except EngineSilent:
                watch.silent()
                raise Refusing(_no_count()) from None
            if answer.status in _PROMPT_REFUSED:
                message = "The engine cannot read this prompt."
                raise Refusing(Refusal(Reason.BAD_REQUEST, message, code="invalid_prompt"))
            if answer.status in _NO_ROOM:
                raise Refusing(_no_room())
            self._tell(watch.target.name, answer.status)
            value = _object(answer.body) if answer.status == 200 else None
            if value is None:
                raise Refusing(_no_count())
            return value

        return ask

    def _tell(self, engine: str, status: int) -> None:
        """Log what stands in the way of counting, once for as long as it stays the same."""
        if self._status_told.get(engine, 200) == status:
            return
        self._status_told[engine] = status
        if status != 200:
            problem = (
                "it refuses the gateway's key: check api_key_env" if status in _KEY_REFUSED else "it gives no count"
            )
            structlog.get_logger().error("engine_does_not_count", engine=engine, status=status, problem=problem)


def _tell_drift(pool: str, mean_error: float) -> None:
    structlog.get_logger().error(
        "token_count_drifted",
        pool=pool,
        mean_error=round(mean_error, 4),
        problem="the local tokenizer's files are not what the engine serves: from now on the engine counts; copy its "
        "files again and restart",
    )


def _no_count() -> Refusal:
    return Refusal(Reason.NO_ENGINE, "No engine can serve this model now; the prompt could not be counted.")


def _no_room() -> Refusal:
    return Refusal(Reason.OVERLOADED, "The engine has no room to count this prompt now.")


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
