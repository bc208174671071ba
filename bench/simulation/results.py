"""All that came of a simulated scenario: over its seeds, as a record, held against what was measured. Plays nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.analysis.classes import ClassMeasure
from bench.analysis.comparison import compare
from bench.analysis.limits import Limits
from bench.analysis.over_seeds import ArmOverSeeds, ClassOverSeeds, LoadOverSeeds, class_over_seeds, flow_over_seeds
from bench.analysis.prediction import ArmPrediction, predictions
from bench.order import cell_id
from bench.records.stored import StoredRun
from bench.scenario import Scenario
from bench.simulation.profiles import Profile
from bench.simulation.setup import Setup
from bench.simulation.study import Run

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Simulated:
    """found: predicted over measured, where there was a measurement."""

    scenario: Scenario
    profile: Profile
    setups: Sequence[Setup]
    runs: Sequence[Run]
    found: Sequence[ArmPrediction]

    def over_seeds(self) -> list[LoadOverSeeds]:
        results = []
        for load in sorted({run.block.load for run in self.runs}, key=lambda each: (each.rate_per_s, each.mix)):
            arms = []
            for setup in self.setups:
                played = [run for run in self.runs if (run.block.load, run.arm) == (load, setup.arm)]
                own = list({run.block.seed: run for run in reversed(played)}.values())
                gateways = [
                    _classes([run.gateways[at] for run in own]) for at in range(min(len(run.gateways) for run in own))
                ]
                flow = flow_over_seeds([run.throughput for run in own])
                arms.append(ArmOverSeeds(setup.arm, _classes([run.classes for run in own]), flow, gateways))
            results.append(
                LoadOverSeeds(load, len({run.block.seed for run in self.runs if run.block.load == load}), arms)
            )
        return results

    def to_json(self, command: Sequence[str]) -> dict[str, Any]:
        """The record. What is not known has no key."""
        said: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "simulated": True,
            "command": list(command),
            "scenario": self.scenario.model_dump(mode="json", exclude_none=True),
            "engine": self.profile.to_json(),
            "arms": {setup.arm: setup.to_json() for setup in self.setups},
            "loads": [each.to_json() for each in self.over_seeds()],
            "runs": [run.to_json() for run in self.runs],
        }
        if self.found:
            said["predicted_over_measured"] = [each.to_json() for each in self.found]
        return said


def _classes(each: Sequence[Mapping[str, ClassMeasure]]) -> dict[str, ClassOverSeeds]:
    names = sorted({name for one in each for name in one}, reverse=True)
    return {name: class_over_seeds([one[name] for one in each if name in one]) for name in names}


def held_against(
    scenario: Scenario,
    each_runs: Sequence[Sequence[Run]],
    limits: Limits,
    record: Mapping[str, Any],
    measured: Sequence[StoredRun],
) -> list[ArmPrediction]:
    """each_runs: the prediction, and after it those that bound it. measured: the VALID runs beside `record`."""
    by_cell = {run.cell_id: run for run in measured}
    arms = [arm.name for arm in scenario.arms]
    compared = [compare([run.as_compared() for run in runs], arms, limits) for runs in each_runs]
    by_repeat = [
        compare(
            [
                replace(run.as_compared(), window=stored.window, records=stored.records)
                for run in each_runs[0]
                if run.block.repeat == repeat and (stored := by_cell.get(cell_id(run.block, run.arm))) is not None
            ],
            arms,
            limits,
        )
        for repeat in range(1, scenario.repeats + 1)
    ]
    return predictions(compared, record, by_repeat)
