"""Engines that are reached by name: their address changes, and what they hand out for one caller is not the next one's."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from gateway.server import connector
from gateway.testing import answers
from gateway.testing.harness import BATCH_KEY, INTERACTIVE_KEY, a_chat, running
from gateway.testing.scripted_engine import ScriptedEngine
from gateway.wire.dialects import RESPONSE_CANCEL, ROUTES

CHAT = "/v1/chat/completions"


@pytest.fixture
def addresses(monkeypatch):
    """Host name -> address, for names that no resolver knows."""
    known = {}
    resolve = aiohttp.ThreadedResolver.resolve

    async def resolve_known(self, host, *args, **kwargs):
        return [{**each, "hostname": host} for each in await resolve(self, known.get(host, host), *args, **kwargs)]

    monkeypatch.setattr(aiohttp.ThreadedResolver, "resolve", resolve_known)
    return known


async def test_a_cookie_of_the_engine_is_neither_kept_nor_passed_on(tmp_path, addresses):
    """By a name: clients keep no cookies of plain addresses anyway."""
    addresses["engine.test"] = "127.0.0.1"
    script = answers.plain(200, b"{}", "application/json", extra={"set-cookie": "session=1; Path=/"})
    async with (
        ScriptedEngine(script) as engine,
        running(tmp_path, f"http://engine.test:{engine.port}") as gateway,
    ):
        for key in (INTERACTIVE_KEY, BATCH_KEY, INTERACTIVE_KEY):
            answer = await gateway.chat(key=key, headers={"Cookie": "mine=1"})
            assert (answer.status, answer.header("set-cookie")) == (200, None)
    assert all(post.header("cookie") == [] for post in engine.posts)
    assert engine.posts[0].header("host") == [f"engine.test:{engine.port}"]


async def test_an_engine_that_is_back_at_another_address_is_found_there(tmp_path, addresses, monkeypatch):
    monkeypatch.setattr(connector, "DNS_CACHE_S", 0.05)
    addresses["engine.test"] = "127.0.0.1"
    async with (
        ScriptedEngine(answers.completion("old")) as old,
        running(tmp_path, f"http://engine.test:{old.port}") as gateway,
    ):
        assert (await gateway.chat()).status == 200
        new = ScriptedEngine(answers.completion("new"), host="127.0.0.2")
        new.port = old.port
        async with new:
            await old.refuse_connections()
            await old.cut_connections()
            addresses["engine.test"] = "127.0.0.2"
            meanwhile = set()
            async with asyncio.timeout(30):
                while (answer := await gateway.chat()).status != 200:
                    meanwhile.add(answer.status)
                    assert answer.header("retry-after") is not None
            assert answer.json()["choices"][0]["message"]["content"] == "new"
            assert meanwhile <= {502, 503}


async def test_a_redirect_is_followed_by_nobody(tmp_path, monkeypatch):
    monkeypatch.setenv("ENGINE_A_KEY", "engine-secret")
    async with ScriptedEngine() as other, ScriptedEngine() as engine:
        engine.script = answers.plain(307, b"", extra={"location": f"{other.url}{CHAT}"})
        async with running(tmp_path, engine, engine={"api_key_env": "ENGINE_A_KEY"}) as gateway:
            answer = await gateway.chat()
            assert (answer.status, answer.header("location")) == (502, None)
    assert other.requests == []


async def test_each_route_takes_the_gateways_key_to_the_engine_and_never_the_callers(tmp_path, monkeypatch):
    monkeypatch.setenv("ENGINE_A_KEY", "engine-secret")
    bodies = {
        "/v1/completions": {"prompt": "Hi"},
        "/v1/responses": {"input": "Hi"},
        "/v1/embeddings": {"input": "Hi"},
        "/v1/rerank": {"query": "a", "documents": ["b"]},
        "/v1/score": {"text_1": "a", "text_2": "b"},
        "/tokenize": {"prompt": "Hi"},
        "/detokenize": {"tokens": [1]},
    }
    form = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\ntiny\r\n'
    form += b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n\x00\r\n--b--\r\n'
    script = answers.json_answer({"id": "resp_1", "object": "response", "status": "completed"})
    async with (
        ScriptedEngine(script) as engine,
        running(tmp_path, engine, engine={"api_key_env": "ENGINE_A_KEY"}) as gateway,
    ):
        engine.gets["/v1/responses/resp_1"] = script
        asked = [route for route in ROUTES if not route.path.startswith("/v1/models")]
        for route in asked:
            seen = len(engine.requests)
            if route.response_id is not None or route.path.endswith("/"):
                path = "/v1/responses/resp_1" + ("/cancel" if route is RESPONSE_CANCEL else "")
                answer = await gateway.ask(path, b"" if route is RESPONSE_CANCEL else None)
            elif "audio" in route.path:
                headers = {"Content-Type": "multipart/form-data; boundary=b"}
                answer = await gateway.ask(route.path, form, headers=headers)
            else:
                body = {**a_chat(max_tokens=5), **bodies.get(route.path, {})}
                answer = await gateway.ask(route.path, body, headers={"x-api-key": INTERACTIVE_KEY})
            assert answer.status == 200, (route.name, answer.body)
            assert len(engine.requests) > seen, route.name
    assert {tuple(request.header("authorization")) for request in engine.requests} == {("Bearer engine-secret",)}
    assert all(INTERACTIVE_KEY not in str(request) for request in engine.requests)


async def test_what_a_caller_claims_of_itself_or_of_the_order_reaches_no_engine(tmp_path):
    """In any spelling and however often: who asks is the key's to say, and the order is the gateway's."""
    claims = [
        *("X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host", "Forwarded", "X-Real-IP", "Via"),
        *("X-VLLM-PRIORITY", "x-vllm-priority", "X-Data-Parallel-Rank", "X-SESSION-ID", "X-Gateway-Class"),
        *("x-gateway-tenant", "X-GATEWAY-Service-Class", "Endpoint-Load-Metrics-Format", "Proxy-Authorization"),
        *("x-gateway-inference-objective", "X-Request-Id", "Origin", "Referer", "Accept-Encoding"),
    ]
    engine_of = {"scheduling": "priority", "priority_carrier": "header"}
    async with (
        ScriptedEngine(answers.completion()) as engine,
        running(tmp_path, engine, engine=engine_of) as gateway,
        gateway.client() as client,
    ):
        body = b'{"model":"tiny","messages":[{"role":"user","content":"hi"}],"max_tokens":5}'
        lines = "".join(f"{name}: 1\r\n{name.swapcase()}: 2\r\n" for name in claims).encode()
        head = client.head("POST", CHAT, {"Content-Length": str(len(body))})
        await client.send(head[:-2] + lines + b"\r\n" + body)
        answer = await client.read_answer()
        assert (answer.status, answer.header("x-gateway-service-class")) == (200, "interactive")
    (post,) = engine.posts
    assert sorted(name for name, _ in post.headers) == [
        *("accept-encoding", "content-length", "content-type", "host", "x-request-id", "x-vllm-priority")
    ]
    assert post.header("accept-encoding") == ["identity"]  # what passes is read on its way
    assert post.header("x-request-id")[0].startswith("req-")
    assert int(post.header("x-vllm-priority")[0]) >= 0


async def test_two_requests_of_one_id_are_two_requests(tmp_path):
    async with ScriptedEngine(answers.completion()) as engine, running(tmp_path, engine) as gateway:
        same = {"X-Request-Id": "one"}
        both = await asyncio.gather(*(gateway.chat(headers=same, request_id="one") for _ in range(2)))
        odd = await gateway.chat(headers={"X-Request-Id": "i" * 5000})
    ids = [post.header("x-request-id") for post in engine.posts]
    assert len({*map(tuple, ids)}) == 3
    assert [[answer.header("x-request-id")] for answer in (*both, odd)][2] == ids[2]
    assert all(len(each[0]) < 64 for each in ids)
    assert all("request_id" not in post.json() for post in engine.posts)


async def test_an_engine_that_is_slow_to_tell_of_itself_serves_on(tmp_path):
    """Its answers decide: it may be too busy to list its models or its numbers."""
    async with ScriptedEngine(answers.completion()) as engine, running(tmp_path, engine) as gateway:
        for path in ("/v1/models", "/metrics", "/health", "/version"):
            engine.gets[path] = answers.hanging()
        await engine.until(lambda: sum(request.path.startswith("/metrics") for request in engine.requests) >= 2)
        assert (await gateway.chat()).status == 200
        assert await gateway.metric("gateway_engine_up", engine="a") == 1
        assert (await gateway.ops("/readyz")).status == 200


async def test_an_engine_without_room_is_no_engine_that_fails(tmp_path):
    """It says so with either status, as often as it likes, and stays in service."""
    async with ScriptedEngine(answers.completion()) as engine, running(tmp_path, engine) as gateway:
        for status in (429, 503):
            engine.scripts += [answers.error(status, kind="Service Unavailable")] * 3
            assert (await gateway.chat()).status == 200
        assert await gateway.metric("gateway_engine_up", engine="a") == 1
        assert await gateway.metric("gateway_requests_total", outcome="completed") == 2
