"""`gateway bench capacity`: so many requests in flight, and a rate where one was reached."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import bench_kit as kit
from bench_stage import Model, bench, contents


async def test_capacity_is_measured_with_so_many_requests_in_flight(folder: Path, tmp_path: Path) -> None:
    model = Model(folder)
    now, peak = 0, 0

    async def script(asked: Any, reply: Any) -> None:
        nonlocal now, peak
        now += 1
        peak = max(peak, now)
        await model(asked, reply)
        now -= 1

    async with kit.scripted(script) as server:
        words = ["capacity", "--base-url", server.url, "--model", "tiny", "--tokenizer", str(folder)]
        words += ["--short-tokens", "40", "--long-tokens", "80", "--output-tokens", "4", "--num-prompts", "2"]
        words += ["--concurrency", "3", "--warmup", "0.1", "--duration", "0.5", "--result-dir", str(tmp_path)]
        code, out, err = await bench(*words)
        salts = [asked.json["cache_salt"] for asked in server.asked]
    assert code == 0, err
    assert "closed loop, saturation, 3 in flight" in out
    assert peak <= 3
    assert len(set(salts)) == len(salts) > 3  # each of the two prompts was sent again
    (path,) = contents(tmp_path)
    said = json.loads((path / "capacity.json").read_text())["capacity"]
    assert said["requests_per_s"] > 0 and said["load"] == "closed loop, saturation"
    assert said["ends"] == {"completed": len(salts)}


async def test_capacity_of_a_port_where_nobody_speaks_http_is_not_begun(folder: Path, tmp_path: Path) -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        words = ["capacity", "--base-url", url, "--model", "tiny", "--tokenizer", str(folder), "--num-prompts", "1"]
        code, _, err = await bench(*words, "--short-tokens", "40", "--result-dir", str(tmp_path))
    assert (code, f"nothing answers at {url}" in err) == (1, True)
    assert contents(tmp_path) == []


async def test_capacity_of_a_target_that_only_refuses_is_a_failure(folder: Path, tmp_path: Path) -> None:
    async with kit.scripted(lambda _asked, reply: reply.whole(503)) as server:
        words = ["capacity", "--base-url", server.url, "--model", "tiny", "--tokenizer", str(folder)]
        words += ["--short-tokens", "40", "--long-tokens", "80", "--output-tokens", "4", "--num-prompts", "10"]
        words += ["--concurrency", "2", "--warmup", "0", "--duration", "0.2", "--result-dir", str(tmp_path)]
        code, out, _ = await bench(*words)
    assert code == 1
    assert "2 refused" in out
