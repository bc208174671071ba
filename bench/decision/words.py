"""The words of a decision: verdicts, the four stages, how a rule stands, and what was found. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    KEEP = "keep"  # the baseline, as it is, meets everything
    RETUNE = "retune"  # something that was measured does where the baseline does not, or at a clearly lower cost
    ISOLATE = "isolate"  # nothing that was measured does, because the classes disturb each other
    MISSING = "keep the baseline: evidence missing"


@dataclass(frozen=True, slots=True)
class Anew:
    """What a record has to be made again with: so many runs of each arm and load, facts stated beside it."""

    runs: int = 0
    facts: tuple[str, ...] = ()

    def and_(self, other: Anew) -> Anew:
        return Anew(max(self.runs, other.runs), tuple(dict.fromkeys((*self.facts, *other.facts))))


NOT_ANEW = Anew()


class Stage(StrEnum):
    """In the order in which they are looked at."""

    VALIDITY = "validity"
    ACCEPTANCE = "acceptance"
    FAULTS = "faults"
    RECOVERY = "recovery"


class Standing(StrEnum):
    HOLDS = "holds"
    FAILS = "fails"
    UNKNOWN = "not shown"


# The stages that each verdict has to pass. What is kept changes nothing that would have to be rolled back; isolation
# that is still to be built has its own drills and its own rehearsal then.
WANTED = {
    Verdict.KEEP: (Stage.VALIDITY, Stage.ACCEPTANCE, Stage.FAULTS),
    Verdict.RETUNE: (Stage.VALIDITY, Stage.ACCEPTANCE, Stage.FAULTS, Stage.RECOVERY),
    Verdict.ISOLATE: (Stage.VALIDITY, Stage.ACCEPTANCE),
    Verdict.MISSING: (),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One rule that was looked at. runs: ids, its evidence.

    todo: commands that would show what is not shown. anew: options that the records would have to be made with.
    """

    stage: Stage
    rule: str
    standing: Standing
    says: str
    arm: str | None = None
    load: str | None = None
    class_name: str | None = None
    runs: tuple[str, ...] = ()
    todo: tuple[str, ...] = ()
    anew: Anew = NOT_ANEW

    def to_json(self) -> dict[str, Any]:
        said: dict[str, Any] = {"stage": str(self.stage), "rule": self.rule, "standing": str(self.standing)}
        where = {"arm": self.arm, "load": self.load, "class": self.class_name}
        said |= {name: value for name, value in where.items() if value is not None}
        said["says"] = self.says
        return (
            said | ({"runs": list(self.runs)} if self.runs else {}) | ({"todo": list(self.todo)} if self.todo else {})
        )


def worst(standings: Sequence[Standing]) -> Standing:
    """FAILS before UNKNOWN before HOLDS; of nothing UNKNOWN."""
    for each in (Standing.FAILS, Standing.UNKNOWN):
        if each in standings:
            return each
    return Standing.HOLDS if standings else Standing.UNKNOWN
