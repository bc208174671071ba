"""A sweep's plan.json: what was decided before its first run. Owns its keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.campaign_plan import BegunPlan
from bench.sweep.settings import Settings, Sweep


class SweepPlan(BegunPlan):
    """settings and load: the file's words, paths absolute. folder: where the file lay.

    unknown: by cell, flags that the installed engine has not.
    engine_help_sha256: of what it was asked; the text itself is in engine/help.txt.
    """

    settings: Settings
    load: dict[str, Any]
    folder: Path
    unknown: dict[str, list[str]]
    engine_help_sha256: str

    def sweep(self, where: str) -> Sweep:
        return Sweep(self.settings, self.load, where, self.folder)
