"""The words of one cell: one trace sent to one target. What is planned, what was seen, what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.analysis.classes import Window
from bench.analysis.limits import Limits
from bench.analysis.measurements import Measurements
from bench.analysis.validity import Verdict
from bench.corpus.prompts import Corpus
from bench.corpus.tokenizer import PromptForm, ServedTokenizer
from bench.engine.around import Around
from bench.load.flight import Flight
from bench.load.pacing import Windows
from bench.load.target import Target
from bench.order import Cell
from bench.records.request import RequestRecord
from bench.trace.arrivals import Trace


@dataclass(frozen=True, slots=True)
class CellPlan:
    """Everything that a cell is made of. idle_urls: engines that must be idle before it begins.

    speed_probe: the target's engine is timed before and after it. engine_start: how the engine was started for it, and
    what it says that it runs with; empty where it ran by itself.
    """

    cell_id: str
    repeat: int
    target: Target
    trace: Trace
    corpus: Corpus
    tokenizer: ServedTokenizer
    form: PromptForm
    model: str
    cache_salted: bool
    engine_cost_per_hour: float | None
    windows: Windows
    limits: Limits
    goodput: Sequence[str]
    lag_tolerance_ms: float
    idle_urls: Sequence[str]
    idle_wait_s_max: float
    seeds: Mapping[str, int]
    metadata: Mapping[str, str]
    command: Sequence[str]
    speed_probe: bool = False
    engine_start: Mapping[str, Any] = field(default_factory=dict)

    @property
    def window(self) -> Window:
        return Window(self.windows.warmup_s, self.windows.observation_s)


@dataclass(frozen=True, slots=True)
class CellResult:
    """A cell that was run. `interrupted`: the user stopped it, and nothing after it should be begun."""

    plan: CellPlan
    run_id: str
    folder: Path
    records: Sequence[RequestRecord]
    measured: Measurements
    verdict: Verdict
    interrupted: bool

    @property
    def valid(self) -> bool:
        return self.verdict.valid


@dataclass(slots=True)
class Seen:
    """What the load leaves behind, kept outside the event loop so that an interruption does not lose it.

    engines: those that are read, by name; samples: of them, until sampled_until_ms at the latest. target_gone: nothing
    answered there after the load. policies: hashes of those that the gateway had in force before and after it; None: it
    did not say. processes: of the client. client_faults: why what they saw is not all.
    speed: of the engines, before and after. unsent_because: why nothing could be sent at all.
    """

    flights: list[Flight]
    started_at: float = 0.0
    engines: dict[str, Around] = field(default_factory=dict)
    target_gone: bool = False
    policies: list[str | None] = field(default_factory=list)
    samples: list[dict[str, Any]] = field(default_factory=list)
    sampled_until_ms: float = 0.0
    processes: int = 0
    loop_lags_s: list[float] = field(default_factory=list)
    client_faults: list[str] = field(default_factory=list)
    busy_engines: list[str] = field(default_factory=list)
    speed: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    unsent_because: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class CellRun:
    """A cell that has been run, now or before. `result`: what it gave, where it was run now."""

    cell: Cell
    run_id: str
    valid: bool
    interrupted: bool
    window: Window
    records: Sequence[RequestRecord]
    result: CellResult | None = None
