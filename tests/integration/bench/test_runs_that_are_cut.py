"""A run that is told to end, or whose target or engine does: records are kept, and nothing is compared from them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from pathlib import Path
from typing import Any

import bench_kit as kit
import pytest
from bench_stage import PATIENT, Model, Records, bench, contents, metrics, run_words, started

from bench.records.request import NOBODY_LISTENS


@pytest.mark.parametrize(
    ("by", "with_engine"),
    [(signal.SIGINT, False), (signal.SIGTERM, False), (signal.SIGTERM, True)],
)
async def test_a_run_that_is_told_to_end_keeps_its_records_and_is_invalid(
    folder: Path, tmp_path: Path, by: signal.Signals, with_engine: bool
) -> None:
    arrived = asyncio.Event()

    async def script(asked: Any, reply: Any) -> None:
        arrived.set()
        await reply.client_left()

    async with kit.scripted(script) as server:
        engine = {"engine_url": server.url} if with_engine else {}
        process = await started(*run_words(server.url, folder, tmp_path, request_rate=1, **engine), *PATIENT)
        await arrived.wait()
        process.send_signal(by)
        out, err = await process.communicate()
    assert process.returncode == 4, err
    assert b"interrupted before its end" in out
    records = Records(tmp_path)
    assert len(records.rows) == 20
    assert {row["outcome"] for row in records.rows} == {"unfinished", "unsent"}


@pytest.mark.parametrize("restarts", [False, True])
async def test_counters_of_the_engine_are_a_difference_or_unknown(folder: Path, tmp_path: Path, restarts: bool) -> None:
    model = Model(folder)

    async def script(asked: Any, reply: Any) -> None:
        await server.sampled.wait()
        server.pages["/metrics"] = metrics(started_at=2.0 if restarts else 1.0, prompt_tokens=500)
        await model(asked, reply)

    pages = {"/v1/models": b"{}", "/metrics": metrics(started_at=1.0), "/version": b'{"version": "0.32.0"}'}
    async with kit.scripted(script, pages=pages) as server:
        # No proxy of the environment is asked, by the load or by who reads the engine.
        environment = dict.fromkeys(("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"), "http://127.0.0.1:9")
        words = run_words(server.url, folder, tmp_path, engine_url=server.url)
        code, out, _ = await bench(*words, *PATIENT, **environment)
    records = Records(tmp_path)
    assert records.json("run")["engine_version"] == "0.32.0"
    assert records.json("run")["tolerances"]["engine_gap_s"] == 10.0
    delta = records.json("measurements")["engine"]["delta"]
    assert delta == {"prompt_tokens": "unknown" if restarts else 500.0}
    during = records.json("measurements")["engine"]["during"]
    lines = [json.loads(text) for text in (records.path / "engine.jsonl").read_text().splitlines()]
    assert during["samples"] == len([each for each in lines if "unreadable" not in each]) >= 1
    assert {"gpu_memory_bytes", "gpu_absent"} & set(lines[0]) and "at_ms" in lines[0]
    assert (code, "restarted during the run" in out) == ((4, True) if restarts else (0, False))


@pytest.mark.parametrize("who", ["target", "engine"])
async def test_a_run_whose_target_or_engine_goes_away_is_invalid(folder: Path, tmp_path: Path, who: str) -> None:
    model = Model(folder)
    fifth = asyncio.Event()
    answered = 0

    async def script(asked: Any, reply: Any) -> None:
        nonlocal answered
        answered += 1
        if answered == 5:
            fifth.set()
        await model(asked, reply)

    pages = {"/v1/models": b"{}", "/metrics": metrics(started_at=1.0)}
    async with contextlib.AsyncExitStack() as target, contextlib.AsyncExitStack() as engine:
        url = (await target.enter_async_context(kit.scripted(script))).url
        engine_url = (await engine.enter_async_context(kit.scripted(script, pages=pages))).url
        words = run_words(url, folder, tmp_path, request_rate=10, engine_url=engine_url)
        process = await started(*words, *PATIENT)
        await fifth.wait()
        await (target if who == "target" else engine).aclose()
        out, err = await process.communicate()
    assert process.returncode == 4, out + err
    records = Records(tmp_path)
    reasons = " ".join(records.json("verdict")["reasons"])
    assert ("the engine went away during the run" in reasons) == (who == "engine")
    came_after = any(row.get("reason") == NOBODY_LISTENS for row in records.rows)  # none, where all were sent before
    assert ("nobody listened at the target when" in reasons) == came_after
    assert not came_after or who == "target"
    assert (f"the target went away during the run: nothing answers at {url}" in reasons) == (who == "target")
    assert len(records.rows) == 20


async def test_a_saturation_that_is_told_to_end_keeps_what_was_sent(folder: Path, tmp_path: Path) -> None:
    second = asyncio.Event()
    model = Model(folder)

    async def script(asked: Any, reply: Any) -> None:
        if len(server.asked) == 1:
            await model(asked, reply)
        else:
            second.set()
            await reply.client_left()

    async with kit.scripted(script) as server:
        words = ["capacity", "--base-url", server.url, "--model", "tiny", "--tokenizer", str(folder)]
        words += ["--short-tokens", "40", "--long-tokens", "80", "--output-tokens", "4", "--num-prompts", "2"]
        process = await started(*words, "--concurrency", "1", "--result-dir", str(tmp_path))
        await second.wait()
        process.send_signal(signal.SIGTERM)
        _, err = await process.communicate()
    assert (process.returncode, b"interrupted" in err) == (1, True)
    (path,) = contents(tmp_path)
    rows = [json.loads(line) for line in (path / "requests.jsonl").read_text().splitlines()]
    assert [row["outcome"] for row in rows] == ["completed", "unfinished"]
