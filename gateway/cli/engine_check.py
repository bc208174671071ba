"""`gateway check --engines`: what each engine says of itself, held against what the configuration says of it.

Owns the report. Asks once, as the server does when it brings an engine into service, the proof of priority included;
an engine that is at work is not loaded with a proof.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import structlog

from gateway.cli.table import Cell, table
from gateway.core.steptime import StepModel
from gateway.core.types import EngineLimits
from gateway.engines import proof, reading
from gateway.engines.target import Scheduling
from gateway.engines.watch import EngineWatch
from gateway.server import wiring
from gateway.server.calibrations import step_model_of
from gateway.server.clock import LoopClock
from gateway.server.connector import EngineConnections
from gateway.server.questions import Questions
from gateway.server.upstream import Upstream
from gateway.settings import Settings


@dataclass(frozen=True, slots=True)
class EngineReport:
    """One engine as it answered. priority: in words, None where it did not answer; orders_by_priority: None where that
    is not known. problems: why it cannot serve. context_tokens: the longest of the models that it has. step_model: as
    measured now; None: it could not be.
    """

    engine: str
    version: str | None
    limits: EngineLimits
    priority: str | None
    orders_by_priority: bool | None
    problems: tuple[str, ...]
    context_tokens: int | None = None
    step_model: StepModel | None = None


def ask_engines(settings: Settings) -> list[EngineReport]:
    """Ask every engine, all at once; one that does not answer is a report, not an error."""
    return asyncio.run(_ask(settings))


def reports_table(reports: Sequence[EngineReport]) -> str:
    rows: list[list[Cell]] = [
        [
            report.engine,
            "no" if report.problems else "yes",
            report.version,
            report.limits.kv_tokens,
            report.priority,
        ]
        for report in reports
    ]
    return table(["engine asked", "can serve", "version", "KV tokens", "priority"], rows)


async def _ask(settings: Settings) -> list[EngineReport]:
    clock = LoopClock()
    async with EngineConnections() as connections:
        questions = Questions(Upstream(connections, lambda _engine: None))
        with _without_logs():
            watches = [
                EngineWatch(target, questions, clock.now, lambda _watch: None)
                for pool in wiring.pools(settings)
                for target in pool.targets
            ]
            engines = {engine.name: engine for engine in settings.engines}

            async def ask(watch: EngineWatch) -> EngineReport:
                await watch.look()
                return _report(watch, settings, await step_model_of(engines[watch.target.name], watch, clock.now))

            return await asyncio.gather(*map(ask, watches))


def _report(watch: EngineWatch, settings: Settings, step_model: StepModel | None) -> EngineReport:
    return EngineReport(
        engine=watch.target.name,
        version=watch.known.version,
        limits=watch.limits,
        priority=_priority(watch) if watch.health.is_up else None,
        orders_by_priority=_orders_by_priority(watch),
        problems=tuple(_problems(watch, settings)),
        context_tokens=reading.longest_context_tokens(watch.known.cards),
        step_model=step_model,
    )


def _orders_by_priority(watch: EngineWatch) -> bool | None:
    if watch.target.scheduling is not Scheduling.PROBE:
        return watch.target.scheduling is Scheduling.PRIORITY
    return watch.known.priority_proved if watch.known.proofs_tried else None


def _priority(watch: EngineWatch) -> str:
    match watch.target.scheduling, _orders_by_priority(watch):
        case Scheduling.PROBE, None if watch.known.load_at is None:
            return "not proved: its metrics do not say whether it is idle"
        case Scheduling.PROBE, None if not watch.known.load.is_idle:
            return "not proved: the engine was not idle"
        case Scheduling.PROBE, None:
            return f"not proved: {proof.why_not_planned(watch.limits)}"
        case Scheduling.PROBE, proved:
            return "proved" if proved else "not proved, so not used"
        case _, stated:
            return "effective, as stated" if stated else "not used, as stated"


def _problems(watch: EngineWatch, settings: Settings) -> Iterator[str]:
    if not watch.health.is_up:
        yield watch.known.problem or f"it does not answer at {watch.target.url}"
        return
    pool = settings.pools[watch.target.pool]
    served: Mapping[str, int | None] = {
        str(card["id"]): reading.context_tokens(watch.known.cards, str(card["id"])) for card in watch.known.cards
    }
    for model in pool.models:
        if model not in served:
            yield f"it does not serve the model {model} of the pool {watch.target.pool}; it has {', '.join(served)}"
        elif pool.max_model_len is not None and (context := served[model]) is not None and context < pool.max_model_len:
            yield f"its context for {model} is {context} tokens, below max_model_len ({pool.max_model_len})"


class _without_logs:  # noqa: N801 - reads as a statement
    """Loggers made inside say nothing: the report says it all."""

    def __enter__(self) -> None:
        self._before = structlog.get_config()
        structlog.configure(processors=[_drop])

    def __exit__(self, *_: object) -> None:
        structlog.configure(**self._before)


def _drop(*_: object) -> NoReturn:
    raise structlog.DropEvent
