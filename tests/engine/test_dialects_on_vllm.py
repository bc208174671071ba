"""The routes beside chat in front of the real engine: their answers pass, and their counts are the engine's own."""

from __future__ import annotations

import json

import pytest

from gateway.core.plan import AdmissionKind
from gateway.testing import raw_client
from gateway.testing.builders import a_class, a_plan, an_admission
from gateway.testing.harness import BATCH_KEY, running

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300, func_only=True)]

ADA = [{"role": "user", "content": "Who was Ada Lovelace?"}]
ASKED = [
    ("/v1/messages", {"messages": ADA, "system": "Be brief.", "max_tokens": 3}),
    ("/v1/responses", {"input": "Who was Ada Lovelace?", "instructions": "Be brief.", "max_output_tokens": 3}),
]
ENDS = {"/v1/messages": b"event: message_stop", "/v1/responses": b"event: response."}


@pytest.fixture(autouse=True)
def patient_clients(monkeypatch):
    """An engine on a busy CPU takes its time, and compiles a kernel at its first sampled token."""
    monkeypatch.setattr(raw_client, "READ_S_MAX", 120.0)


def before(folder, engine):
    classes = (a_class("interactive", wait_s_max=(60, 60)), a_class("batch", rank=1, weight=1, wait_s_max=(60, 60)))
    plan = a_plan(*classes, admission=an_admission(AdmissionKind.NONE))
    pools = {"chat": {"models": [engine.model], "tokenizer": {"kind": "local", "path": str(engine.tokenizer_path)}}}
    members = {"scheduling": "priority", "priority_carrier": "auto"}
    return running(folder, engine.base_url, plan=plan, engine=members, pools=pools)


@pytest.mark.parametrize(("path", "body"), ASKED)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_passes_and_our_count_is_its_usage(engine, tmp_path, path, body, stream):
    async with before(tmp_path, engine) as gateway:
        answer = await gateway.ask(path, {"model": engine.model, **body, "temperature": 0, "stream": stream})
        await gateway.until_metric("gateway_requests_total", 1, outcome="completed")
        assert await gateway.metric("gateway_token_count_error_ratio_count", sign="equal") == 1
        assert await gateway.metric("gateway_output_tokens_total") == 3
    assert answer.status == 200
    if stream:
        assert ENDS[path] in answer.body.rstrip().rpartition(b"\n\n")[2]


async def test_a_count_of_tokens_is_that_of_the_request_itself(engine, tmp_path):
    path, body = ASKED[0]
    async with before(tmp_path, engine) as gateway:
        counted = await gateway.ask(f"{path}/count_tokens", {"model": engine.model, **body})
        answer = await gateway.ask(path, {"model": engine.model, **body})
    assert counted.json()["input_tokens"] == answer.json()["usage"]["input_tokens"]


@pytest.mark.parametrize("stream", [False, True])
async def test_what_an_engine_does_not_keep_is_its_own_404(engine, tmp_path, stream):
    path, body = ASKED[1]
    async with before(tmp_path, engine) as gateway:
        answer = await gateway.ask(path, {"model": engine.model, **body, "stream": stream})
        first = answer.body.partition(b"\n\n")[0].partition(b"data: ")[2]
        made = json.loads(first)["response"]["id"] if stream else answer.json()["id"]
        own = await gateway.ask(f"{path}/{made}")
        others = await gateway.ask(f"{path}/{made}", key=BATCH_KEY)
    assert own.status == others.status == 404
    assert made in own.json()["error"]["message"]
    assert others.json()["error"]["code"] == "response_not_found"


async def test_tokens_and_text_are_each_others(engine, tmp_path):
    async with before(tmp_path, engine) as gateway:
        tokens = (
            await gateway.ask("/tokenize", {"model": engine.model, "prompt": "Ada", "add_special_tokens": False})
        ).json()
        text = (await gateway.ask("/detokenize", {"model": engine.model, "tokens": tokens["tokens"]})).json()
    assert text["prompt"] == "Ada"


async def test_a_route_that_the_model_lacks_is_the_engines_to_refuse(engine, tmp_path):
    async with before(tmp_path, engine) as gateway:
        answer = await gateway.ask("/v1/embeddings", {"model": engine.model, "input": "Ada"})
        direct = await raw_client.request(engine.port, "/v1/embeddings", {"model": engine.model, "input": "Ada"})
    assert (answer.status, json.loads(answer.body)) == (direct.status, json.loads(direct.body))
