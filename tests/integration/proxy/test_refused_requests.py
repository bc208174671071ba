"""What the gateway itself answers, over HTTP: status, envelope, headers, and nothing of it reaches an engine."""

from __future__ import annotations

import asyncio
import json

import pytest

from gateway.core.plan import AdmissionKind, OrderKind, SlotBudget, TenantBounds
from gateway.testing import answers
from gateway.testing.builders import a_class, a_plan, an_admission
from gateway.testing.harness import INTERACTIVE_KEY, MODEL, a_chat, running
from gateway.testing.scripted_engine import ScriptedEngine

CHAT = "/v1/chat/completions"
DETAILS = {"reason", "service_class", "length_class", "limit", "observed", "waited_s", "retry_after_s"}


def one_at_a_time(**of_class):
    return a_plan(
        a_class("interactive", **of_class),
        a_class("batch", rank=1, weight=1),
        admission=an_admission(AdmissionKind.SLOTS, slots=SlotBudget(1)),
        order=OrderKind.ARRIVAL,
    )


def check(answer, status, reason, code, *, retry=False):
    """The whole shape of a refusal on an OpenAI route."""
    error = answer.json()["error"]
    assert (answer.status, answer.header("x-gateway-reason"), error["code"]) == (status, reason, code)
    assert error["details"].keys() - {"resource"} == DETAILS
    assert error["details"]["reason"] == reason
    assert answer.header("content-type") == "application/json"
    assert answer.header("x-should-retry") == ("true" if retry else "false")
    assert (answer.header("retry-after") is not None) is retry
    assert answer.header("x-request-id").startswith("req-")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("members", "refusal"),
    [
        ({"model": "nope"}, (404, "unknown_model", "model_not_found")),
        ({"messages": "no list"}, (400, "bad_request", "invalid_type")),
        ({"max_tokens": 5000}, (400, "bad_request", "output_tokens_too_large")),
        ({"max_tokens": 20000}, (400, "context_length", "context_length_exceeded")),
        ({"n": 17}, (400, "bad_request", "too_many_sequences")),
        ({"kv_transfer_params": {}}, (400, "bad_request", "unsupported_parameter")),
    ],
)
async def test_a_request_that_cannot_be_served_is_refused_alike_with_and_without_stream(
    tmp_path, members, refusal, stream
):
    status, reason, code = refusal
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        answer = await gateway.chat(stream=stream, **members)
        assert await gateway.metric("gateway_refusals_total", reason=reason) == 1
        assert await gateway.metric("gateway_requests_total", outcome="refused") == 1
    check(answer, status, reason, code)
    assert not engine.posts


@pytest.mark.parametrize(
    ("members", "length"),
    [
        ({"model": "nope"}, None),
        ({"messages": "no list"}, None),
        ({"n": 17}, None),
        ({"max_tokens": 5000}, "short"),
        ({"max_tokens": 20000}, "short"),
        ({"max_tokens": 20000, "messages": [{"role": "user", "content": "long " * 1000}]}, "long"),
    ],
)
async def test_a_refusal_names_the_callers_class_and_once_counted_the_prompts_length(tmp_path, members, length):
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        answer = await gateway.chat(**members)
        labels = {"service_class": "interactive", "length_class": length or "none"}
        assert await gateway.metric("gateway_refusals_total", **labels) == 1
    details = answer.json()["error"]["details"]
    assert (details["service_class"], details["length_class"]) == ("interactive", length)
    assert answer.header("x-gateway-service-class") == "interactive"
    assert answer.header("x-gateway-length-class") == length


async def test_a_refusal_outside_the_generation_routes_names_the_callers_class_too(tmp_path):
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        answer = await gateway.ask("/v1/models/nope")
    check(answer, 404, "unknown_model", "model_not_found")
    assert answer.header("x-gateway-service-class") == "interactive"


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/models", "/v1/models/tiny"])
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer gw-wrong"},
        {"Authorization": "Basic dXNlcjpwYXNz"},
        {"Authorization": f"Bearer {INTERACTIVE_KEY}", "x-api-key": "gw-another"},
        {"x-api-key": ""},
    ],
)
async def test_no_or_an_unknown_credential_is_401_on_every_route(tmp_path, path, headers):
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        value = None if "models" in path else a_chat()
        answer = await gateway.ask(path, value, key=None, headers=headers)
    check(answer, 401, "unauthenticated", "invalid_api_key")
    assert answer.header("x-gateway-service-class") is None
    assert not engine.posts


@pytest.mark.parametrize("headers", [{"x-api-key": INTERACTIVE_KEY}, {"authorization": f"bEaReR {INTERACTIVE_KEY}"}])
async def test_a_key_is_taken_from_either_header(tmp_path, headers):
    async with ScriptedEngine(answers.completion()) as engine, running(tmp_path, engine) as gateway:
        answer = await gateway.ask(CHAT, a_chat(), key=None, headers=headers)
    assert answer.status == 200


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/chat/completions/", "/metrics", "/invocations", "/v1/%63ompletions"])
async def test_what_is_not_on_the_list_does_not_exist(tmp_path, path):
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        check(await gateway.ask(path, a_chat()), 404, "unknown_route", "unknown_url")
        assert await gateway.metric("gateway_http_requests_total", route="other", status="404") == 1
        assert await gateway.metric("gateway_offered_total") == 0
    assert not engine.posts


async def test_a_wrong_method_is_told_the_right_one(tmp_path):
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        answer = await gateway.ask(CHAT)
    check(answer, 405, "unknown_route", "method_not_allowed")
    assert answer.header("allow") == "POST"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"model": "tiny", "model": "other"}',
        b"\xef\xbb\xbf{}",
        b'{"a": NaN}',
        b'"\xff"',
        b"[" * 3000,
    ],
)
async def test_a_body_that_is_not_plain_json_is_400_and_the_connection_lives_on(tmp_path, body):
    async with (
        ScriptedEngine(answers.completion()) as engine,
        running(tmp_path, engine) as gateway,
        gateway.client() as client,
    ):
        await client.post(CHAT, body)
        answer = await client.read_answer()
        assert (answer.status, answer.header("x-gateway-reason")) == (400, "bad_request")
        await client.post(CHAT, a_chat())
        assert (await client.read_answer()).status == 200


async def test_a_large_body_is_refused_by_its_stated_length_before_anything_is_read(tmp_path):
    async with (
        ScriptedEngine() as engine,
        running(tmp_path, engine, limits={"body_bytes_max": 1000}) as gateway,
        gateway.client(key=None) as client,
    ):
        await client.send(client.head("POST", CHAT, {"Content-Length": "1001", "Expect": "100-continue"}))
        answer = await client.read_answer()
        assert await client.read_end() == b""
    check(answer, 413, "body_too_large", "request_too_large")
    assert answer.header("connection") == "close"


async def test_a_chunked_body_is_refused_where_it_grows_too_large(tmp_path):
    async with (
        ScriptedEngine() as engine,
        running(tmp_path, engine, limits={"body_bytes_max": 1000}) as gateway,
        gateway.client() as client,
    ):
        await client.send(client.head("POST", CHAT, {"Transfer-Encoding": "chunked"}))
        await client.send(answers.chunk(b" " * 600))
        await client.send(answers.chunk(b" " * 600))
        answer = await client.read_answer()
    check(answer, 413, "body_too_large", "request_too_large")


async def test_a_body_is_called_for_only_after_the_key_was_accepted(tmp_path):
    body = json.dumps(a_chat()).encode()
    async with ScriptedEngine(answers.completion()) as engine, running(tmp_path, engine) as gateway:
        expect = {"Content-Length": str(len(body)), "Expect": "100-continue"}
        async with gateway.client(key=None) as stranger:
            await stranger.send(stranger.head("POST", CHAT, expect))
            check(await stranger.read_answer(), 401, "unauthenticated", "invalid_api_key")
        async with gateway.client() as client:
            await client.send(client.head("POST", CHAT, expect))
            assert (await client.read_head()).status == 100
            await client.send(body)
            assert (await client.read_answer()).status == 200
    assert engine.posts[0].header("expect") == []


async def test_a_body_that_stops_coming_is_400_and_the_connection_is_closed(tmp_path):
    async with (
        ScriptedEngine() as engine,
        running(tmp_path, engine, limits={"body_read_s": 0.05}) as gateway,
        gateway.client() as client,
    ):
        await client.send(client.head("POST", CHAT, {"Content-Length": "100"}) + b'{"model"')
        answer = await client.read_answer()
        assert await client.read_end() == b""
        assert await gateway.metric("gateway_receiving_requests") == 0
    check(answer, 400, "bad_request", "body_timeout")


async def test_an_encoded_body_is_415(tmp_path):
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        answer = await gateway.ask(CHAT, b"\x1f\x8b", headers={"Content-Encoding": "br"})
    check(answer, 415, "bad_request", "unsupported_content_encoding")


@pytest.mark.parametrize(
    "content_type",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/jsonp", "json"],
)
async def test_a_body_that_says_it_is_no_json_is_415_before_it_is_called_for(tmp_path, content_type):
    headers = {"Content-Type": content_type, "Content-Length": "9000", "Expect": "100-continue"}
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        for path in (CHAT, "/v1/completions", "/v1/messages", "/v1/embeddings", "/tokenize"):
            async with gateway.client() as client:
                await client.send(client.head("POST", path, headers))
                answer = await client.read_head()
            assert (answer.status, answer.header("x-gateway-reason")) == (415, "bad_request")
    assert not engine.posts


@pytest.mark.parametrize(
    "lines",
    [
        b"",
        b"Content-Type:\r\n",
        b"Content-Type: application/json; charset=utf-8\r\n",
        b"Content-Type: Application/JSON ;charset=UTF-16\r\n",
        b"Connection: content-type\r\nContent-Type: application/json\r\n",
    ],
)
async def test_json_goes_on_as_what_it_is_however_its_caller_calls_it(tmp_path, lines):
    body = json.dumps(a_chat()).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: h\r\nx-api-key: {INTERACTIVE_KEY}\r\nContent-Length: {len(body)}\r\n"
    async with (
        ScriptedEngine(answers.completion()) as engine,
        running(tmp_path, engine) as gateway,
        gateway.client() as client,
    ):
        await client.send(head.encode() + lines + b"\r\n" + body)
        assert (await client.read_answer()).status == 200
    assert engine.posts[0].header("content-type") == ["application/json"]


async def test_headers_over_the_bound_are_refused(tmp_path):
    headers = {f"x-{index}": "v" * 1000 for index in range(3)}
    async with (
        ScriptedEngine() as engine,
        running(tmp_path, engine, limits={"header_bytes_max": 2048}) as gateway,
    ):
        answer = await gateway.ask(CHAT, a_chat(), headers=headers)
    check(answer, 431, "bad_request", "headers_too_large")


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"nonsense\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: a\r\nBad Header Secret: x\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\nx",
        b"GET /v1/models HTTP/1.1\r\nHost: a\r\nx-secret: " + b"s" * 100_000 + b"\r\n\r\n",
    ],
)
async def test_what_is_not_http_is_told_so_in_json_and_nothing_is_echoed(tmp_path, request_bytes):
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway, gateway.client() as client:
        await client.send(request_bytes)
        answer = await client.read_answer()
        assert await gateway.metric("gateway_http_requests_total", route="other", status="400") == 1
    check(answer, 400, "bad_request", "malformed_http")
    assert b"ecret" not in answer.body
    assert answer.header("connection") == "close"


async def test_a_full_queue_is_429_at_once(tmp_path):
    plan = one_at_a_time(requests_max=1)
    release = asyncio.Event()
    async with (
        ScriptedEngine(answers.held(answers.completion(), release)) as engine,
        running(tmp_path, engine, plan=plan) as gateway,
        asyncio.TaskGroup() as group,
    ):
        first = group.create_task(gateway.chat())
        await engine.until(lambda: len(engine.posts) == 1)
        second = group.create_task(gateway.chat())
        await gateway.until_metric("gateway_queue_requests", 1)
        answer = await gateway.chat()
        check(answer, 429, "queue_full", "slow_down", retry=True)
        assert answer.json()["error"]["details"]["resource"] == "requests"
        assert answer.json()["error"]["details"]["limit"] == 1
        release.set()
        assert [(await task).status for task in (first, second)] == [200, 200]


async def test_a_tenants_own_full_queue_is_429(tmp_path):
    plan = one_at_a_time(tenant=TenantBounds(queued_requests_max=0))
    release = asyncio.Event()
    async with (
        ScriptedEngine(answers.held(answers.completion(), release)) as engine,
        running(tmp_path, engine, plan=plan) as gateway,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(gateway.chat())
        await engine.until(lambda: len(engine.posts) == 1)
        check(await gateway.chat(), 429, "tenant_queue_full", "slow_down", retry=True)
        release.set()


@pytest.mark.parametrize(
    ("wait_s_max", "headers", "limit"),
    [
        ((0.05, 0.05), {}, 0.05),
        ((30, 30), {"x-gateway-wait-ms": "50"}, 0.05),
        ((0.05, 1), {"x-gateway-wait-ms": "9000"}, 0.05),
    ],
)
async def test_a_wait_ends_at_the_classs_deadline_or_sooner_where_the_caller_says_so(
    tmp_path, wait_s_max, headers, limit
):
    plan = one_at_a_time(wait_s_max=wait_s_max)
    release = asyncio.Event()
    async with (
        ScriptedEngine(answers.held(answers.completion(), release)) as engine,
        running(tmp_path, engine, plan=plan) as gateway,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(gateway.chat())
        await engine.until(lambda: len(engine.posts) == 1)
        answer = await gateway.chat(headers=headers)
        check(answer, 429, "wait_deadline", "slow_down", retry=True)
        details = answer.json()["error"]["details"]
        assert details["limit"] == limit
        assert details["waited_s"] >= limit
        assert await gateway.metric("gateway_requests_total", outcome="expired") == 1
        release.set()
    assert len(engine.posts) == 1


@pytest.mark.parametrize("value", ["soon", "-1", "1.5", "", "99999999999"])
async def test_a_wait_wish_that_is_no_number_is_400(tmp_path, value):
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        check(await gateway.chat(headers={"x-gateway-wait-ms": value}), 400, "bad_request", "invalid_header")


async def test_without_an_engine_every_request_is_503_and_readiness_says_so(tmp_path):
    engine = ScriptedEngine()
    await engine.listen()
    await engine.refuse_connections()
    async with running(tmp_path, engine, ready=False) as gateway:
        check(await gateway.chat(), 503, "no_engine", "server_is_overloaded", retry=True)
        ready = await gateway.ops("/readyz")
    assert (ready.status, ready.json()["pools_without_engine"]) == (503, ["chat"])


async def test_connections_over_the_bound_are_told_so_and_closed(tmp_path):
    async with (
        ScriptedEngine(answers.completion()) as engine,
        running(tmp_path, engine, limits={"connections_max": 1}) as gateway,
        gateway.client() as first,
    ):
        await first.post(CHAT, a_chat())
        assert (await first.read_answer()).status == 200
        async with gateway.client() as second:
            check(await second.read_answer(), 503, "overloaded", "server_is_overloaded", retry=True)
            assert await second.read_end() == b""
        assert await gateway.metric("gateway_connections_refused_total") == 1


async def test_a_key_for_other_models_is_403(tmp_path):
    async with ScriptedEngine() as engine, running(tmp_path, engine, key_models={"interactive": ["other"]}) as gateway:
        answer = await gateway.chat()
        check(answer, 403, "not_allowed", "model_not_allowed")
        assert (await gateway.ask("/v1/models")).json()["data"] == []
        assert (await gateway.ask(f"/v1/models/{MODEL}")).status == 404
