"""What a rehearsal came to: when new requests went back, what became of the open streams, what was lost. Pure.

Owns what it takes to say that a rollback held. Asks nobody.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.analysis.quantiles import quantile
from bench.analysis.scores import BROKEN, REFUSALS
from bench.manifest.schema import Abort
from bench.records.request import Outcome, RequestRecord

UNKNOWN = "unknown"  # nobody remembers where it went
# How the gateway tells a caller whose engine was taken from it: before the first token, and inside a stream.
_ENDED = ("draining", "in_band_draining")
_NOT_SERVED = ("no_engine", "draining")


@dataclass(frozen=True, slots=True)
class Switch:
    """Milliseconds from the start of the load. asked: the files were put; in_force: the gateway had taken them.

    drained: the withdrawn engines were idle. ended, left: requests that the gateway ended at the deadline, or that were
    still there after it. problems: what went wrong on the way.
    """

    asked_ms: float
    in_force_ms: float | None = None
    drained_ms: float | None = None
    ended: int = 0
    left: int = 0
    problems: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """figures: as they lie in rollback.json. failures: why it did not hold."""

    figures: Mapping[str, Any]
    failures: Sequence[str] = field(default_factory=list)

    @property
    def held(self) -> bool:
        return not self.failures


def judged(
    records: Sequence[RequestRecord],
    went_to: Mapping[int, str | None],
    switch: Switch,
    *,
    baseline: Sequence[str],
    abort: Abort,
) -> Rehearsed:
    """went_to: by index, the engine that a request went to; None: to none. baseline: those that are gone back to.

    Requests that nobody remembers are not in went_to.
    """
    seen = _Seen(
        records, {each.index: went_to.get(each.index, UNKNOWN) for each in records}, switch, frozenset(baseline)
    )
    figures: dict[str, Any] = {
        "offered": len(records),
        "completed": sum(each.outcome is Outcome.COMPLETED for each in records),
        "refused_by_admission": sum(each.outcome in REFUSALS and not _is_lost(each) for each in records),
        "lost": len(seen.lost),
        "new_after_switch": dict(Counter(str(seen.went_to[each.index]) for each in seen.new)),
        "streams": {
            "open_at_switch": len(seen.open_then),
            "finished": sum(each.outcome is Outcome.COMPLETED for each in seen.open_then),
            "ended_at_deadline": len(seen.ended),
            "ended_how": dict(Counter(f"{each.outcome}:{each.reason}" for each in seen.ended)),
            "ended_by_the_gateway": switch.ended,
        },
        "abort_would_have_fired": {"candidate": fired(seen.old, abort), "baseline": fired(seen.new, abort)},
    }
    if switch.in_force_ms is not None:
        figures["switch_ms"] = round(switch.in_force_ms - switch.asked_ms, 1)
    if seen.first_back_ms is not None:
        figures["first_new_at_baseline_ms"] = round(seen.first_back_ms - switch.asked_ms, 1)
    if switch.drained_ms is not None:
        figures["drained_ms"] = round(switch.drained_ms - switch.asked_ms, 1)
    return Rehearsed(figures, [*switch.problems, *seen.failures()])


class _Seen:
    """The requests by what the switch made of them. old: planned before it, not ended by it; new: sent in force."""

    def __init__(
        self,
        records: Sequence[RequestRecord],
        went_to: Mapping[int, str | None],
        switch: Switch,
        baseline: frozenset[str],
    ) -> None:
        in_force_ms = math.inf if switch.in_force_ms is None else switch.in_force_ms
        self.went_to = went_to
        self._switch = switch
        self._baseline = baseline
        sent = [(each, each.dispatched_ms) for each in records if each.dispatched_ms is not None]
        self.new = [each for each, at_ms in sent if at_ms >= in_force_ms]
        self.first_back_ms = min(
            (at_ms for each, at_ms in sent if at_ms >= switch.asked_ms and went_to[each.index] in baseline),
            default=None,
        )
        self.open_then = [
            each
            for each, at_ms in sent
            if self._is_at_candidate(each) and at_ms < in_force_ms and (each.ended_ms or math.inf) > in_force_ms
        ]
        self.ended = [each for each in self.open_then if each.reason in _ENDED]
        self._before = [each for each in records if each.planned_ms < switch.asked_ms]
        # What the way back ended says nothing of the candidate.
        self.old = [each for each in self._before if each not in self.ended]
        self.lost = [each for each in records if _is_lost(each) and each not in self.ended]

    def failures(self) -> Iterator[str]:
        """Why it did not hold, as far as the requests say."""
        if self._switch.in_force_ms is None:
            return
        if not any(self._is_at_candidate(each) for each in self._before):
            yield "no request went to the candidate before the switch: nothing was rehearsed"
        if self.first_back_ms is None:
            yield "no new request went to the baseline"
        if astray := sum(self._is_at_candidate(each) for each in self.new):
            yield f"{astray} new requests went to other engines than the baseline's after the switch"
        if unknown := sum(self.went_to[each.index] == UNKNOWN for each in self.new):
            yield f"the gateway does not remember where {unknown} new requests went: rehearse with less other traffic"
        if self.lost:
            reasons = Counter(f"{each.outcome}:{each.reason or 'no reason'}" for each in self.lost)
            yield f"{len(self.lost)} requests were lost: {', '.join(f'{n} {why}' for why, n in reasons.items())}"
        if self._switch.left:
            yield f"{self._switch.left} requests were left at the withdrawn engines after the deadline"

    def _is_at_candidate(self, record: RequestRecord) -> bool:
        return self.went_to[record.index] not in (None, UNKNOWN, *self._baseline)


def fired(records: Sequence[RequestRecord], abort: Abort) -> list[str]:
    """The thresholds that these requests pass, each with what was seen."""
    if not records:
        return []
    found = []
    for name, outcomes, at_most in (
        ("error_share_max", BROKEN, abort.error_share_max),
        ("refused_share_max", REFUSALS, abort.refused_share_max),
    ):
        seen = sum(each.outcome in outcomes for each in records) / len(records)
        if at_most is not None and seen > at_most:
            found.append(f"{name} {at_most:g}: {seen:.3g}")
    for class_name, at_most_ms in abort.ttft_p95_ms_max.items():
        # Whoever got no token waited for ever: a candidate that refuses is not fast.
        waits = sorted(
            math.inf if each.ttft_ms is None else each.ttft_ms for each in records if each.class_name == class_name
        )
        p95 = quantile(waits, 0.95)
        if p95 is not None and p95.value > at_most_ms:
            found.append(f"ttft_p95_ms_max.{class_name} {at_most_ms:g}: {p95.value:.0f}")
    return found


def _is_lost(record: RequestRecord) -> bool:
    """Neither answered nor turned away by admission: its caller got less than it was promised."""
    return record.outcome in BROKEN or (record.outcome is Outcome.REFUSED and record.reason in _NOT_SERVED)
