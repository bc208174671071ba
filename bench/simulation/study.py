"""A scenario in virtual time: every arm under every load with every seed, side by side on all cores.

Owns which runs there are and what comes back of each. Reads the clock for one thing: how fast it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from bench.analysis.busy import busy_s
from bench.analysis.classes import ClassMeasure, Window
from bench.analysis.comparison import ArmRun
from bench.analysis.limits import Limits
from bench.analysis.measurements import ALL, Measurements, Throughput, put_together
from bench.errors import UsageError
from bench.load.pacing import Windows
from bench.order import Block, cell_id
from bench.plans import trace_of
from bench.records.request import RequestRecord
from bench.scenario import Arm, Scenario
from bench.simulated import SimulatedArm
from bench.simulation.play import Played, check_served, play
from bench.simulation.profiles import Profile
from bench.simulation.setup import Setup, flags_of, plan_of
from bench.simulation.speed import slower, that_keeps_busy


@dataclass(frozen=True, slots=True)
class Task:
    """One run. keeps_records: they come back with it. slower: times that every cost is as high in it.

    busy_s: instead, for how long its engine is to be at work: costs are as high as that takes.
    """

    setup: Setup
    scenario: Scenario
    limits: Limits
    block: Block
    keeps_records: bool
    slower: float = 1.0
    busy_s: float | None = None

    @property
    def cell_id(self) -> str:
        return cell_id(self.block, self.setup.arm)


@dataclass(frozen=True, slots=True)
class Run:
    """What came of a task. slower: what the costs of the setup's profile were multiplied with.

    gateways: the classes of each, where there are several. simulated_s: from the first arrival to the last end;
    spent_s: of one core's time.
    """

    arm: str
    block: Block
    window: Window
    classes: dict[str, ClassMeasure]
    gateways: Sequence[dict[str, ClassMeasure]]
    throughput: Throughput | None
    records: Sequence[RequestRecord]
    steps: int
    slower: float
    simulated_s: float
    spent_s: float

    def as_compared(self) -> ArmRun:
        return ArmRun(self.block.load, self.block.trace, self.arm, True, self.window, self.records)

    def to_json(self) -> dict[str, Any]:
        load = self.block.load
        said = {
            "load": load.label,
            "mix": load.mix,
            "seed": self.block.seed,
            "arm": self.arm,
            "steps": self.steps,
            **({} if self.slower == 1.0 else {"costs_times": round(self.slower, 4)}),
            "simulated_s": round(self.simulated_s, 3),
            "classes": {name: each.to_json() for name, each in self.classes.items()},
        }
        if self.gateways:
            said["gateways"] = [{name: each.to_json() for name, each in one.items()} for one in self.gateways]
        return said


def setups(scenario: Scenario, profile: Profile, base: Path) -> list[Setup]:
    """Compile every arm, and see that its policy serves such requests at all. Raises UsageError."""
    said = scenario.simulation
    if said.engines < said.gateways and not said.shared_engines:
        raise UsageError(
            f"{said.engines} engines are not enough for {said.gateways} gateways. "
            "Give each at least one, or let them share: shared_engines."
        )
    made = [_setup(scenario, arm, profile, base) for arm in scenario.arms]
    for setup in made:
        for name, length in (("short", scenario.lengths.short), ("long", scenario.lengths.long)):
            if name not in setup.service_classes:
                raise UsageError(f"simulation: service_classes: {name} is missing. Say whose requests these are.")
            check_served(setup, name, length.prompt_tokens, length.output_tokens)
    return made


def _setup(scenario: Scenario, arm: Arm, profile: Profile, base: Path) -> Setup:
    said, counts = arm.simulated or SimulatedArm(), scenario.simulation
    if arm.simulated is None and arm.credentials:
        raise UsageError(
            f"arms: {arm.name}: which policy is behind its URL is not known. "
            "Add simulated: {policy: NAME_OR_FILE, engine: {…}}."
        )
    return Setup(
        arm=arm.name,
        plan=plan_of(said.policy, base),
        flags=flags_of(said.engine, profile),
        profile=profile,
        engines=counts.engines,
        gateways=counts.gateways,
        shared_engines=counts.shared_engines and counts.gateways > 1,
        service_classes=counts.service_classes,
        priority=arm.priority,
        tenants=counts.tenants,
    )


def once_each(scenario: Scenario) -> list[Block]:
    """Every trace under every load. A repeat would be the same to the last bit."""
    return [Block(load, seed, 1) for load in scenario.offered() for seed in scenario.seeds]


def as_measured(scenario: Scenario, record: Mapping[str, Any]) -> list[Block]:
    """What a comparison's record pools: the traces that count in it. Each repeat had a speed of its own."""
    counted = {(load["label"], load["mix"], trace) for load in record["loads"] for trace in load["traces"]}
    repeats = range(1, scenario.repeats + 1)
    blocks = [replace(block, repeat=repeat) for block in once_each(scenario) for repeat in repeats]
    return [block for block in blocks if (block.load.label, block.load.mix, block.trace) in counted]


def tasks(
    scenario: Scenario, made: Sequence[Setup], limits: Limits, blocks: Sequence[Block], *, keeps_records: bool
) -> list[Task]:
    """Long runs first, so that no core ends with one alone."""
    ordered = sorted(blocks, key=lambda block: block.load.rate_per_s, reverse=True)
    return [Task(setup, scenario, limits, block, keeps_records) for block in ordered for setup in made]


def run(task: Task) -> Run:
    """Play one run and measure it as a live one is measured."""
    began = time.process_time()
    scenario, trace = task.scenario, trace_of(task.scenario, task.block)
    observation_s = round(trace.span_s - scenario.warmup_s, 6)
    if observation_s <= 0:
        raise UsageError(f"warmup_s: {scenario.warmup_s:g} leaves nothing of a trace of {trace.span_s:g} s.")
    windows = Windows(scenario.warmup_s, observation_s, scenario.drain_deadline_s)

    def played_at(factor: float) -> Played:
        setup = replace(task.setup, profile=slower(task.setup.profile, factor))
        return play(setup, trace, windows, task.block.seed)

    factor = task.slower
    if task.busy_s is not None:
        factor = that_keeps_busy(lambda times: busy_s(played_at(times).records), task.busy_s)
    played = played_at(factor)
    window = Window(windows.warmup_s, observation_s)
    measured = _measured(task, played.records, window)
    shares = played.shares if len(played.shares) > 1 else []
    each = [_measured(task, [played.records[index] for index in share], window) for share in shares]
    ends_ms = [record.ended_ms for record in played.records if record.ended_ms is not None]
    return Run(
        arm=task.setup.arm,
        block=task.block,
        window=window,
        classes=_classes(measured),
        gateways=[_classes(one) for one in each],
        throughput=measured.throughput,
        records=played.records if task.keeps_records else (),
        steps=played.steps,
        slower=factor,
        simulated_s=max([trace.span_s, *(each / 1000 for each in ends_ms)]),
        spent_s=time.process_time() - began,
    )


def _measured(task: Task, records: Sequence[RequestRecord], window: Window) -> Measurements:
    """As a live run is measured."""
    return put_together(
        records,
        window=window,
        limits=task.limits,
        loop_lags_s=(),
        loop_period_s=1.0,
        lag_tolerance_ms=task.scenario.lag_tolerance_ms,
    )


def _classes(measured: Measurements) -> dict[str, ClassMeasure]:
    return {name: each for name, each in measured.classes.items() if name != ALL or len(measured.classes) > 2}


def run_all(todo: Sequence[Task], jobs: int, told: Callable[[int], None]) -> list[Run]:
    """told: how many have been run so far. One job runs in this process."""
    if jobs == 1:
        return _counted(map(run, todo), told)
    # Forked, each process has the tasks: a plan of a compiled core cannot be sent to it.
    with ProcessPoolExecutor(
        min(jobs, len(todo)), mp_context=get_context("fork"), initializer=_take, initargs=(todo,)
    ) as processes:
        return _counted(processes.map(_run_taken, range(len(todo))), told)


def _counted(runs: Iterable[Run], told: Callable[[int], None]) -> list[Run]:
    done = []
    for each in runs:
        done.append(each)
        told(len(done))
    return done


_taken: Sequence[Task] = ()


def _take(todo: Sequence[Task]) -> None:
    global _taken  # noqa: PLW0603 - of a process that does nothing else
    _taken = todo


def _run_taken(number: int) -> Run:
    return run(_taken[number])


def with_counts(scenario: Scenario, **counts: int | None) -> Scenario:
    """Return the scenario with engines, gateways, shared_engines or tenants as stated, where they are."""
    stated = {name: count for name, count in counts.items() if count is not None}
    return scenario.model_copy(update={"simulation": scenario.simulation.model_copy(update=stated)})
