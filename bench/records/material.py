"""What a report is made of: the runs of a folder, read back, and the words of their plan. Analyses nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.analysis.comparison import ArmRun, Load
from bench.analysis.limits import Limits, parse_limits
from bench.errors import UsageError
from bench.records import comparison, stored
from bench.records.stored import StoredRun
from bench.scenario import price_of


@dataclass(frozen=True, slots=True)
class ReportRun:
    arm: str
    load: Load
    trace: str
    stored: StoredRun

    def as_arm_run(self) -> ArmRun:
        return ArmRun(self.load, self.trace, self.arm, self.stored.valid, self.stored.window, self.stored.records)


@dataclass(frozen=True, slots=True)
class Material:
    """One run, a comparison or a ladder. arms: in the order of the scenario; again: those that are the first one.

    prices: of an hour of the engines behind an arm, where that is known. repeats: runs that were planned of each arm
    under each load, over all seeds. repeated: INVALID runs whose cells were run once more. about: of each arm, for the
    reader.
    chunk_tokens: what each arm's engine takes of one prompt in a step; absent where that is not known.
    """

    title: str
    folder: Path
    runs: Sequence[ReportRun]
    arms: Sequence[str]
    again: Sequence[str]
    limits: Limits
    prices: Mapping[str, float]
    planned: int
    repeats: int = 1
    knee_per_s: float | None = None
    repeated: int = 0
    about: Mapping[str, str] = field(default_factory=dict)
    chunk_tokens: Mapping[str, int] = field(default_factory=dict)

    @property
    def class_names(self) -> list[str]:
        names = (record.class_name for run in self.runs for record in run.stored.records)
        return sorted(set(names), reverse=True)

    @property
    def loads(self) -> list[Load]:
        return sorted({run.load for run in self.runs}, key=lambda load: (load.mix, load.rate_per_s))


def read(folder: Path) -> Material:
    """Raises UsageError where the folder is neither a run nor a comparison."""
    if (folder / comparison.FILE).is_file():
        return _comparison(folder)
    if stored.is_whole(folder):
        return _single(folder)
    raise UsageError(f"{folder}: neither a run nor a comparison. Name a folder that `gateway bench` wrote.")


def _comparison(folder: Path) -> Material:
    said = stored.read_json(folder / comparison.FILE)
    try:
        scenario, order = said["scenario"], said["order"]
        runs = [
            ReportRun(
                arm=cell["arm"],
                load=Load(cell["load"], cell["rate_per_s"], cell["mix"]),
                trace=cell["trace"],
                stored=stored.read_run(folder / cell["run_id"]),
            )
            for cell in order
        ]
        arms = [arm["name"] for arm in scenario["arms"]]
        repeats = len(scenario["seeds"]) * int(scenario["repeats"])
        loads = len(scenario.get("loads") or scenario.get("rates_per_s") or ()) * len(scenario["mixes"])
    except (KeyError, TypeError) as error:
        raise UsageError(f"{folder / comparison.FILE}: not of this version of the bench ({error}).") from error
    if not runs:
        raise UsageError(f"{folder}: no run in it yet.")
    return Material(
        title=str(scenario["name"]),
        folder=folder,
        runs=runs,
        arms=arms,
        again=[arm["name"] for arm in scenario["arms"] if arm.get("again")],
        limits=parse_limits(scenario["goodput"], "goodput"),
        prices=_known({arm: price_of(scenario.get("engine_cost_per_hour"), arm) for arm in arms}),
        planned=len(runs) if "good_share" in said else loads * repeats * len(arms),
        repeats=repeats,
        knee_per_s=said.get("knee_per_s"),
        repeated=stored.set_aside(folder),
        chunk_tokens={arm["name"]: arm["chunk_tokens_max"] for arm in scenario["arms"] if arm.get("chunk_tokens_max")},
        about={arm["name"]: arm["about"] for arm in scenario["arms"] if arm.get("about")},
    )


def _known(prices: Mapping[str, float | None]) -> dict[str, float]:
    return {arm: price for arm, price in prices.items() if price is not None}


def _single(folder: Path) -> Material:
    run = stored.read_run(folder)
    arm = str(run.run["target"].get("name", "target"))
    mix = "/".join(str(share) for share in run.run["trace_origin"].get("mix", {}).values()) or "replay"
    return Material(
        title=folder.name,
        folder=folder,
        runs=[ReportRun(arm, _load_of_one(run, mix), _trace_of_one(run), run)],
        arms=[arm],
        again=[],
        limits=parse_limits(run.run["goodput"], "goodput"),
        prices=_known({arm: run.run.get("engine_cost_per_hour")}),
        planned=1,
    )


def _load_of_one(run: StoredRun, mix: str) -> Load:
    """By the rate that was asked for, so that repeats on other seeds are of one load; else by what came."""
    origin = run.run["trace_origin"]
    asked = origin.get("rate_per_s")
    if asked is not None and not {"bursts", "rate_to_per_s"} & set(origin):
        return Load(f"{asked:g} requests/s", float(asked), mix)
    offered = float(run.measurements["window"]["offered_per_s"])
    return Load(f"{offered:.3g} requests/s", offered, mix)


def _trace_of_one(run: StoredRun) -> str:
    seed = run.run.get("seeds", {}).get("trace")
    return "run" if seed is None else f"seed {seed}"
