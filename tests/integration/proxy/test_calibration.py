"""How an engine's step model begins, in the running gateway."""

from __future__ import annotations

import asyncio

import pytest
import yaml

from gateway.core.types import EngineLimits
from gateway.engines import calibration_file
from gateway.engines.watch import EngineWatch
from gateway.server import wiring
from gateway.server.calibrations import step_model_of
from gateway.server.clock import LoopClock
from gateway.server.connector import EngineConnections
from gateway.server.questions import Questions
from gateway.server.upstream import Upstream
from gateway.strict_yaml import ConfigError
from gateway.testing import answers
from gateway.testing.harness import running, settings_for
from gateway.testing.scripted_engine import ScriptedEngine

LIMITS = {"max_num_batched_tokens": 2048}
PROBED = {"calibration": "probe", "limits": LIMITS}


def is_probe(request):
    return b'"prompt"' in request.body


def engine_that(probe):
    """Answers callers at once, and probes as the script says."""
    whole = answers.completion()
    return ScriptedEngine(answers.by_request(lambda request: probe if is_probe(request) else whole))


def model_of(gateway):
    return gateway.gateway.rooms.gates["chat"].step_models()["a"]


async def test_an_engine_is_probed_with_the_gateways_key_and_no_request_is_counted(tmp_path, monkeypatch):
    monkeypatch.setenv("ENGINE_A_KEY", "upstream-secret")
    members = {**PROBED, "api_key_env": "ENGINE_A_KEY"}
    async with engine_that(answers.completion()) as engine, running(tmp_path, engine, engine=members) as gateway:
        await gateway.until(lambda: model_of(gateway).fitted)
        assert {tuple(request.header("authorization")) for request in engine.posts} == {("Bearer upstream-secret",)}
        assert await gateway.metric("gateway_offered_total") == 0
        assert await gateway.metric("gateway_requests_total") == 0
        assert await gateway.metric("gateway_running_requests") == 0


async def test_the_gateway_serves_while_it_probes_and_a_request_throws_the_probe_away(tmp_path):
    probing = answers.held(answers.completion(), asyncio.Event())
    async with engine_that(probing) as engine, running(tmp_path, engine, engine=PROBED) as gateway:
        await engine.until(lambda: any(map(is_probe, engine.requests)))
        assert (await gateway.ops("/readyz")).status == 200
        assert (await gateway.chat()).status == 200
        await engine.until(lambda: any(map(is_probe, engine.aborted)))
        assert not model_of(gateway).fitted


async def test_an_engine_that_refuses_probes_serves_all_the_same(tmp_path, logged):
    async with engine_that(answers.error(400)) as engine, running(tmp_path, engine, engine=PROBED) as gateway:
        await gateway.until(lambda: gateway.gateway._calibrations.probing["a"].is_done)
        assert (await gateway.chat()).status == 200
    assert logged().count("engine_not_calibrated") == 1


def a_file(folder, **changes):
    def estimate(value):
        return {"value": value, "low": value, "high": value}

    said = {
        "version": 1,
        "model": "tiny",
        "made_at": "2026-01-01T00:00:00Z",
        "max_num_batched_tokens": 2048,
        "base_s": estimate(0.004),
        "per_token_s": estimate(1 / 27_800),
        "per_token_context_s": estimate(54e-9),
        "request_s": estimate(0.0),
        "error": {"median": 0.02, "p95": 0.1},
        "requests": 40,
        **changes,
    }
    path = folder / "a.calibration.yaml"
    path.write_text(yaml.safe_dump(said))
    return {"calibration": path.name, "limits": LIMITS}


def test_a_file_that_tells_tokens_of_the_same_step_apart_predicts_prompts_of_one_step_and_of_several(tmp_path):
    def estimate(value):
        return {"value": value, "low": value, "high": value}

    a_file(tmp_path, per_sequence_s=estimate(0.001), per_token_chunk_s=estimate(100e-9))
    read = calibration_file.load(tmp_path / "a.calibration.yaml")
    seconds = {each.prompt_tokens: each.seconds for each in read.samples(EngineLimits(max_num_batched_tokens=2048))}
    tokens_s, chunk_s = 2048 / 27_800, 100e-9 * 2048**2 / 2
    assert seconds[2048] == pytest.approx(0.005 + tokens_s + chunk_s)
    longest = max(seconds)
    steps = longest // 2048
    assert steps > 1
    context_s = 54e-9 * 2048**2 * steps * (steps - 1) / 2
    assert seconds[longest] == pytest.approx(steps * (0.005 + tokens_s + chunk_s) + context_s)


async def test_a_calibration_file_is_in_force_from_the_start_and_nothing_is_probed(tmp_path):
    members = a_file(tmp_path)
    async with ScriptedEngine(answers.completion()) as engine, running(tmp_path, engine, engine=members) as gateway:
        model = model_of(gateway)
        assert model.fitted
        assert model.base_s == pytest.approx(0.004, rel=0.02)
        assert model.per_token_s == pytest.approx(1 / 27_800, rel=0.02)
        assert model.per_token_context_s == pytest.approx(54e-9, rel=0.02)
        assert engine.posts == []


async def test_a_calibration_file_with_a_fault_is_named_with_its_key(tmp_path):
    members = a_file(tmp_path, per_token_s={"value": 36.0, "low": 35.0, "high": 37.0})
    async with ScriptedEngine() as engine:
        with pytest.raises(ConfigError) as raised:
            async with running(tmp_path, engine, engine=members):
                pass
    assert str(raised.value).endswith("a.calibration.yaml: per_token_s.value: is above 1 s. Give seconds.")


async def model_now(folder, engine, members):
    """The model as a command gets it that starts no gateway."""
    settings = await asyncio.to_thread(settings_for, folder, engine, engine=members)
    clock = LoopClock()
    async with EngineConnections() as connections:
        questions = Questions(Upstream(connections, lambda _engine: None))
        (pool,) = wiring.pools(settings)
        watch = EngineWatch(pool.targets[0], questions, clock.now, lambda _watch: None)
        await watch.look()
        return await step_model_of(settings.engines[0], watch, clock.now)


async def test_a_command_can_have_the_model_without_a_gateway(tmp_path):
    async with ScriptedEngine(answers.completion()) as engine:
        assert (await model_now(tmp_path, engine, PROBED)).fitted
        asked = len(engine.posts)
        assert (await model_now(tmp_path, engine, a_file(tmp_path))).base_s == pytest.approx(0.004, rel=0.02)
        assert await model_now(tmp_path, engine, {"calibration": "off"}) is None
        assert len(engine.posts) == asked
    async with ScriptedEngine(answers.error(404)) as engine:
        assert await model_now(tmp_path, engine, PROBED) is None
