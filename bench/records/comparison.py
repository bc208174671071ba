"""`comparison.json`: the scenario, the order in which its cells ran, and what each load gave. Owns its keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.analysis.comparison import LoadResult
from bench.analysis.paired import Difference
from bench.cell import CellRun
from bench.records.store import RunFolder
from bench.scenario import Scenario

FILE = "comparison.json"


def write(
    folder: Path,
    scenario: Scenario,
    runs: Sequence[CellRun],
    loads: Sequence[LoadResult],
    *,
    found: Sequence[Difference] = (),
    more: Mapping[str, Any] | None = None,
) -> None:
    said: dict[str, Any] = {
        "scenario": scenario.model_dump(mode="json", exclude_none=True),
        "order": [
            {
                "cell_id": run.cell.cell_id,
                "run_id": run.run_id,
                "arm": run.cell.arm.name,
                "load": run.cell.block.load.label,
                "rate_per_s": run.cell.block.load.rate_per_s,
                "mix": run.cell.block.load.mix,
                "trace": run.cell.block.trace,
                "verdict": "VALID" if run.valid else "INVALID",
            }
            for run in runs
        ],
        "loads": [
            {
                "label": each.load.label,
                "rate_per_s": each.load.rate_per_s,
                "mix": each.load.mix,
                "traces": list(each.traces),
                "left_out": list(each.left_out),
                **({"arms_left_out": list(each.arms_left_out)} if each.arms_left_out else {}),
                "arms": [arm.to_json() for arm in each.arms],
            }
            for each in loads
        ],
        "differences": [each.to_json() for each in found],
        **(more or {}),
    }
    RunFolder(folder.parent, folder.name, again=True).write_json(FILE, said)
