"""What a decision is made from: the runs of all folders as one, what was planned of them and is not there. Reads only.

The order in which folders are named, and a folder named twice, change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import campaign_plan
from bench.analysis.comparison import Load
from bench.analysis.limits import Limits, parse_limits
from bench.decision.terms import Terms
from bench.errors import UsageError
from bench.order import cells
from bench.records import comparison, material, stored
from bench.records.material import Material
from bench.records.request import Phase
from bench.records.stored import StoredRun
from bench.scenario import checked

Cell = tuple[str, Load, str]  # arm, load, trace
# A single run stands beside a comparison, and a ladder goes on until it fails: neither says what was agreed.
BESIDE = frozenset({"ladder", "run"})


@dataclass(frozen=True, slots=True)
class Record:
    """A folder. kind: the command that made it; `run` where it is a single one. command: as it was typed."""

    folder: Path
    kind: str
    command: tuple[str, ...]
    arms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """trace: of its record, the same for each arm that had the same arrivals back to back."""

    record: Record
    arm: str
    load: Load
    trace: str
    stored: StoredRun

    @property
    def run_id(self) -> str:
        return self.stored.folder.name

    @property
    def class_names(self) -> set[str]:
        return {each.class_name for each in self.stored.records if each.phase is Phase.WINDOW}


@dataclass(frozen=True, slots=True)
class Gap:
    """A planned run without a VALID one. why: None where it was not run at all."""

    record: Record
    cell: Cell
    why: str | None
    run_id: str | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """runs: VALID ones alone, by id. arms: the baseline first. agreed: the loads at which every class must be served.

    again: arms that are the baseline once more. apart: those with engines of their own for a class. without: those that
    were left out. prices: what the engines behind an arm cost an hour, where that is known.
    """

    records: tuple[Record, ...]
    runs: tuple[Run, ...]
    gaps: tuple[Gap, ...]
    arms: tuple[str, ...]
    again: tuple[str, ...]
    apart: tuple[str, ...]
    agreed: tuple[Load, ...]
    without: tuple[str, ...]
    limits: Limits
    prices: Mapping[str, float]

    @property
    def baseline(self) -> str:
        return self.arms[0]

    @property
    def candidates(self) -> list[str]:
        """The other arms that were measured under an agreed load; what stands beside comparisons is none."""
        alone = all(record.kind in BESIDE for record in self.records)
        measured = {
            run.arm for run in self.runs if run.load in self.agreed and (alone or run.record.kind not in BESIDE)
        }
        return [arm for arm in self.arms[1:] if arm not in self.again and arm in measured]

    @property
    def has_prices(self) -> bool:
        """Of all that are compared: else an answer costs engine time, alike for each."""
        compared = {self.baseline, *self.candidates, *self.again} & {run.arm for run in self.runs}
        return compared <= set(self.prices)

    @property
    def class_names(self) -> list[str]:
        return sorted({name for run in self.runs if run.load in self.agreed for name in run.class_names}, reverse=True)

    def of(self, arm: str, load: Load) -> list[Run]:
        return [run for run in self.runs if (run.arm, run.load) == (arm, load)]


def gather(folders: Sequence[Path], terms: Terms) -> Evidence:
    """Raises UsageError where a folder is no record, or as `together` does."""
    return together([material.read(folder) for folder in {folder.resolve() for folder in folders}], terms)


def together(materials: Sequence[Material], terms: Terms) -> Evidence:
    """Raises UsageError where the records leave open what they are to be judged by."""
    made = sorted(materials, key=lambda each: (each.folder.name, each.folder))
    without = frozenset(terms.without).union(*(_impossible(each) for each in made))
    records = [_record(each) for each in made]
    baseline = _baseline(records, terms)
    runs = _runs(made, records, without)
    planned = {cell: record for each, record in zip(made, records, strict=True) for cell in _planned(each, record)}
    planned = {cell: record for cell, record in planned.items() if cell[0] not in without}
    agreed = _agreed(planned, runs, terms)
    arms = sorted({run.arm for run in runs} - {baseline})
    prices = {arm: price for arm in (baseline, *arms) if (price := terms.price_of(arm, _recorded_price(made, arm)))}
    return Evidence(
        records=tuple(records),
        runs=tuple(run for run in runs if run.stored.valid),
        gaps=tuple(_gaps(planned, runs)),
        arms=(baseline, *arms),
        again=tuple(sorted({arm for each in made for arm in each.again})),
        apart=_apart(runs, terms),
        agreed=agreed,
        without=tuple(sorted(without)),
        limits=_limits(made, terms),
        prices=prices,
    )


def _record(made: Material) -> Record:
    file = made.folder / campaign_plan.FILE
    said: Mapping[str, Any] = stored.read_json(file) if file.is_file() else made.runs[0].stored.run
    is_one = stored.is_whole(made.folder)
    kind = "run" if is_one else str(said.get("kind") or next(iter(said.get("command", ["", "", "compare"])[2:]), ""))
    return Record(made.folder, kind, tuple(map(str, said.get("command", ()))), tuple(made.arms))


def _baseline(records: Sequence[Record], terms: Terms) -> str:
    arms = {arm for record in records for arm in record.arms}
    if terms.baseline is not None:
        if terms.baseline not in arms:
            raise UsageError(f"--baseline: no arm {terms.baseline!r}; there are {', '.join(sorted(arms))}.")
        return terms.baseline
    firsts = {record.arms[0] for record in records if len(record.arms) > 1} or {record.arms[0] for record in records}
    if len(firsts) > 1:
        raise UsageError(f"--baseline: which of {', '.join(sorted(firsts))} is it? Name it.")
    return firsts.pop()


def _runs(made: Sequence[Material], records: Sequence[Record], without: frozenset[str]) -> list[Run]:
    found = {
        run.stored.folder.name: Run(record, run.arm, run.load, f"{record.folder.name}: {run.trace}", run.stored)
        for each, record in zip(made, records, strict=True)
        for run in each.runs
        if run.arm not in without
    }
    if not found:
        raise UsageError("--without: nothing is left. Leave out fewer arms.")
    return [found[run_id] for run_id in sorted(found)]


def _apart(runs: Sequence[Run], terms: Terms) -> tuple[str, ...]:
    """Whatever it is called: all requests of an arm with one engine share it."""
    shared = {run.arm for run in runs if len(run.stored.run.get("target", {}).get("engine_metrics_urls", ())) == 1}
    return tuple(sorted({run.arm for run in runs} & set(terms.isolating) - shared))


def _impossible(made: Material) -> set[str]:
    """Cells of a sweep whose flags the installed version does not have: no measurement can come of them."""
    file = made.folder / comparison.FILE
    said = stored.read_json(file).get("sweep", {}) if file.is_file() else {}
    return {name for name, cell in said.get("cells", {}).items() if cell.get("unknown")}


def _limits(made: Sequence[Material], terms: Terms) -> Limits:
    if terms.goodput:
        return parse_limits(terms.goodput, "goodput")
    said = {tuple(sorted((name, tuple(sorted((limit.metric, limit.at_most_ms) for limit in own)))
            for name, own in each.limits.items())) for each in made}  # fmt: skip
    if len(said) > 1:
        raise UsageError("--goodput: the records were made with different limits. Give those that were agreed.")
    return made[0].limits


def _agreed(planned: Mapping[Cell, Record], runs: Sequence[Run], terms: Terms) -> tuple[Load, ...]:
    """By what was planned: whether a run of it was VALID changes nothing of what was agreed."""
    made_by: dict[Load, set[str]] = {}
    for (_, load, _), record in planned.items():
        made_by.setdefault(load, set()).add(record.kind)
    loads = sorted(made_by, key=lambda load: (load.mix, load.rate_per_s, load.label))
    if terms.loads:
        unknown = [text for text in terms.loads if not any(text in _names(load) for load in loads)]
        if unknown:
            known = ", ".join(sorted({load.label for load in loads}))
            raise UsageError(f"--load: no load {unknown[0]!r} in these records; there are {known}.")
        return tuple(load for load in loads if not _names(load).isdisjoint(terms.loads))
    by_kind = [load for load in loads if made_by[load] - BESIDE]
    by_kind = by_kind or [load for load in loads if "run" in made_by[load]]
    if not by_kind:
        raise UsageError("--load: which rate was agreed? A ladder goes beyond it.")
    within = [load for load in by_kind if not _is_beyond_capacity(load)] or by_kind
    mixed = {run.load for run in runs if len(run.class_names) > 1} | {load for load in within if _is_mixed(load)}
    return tuple([load for load in within if load in mixed] or within)


def _names(load: Load) -> set[str]:
    short = load.label.removeprefix("load ").removesuffix(" requests/s")
    return {load.label, f"{load.label}, {load.mix}", short, f"{short}, {load.mix}"}


def _is_beyond_capacity(load: Load) -> bool:
    """`load 1.3` is a share of the capacity."""
    head, _, share = load.label.partition(" ")
    return head == "load" and float(share) > 1


def _is_mixed(load: Load) -> bool:
    """`80/20`, and not `100/0`."""
    shares = load.mix.split("/")
    return len(shares) > 1 and all(share.isdigit() and int(share) for share in shares)


def _recorded_price(made: Sequence[Material], arm: str) -> float | None:
    return next((each.prices[arm] for each in made if arm in each.prices), None)


def _gaps(planned: Mapping[Cell, Record], runs: Sequence[Run]) -> list[Gap]:
    """By cell: what one folder lacks another may have."""
    covered = {_cell(run) for run in runs if run.stored.valid}
    invalid = {_cell(run): run for run in runs if not run.stored.valid}
    gaps = []
    for cell in sorted(planned, key=lambda cell: (cell[0], cell[1].mix, cell[1].rate_per_s, cell[2])):
        if cell not in covered:
            bad = invalid.get(cell)
            why = None if bad is None else "; ".join(bad.stored.verdict["reasons"])
            gaps.append(Gap(planned[cell], cell, why, None if bad is None else bad.run_id))
    return gaps


def _cell(run: Run) -> Cell:
    return run.arm, run.load, run.trace.removeprefix(f"{run.record.folder.name}: ")


def _planned(made: Material, record: Record) -> list[Cell]:
    """A ladder decides by its runs what comes next: what it has is what was planned."""
    there = [(run.arm, run.load, run.trace) for run in made.runs]
    if record.kind in ("run", "ladder"):
        return there
    file = made.folder / comparison.FILE
    scenario = checked(stored.read_json(file)["scenario"], str(file))
    return [*there, *((cell.arm.name, cell.block.load, cell.block.trace) for cell in cells(scenario))]
