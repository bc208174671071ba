"""The order of a sweep's runs, drawn from the scenario's order_seed. Pure.

A fresh engine for each run lets the cells of one trace run back to back, as in any comparison. Where a cell's runs of
one repeat share an engine, cells are shuffled and the loads within each: the machine's drift then lies between cells.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import groupby

from bench.order import Cell, cells
from bench.scenario import Scenario


def runs(scenario: Scenario, restart: str) -> list[Cell]:
    """All runs. restart: `run` or `repeat`."""
    back_to_back = cells(scenario)
    if restart == "run":
        return back_to_back
    rng = random.Random(f"cells {scenario.order_seed}")
    ordered: list[Cell] = []
    for _, of_repeat in groupby(back_to_back, key=lambda cell: cell.block.repeat):
        own = list(of_repeat)
        for arm in rng.sample(scenario.arms, len(scenario.arms)):
            ordered += [cell for cell in own if cell.arm.name == arm.name]
    return ordered


def starts(order: Sequence[Cell], restart: str) -> int:
    """How many times the engine is started for these runs, where all goes well."""
    if restart == "run":
        return len(order)
    return len(list(groupby(order, key=lambda cell: (cell.block.repeat, cell.arm.name))))
