"""`gateway bench calibrate` as a user starts it, and the gateway that reads what it wrote."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

from gateway.core.types import EngineLimits
from gateway.engines import calibration_file

ROOT = Path(__file__).parents[2]
CARDS = {"data": [{"id": "tiny", "object": "model", "max_model_len": 300}]}


def _kit() -> Any:
    path = ROOT / "tests/unit/bench/kit.py"
    if "bench_kit" not in sys.modules:
        spec = importlib.util.spec_from_file_location("bench_kit", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["bench_kit"] = module
        spec.loader.exec_module(module)
    return sys.modules["bench_kit"]


kit = _kit()


class Engine:
    """Takes 0.1 ms a prompt token and 1 ms an output token; its metrics count what it computed."""

    def __init__(self, *, extra_tokens: int = 0, running: int = 0) -> None:
        self.computed = 0
        self.extra_tokens = extra_tokens
        self.running = running
        self.pages = {"/v1/models": json.dumps(CARDS).encode(), "/version": b'{"version": "0.32.0"}'}
        self.count()

    def count(self) -> None:
        lines = [
            "process_start_time_seconds 100",
            f'vllm:num_requests_running{{engine="0"}} {self.running}',
            'vllm:num_requests_waiting{engine="0"} 0',
            f'vllm:prompt_tokens_total{{engine="0"}} {self.computed}',
        ]
        self.pages["/metrics"] = ("\n".join(lines) + "\n").encode()

    async def __call__(self, asked: Any, reply: Any) -> None:
        prompt_tokens, output_tokens = len(asked.json["prompt"]), asked.json["max_tokens"]
        await asyncio.sleep(prompt_tokens / 10_000)
        await reply.begin()
        for number in range(output_tokens):
            await asyncio.sleep(0.001)
            finish = "length" if number == output_tokens - 1 else None
            await reply.event({"choices": [{"index": 0, "text": "a", "finish_reason": finish}]})
        self.computed += prompt_tokens + self.extra_tokens
        self.count()
        await reply.event(kit.usage_event(prompt_tokens, output_tokens))
        await reply.end()


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


async def calibrate(engine: Engine, out: Path, *words: str) -> tuple[int, str, str]:
    async with kit.scripted(engine, pages=engine.pages) as server:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench", "calibrate", "--engine-url", server.url, "--out", str(out)),
            *("--max-num-batched-tokens", "64", *words),
            cwd=ROOT,
            env=dict(os.environ),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out_text, err_text = await process.communicate()
    return process.returncode or 0, out_text.decode(), err_text.decode()


async def test_a_calibration_is_printed_and_its_file_is_one_that_the_gateway_reads(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    status, said, told = await calibrate(Engine(), file)
    assert (status, "prefill of 256" in said) == (0, True), told
    read = calibration_file.load(file)
    assert (read.model, read.engine_version, read.max_num_batched_tokens) == ("tiny", "0.32.0", 64)
    samples = read.samples(EngineLimits(max_num_batched_tokens=64))
    assert all(sample.seconds > 0 for sample in samples)
    assert names(tmp_path) == ["a.yaml"]


async def test_others_at_the_engine_make_it_invalid_and_nothing_is_written(tmp_path: Path) -> None:
    status, said, _ = await calibrate(Engine(extra_tokens=7), tmp_path / "a.yaml")
    assert status == 4
    assert "INVALID: the engine computed" in said
    assert names(tmp_path) == []


async def test_a_model_that_is_not_served_is_an_error_that_names_those_that_are(tmp_path: Path) -> None:
    status, _, told = await calibrate(Engine(), tmp_path / "a.yaml", "--model", "other")
    assert status == 2
    assert "--model: other is not served" in told and "it has tiny" in told


async def test_a_folder_that_is_not_there_is_told_before_anything_is_sent(tmp_path: Path) -> None:
    engine = Engine()
    status, _, told = await calibrate(engine, tmp_path / "none" / "a.yaml")
    assert (status, engine.computed) == (2, 0)
    assert "--out" in told


async def test_nobody_at_the_address_is_a_failure(tmp_path: Path) -> None:
    engine = Engine()
    engine.pages.pop("/v1/models")
    status, _, told = await calibrate(engine, tmp_path / "a.yaml")
    assert status == 1
    assert "http_404" in told
