"""The step model against the real engine: probed by the gateway, or written to a file by the bench."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import pytest

from gateway.core.steptime import StepModel
from gateway.engines.probe_prompts import ProbePrompts
from gateway.testing import raw_client
from gateway.testing.harness import running

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300, func_only=True)]

STEP_TOKENS = 2048
LIMITS = {"max_num_batched_tokens": STEP_TOKENS, "long_prefill_token_threshold": 640, "max_num_seqs": 128}
UNSEEN_TOKENS = (700, 3000, 6000)  # between the lengths that are probed
# The machine may be busy with other work at either of the two times, the rest of the suite first of all.
RATIO_MAX = 3.0
UNTIL_S_MAX = 120.0


@pytest.fixture(autouse=True)
def patient_clients(monkeypatch):
    monkeypatch.setattr(raw_client, "READ_S_MAX", UNTIL_S_MAX)
    monkeypatch.setattr("gateway.testing.harness.UNTIL_S_MAX", UNTIL_S_MAX)


def before(folder, engine, calibration):
    pools = {"chat": {"models": [engine.model], "tokenizer": {"kind": "estimate"}}}
    members = {"scheduling": "priority", "calibration": calibration, "limits": LIMITS}
    return running(folder, engine.base_url, engine=members, pools=pools)


def model_of(gateway) -> StepModel:
    return gateway.gateway.rooms.gates["chat"].step_models()["a"]


async def fastest_prefill_s(engine, tokens):
    prompts = ProbePrompts(engine.model, os.urandom(16))
    taken = []
    for _ in range(3):
        sent_at = time.perf_counter()
        answer = await raw_client.request(engine.port, "/v1/completions", prompts.of(tokens))
        assert answer.status == 200
        taken.append(time.perf_counter() - sent_at)
    return min(taken)


async def ratios(engine, model):
    """Predicted prefill by measured, for lengths that were not probed."""
    return {
        tokens: model.prefill_s(tokens, STEP_TOKENS) / await fastest_prefill_s(engine, tokens)
        for tokens in UNSEEN_TOKENS
    }


async def test_probes_make_a_model_that_predicts_prefills_of_other_lengths(engine, tmp_path):
    async with before(tmp_path, engine, "probe") as gateway:
        assert (await gateway.ops("/readyz")).status == 200
        probing = gateway.gateway._calibrations.probing["a"]
        await gateway.until(lambda: model_of(gateway).fitted and probing.is_done)
        assert await gateway.metric("gateway_offered_total") == 0
        found = await ratios(engine, model_of(gateway))
    assert all(1 / RATIO_MAX <= ratio <= RATIO_MAX for ratio in found.values()), (found, model_of(gateway))


async def test_a_file_of_the_bench_makes_a_model_that_predicts_prefills_too(engine, tmp_path):
    file = tmp_path / "a.yaml"
    bench = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench", "calibrate", "--engine-url", engine.base_url, "--duration", "20"),
        *("--max-num-batched-tokens", str(STEP_TOKENS), "--out", str(file)),
        cwd=Path(__file__).parents[2],
    )
    assert await bench.wait() == 0
    async with before(tmp_path, engine, str(file)) as gateway:
        assert model_of(gateway).fitted
        found = await ratios(engine, model_of(gateway))
    assert all(1 / RATIO_MAX <= ratio <= RATIO_MAX for ratio in found.values()), (found, model_of(gateway))
