"""What holds on every route that takes engine time, each in its own dialect."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.core.plan import KvBudget
from gateway.server import dispatch
from gateway.testing import answers, dialect_answers
from gateway.testing.builders import a_class, a_plan, an_admission
from gateway.testing.harness import MODEL, running
from gateway.testing.raw_client import BrokenAnswer
from gateway.testing.scripted_engine import ScriptedEngine, Wire

HELLO = [{"role": "user", "content": "Say hello."}]
LABELS = {"service_class": "interactive", "length_class": "short", "pool": "chat"}
PRIORITY = {"scheduling": "priority", "priority_carrier": "header"}


@dataclass(frozen=True)
class Spoken:
    """One route as its callers use it. limit: the member that states the output; events: a stream of two words."""

    path: str
    body: dict[str, Any]
    whole: dict[str, Any]
    limit: str | None
    events: list[bytes] = field(default_factory=list)
    error_event: bytes = b""
    output_tokens: int = 2

    def of(self, **members: Any) -> dict[str, Any]:
        return {"model": MODEL, **self.body, **members}


MESSAGES = Spoken(
    "/v1/messages",
    {"messages": HELLO, "max_tokens": 9},
    dialect_answers.a_message(),
    "max_tokens",
    dialect_answers.message_events("Hello", " world"),
    dialect_answers.named_event(dialect_answers.message_error("api_error")),
)
RESPONSES = Spoken(
    "/v1/responses",
    {"input": "Say hello.", "max_output_tokens": 9},
    dialect_answers.a_response(),
    "max_output_tokens",
    dialect_answers.response_events("Hello", " world"),
    dialect_answers.named_event({"type": "error", "code": "server_error", "message": "no"}),
)
EMBEDDINGS = Spoken("/v1/embeddings", {"input": "Hello."}, dialect_answers.embeddings(), None, output_tokens=0)
RERANK = Spoken(
    "/v1/rerank", {"query": "Who?", "documents": ["Ada"]}, dialect_answers.scores("results"), None, output_tokens=0
)
SCORE = Spoken(
    "/v1/score", {"text_1": "Who?", "text_2": ["Ada"]}, dialect_answers.scores("data"), None, output_tokens=0
)
SPOKEN = [MESSAGES, RESPONSES, EMBEDDINGS, RERANK, SCORE]
STREAMED = [spoken for spoken in SPOKEN if spoken.events]
LIMITED = [spoken for spoken in SPOKEN if spoken.limit]


def each(spoken):
    return pytest.mark.parametrize("spoken", spoken, ids=[one.path for one in spoken])


@each(STREAMED)
async def test_a_stream_passes_byte_for_byte_and_its_tokens_are_counted(tmp_path, spoken):
    async with ScriptedEngine(answers.stream_of(*spoken.events)) as engine, running(tmp_path, engine) as gateway:
        answer = await gateway.ask(spoken.path, spoken.of(stream=True))
        await gateway.until_metric("gateway_requests_total", 1, outcome="completed")
        assert await gateway.metric("gateway_prompt_tokens_total", **LABELS) == 5
        assert await gateway.metric("gateway_output_tokens_total", **LABELS) == 2
        assert await gateway.metric("gateway_offered_total") == 1
        assert await gateway.metric("gateway_http_requests_total", route=spoken.path, status="200") == 1
    assert (answer.status, answer.body) == (200, b"".join(spoken.events))
    assert engine.posts[0].path == spoken.path
    assert engine.posts[0].json() == spoken.of(stream=True)


@each(SPOKEN)
async def test_a_whole_answer_passes_byte_for_byte_and_its_tokens_are_counted(tmp_path, spoken):
    body = json.dumps(spoken.of(), indent=1).encode()
    async with ScriptedEngine(answers.json_answer(spoken.whole)) as engine, running(tmp_path, engine) as gateway:
        answer = await gateway.ask(spoken.path, body)
        await gateway.until_metric("gateway_requests_total", 1, outcome="completed")
        assert await gateway.metric("gateway_prompt_tokens_total", **LABELS) == 5
        assert await gateway.metric("gateway_output_tokens_total", **LABELS) == spoken.output_tokens
    assert (answer.status, answer.json()) == (200, spoken.whole)
    assert answer.header("x-gateway-length-class") == "short"
    assert engine.posts[0].body == body


@each(SPOKEN)
async def test_the_order_of_the_engine_is_the_gateways_alone(tmp_path, spoken):
    async with (
        ScriptedEngine(answers.json_answer(spoken.whole)) as engine,
        running(tmp_path, engine, engine=PRIORITY) as gateway,
    ):
        await gateway.ask(spoken.path, spoken.of(priority=-5, request_id="mine"), headers={"X-Vllm-Priority": "-9"})
    (post,) = engine.posts
    sent = post.json()
    told = [*map(int, post.header("x-vllm-priority")), *([sent.pop("priority")] if "priority" in sent else [])]
    assert len(told) == 1
    assert told[0] > 0
    assert sent == spoken.of()


@each(LIMITED)
async def test_an_output_over_the_classs_limit_is_refused(tmp_path, spoken):
    plan = a_plan(a_class("interactive", output_tokens_max=20), a_class("batch", rank=1, weight=1))
    async with ScriptedEngine() as engine, running(tmp_path, engine, plan=plan) as gateway:
        answer = await gateway.ask(spoken.path, spoken.of(**{spoken.limit: 21}))
        assert await gateway.metric("gateway_refusals_total", reason="bad_request") == 1
    assert answer.status == 400
    assert spoken.limit in answer.json()["error"]["message"]
    assert not engine.posts


@each(STREAMED)
async def test_a_stream_that_opens_with_an_error_has_the_errors_status(tmp_path, spoken):
    async with ScriptedEngine(answers.stream_of(spoken.error_event)) as engine, running(tmp_path, engine) as gateway:
        answer = await gateway.ask(spoken.path, spoken.of(stream=True))
        await gateway.until_metric("gateway_requests_total", 1, outcome="engine_error")
    assert answer.status == 502
    assert answer.body in spoken.error_event


@each(STREAMED)
async def test_a_stream_that_breaks_ends_with_one_error_event_of_its_dialect(tmp_path, spoken):
    begun = spoken.events[:4]
    async with (
        ScriptedEngine(answers.stream_of(*begun, then=Wire.reset)) as engine,
        running(tmp_path, engine) as gateway,
        gateway.client() as client,
    ):
        await client.post(spoken.path, spoken.of(stream=True))
        with pytest.raises(BrokenAnswer):
            await client.read_answer()
        await gateway.until_metric("gateway_requests_total", 1, outcome="engine_error")
    said = b"".join(client.chunks).removeprefix(b"".join(begun))
    name, _, data = said.partition(b"\n")
    assert name in (b"event: error", b"event: response.failed")
    assert said.endswith(b"\n\n")
    value = json.loads(data.removeprefix(b"data: "))
    assert value["type"] in ("error", "response.failed")
    if spoken is RESPONSES:
        assert (value["sequence_number"], value["response"]["id"]) == (len(begun), "resp_1")


@each(SPOKEN)
async def test_an_engine_without_room_is_asked_again(tmp_path, spoken, monkeypatch):
    monkeypatch.setattr(dispatch, "BUSY_PAUSE_S", 0.01)
    async with ScriptedEngine(answers.json_answer(spoken.whole)) as engine, running(tmp_path, engine) as gateway:
        engine.scripts.append(answers.busy())
        answer = await gateway.ask(spoken.path, spoken.of())
    assert (answer.status, len(engine.posts)) == (200, 2)


@each(SPOKEN)
async def test_an_engines_own_refusal_passes_as_it_is(tmp_path, spoken):
    async with ScriptedEngine(answers.error(422, "odd")) as engine, running(tmp_path, engine) as gateway:
        answer = await gateway.ask(spoken.path, spoken.of())
    assert (answer.status, answer.json()["error"]["message"]) == (422, "odd")


@each([EMBEDDINGS, RERANK, SCORE])
async def test_what_generates_nothing_reserves_no_output(tmp_path, spoken):
    release = asyncio.Event()
    script = answers.held(answers.json_answer(spoken.whole), release)
    kv = KvBudget(short_reserve_tokens=0, long_reserve_tokens=0)
    plan = a_plan(admission=an_admission(kv=kv))
    async with (
        ScriptedEngine(script) as engine,
        running(tmp_path, engine, plan=plan) as gateway,
        gateway.client() as client,
    ):
        await client.post(spoken.path, spoken.of())
        await gateway.until_metric("gateway_running_requests", 1)
        assert await gateway.metric("gateway_kv_reserved_tokens") == 16
        release.set()
        assert (await client.read_answer()).status == 200


async def test_each_prompt_of_a_list_is_a_sequence(tmp_path):
    async with ScriptedEngine(answers.json_answer(EMBEDDINGS.whole)) as engine, running(tmp_path, engine) as gateway:
        taken = await gateway.ask(EMBEDDINGS.path, EMBEDDINGS.of(input=["x"] * 16))
        refused = await gateway.ask(EMBEDDINGS.path, EMBEDDINGS.of(input=["x"] * 17))
        pairs = await gateway.ask(RERANK.path, RERANK.of(documents=["x"] * 17))
    assert taken.status == 200
    assert (refused.json()["error"]["code"], refused.json()["error"]["param"]) == ("too_many_sequences", "input")
    assert (pairs.json()["error"]["code"], pairs.json()["error"]["param"]) == ("too_many_sequences", "documents")
    message = refused.json()["error"]["message"]
    assert all(words in message for words in ("17", "at most 16", "request.sequences_max", "smaller batches"))
