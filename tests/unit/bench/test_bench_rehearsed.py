"""A rehearsed rollback held where every new request went back, open streams ended in time or in words, and none was lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import bench_kit as kit
import pytest

from bench.manifest.rehearsed import Rehearsed, Switch, fired, judged
from bench.manifest.schema import Abort
from bench.records.request import Outcome, RequestRecord

SWITCH = Switch(asked_ms=5000.0, in_force_ms=5100.0, drained_ms=6200.0, ended=1)
ABORT = Abort(error_share_max=0.05)


def request(index: int, at_ms: float, ended_ms: float | None, **changes: Any) -> RequestRecord:
    times = {"planned_ms": at_ms, "dispatched_ms": at_ms, "first_token_ms": at_ms + 100, "ended_ms": ended_ms}
    return kit.a_record(index=index, **times, **changes)


# At b, the candidate: one that ends before the switch, one that finishes after it, one that is ended at the deadline.
# At a, the baseline: one that waited in line while the switch came, and two that were sent after it.
BEFORE, FINISHED = request(0, 1000, 2000), request(1, 4000, 5900)
CUT = request(2, 4500, 6150, outcome=Outcome.FAILED, reason="in_band_draining")
BETWEEN, NEW, LATER = request(3, 5050, 5500), request(4, 5300, 6000), request(5, 7000, 8000)
ALL = [BEFORE, FINISHED, CUT, BETWEEN, NEW, LATER]
WENT_TO: Mapping[int, str | None] = {0: "b", 1: "b", 2: "b", 3: "a", 4: "a", 5: "a"}


def of(
    *others: RequestRecord,
    switch: Switch = SWITCH,
    went_to: Mapping[int, str | None] | None = None,
    without: Sequence[RequestRecord] = (),
) -> Rehearsed:
    records = [each for each in ALL if each not in without] + list(others)
    return judged(records, {**WENT_TO, **(went_to or {})}, switch, baseline=["a"], abort=ABORT)


def test_a_rollback_that_held_says_when_new_requests_went_back_and_what_became_of_the_open_streams() -> None:
    came_to = of()
    assert came_to.held, came_to.failures
    assert came_to.figures == {
        "offered": 6,
        "completed": 5,
        "refused_by_admission": 0,
        "lost": 0,
        "new_after_switch": {"a": 2},
        "streams": {
            "open_at_switch": 2,
            "finished": 1,
            "ended_at_deadline": 1,
            "ended_how": {"failed:in_band_draining": 1},
            "ended_by_the_gateway": 1,
        },
        "abort_would_have_fired": {"candidate": [], "baseline": []},
        "switch_ms": 100.0,
        "first_new_at_baseline_ms": 50.0,
        "drained_ms": 1200.0,
    }


def test_what_admission_turns_away_is_not_lost() -> None:
    full = kit.ended(Outcome.REFUSED, index=6, planned_ms=7000.0, dispatched_ms=7000.0, reason="queue_full")
    late = kit.ended(Outcome.EXPIRED, index=7, planned_ms=7000.0, dispatched_ms=7000.0, reason="wait_deadline")
    came_to = of(full, late, went_to={6: None, 7: None})
    assert came_to.held, came_to.failures
    assert (came_to.figures["refused_by_admission"], came_to.figures["new_after_switch"]) == (2, {"a": 2, "None": 2})


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (Outcome.UNFINISHED, None),
        (Outcome.UNSENT, None),
        (Outcome.TIMED_OUT, "engine_timeout"),
        (Outcome.FAILED, "connection_lost"),
        (Outcome.FAILED, "in_band_engine_broken"),
        (Outcome.REFUSED, "no_engine"),
        (Outcome.REFUSED, "draining"),
    ],
)
def test_no_rollback_holds_that_loses_a_request(outcome: Outcome, reason: str | None) -> None:
    for at_ms, engine in ((4000.0, None), (5300.0, None), (5300.0, "a")):
        lost = kit.ended(outcome, index=6, planned_ms=at_ms, dispatched_ms=at_ms, ended_ms=6000.0, reason=reason)
        came_to = of(lost, went_to={6: engine})
        assert came_to.failures == [f"1 requests were lost: 1 {outcome}:{reason or 'no reason'}"]
        assert came_to.figures["lost"] == 1


def test_a_stream_at_the_candidate_that_ended_without_the_gateways_words_is_lost() -> None:
    came_to = of(request(6, 4500, 5900, outcome=Outcome.FAILED, reason="connection_lost"), went_to={6: "b"})
    assert (came_to.held, came_to.figures["streams"]["ended_at_deadline"]) == (False, 1)


def test_streams_that_were_all_ended_at_the_deadline_were_at_the_candidate_all_the_same() -> None:
    came_to = of(without=[BEFORE, FINISHED])
    assert came_to.held, came_to.failures


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"went_to": {5: "b"}}, "1 new requests went to other engines"),
        ({"without": [BETWEEN, NEW, LATER]}, "no new request went to the baseline"),
        ({"without": [BEFORE, FINISHED, CUT]}, "no request went to the candidate before the switch"),
        ({"switch": replace(SWITCH, left=2)}, "2 requests were left"),
        ({"switch": replace(SWITCH, problems=["the gateway refuses"])}, "the gateway refuses"),
        ({"switch": Switch(5000.0, problems=["nothing answers"])}, "nothing answers"),
    ],
)
def test_a_rollback_that_did_not_do_all_of_it_did_not_hold(changes: dict[str, Any], why: str) -> None:
    assert [why in each for each in of(**changes).failures] == [True]


def test_requests_that_nobody_remembers_are_no_evidence() -> None:
    came_to = judged(ALL, {0: "b", 1: "b", 2: "b", 3: "a"}, SWITCH, baseline=["a"], abort=ABORT)
    assert came_to.failures == [
        "the gateway does not remember where 2 new requests went: rehearse with less other traffic"
    ]


def test_abort_thresholds_that_were_passed_are_named_with_what_was_seen() -> None:
    slow = [kit.a_record(index=i, first_token_ms=1000.0 + 100 * i) for i in range(1, 10)]
    limits = Abort(error_share_max=0.1, refused_share_max=0.1, ttft_p95_ms_max={"short": 800, "long": 1})
    assert fired([], limits) == []
    assert fired(slow, limits) == ["ttft_p95_ms_max.short 800: 900"]
    assert fired(slow[:8], limits) == []
    failed, refused = kit.ended(Outcome.FAILED), kit.ended(Outcome.REFUSED)
    assert fired([*slow[:3], failed, refused], limits) == [
        "error_share_max 0.1: 0.2",
        "refused_share_max 0.1: 0.2",
        "ttft_p95_ms_max.short 800: inf",
    ]


def test_what_the_way_back_ended_is_not_held_against_the_candidate() -> None:
    broken = request(6, 4500, 4900, outcome=Outcome.FAILED, reason="in_band_engine_broken")
    assert of().figures["abort_would_have_fired"]["candidate"] == []
    fired_then = of(broken, went_to={6: "b"}).figures["abort_would_have_fired"]["candidate"]
    assert fired_then == ["error_share_max 0.05: 0.333"]
