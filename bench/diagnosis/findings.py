"""What a diagnosis says: findings with their evidence, of each group of runs. Pure words and their JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from bench.diagnosis.advice import ADVICE
from bench.diagnosis.figures import READINGS_MIN
from bench.diagnosis.rules import Constraint, Show

NONE_SEEN = "no constraint seen at this load"
TOO_FEW = "not enough readings"


class Certainty(IntEnum):
    POSSIBLE = 1
    LIKELY = 2
    SURE = 3


_WEIGHTS = {Certainty.POSSIBLE: 0.4, Certainty.LIKELY: 0.8, Certainty.SURE: 1.0}


@dataclass(frozen=True, slots=True)
class Evidence:
    """A sentence, and the figure behind it by run."""

    says: str
    figure: str
    by_run: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        runs = {run: round(value, 4) if value != float("inf") else "inf" for run, value in self.by_run.items()}
        return {"says": self.says, "figure": self.figure, "runs": runs}


@dataclass(frozen=True, slots=True)
class Finding:
    """strength: a share, of the time to first token or of the load. against: evidence that does not fit.

    missing: what would make it surer. runs: in which it shows, of all that were judged.
    """

    constraint: Constraint
    certainty: Certainty
    strength: float
    evidence: Sequence[Evidence]
    against: Sequence[Evidence]
    missing: Sequence[str]
    runs: Sequence[str]
    judged: int
    command: str

    @property
    def weight(self) -> float:
        """What findings are ordered by: its strength, and less of it where it is less sure."""
        return round(self.strength * _WEIGHTS[self.certainty], 3)

    def to_json(self) -> dict[str, Any]:
        advice = ADVICE[self.constraint]
        return {
            "constraint": str(self.constraint),
            "title": advice.title,
            "certainty": self.certainty.name.lower(),
            "strength": round(self.strength, 4),
            "runs": list(self.runs),
            "runs_judged": self.judged,
            "evidence": [each.to_json() for each in self.evidence],
            "against": [each.to_json() for each in self.against],
            "missing": list(self.missing),
            "relief": advice.relief,
            "try": self.command,
            "would_not_help": advice.no_help,
        }


@dataclass(frozen=True, slots=True)
class GroupDiagnosis:
    """The VALID runs of one arm at one load. parts_ms: of the mean time to first token, where it was spent.

    readings: of the run that has the fewest. not_judged: what nothing can be said of, and why.
    """

    arm: str
    load: str
    mix: str
    runs: Sequence[str]
    readings: int
    findings: Sequence[Finding]
    not_judged: Sequence[str]
    parts_ms: Mapping[str, float]
    good_share: float | None

    @property
    def answer(self) -> str:
        if self.findings:
            return str(self.findings[0].constraint)
        return NONE_SEEN if self.readings >= READINGS_MIN else TOO_FEW

    def to_json(self) -> dict[str, Any]:
        said: dict[str, Any] = {
            "arm": self.arm,
            "load": self.load,
            "mix": self.mix,
            "runs": list(self.runs),
            "answer": self.answer,
            "readings": self.readings,
            "findings": [each.to_json() for each in self.findings],
            "not_judged": list(self.not_judged),
            "first_token_ms": {name: round(value, 2) for name, value in self.parts_ms.items()},
        }
        return said if self.good_share is None else {**said, "good_share": round(self.good_share, 4)}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """left_out: INVALID runs and why; nothing is said of them."""

    groups: Sequence[GroupDiagnosis]
    left_out: Mapping[str, Sequence[str]]

    def to_json(self) -> dict[str, Any]:
        return {
            "schema_version": 1,
            "groups": [each.to_json() for each in self.groups],
            "left_out": {run: list(reasons) for run, reasons in self.left_out.items()},
        }


def shown(show: Show, values: Sequence[float]) -> str:
    """One value, or from the lowest to the highest of several."""
    ends = list(dict.fromkeys(_one(show, value) for value in (min(values), max(values))))
    return " to ".join(ends)


def _one(show: Show, value: float) -> str:
    if show == "share":
        return f"{value:.0%}"
    if show == "ms":
        return f"{value:,.0f} ms" if value >= 10 else f"{value:.1f} ms"
    if show == "times":
        return f"{value:.1f} times"
    return f"{value:.3g}" if show == "per_s" or value % 1 else f"{value:.0f}"
