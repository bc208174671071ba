import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.__main__ import main
from gateway.cli.engine_check import EngineReport, ask_engines
from gateway.core.types import EngineLimits
from gateway.settings import load
from gateway.testing import answers
from gateway.testing.scripted_engine import ScriptedEngine

LIMITS = {"max_num_batched_tokens": 2048, "long_prefill_token_threshold": 640, "max_num_seqs": 128}


def written(folder: Path, url: str, *, pool: dict[str, Any] | None = None, **engine: Any) -> Path:
    config = {
        "auth": {"anonymous": {"service_class": "batch", "tenant": "anyone"}},
        "engines": [{"name": "a", "url": url, "pool": "chat", "scheduling": "priority", "limits": LIMITS, **engine}],
        "pools": {"chat": {"models": ["tiny"], **(pool or {})}},
    }
    file = folder / "gateway.yaml"
    file.write_text(yaml.safe_dump(config))
    return file


async def report_of(file: Path) -> EngineReport:
    (report,) = await asyncio.to_thread(ask_engines, load(file))
    return report


async def check(file: Path) -> int:
    return await asyncio.to_thread(main, ["check", "--config", str(file), "--engines"])


async def test_an_engine_that_answers_is_shown_with_its_version_and_kv_cache(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with ScriptedEngine() as engine:
        file = written(tmp_path, engine.url)
        assert replace(await report_of(file), step_model=None) == EngineReport(
            "a",
            "0.32.0",
            EngineLimits(2048, 640, 128, 65_536, prefix_caching=True),
            "effective, as stated",
            orders_by_priority=True,
            problems=(),
            context_tokens=12_288,
        )
        assert await check(file) == 0
    shown = capsys.readouterr()
    assert "engine asked  can serve  version" in shown.out
    assert shown.err == ""


async def test_an_engine_that_is_not_there_fails_the_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with ScriptedEngine() as engine:
        url = engine.url
    file = written(tmp_path, url)
    assert (await report_of(file)).priority is None
    assert await check(file) == 1
    shown = capsys.readouterr()
    assert shown.err == f"error: engine a: it does not answer at {url}.\n"
    assert "short-first" in shown.out


async def test_an_engine_that_refuses_the_key_is_a_fault_of_the_configuration(tmp_path: Path) -> None:
    async with ScriptedEngine() as engine:
        engine.gets["/v1/models"] = answers.json_answer({"error": "Unauthorized"}, status=401)
        report = await report_of(written(tmp_path, engine.url))
    assert report.problems == ("it refuses the gateway's key (401): check api_key_env",)


async def test_a_model_that_the_engine_lacks_is_named(tmp_path: Path) -> None:
    async with ScriptedEngine(model="other") as engine:
        report = await report_of(written(tmp_path, engine.url))
        assert report.problems == ("it serves none of its pool's models (tiny); it has other",)
        report = await report_of(written(tmp_path, engine.url, pool={"models": ["other", "tiny"]}))
        assert report.problems == ("it does not serve the model tiny of the pool chat; it has other",)


async def test_a_context_that_the_engine_lacks_is_named(tmp_path: Path) -> None:
    async with ScriptedEngine(max_model_len=4096) as engine:
        wide = await report_of(written(tmp_path, engine.url, pool={"max_model_len": 8192}))
        same = await report_of(written(tmp_path, engine.url, pool={"max_model_len": 4096}))
    assert wide.problems == ("its context for tiny is 4096 tokens, below max_model_len (8192)",)
    assert same.problems == ()


@pytest.mark.parametrize(
    ("scheduling", "running", "priority", "orders_by_priority"),
    [
        ("fcfs", 0, "not used, as stated", False),
        ("probe", 1, "not proved: the engine was not idle", None),
        ("probe", 0, "not proved, so not used", False),
    ],
)
async def test_what_priority_comes_to_is_said(
    tmp_path: Path, scheduling: str, running: int, priority: str, orders_by_priority: bool | None
) -> None:
    async with ScriptedEngine() as engine:
        engine.metrics["running"] = running
        report = await report_of(written(tmp_path, engine.url, scheduling=scheduling))
    assert (report.priority, report.orders_by_priority, report.problems) == (priority, orders_by_priority, ())


async def test_an_engine_that_tells_no_load_is_not_said_to_be_at_work(tmp_path: Path) -> None:
    async with ScriptedEngine() as engine:
        engine.gets["/metrics"] = answers.error(404)
        report = await report_of(written(tmp_path, engine.url, scheduling="probe"))
    assert report.priority == "not proved: its metrics do not say whether it is idle"


async def test_an_engine_whose_context_holds_no_proof_is_not_said_to_be_at_work(tmp_path: Path) -> None:
    async with ScriptedEngine(max_model_len=1024) as engine:
        report = await report_of(written(tmp_path, engine.url, scheduling="probe"))
    assert report.priority == "not proved: no round of the proof fits the model's context"


async def test_what_to_state_is_said_where_no_proof_fits_an_engine_without_limits(tmp_path: Path) -> None:
    async with ScriptedEngine() as engine:
        report = await report_of(written(tmp_path, engine.url, scheduling="probe", limits={}))
    assert report.priority is not None
    assert "state the engine's limits.max_num_batched_tokens and limits.max_num_seqs" in report.priority


async def test_a_tokenizer_that_cannot_count_is_a_configuration_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tokenizer").mkdir()
    file = written(tmp_path, "http://127.0.0.1:9", pool={"tokenizer": {"kind": "local", "path": "tokenizer"}})
    assert await asyncio.to_thread(main, ["check", "--config", str(file)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"error: {file}: pools.chat.tokenizer.path: {tmp_path / 'tokenizer'}")
    assert shown.err.count("\n") == 1
