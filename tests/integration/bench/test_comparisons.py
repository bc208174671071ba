"""`gateway bench compare` and `ladder`: the same for every arm, and on where it stopped."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import bench_kit as kit
import pytest
from bench_stage import PATIENT, SCENARIO, Folder, Model, bench, compared, contents, metrics, started


async def test_a_comparison_sends_every_arm_the_same_and_prints_the_table(folder: Path, tmp_path: Path) -> None:
    pages = {"/v1/models": b"{}", "/metrics": metrics(started_at=1.0)}
    async with kit.scripted(Model(folder), pages=pages) as first, kit.scripted(Model(folder)) as second:
        code, out, err = await compared(folder, tmp_path, first, second)
        asked = [[each.json["messages"] for each in server.asked] for server in (first, second)]
        assert all("authorization" in each.headers for each in first.asked)
        assert not any("authorization" in each.headers for each in second.asked)
    assert code == 0, out + err
    assert len(asked[0]) == 40
    assert sorted(map(str, asked[0])) == sorted(map(str, asked[1]))
    assert out.count("### load") == 2
    assert "p95 ÷ first" in out and "| second | short |" in out
    (path,) = contents(tmp_path / "runs")
    said = json.loads((path / "comparison.json").read_text())
    assert len(said["order"]) == 8
    assert {cell["run_id"] for cell in said["order"]} == {each.name for each in contents(path) if each.is_dir()}
    for load in said["loads"]:
        assert load["traces"] == ["seed 1", "seed 2"]
        for arm in load["arms"]:
            assert arm["classes"]["short"]["offered"] == 16
            assert arm["classes"]["long"]["offered"] == 4
    assert said["loads"][0]["arms"][0]["p95_ratio_to_first"]["short.ttft_ms"]["pooled"] == 1.0


async def test_an_invalid_cell_takes_its_trace_out_for_all_arms(folder: Path, tmp_path: Path) -> None:
    async def wrong(asked: Any, reply: Any) -> None:
        await reply.answer(7, ["a"] * 4)

    pages = {"/v1/models": b"{}", "/metrics": metrics(started_at=1.0)}
    async with kit.scripted(Model(folder), pages=pages) as first, kit.scripted(wrong) as second:
        code, out, err = await compared(folder, tmp_path, first, second)
    assert code == 4, err
    assert "Left out for all arms" in out and "| second |" not in out


async def test_a_target_that_goes_away_leaves_what_was_measured_before(folder: Path, tmp_path: Path) -> None:
    pages = {"/v1/models": b"{}", "/metrics": metrics(started_at=1.0)}
    async with kit.scripted(Model(folder)) as second:
        gone = kit.ScriptedServer(Model(folder), url=second.url)
    async with kit.scripted(Model(folder), pages=pages) as first:
        code, _, err = await compared(folder, tmp_path, first, gone)
    assert code == 1
    assert "second: nothing answers" in err
    (path,) = contents(tmp_path / "runs")
    assert (path / "comparison.json").exists()


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGINT])
async def test_a_comparison_that_was_stopped_goes_on_with_nothing_lost_or_doubled(
    folder: Path, tmp_path: Path, by: signal.Signals
) -> None:
    third = asyncio.Event()
    model = Model(folder)
    answered = 0

    async def script(asked: Any, reply: Any) -> None:
        nonlocal answered
        answered += 1
        if answered == 25 and not third.is_set():
            third.set()
            await reply.client_left()
        else:
            await model(asked, reply)

    pages = {"/v1/models": b"{}", "/metrics": metrics(started_at=1.0)}
    async with kit.scripted(script, pages=pages) as first, kit.scripted(script) as second:
        scenario = tmp_path / "scenario.yaml"
        scenario.write_text(SCENARIO.format(folder=folder, first=first.url, second=second.url))
        process = await started("compare", str(scenario), "--result-dir", str(tmp_path / "runs"))
        await third.wait()
        if by is signal.SIGKILL:
            code, _, said = await bench("compare", "--resume", str(Folder(tmp_path / "runs").path))
            assert (code, "another `gateway bench` adds to it" in said) == (2, True)
        process.send_signal(by)
        out, err = await process.communicate()
        stopped = Folder(tmp_path / "runs")
        if by is signal.SIGINT:
            assert process.returncode == 4, err
            assert [cell["verdict"] for cell in stopped.comparison["order"]] == ["VALID", "VALID", "INVALID"]
            assert b"interrupted before its end" in out + err
        before = stopped.runs()
        code, out_after, err_after = await bench("compare", "--resume", str(stopped.path))
    assert code == 0, out_after + err_after
    order = stopped.comparison["order"]
    assert len(order) == len({cell["cell_id"] for cell in order}) == 8
    kept = {cell["run_id"]: cell["cell_id"] for cell in order}
    whole_before = dict(list(before.items())[:2])
    assert len(before) == (2 if by is signal.SIGKILL else 3) and whole_before.items() <= kept.items()
    assert all(len((stopped.path / name / "requests.jsonl").read_text().splitlines()) == 10 for name in kept)
    assert stopped.runs().items() - before.items() == kept.items() - whole_before.items()
    assert sum(each.name.endswith(".cut") for each in contents(stopped.path)) == (1 if by is signal.SIGKILL else 0)


async def test_a_ladder_stops_where_the_target_fails_and_marks_the_knee(folder: Path, tmp_path: Path) -> None:
    model = Model(folder)
    seen = 0

    async def script(asked: Any, reply: Any) -> None:
        nonlocal seen
        seen += 1
        if seen > 20:
            await reply.whole(429, b"{}", {"x-gateway-reason": "queue_full"})
        else:
            await model(asked, reply)

    async with kit.scripted(script) as server:
        words = ["ladder", "--base-url", server.url, "--model", "tiny", "--tokenizer", str(folder)]
        words += ["--rates", "160", "40", "20", "80", "320", "--num-prompts", "10", "--short-tokens", "40"]
        words += ["--long-tokens", "80", "--output-tokens", "4", "--refine", "1", "--goodput", "short:ttft:60000"]
        code, out, err = await bench(*words, "--result-dir", str(tmp_path), *PATIENT)
    assert code == 4, out + err  # nothing completed at the rates that fail
    said = Folder(tmp_path).comparison
    assert [cell["rate_per_s"] for cell in said["order"]] == [20, 40, 80, 160]
    assert said["knee_per_s"] == 40
    assert "40 ← knee" in out and "INVALID" in out
