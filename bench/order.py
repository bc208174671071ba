"""The order of a comparison's cells: arms of one trace back to back, both shuffled with a recorded seed. Pure.

Back to back, because a machine drifts over hours; shuffled, because whoever always goes second finds a warm machine.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from bench.analysis.comparison import Load
from bench.scenario import Arm, Scenario


@dataclass(frozen=True, slots=True)
class Block:
    """One trace under one load, in one repeat: what all arms run in turn."""

    load: Load
    seed: int
    repeat: int

    @property
    def trace(self) -> str:
        return f"seed {self.seed}" if self.repeat == 1 else f"seed {self.seed} repeat {self.repeat}"


@dataclass(frozen=True, slots=True)
class Cell:
    block: Block
    arm: Arm

    @property
    def cell_id(self) -> str:
        return cell_id(self.block, self.arm.name)


def cell_id(block: Block, arm: str) -> str:
    """What a cell is called in records."""
    return f"{block.load.label}, {block.load.mix}, {block.trace}, {arm}"


def cells(scenario: Scenario) -> list[Cell]:
    """All cells in the order in which they are run."""
    rng = random.Random(f"order {scenario.order_seed}")
    loads = scenario.offered()
    ordered: list[Cell] = []
    for repeat in range(1, scenario.repeats + 1):
        blocks = [Block(load, seed, repeat) for load in loads for seed in scenario.seeds]
        for block in rng.sample(blocks, len(blocks)):
            ordered += [Cell(block, arm) for arm in rng.sample(scenario.arms, len(scenario.arms))]
    return ordered
