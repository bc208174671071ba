"""An engine that refuses, breaks off, falls silent or has no room: what the caller is told, and what it costs."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.plan import AdmissionKind, OrderKind, SlotBudget
from gateway.engines.health import FAILED_MAX, SILENT_MAX
from gateway.server import upstream
from gateway.testing import answers
from gateway.testing.builders import a_class, a_plan, an_admission
from gateway.testing.harness import MODEL, a_chat, running
from gateway.testing.open_files import no_file_left
from gateway.testing.raw_client import BrokenAnswer
from gateway.testing.scripted_engine import ScriptedEngine, Wire

CHAT = "/v1/chat/completions"
QUICK = {"timeouts": {"connect_s": 2, "first_byte_s": 0.15, "idle_s": 0.15}}
QUICK_IDLE = {"timeouts": {"connect_s": 2, "first_byte_s": 30, "idle_s": 0.15}}
OUTLIVED_S = 2
BOTH = pytest.mark.parametrize("stream", [False, True])


def one_at_a_time(wait_s=30):
    return a_plan(
        a_class("interactive", wait_s_max=(wait_s, wait_s)),
        a_class("batch", rank=1, weight=1),
        admission=an_admission(AdmissionKind.SLOTS, slots=SlotBudget(1)),
        order=OrderKind.ARRIVAL,
    )


def check(answer, status, code, *, retry=False):
    error = answer.json()["error"]
    assert (answer.status, error["code"], answer.header("x-gateway-reason")) == (status, code, code)
    assert (error["type"], error["details"]["service_class"]) == ("api_error", "interactive")
    assert answer.header("x-should-retry") == ("true" if retry else "false")


async def holds_nothing(gateway):
    await gateway.until(lambda: not gateway.exchanges)
    assert await gateway.metric("gateway_running_requests") == 0
    assert await gateway.metric("gateway_prefill_tokens") == 0


@BOTH
async def test_a_refused_connection_is_502_and_the_engine_is_out_of_service_at_once(tmp_path, stream):
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        await engine.refuse_connections()
        await engine.cut_connections()
        answers_seen = [await gateway.chat(stream=stream), await gateway.chat(stream=stream)]
        codes = [answer.json()["error"]["code"] for answer in answers_seen]
        # The watch may have noticed before the first request did.
        assert codes in (["engine_unreachable", "server_is_overloaded"], ["server_is_overloaded"] * 2)
        assert answers_seen[-1].header("x-gateway-reason") == "no_engine"
        assert answers_seen[0].header("retry-after") is not None
        assert (await gateway.ops("/readyz")).status == 503
        await engine.listen()
        await gateway.until(lambda: gateway.gateway.rooms.watches["a"].health.is_up)
        assert (await gateway.ops("/readyz")).status == 200
        assert (await gateway.chat(stream=stream)).status == 200


@pytest.mark.parametrize(("path", "offered"), [(CHAT, 1), ("/tokenize", 0)])
async def test_a_gateway_without_a_file_left_blames_no_engine(tmp_path, path, offered):
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway, gateway.client() as client:
        watch = gateway.gateway.rooms.watches["a"]
        await client.get("/v1/models")
        await client.read_answer()
        await engine.cut_connections()
        with no_file_left():
            await client.post(path, {"model": MODEL, "prompt": "Hello"} if path == "/tokenize" else a_chat(stream=True))
            answer = await client.read_answer()
            await watch.look()
        assert (answer.status, answer.header("x-gateway-reason")) == (503, "overloaded")
        assert (answer.header("x-should-retry"), answer.header("retry-after") is None) == ("true", False)
        assert watch.health.is_up
        assert await gateway.metric("gateway_requests_total", outcome="refused") == offered
        assert await gateway.metric("gateway_requests_total") == offered
        await holds_nothing(gateway)
        assert (await gateway.chat()).status == 200


async def test_a_count_that_wants_a_file_blames_no_engine(tmp_path):
    pools = {"chat": {"models": [MODEL], "tokenizer": {"kind": "engine"}}}
    answer, count = answers.completion(), answers.json_answer({"count": 7})
    script = answers.by_request(lambda asked: count if asked.path == "/tokenize" else answer)
    async with (
        ScriptedEngine(script) as engine,
        running(tmp_path, engine, pools=pools) as gateway,
        gateway.client() as client,
    ):
        await client.get("/v1/models")
        await client.read_answer()
        await engine.cut_connections()
        with no_file_left():
            for _ in range(SILENT_MAX):
                await client.post(CHAT, a_chat())
                refused = await client.read_answer()
                assert (refused.status, refused.header("x-gateway-reason")) == (503, "overloaded")
        assert gateway.gateway.rooms.watches["a"].health.is_up
        assert (await gateway.chat()).status == 200


@BOTH
@pytest.mark.parametrize(
    "script",
    [
        answers.raw(then=Wire.reset),
        answers.raw(then=Wire.close),
        answers.raw(b"HTTP/1.1 200 OK\r\nconte", then=Wire.close),
        answers.raw(b"this is not HTTP\r\n\r\n", then=Wire.close),
        answers.raw(answers.STREAM_HEAD, then=Wire.reset),
        answers.raw(answers.STREAM_HEAD, then=Wire.close),
        answers.raw(answers.STREAM_HEAD, answers.CHUNKS_END),
        answers.raw(answers.STREAM_HEAD, answers.chunk(b": keep-alive\n\n"), then=Wire.reset),
        answers.raw(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 50\r\n\r\n", then=Wire.reset
        ),
        answers.raw(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 50\r\n\r\n"
            b'{"choices": [{"index": 0, "te',
            then=Wire.close,
        ),
        answers.plain(307, b"", extra={"location": "http://elsewhere.invalid/"}),
        # No credential of the caller's has reached it: it is the gateway's own that it does not take.
        answers.error(401),
        answers.error(403),
    ],
)
async def test_an_answer_that_breaks_before_its_first_byte_is_a_real_502(tmp_path, script, stream):
    async with ScriptedEngine(script) as engine, running(tmp_path, engine) as gateway:
        check(await gateway.chat(stream=stream), 502, "engine_broken")
        await holds_nothing(gateway)
        assert await gateway.metric("gateway_requests_total", outcome="engine_error") == 1
        engine.script = answers.stream_or_whole("a")
        assert (await gateway.chat(stream=stream)).status == 200


@pytest.mark.parametrize("then", [Wire.reset, Wire.close])
@pytest.mark.parametrize(("tail", "blank_line"), [(b"", b""), (b'data: {"half', b"\n\n")])
async def test_a_stream_that_breaks_ends_with_an_error_event_and_no_clean_end(tmp_path, then, tail, blank_line):
    pieces = [answers.chunk(answers.token("Hello")), *([answers.chunk(tail)] if tail else [])]
    script = answers.raw(answers.STREAM_HEAD, *pieces, then=then)
    async with (
        ScriptedEngine(script) as engine,
        running(tmp_path, engine) as gateway,
        gateway.client() as client,
    ):
        await client.post(CHAT, a_chat(stream=True))
        with pytest.raises(BrokenAnswer) as broken:
            await client.read_answer()
        await holds_nothing(gateway)
        assert await gateway.metric("gateway_requests_total", outcome="engine_error") == 1
        assert await gateway.metric("gateway_refusals_total", reason="engine_broken") == 1
    body = broken.value.body
    assert body.startswith(answers.token("Hello") + tail + blank_line + b'data: {"error":')
    assert b'"engine_broken"' in body
    assert b"[DONE]" not in body


async def test_a_stream_that_just_ends_is_not_taken_for_a_whole_one(tmp_path):
    script = answers.stream_of(answers.token("Hello"))
    async with (
        ScriptedEngine(script) as engine,
        running(tmp_path, engine) as gateway,
        gateway.client() as client,
    ):
        await client.post(CHAT, a_chat(stream=True))
        with pytest.raises(BrokenAnswer):
            await client.read_answer()
        await gateway.until_metric("gateway_requests_total", 1, outcome="engine_error")


async def test_a_break_after_the_streams_own_end_harms_nobody(tmp_path):
    events = answers.events_of("Hello")
    script = answers.stream_of(*events, then=Wire.reset)
    async with ScriptedEngine(script) as engine, running(tmp_path, engine) as gateway:
        answer = await gateway.chat(stream=True)
        assert answer.body == b"".join(events)
        assert await gateway.metric("gateway_requests_total", outcome="completed") == 1


@BOTH
@pytest.mark.parametrize("pieces", [(), (answers.STREAM_HEAD,), (answers.STREAM_HEAD, answers.chunk(b": ka\n\n"))])
async def test_an_engine_that_says_nothing_in_time_is_504(tmp_path, pieces, stream):
    async with (
        ScriptedEngine(answers.hanging(*pieces)) as engine,
        running(tmp_path, engine, engine=QUICK) as gateway,
    ):
        check(await gateway.chat(stream=stream), 504, "engine_timeout")
        await engine.until(lambda: len(engine.aborted) == 1)
        await holds_nothing(gateway)
        assert await gateway.metric("gateway_requests_total", outcome="timed_out") == 1


async def test_a_stream_that_falls_silent_is_cut_by_the_idle_limit(tmp_path):
    script = answers.hanging(answers.STREAM_HEAD, answers.chunk(answers.token("Hello")))
    async with (
        ScriptedEngine(script) as engine,
        running(tmp_path, engine, engine=QUICK_IDLE) as gateway,
        gateway.client() as client,
    ):
        await client.post(CHAT, a_chat(stream=True))
        with pytest.raises(BrokenAnswer) as broken:
            await client.read_answer()
        await engine.until(lambda: len(engine.aborted) == 1)
        await holds_nothing(gateway)
        assert await gateway.metric("gateway_requests_total", outcome="timed_out") == 1
    assert broken.value.body.startswith(answers.token("Hello") + b'data: {"error":')


async def test_a_stream_whose_framing_goes_wrong_is_broken_at_once(tmp_path):
    steps = asyncio.Queue()
    steps.put_nowait(answers.STREAM_HEAD + answers.chunk(answers.token("Hello")))
    async with (
        ScriptedEngine(answers.step_by_step(steps)) as engine,
        running(tmp_path, engine) as gateway,
        gateway.client() as client,
    ):
        await client.post(CHAT, a_chat(stream=True))
        await client.read_head()
        await client.read_chunk()
        steps.put_nowait(b"this is no chunk size\r\n")
        last_words = await client.read_chunk()
        await holds_nothing(gateway)
        assert await gateway.metric("gateway_requests_total", outcome="engine_error") == 1
    assert b'"engine_broken"' in last_words


async def test_an_engine_that_falls_silent_again_and_again_is_out_until_it_generates(tmp_path):
    async with ScriptedEngine(answers.hanging()) as engine, running(tmp_path, engine, engine=QUICK) as gateway:
        for _ in range(SILENT_MAX):
            check(await gateway.chat(), 504, "engine_timeout")
        assert (await gateway.chat()).header("x-gateway-reason") == "no_engine"
        assert (await gateway.ops("/readyz")).status == 503
        assert await gateway.metric("gateway_engine_up", engine="a") == 0
        engine.script = answers.completion()
        await gateway.until(lambda: gateway.gateway.rooms.watches["a"].health.is_up)
        while (await gateway.chat()).status != 200:
            pass  # on a busy machine this engine, too, may be silent for longer than its limit


BUSY_LATE = answers.stream_of(answers.event(answers.BUSY), answers.DONE)


@pytest.mark.parametrize(("script", "stream"), [(answers.busy(), False), (answers.busy(), True), (BUSY_LATE, True)])
async def test_an_engine_without_room_gets_the_request_again_after_a_pause(tmp_path, script, stream):
    async with ScriptedEngine(answers.stream_or_whole("a")) as engine, running(tmp_path, engine) as gateway:
        engine.scripts += [script, script]
        answer = await gateway.chat(stream=stream)
        assert answer.status == 200
        assert int(answer.header("x-gateway-queue-ms")) > 0
        assert len(engine.posts) == 3
        assert await gateway.metric("gateway_requests_total") == 1
        assert await gateway.metric("gateway_engine_up", engine="a") == 1
    assert len({post.body for post in engine.posts}) == 1


async def test_an_engine_that_never_has_room_ends_as_the_wait_deadline(tmp_path):
    async with (
        ScriptedEngine(answers.busy()) as engine,
        running(tmp_path, engine, plan=one_at_a_time(wait_s=0.4)) as gateway,
    ):
        answer = await gateway.chat()
        assert (answer.status, answer.header("x-gateway-reason")) == (429, "wait_deadline")
        await holds_nothing(gateway)
        assert await gateway.metric("gateway_requests_total", outcome="expired") == 1


async def test_a_kept_connection_that_the_engine_closed_costs_one_resend_and_no_failure(tmp_path):
    async with ScriptedEngine(answers.completion()) as engine, running(tmp_path, engine) as gateway:
        assert (await gateway.chat()).status == 200
        engine.scripts.append(answers.raw(then=Wire.close))
        assert (await gateway.chat()).status == 200
        assert await gateway.metric("gateway_engine_resends_total", engine="a") == 1
        engine.scripts += [answers.raw(then=Wire.close)] * 2
        assert (await gateway.chat()).status == 502


async def test_what_breaks_late_on_a_kept_connection_may_have_begun_and_is_not_sent_again(tmp_path, monkeypatch):
    monkeypatch.setattr(upstream, "STALE_S_MAX", 0.0)
    async with ScriptedEngine(answers.completion()) as engine, running(tmp_path, engine) as gateway:
        for then in (Wire.close, Wire.reset):
            assert (await gateway.chat()).status == 200
            engine.scripts.append(answers.raw(then=then))
            check(await gateway.chat(), 502, "engine_broken")
        assert len(engine.posts) == 4
        assert await gateway.metric("gateway_engine_resends_total") == 0


async def test_a_kept_connection_that_breaks_inside_the_answers_head_is_not_sent_again(tmp_path):
    async with ScriptedEngine(answers.completion()) as engine, running(tmp_path, engine) as gateway:
        assert (await gateway.chat()).status == 200
        engine.scripts.append(answers.raw(b"HTTP/1.1 200 OK\r\nconte", then=Wire.reset))
        assert (await gateway.chat()).status == 502
        assert len(engine.posts) == 2


async def test_waiting_requests_keep_their_place_while_the_engine_is_away(tmp_path):
    release = asyncio.Event()
    async with (
        ScriptedEngine(answers.completion()) as engine,
        running(tmp_path, engine, plan=one_at_a_time()) as gateway,
        asyncio.TaskGroup() as group,
    ):
        engine.scripts.append(answers.held(answers.raw(then=Wire.reset), release))
        first = group.create_task(gateway.chat())
        await engine.until(lambda: len(engine.posts) == 1)
        second = group.create_task(gateway.chat())
        await gateway.until_metric("gateway_queue_requests", 1)
        await engine.refuse_connections()
        gateway.gateway.rooms.watches["a"].refused()
        release.set()
        assert (await first).status == 502
        assert await gateway.metric("gateway_queue_requests") == 1
        await engine.listen()
        assert (await second).status == 200


async def test_a_long_answer_outlives_every_limit_while_bytes_flow(tmp_path):
    pause_s, sent = 0.1, []

    async def script(_request, wire):
        await wire.send(answers.STREAM_HEAD)
        for index in range(int(1.25 * OUTLIVED_S / pause_s)):
            sent.append(answers.token(str(index)))
            await wire.send(answers.chunk(sent[-1]))
            await asyncio.sleep(pause_s)
        await wire.send(answers.chunk(answers.DONE), answers.CHUNKS_END)

    async with (
        ScriptedEngine(script) as engine,
        running(
            tmp_path, engine, engine={"timeouts": {"connect_s": 2, "first_byte_s": OUTLIVED_S, "idle_s": OUTLIVED_S}}
        ) as gateway,
    ):
        answer = await gateway.chat(stream=True)
    assert answer.body == b"".join(sent) + answers.DONE


@BOTH
async def test_an_engine_that_answers_everything_with_500_is_out_of_service_until_it_generates_again(tmp_path, stream):
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        engine.script = answers.error(500)
        statuses = [(await gateway.chat(stream=stream)).status for _ in range(FAILED_MAX)]
        assert statuses == [500] * FAILED_MAX
        await gateway.until(lambda: not gateway.gateway.rooms.watches["a"].health.is_up)
        refused = await gateway.chat(stream=stream)
        assert (refused.status, refused.header("x-gateway-reason")) == (503, "no_engine")
        engine.script = answers.completion()
        await gateway.until(lambda: gateway.gateway.rooms.watches["a"].health.is_up)
        assert (await gateway.chat()).status == 200


async def test_requests_that_an_engine_refuses_for_what_they_are_take_it_from_nobody(tmp_path):
    async with ScriptedEngine(answers.error(400)) as engine, running(tmp_path, engine) as gateway:
        for _ in range(2 * FAILED_MAX):
            assert (await gateway.chat()).status == 400
        await gateway.gateway.rooms.watches["a"].look()
        engine.script = answers.completion()
        assert (await gateway.chat()).status == 200
        assert len(engine.posts) == 2 * FAILED_MAX + 1
