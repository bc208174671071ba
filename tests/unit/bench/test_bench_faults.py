"""Drills: each is well formed, and a run that went otherwise than expected does not pass."""

import asyncio
from collections.abc import Sequence

import pytest
from bench_kit import a_record, scripted

from bench.analysis.limits import parse_limits
from bench.cli import main
from bench.errors import TargetUnreachableError
from bench.faults import late_engine, stage
from bench.faults.drills import DRILLS, TTFT_LIMITS, Drill
from bench.faults.expectations import Counted, judged, served_again_s
from bench.records.request import Outcome, RequestRecord
from bench.report import drill_table
from bench.simulation.emulator import faults

LIMITS = parse_limits(TTFT_LIMITS, "limits")
RESTART = Drill(
    "restart", "", lambda: pytest.fail("not run"), may=("failed:*engine_broken", "refused:no_engine"),
    must=("completed", "failed:*"), served_again_s_max=10.0, in_time={"short": 0.5},
)  # fmt: skip
BROKEN = a_record(outcome=Outcome.FAILED, reason="in_band_engine_broken", ended_ms=1500.0, planned_ms=1000.0)
REFUSED = a_record(outcome=Outcome.REFUSED, reason="no_engine", first_token_ms=None, planned_ms=1600, ended_ms=1601.0)
SERVED = a_record(planned_ms=3000.0, dispatched_ms=3000.0, first_token_ms=4000.0, ended_ms=5000.0)
GOOD = [a_record(), a_record(), BROKEN, REFUSED, SERVED]


def failed(records: Sequence[RequestRecord], counted: Counted | None = None, late: str | None = None) -> list[str]:
    return [each.name for each in judged(RESTART, records, counted, LIMITS, late) if not each.passed]


@pytest.mark.parametrize("drill", DRILLS, ids=lambda drill: drill.name)
def test_every_drill_has_a_load_and_faults_that_the_emulator_knows(drill: Drill) -> None:
    trace = drill.trace()
    assert trace.arrivals and trace.span_s < 30
    assert set(drill.in_time) <= set(trace.class_names()) and set(drill.in_time) <= set(LIMITS)
    for text in drill.faults:
        after = faults.parse(text).after_requests
        assert after is None or after < len(trace.arrivals)


def test_a_drill_that_went_as_expected_passes() -> None:
    assert failed(GOOD, Counted(offered=5, ended=5, open=0)) == []
    assert served_again_s(GOOD) == 2.5


@pytest.mark.parametrize(
    ("records", "counted", "name"),
    [
        ([*GOOD, a_record(outcome=Outcome.UNFINISHED, ended_ms=None)], None, "every offered request ended"),
        (GOOD, Counted(offered=6, ended=5, open=1), "the gateway counted each once, and nothing is left open"),
        (GOOD, Counted(offered=5, ended=5, open=1), "the gateway counted each once, and nothing is left open"),
        (GOOD, Counted(offered=4, ended=4, open=0), "the gateway counted each once, and nothing is left open"),
        ([*GOOD, a_record(outcome=Outcome.FAILED, reason="cut")], None, "each ended as it may"),
        ([*GOOD, a_record(outcome=Outcome.EXPIRED, reason="wait_deadline")], None, "each ended as it may"),
        ([a_record(), REFUSED, SERVED], None, "what was to be seen was seen"),
        ([*GOOD, a_record(ended_ms=99_000.0)], None, "nobody hung"),
        ([a_record(), a_record(), BROKEN], None, "served again within 10 s"),
        ([*GOOD[:4], a_record(planned_ms=3000.0, first_token_ms=13_000.0)], None, "served again within 10 s"),
        ([BROKEN, REFUSED, a_record(planned_ms=1700.0, first_token_ms=4000.0)], None, "50% of short in time"),
    ],
)
def test_what_went_otherwise_is_named(records: list[RequestRecord], counted: Counted | None, name: str) -> None:
    assert name in failed(records, counted)


def metrics(offered: int, ended: int, *, running: int = 0) -> bytes:
    counts = {"gateway_offered_total": offered, "gateway_requests_total": ended, "gateway_running_requests": running}
    return "".join(f"{name} {count}\n" for name, count in counts.items()).encode()


async def test_of_a_live_gateway_only_what_came_during_the_drill_is_counted() -> None:
    async with scripted(lambda _asked, reply: reply.whole(200), pages={"/metrics": metrics(70, 70)}) as server:
        account = await asyncio.to_thread(stage.account, server.url)
        server.pages["/metrics"] = metrics(75, 74)
        assert await asyncio.to_thread(account) == Counted(offered=5, ended=4, open=0)
    with pytest.raises(TargetUnreachableError, match="ops port"):
        stage.account(server.url)
    assert stage.account(None)() is None


async def test_a_late_engine_is_none_before_the_first_request() -> None:
    pages = {"/metrics": metrics(0, 0)}
    async with scripted(lambda _asked, reply: reply.whole(200), pages=pages) as server, asyncio.TaskGroup() as group:
        waiting = group.create_task(asyncio.to_thread(late_engine.wait_for_the_first_request, server.url))
        for _ in range(2):
            await server.sampled.wait()
            server.sampled.clear()
            assert not waiting.done()
        pages["/metrics"] = metrics(1, 0)
        await waiting


def test_a_client_that_was_late_proves_nothing() -> None:
    assert failed(GOOD, late="client lag: a request was sent 900 ms late") == ["the client kept time"]


def test_the_table_says_what_failed_and_what_was_seen() -> None:
    checks = [each.to_json() for each in judged(RESTART, GOOD[:3], None, LIMITS, None)]
    drill = {"drill": "restart", "about": "x", "passed": False, "offered": 3, "completed": 2, "checks": checks}
    said = drill_table.describe([drill, {**drill, "drill": "other", "passed": True, "served_again_s": 2.5}])
    assert "FAILED: restart." in said and "never" in said and "2.5 s" in said
    assert "All 1 drills passed" in drill_table.describe([{**drill, "passed": True}])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["earthquake"], "no drill 'earthquake'"),
        (["engine-dies", "--base-url", "http://h:1"], "needs the embedded engine"),
        (["flood", "--base-url", "http://h:1"], "--model is missing"),
    ],
)
def test_what_cannot_be_drilled_is_said(capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert main(["faults", *words]) == 2
    assert said in capsys.readouterr().err


def test_drills_are_listed_and_a_live_gateway_is_offered_those_that_break_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["faults", "--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(DRILLS)
    assert main(["faults", "--list", "--base-url", "http://h:1"]) == 0
    assert capsys.readouterr().out.split("\n")[0].startswith("client-leaves")
