"""From a scenario to the plan of each cell: targets with their keys, traces and prompts made once for all arms."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from bench.analysis.limits import Limits
from bench.cell import CellPlan
from bench.corpus import prompts
from bench.corpus.prompts import Corpus
from bench.corpus.tokenizer import ServedTokenizer
from bench.load.pacing import Windows
from bench.load.target import Target, clean_url, metrics_urls, resolve_keys
from bench.options import LONG, SHORT, parse_mix
from bench.order import Block, Cell
from bench.scenario import Arm, Scenario, price_of
from bench.trace import random_arrivals, reading
from bench.trace.arrivals import Trace
from bench.trace.intensity import Intensity


class Plans:
    """Makes the plan of each cell; traces and prompts are made once for all arms and repeats."""

    def __init__(
        self,
        scenario: Scenario,
        targets: Mapping[str, Target],
        limits: Limits,
        *,
        served: ServedTokenizer,
        command: Sequence[str],
        echo: Callable[[str], None],
    ) -> None:
        self._scenario = scenario
        self._targets = targets
        self._limits = limits
        self._served = served
        self._count = served.count_for(scenario.endpoint)
        self._command = command
        self._echo = echo
        self._made: dict[tuple[float, str, int], tuple[Trace, Corpus]] = {}

    def plan(self, cell: Cell) -> CellPlan:
        scenario, block = self._scenario, cell.block
        trace, corpus = self._sent(block)
        return CellPlan(
            cell_id=cell.cell_id,
            repeat=block.repeat,
            target=self._targets[cell.arm.name],
            trace=trace,
            corpus=corpus,
            tokenizer=self._served,
            form=scenario.endpoint,
            model=scenario.model,
            cache_salted=scenario.cache_salt,
            speed_probe=scenario.speed_probe,
            engine_cost_per_hour=price_of(scenario.engine_cost_per_hour, cell.arm.name),
            windows=Windows(scenario.warmup_s, round(trace.span_s - scenario.warmup_s, 6), scenario.drain_deadline_s),
            limits=self._limits,
            goodput=scenario.goodput,
            lag_tolerance_ms=scenario.lag_tolerance_ms,
            idle_urls=list(dict.fromkeys(url for each in self._targets.values() for url in each.metrics_urls.values())),
            idle_wait_s_max=scenario.idle_wait_s_max,
            seeds={"trace": block.seed, "corpus": block.seed, "order": scenario.order_seed},
            metadata=scenario.metadata,
            command=self._command,
        )

    def _sent(self, block: Block) -> tuple[Trace, Corpus]:
        key = (block.load.rate_per_s, block.load.mix, block.seed)
        if key not in self._made:
            trace = trace_of(self._scenario, block)
            self._echo(f"making {len(trace.arrivals)} prompts")
            self._made[key] = (trace, prompts.build(trace, self._count, block.seed))
        return self._made[key]


def trace_of(scenario: Scenario, block: Block) -> Trace:
    """The trace of a block: the same for every arm and repeat."""
    if scenario.trace is not None:
        return reading.at_rate(
            _replayed(scenario.trace, tuple(scenario.trace_classes)), block.load.rate_per_s, block.seed
        )
    lengths = {
        SHORT: (scenario.lengths.short.prompt_tokens, scenario.lengths.short.output_tokens),
        LONG: (scenario.lengths.long.prompt_tokens, scenario.lengths.long.output_tokens),
    }
    mix = parse_mix(block.load.mix, lengths=lengths, where="mixes")
    rate, seed = block.load.rate_per_s, block.seed
    burstiness = scenario.burstiness
    if scenario.num_prompts is not None:
        requests = scenario.num_prompts
        return random_arrivals.for_count(rate_per_s=rate, requests=requests, mix=mix, seed=seed, burstiness=burstiness)
    span_s = scenario.warmup_s + (scenario.duration_s or 0.0)
    if scenario.num_prompts_min is not None:
        requests = max(scenario.num_prompts_min, round(rate * span_s))
        return random_arrivals.for_count(rate_per_s=rate, requests=requests, mix=mix, seed=seed, burstiness=burstiness)
    return random_arrivals.for_duration(rate=Intensity(rate), span_s=span_s, mix=mix, seed=seed, burstiness=burstiness)


@lru_cache(maxsize=8)
def _replayed(path: Path, classes: tuple[str, ...]) -> Trace:
    return reading.read(path, classes=classes)


def classes_of(scenario: Scenario) -> list[str]:
    """The classes that its requests may be of."""
    if scenario.trace is None:
        return [SHORT, LONG]
    return _replayed(scenario.trace, tuple(scenario.trace_classes)).class_names()


def target_of(arm: Arm, file: Path) -> Target:
    where = f"{file}: arms: {arm.name}"
    return Target(
        name=arm.name,
        base_url=clean_url(arm.base_url, f"{where}: base_url"),
        key_names=arm.credentials,
        priority=arm.priority,
        metrics_urls=metrics_urls(arm.engine_metrics_url, f"{where}: engine_metrics_url"),
        ops_url=None if arm.ops_url is None else clean_url(arm.ops_url, f"{where}: ops_url"),
        keys=resolve_keys(arm.credentials, os.environ),
    )
