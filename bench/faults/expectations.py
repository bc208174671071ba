"""Whether a drill went as it is expected to: from the records of its requests and the gateway's own counters. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from bench.analysis.limits import Limits
from bench.faults.drills import Drill
from bench.records.request import Outcome, RequestRecord

# How long after its wait deadline or a timeout a request may still be without an answer: nobody hangs.
ENDED_S_MAX = 45.0


@dataclass(frozen=True, slots=True)
class Counted:
    """The gateway's own account, when nothing was open any more or was waited for in vain."""

    offered: float
    ended: float
    open: float

    def since(self, before: Counted) -> Counted:
        """What came behind an earlier account; what is open is open."""
        return Counted(self.offered - before.offered, self.ended - before.ended, self.open)


@dataclass(frozen=True, slots=True)
class Check:
    """One expectation, and what was seen instead where it was not met."""

    name: str
    passed: bool
    seen: str

    def to_json(self) -> dict[str, Any]:
        return {"check": self.name, "passed": self.passed, "seen": self.seen}


def judged(
    drill: Drill, records: Sequence[RequestRecord], counted: Counted | None, limits: Limits, client_late: str | None
) -> list[Check]:
    """counted: None where no ops port can be asked. client_late: why the load was not what it should have been."""
    checks = [Check("the client kept time", client_late is None, client_late or "as planned"), _accounted(records)]
    if counted is not None:
        checks.append(_conserved(records, counted))
    checks += [_allowed(drill, records), _occurred(drill, records), _prompt(records)]
    if drill.served_again_s_max is not None:
        checks.append(_served_again(records, drill.served_again_s_max))
    return checks + [_in_time(records, name, share, limits) for name, share in drill.in_time.items()]


def end_of(record: RequestRecord) -> str:
    return str(record.outcome) if record.reason is None else f"{record.outcome}:{record.reason}"


def served_again_s(records: Sequence[RequestRecord]) -> float | None:
    """From the first request that did not complete to the first token of one planned after that; None: never."""
    bad = [each.ended_ms for each in records if each.outcome is not Outcome.COMPLETED and each.ended_ms is not None]
    if not bad:
        return 0.0
    again = [each.first_token_ms for each in records if each.first_token_ms is not None and each.planned_ms > min(bad)]
    return (min(again) - min(bad)) / 1000 if again else None


def _accounted(records: Sequence[RequestRecord]) -> Check:
    open_ends = Counter(str(each.outcome) for each in records if each.outcome in (Outcome.UNFINISHED, Outcome.UNSENT))
    return Check(
        "every offered request ended", not open_ends, _counts(open_ends) or f"{len(records)} of {len(records)}"
    )


def _conserved(records: Sequence[RequestRecord], counted: Counted) -> Check:
    sent = sum(each.dispatched_ms is not None for each in records)
    passed = counted.offered == counted.ended == sent and counted.open == 0
    seen = f"sent {sent}, offered {counted.offered:g}, ended {counted.ended:g}, open {counted.open:g}"
    return Check("the gateway counted each once, and nothing is left open", passed, seen)


def _allowed(drill: Drill, records: Sequence[RequestRecord]) -> Check:
    may = ("completed", *drill.may)
    others = Counter(end for each in records if not _is_one_of(end := end_of(each), may))
    ends = Counter(end_of(each) for each in records)
    return Check("each ended as it may", not others, _counts(others or ends))


def _occurred(drill: Drill, records: Sequence[RequestRecord]) -> Check:
    ends = {end_of(each) for each in records}
    missing = [pattern for pattern in drill.must if not any(_is_one_of(end, (pattern,)) for end in ends)]
    return Check(
        "what was to be seen was seen", not missing, f"none {', '.join(missing)}" if missing else ", ".join(drill.must)
    )


def _prompt(records: Sequence[RequestRecord]) -> Check:
    """Whoever is not served is told so: no end comes later than deadlines and timeouts allow."""
    slowest_ms = max((each.ended_ms - each.planned_ms for each in records if each.ended_ms is not None), default=0.0)
    return Check("nobody hung", slowest_ms <= ENDED_S_MAX * 1000, f"the slowest end after {slowest_ms / 1000:.1f} s")


def _served_again(records: Sequence[RequestRecord], at_most_s: float) -> Check:
    found = served_again_s(records)
    seen = "never" if found is None else f"after {found:.1f} s"
    return Check(f"served again within {at_most_s:g} s", found is not None and found <= at_most_s, seen)


def _in_time(records: Sequence[RequestRecord], name: str, share: float, limits: Limits) -> Check:
    own = [each for each in records if each.class_name == name and each.outcome is not Outcome.CANCELLED]
    good = sum(each.outcome is Outcome.COMPLETED and all(limit.met(each) for limit in limits[name]) for each in own)
    return Check(f"{share:.0%} of {name} in time", bool(own) and good >= share * len(own), f"{good} of {len(own)}")


def _is_one_of(end: str, patterns: Sequence[str]) -> bool:
    """`cancelled` stands for every reason too, as a client that leaves may have any."""
    return any(fnmatchcase(end, pattern) or fnmatchcase(end.partition(":")[0], pattern) for pattern in patterns)


def _counts(ends: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {end}" for end, number in sorted(ends.items()))
