"""Several engines behind one target: read all, added where all say it, and a run is void where one was not there."""

import asyncio
from typing import Any

import pytest
from bench_kit import scripted
from pydantic import ValidationError

from bench.engine import around, sampling
from bench.engine.around import Around
from bench.engine.gpu import NoGpu
from bench.engine.metrics import Reading, Unreadable
from bench.load.target import metrics_urls
from bench.local_gateway import KEYS_FILE, chunk_tokens_max, engine_said
from bench.scenario import Arm

GONE = Unreadable("no_connection")


def read(preemptions: float = 0.0, *, running: float = 0.0, kv: float = 0.1, started: float = 1.0) -> Reading:
    gauges = {"running": running, "waiting": 0.0, "kv_usage_max": kv}
    return Reading(gauges, {"preemptions": preemptions}, started, {"block_size": "16"})


def line(at_ms: float, **engines: dict[str, Any]) -> dict[str, Any]:
    return {"at_ms": at_ms, "engines": engines}


def test_an_engine_that_is_named_twice_is_one() -> None:
    urls = ["http://h:8000", "http://h:8000/metrics", "http://h:8001/v1", "https://h/pool/a"]
    assert metrics_urls(urls, "--engine-url") == {
        "h:8000": "http://h:8000/metrics",
        "h:8001": "http://h:8001/metrics",
        "h/pool/a": "https://h/pool/a/metrics",
    }
    assert metrics_urls("http://h:8000", "") == {"h:8000": "http://h:8000/metrics"}
    assert metrics_urls(None, "") == {}


def test_readings_and_differences_are_added_and_each_engine_stands_beside_them() -> None:
    engines = {"a": Around(read(1.0, kv=0.2), read(4.0)), "b": Around(read(10.0, running=2.0, kv=0.7), read(11.0))}
    lines = [line(0, a={"running": 1.0, "started_at": 1.0}, b={"running": 5.0, "started_at": 1.0})]
    said = around.to_json(engines, [{**lines[0], "running": 6.0}], 500)["engine"]
    assert said["before"] == {"running": 2.0, "waiting": 0.0, "kv_usage_max": 0.7, "preemptions": 11.0}
    assert (said["delta"], said["during"]["running_max"]) == ({"preemptions": 4.0}, 6.0)
    assert said["engines"]["b"]["delta"] == {"preemptions": 1.0}
    assert said["engines"]["b"]["during"]["running_max"] == 5.0
    assert around.faults(engines, lines, 500) == []


def test_one_engine_alone_is_said_as_it_always_was() -> None:
    said = around.to_json({"a": Around(read(1.0), read(4.0))}, [], 0)["engine"]
    assert set(said) == {"before", "after", "delta"}
    assert around.to_json({}, [], 0) == around.to_json({"a": Around()}, [], 0) == {}


def test_what_one_engine_does_not_say_no_sum_has() -> None:
    said = around.to_json({"a": Around(read(), read(3.0)), "b": Around(read(), Unreadable("http_404"))}, [], 0)[
        "engine"
    ]
    assert said["after"] == {"unreadable": "b: http_404"}
    assert said["delta"] == {}
    assert said["engines"]["a"]["delta"] == {"preemptions": 3.0}
    restarted = around.to_json({"a": Around(read(), read(3.0)), "b": Around(read(), read(started=2.0))}, [], 0)
    assert restarted["engine"]["delta"] == {"preemptions": "unknown"}


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (Around(read(), GONE), "the engine b went away during the run"),
        (Around(GONE, read()), "the engine b was not there yet at the start of the run"),
        (Around(read(), read(started=2.0)), "the engine b restarted during the run"),
        (Around(read(), Unreadable("timeout")), None),
        (Around(GONE, GONE), None),
    ],
)
def test_a_run_is_of_engines_that_were_there_from_its_beginning_to_its_end(other: Around, said: str | None) -> None:
    reasons = around.faults({"a": Around(read(), read()), "b": other}, [], 0)
    assert [reason.partition(":")[0] for reason in reasons] == ([] if said is None else [said])
    alone = around.faults({"b": other}, [], 0)
    assert [reason.replace(" b ", " ") for reason in reasons] == alone


def test_a_restart_of_one_engine_between_two_readings_is_seen() -> None:
    same, other = {"started_at": 1.0}, {"started_at": 9.0}
    engines = {"a": Around(read(), read()), "b": Around(read(), read())}
    lines = [line(0, a=same, b=same), line(1, a=same, b=other), line(2, a=same, b=same)]
    assert around.faults(engines, lines, 2) == ["the engine b restarted during the run"]


def test_a_run_whose_engine_was_not_read_for_longer_than_is_tolerated_is_void() -> None:
    engines, there = {"a": Around(read(), read())}, {"running": 1.0}
    lines = [{"at_ms": 0, **there}, {"at_ms": 5000, "unreadable": "timeout"}, {"at_ms": 10_000, **there}]
    assert around.faults(engines, lines, 20_000) == around.notes(engines) == []
    [reason] = around.faults(engines, lines, 20_001)
    assert reason == "engine metrics during the run: 10 s without a reading (10 are tolerated)"


def test_versions_and_arguments_of_all_are_kept() -> None:
    other = Reading({}, {}, None, {"block_size": "32"})
    alike = {"a": Around(read(), version="0.32.0"), "b": Around(read(), version="0.32.0")}
    mixed = {"a": Around(read(), version="0.32.0"), "b": Around(other, version="0.31.0")}
    assert (around.version(alike), around.effective_args(alike)) == ("0.32.0", {"block_size": "16"})
    assert around.version(mixed) == "0.31.0, 0.32.0"
    assert around.effective_args(mixed) == {"a": {"block_size": "16"}, "b": {"block_size": "32"}}
    assert (around.version({}), around.effective_args({"a": Around(GONE)})) == (None, {})


def test_a_model_revision_is_that_of_all_engines_or_none() -> None:
    one = Around(model_revision="a" * 40)
    assert around.model_revision({"a": one, "b": one}) == "a" * 40
    assert around.model_revision({"a": one, "b": Around()}) is around.model_revision({}) is None


async def test_a_sample_reads_all_engines() -> None:
    def page(running: int) -> bytes:
        return f"vllm:num_requests_running {running}\nprocess_start_time_seconds 5\n".encode()

    pages = {"/a/metrics": page(2), "/b/metrics": page(3)}
    async with scripted(lambda _asked, reply: reply.whole(200), pages=pages) as server:
        urls = {"a": f"{server.url}/a/metrics", "b": f"{server.url}/b/metrics", "c": f"{server.url}/c/metrics"}
        both = await asyncio.to_thread(sampling.sample, {name: urls[name] for name in "ab"}, NoGpu("none"))
        all_three = await asyncio.to_thread(sampling.sample, urls, NoGpu("none"))
    assert both["running"] == 5.0 and "started_at" not in both
    assert both["engines"]["b"] == {"running": 3.0, "started_at": 5.0}
    assert all_three["unreadable"] == "c: http_404" and "running" not in all_three
    assert all_three["engines"]["a"]["running"] == 2.0


def test_how_engines_were_started_is_said_of_all() -> None:
    first = {"scheduling": "fcfs", "limits": {"max_num_batched_tokens": 2048}}
    second = {"scheduling": "fcfs", "limits": {"max_num_batched_tokens": 8192}}
    assert engine_said({"engines": [first]}) == "engine: scheduling fcfs, max_num_batched_tokens 2048"
    assert engine_said({"engines": [first, first]}) == "2 engines: scheduling fcfs, max_num_batched_tokens 2048"
    assert engine_said({"engines": [first, second]}).endswith("2048; scheduling fcfs, max_num_batched_tokens 8192")
    assert chunk_tokens_max({"engines": [first, first]}) == 2048
    assert chunk_tokens_max({"engines": [first, second]}) is None


def test_no_arm_is_called_as_the_file_of_the_callers_keys_is():
    """Each arm's gateway has its configuration beside that, under the arm's own name."""
    with pytest.raises(ValidationError, match="name"):
        Arm(name=KEYS_FILE.removesuffix(".yaml"))
