"""One token counter for each pool, as the configuration says.

Owns their making and closing, and the way of a question to a pool's engine. Counts nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, assert_never

import structlog

from gateway.core.types import Reason, Refusal
from gateway.counting.counter import EngineCannotCount, TokenCounter, no_count
from gateway.counting.drift import WatchedCounter
from gateway.counting.estimate import ByteEstimate
from gateway.counting.local import LocalTokenizer
from gateway.counting.model_files import TokenizerUnusable
from gateway.counting.remote import PROMPT_REFUSED, EngineTokenizer, PostJson
from gateway.engines.canary import Canary
from gateway.engines.target import Answer, EngineHttp, EngineNotAsked, EngineSilent, EngineUnreachable
from gateway.engines.watch import EngineWatch
from gateway.observe.counting import CountingReading
from gateway.server.engine_turns import EngineTurns
from gateway.server.refusing import Refusing
from gateway.server.reply import KEY_REFUSED
from gateway.settings import EngineTokenizer as EngineTokenizerSettings
from gateway.settings import EstimateTokenizer, Pool, Settings
from gateway.settings import LocalTokenizer as LocalTokenizerSettings
from gateway.wire.answers import is_leaving

QUESTION_S_MAX = 5.0  # below a whole count's limit, so that one engine's silence is told from a crowd before it
_NO_ROOM = frozenset({429, 503})
_NO_SUCH_ROUTE = frozenset({404, 405, 501})


class PoolTokenizerUnusable(Exception):  # noqa: N818 - a state of the operator's files
    """A pool's own tokenizer cannot count. `cause` says why."""

    def __init__(self, pool: str, cause: TokenizerUnusable) -> None:
        super().__init__(f"pool {pool}: {cause}")
        self.pool = pool
        self.cause = cause


class Counters:
    """All counters. `by_pool` is filled by `load`; after a reload it has those of pools on their way out too."""

    def __init__(
        self, settings: Settings, watches: Mapping[str, EngineWatch], http: EngineHttp, canary: Canary
    ) -> None:
        self._pools = settings.pools
        self._http = http
        self._turns = EngineTurns(watches, canary)
        self._status_told: dict[str, int] = {}
        self.by_pool: dict[str, TokenCounter] = {}

    async def load(self) -> None:
        """Make the counters; files are read off the loop. Raises PoolTokenizerUnusable."""
        for name, pool in self._pools.items():
            self.by_pool[name] = await self._make(name, pool)

    async def make_for(self, pools: Mapping[str, Pool]) -> dict[str, TokenCounter]:
        """Make what these pools lack: a tokenizer stated as before is kept. Raises PoolTokenizerUnusable."""
        known = {name: pool.tokenizer for name, pool in self._pools.items()}
        made: dict[str, TokenCounter] = {}
        try:
            for name, pool in pools.items():
                if known.get(name) != pool.tokenizer:
                    made[name] = await self._make(name, pool)
        except PoolTokenizerUnusable:
            for counter in made.values():
                self.close_one(counter)
            raise
        return made

    def put_in_force(self, pools: Mapping[str, Pool], made: Mapping[str, TokenCounter]) -> list[TokenCounter]:
        """Take the new ones; return those that they replace, to be closed once nobody counts with them."""
        replaced = [self.by_pool[name] for name in made if name in self.by_pool]
        self.by_pool.update(made)
        self._pools = dict(pools)
        return replaced

    def forget(self, pool: str) -> None:
        """Drop the counter of a pool that is gone."""
        self.close_one(self.by_pool.pop(pool))

    def close_one(self, counter: TokenCounter) -> None:
        if isinstance(counter, WatchedCounter) and isinstance(counter.local, LocalTokenizer):
            counter.local.close()

    def close(self) -> None:
        for counter in self.by_pool.values():
            self.close_one(counter)

    def readings(self) -> Mapping[str, CountingReading]:
        """How each pool is counted at this instant."""
        return {name: _reading(counter) for name, counter in self.by_pool.items()}

    async def _make(self, name: str, pool: Pool) -> TokenCounter:
        match pool.tokenizer:
            case LocalTokenizerSettings(path=path, revision=revision):
                try:
                    local = await asyncio.to_thread(LocalTokenizer.load, path, revision)
                except TokenizerUnusable as error:
                    raise PoolTokenizerUnusable(name, error) from error
                structlog.get_logger().info(
                    "tokenizer", pool=name, library=local.encoder, revision=revision, sha256=local.fingerprint
                )
                return WatchedCounter(local, EngineTokenizer(self._asking(name)), partial(_tell_drift, name))
            case EngineTokenizerSettings():
                return EngineTokenizer(self._asking(name))
            case EstimateTokenizer():
                return ByteEstimate()
            case _:
                assert_never(pool.tokenizer)

    def _asking(self, pool: str) -> PostJson:
        async def ask(path: str, question: dict[str, Any]) -> dict[str, Any]:
            watch, answer = await self._ask_one(pool, path, question)
            while is_leaving(answer.status, answer.body):
                watch.leaving()
                watch, answer = await self._ask_one(pool, path, question)
            if answer.status in PROMPT_REFUSED:
                message = "The engine cannot read this prompt."
                raise Refusing(Refusal(Reason.BAD_REQUEST, message, code="invalid_prompt"))
            if answer.status in _NO_ROOM:
                raise Refusing(_no_room())
            self._tell(watch.target.name, answer.status)
            if answer.status in _NO_SUCH_ROUTE:
                raise EngineCannotCount(no_count())
            value = _object(answer.body) if answer.status == 200 else None
            if value is None:
                raise Refusing(no_count())
            return value

        return ask

    async def _ask_one(self, pool: str, path: str, question: dict[str, Any]) -> tuple[EngineWatch, Answer]:
        """Ask the pool's next engine that is up."""
        watch = self._turns.next_of(pool)
        if watch is None:
            raise Refusing(no_count())
        try:
            return watch, await self._http.post_json(watch.target, path, question, timeout_s=QUESTION_S_MAX)
        except EngineUnreachable:
            watch.refused()
        except EngineNotAsked as error:
            raise Refusing(Refusal(Reason.OVERLOADED, str(error))) from None
        except EngineSilent:
            watch.silent()
        raise Refusing(no_count())

    def _tell(self, engine: str, status: int) -> None:
        """Log what stands in the way of counting, once for as long as it stays the same."""
        if self._status_told.get(engine, 200) == status:
            return
        self._status_told[engine] = status
        if status != 200:
            problem = (
                "it refuses the gateway's key: check api_key_env" if status in KEY_REFUSED else "it gives no count"
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


def _reading(counter: TokenCounter) -> CountingReading:
    local = counter.local if isinstance(counter, WatchedCounter) else None
    engine = counter.engine if isinstance(counter, WatchedCounter) else counter
    reading = CountingReading(counter.method.value)
    if isinstance(local, LocalTokenizer):
        reading = replace(
            reading,
            encoder=local.encoder,
            sha256=local.fingerprint,
            jobs=local.threads.jobs,
            job_bytes=local.threads.job_bytes,
            refused=local.threads.refused,
            has_drifted=isinstance(counter, WatchedCounter) and counter.has_drifted,
        )
    if isinstance(engine, EngineTokenizer):
        reading = replace(
            reading,
            jobs=reading.jobs + engine.calls,
            job_bytes=reading.job_bytes + engine.call_bytes,
            refused=reading.refused + engine.refused,
        )
    return reading


def _no_room() -> Refusal:
    return Refusal(Reason.OVERLOADED, "The engine has no room to count this prompt now.")


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
