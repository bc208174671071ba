"""Every way in which the way to an engine can break, at every place of an answer, in each dialect, stream or not.

After each fault: what the caller saw is whole or says that it is not, the outcome is counted once, the place is free,
the engine's connection is closed, and the next request is served.
"""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest

from gateway.core.plan import AdmissionKind, OrderKind, SlotBudget
from gateway.server import reply
from gateway.server.tasks import spawn
from gateway.testing import answers
from gateway.testing.builders import a_class, a_plan, an_admission
from gateway.testing.dialect_answers import a_message, a_response, message_events, response_events
from gateway.testing.fault_proxy import Fault, FaultProxy, Kind
from gateway.testing.harness import MODEL, a_chat, running
from gateway.testing.raw_client import BrokenAnswer
from gateway.testing.scripted_engine import ScriptedEngine
from gateway.testing.skipping_loop import skip

PATIENCE_S = 30
PATIENT = {"timeouts": dict.fromkeys(("connect_s", "first_byte_s", "idle_s"), PATIENCE_S)}
HELLO = [{"role": "user", "content": "Say hello."}]
PATHS = {
    "/v1/chat/completions": a_chat(max_tokens=5),
    "/v1/responses": {"model": MODEL, "input": "Hello", "max_output_tokens": 5},
    "/v1/messages": {"model": MODEL, "messages": HELLO, "max_tokens": 5},
}
EVENTS = {
    "/v1/chat/completions": answers.events_of("Hello", " world"),
    "/v1/responses": response_events("Hello", " world"),
    "/v1/messages": message_events("Hello", " world"),
}
WHOLE = {
    "/v1/chat/completions": {"id": "x", "choices": [{"index": 0, "message": {"content": "Hello"}}]},
    "/v1/responses": a_response(),
    "/v1/messages": a_message(),
}
FIRST_EVENT = {"/v1/chat/completions": 1, "/v1/responses": 3, "/v1/messages": 1}
CASES = [(path, stream) for path in PATHS for stream in (False, True)]
OUTCOMES = ("completed", "refused", "expired", "client_gone", "engine_error", "timed_out")
LAST_WORDS = {
    "/v1/chat/completions": b'data: {"error":',
    "/v1/responses": b'event: response.failed\ndata: {"type":"response.failed"',
    "/v1/messages": b'event: error\ndata: {"type":"error"',
}
OUTCOME = re.compile(r'outcome="(\w+)"')


def one_at_a_time():
    return a_plan(
        a_class("interactive", wait_s_max=(30, 30)),
        a_class("batch", rank=1, weight=1),
        admission=an_admission(AdmissionKind.SLOTS, slots=SlotBudget(1)),
        order=OrderKind.ARRIVAL,
    )


def whole_answer(path):
    body = json.dumps(WHOLE[path]).encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def stream_answer(path):
    return b"".join([answers.STREAM_HEAD, *map(answers.chunk, EVENTS[path]), answers.CHUNKS_END])


def place(phase, path, *, stream):
    """The byte of the engine's answer at which a phase is."""
    if not stream:
        at_body = len(whole_answer(path)) - len(json.dumps(WHOLE[path]))
        return {"before": Fault.BEFORE_REQUEST, "sent": 0, "head": 20, "begun": at_body, "middle": at_body + 20}[phase]
    head, events = len(answers.STREAM_HEAD), [len(answers.chunk(event)) for event in EVENTS[path]]
    spoken = head + sum(events[: FIRST_EVENT[path]])
    return {
        "before": Fault.BEFORE_REQUEST,
        "sent": 0,
        "head": 20,
        "begun": head + sum(events[: FIRST_EVENT[path] - 1]),
        "middle": spoken + 20,
        "border": spoken,
        "end": head + sum(events),
    }[phase]


def samples(gateway):
    """Every sample of one exposition, summed by name, and by name and outcome."""
    found = Counter()
    for line in gateway.gateway.rooms.observer.exposition().decode().splitlines():
        if not line.startswith("#"):
            name, _, labels = line.rpartition(" ")[0].partition("{")
            value = float(line.rpartition(" ")[2])
            found[name] += value
            if outcome := OUTCOME.search(labels):
                found[name, outcome[1]] += value
    return found


def counted(gateway):
    found = samples(gateway)
    return Counter({outcome: found["gateway_requests_total", outcome] for outcome in OUTCOMES})


async def nothing_is_held(gateway):
    await gateway.until(lambda: not gateway.exchanges)
    found = samples(gateway)
    held = ("receiving_requests", "queue_requests", "running_requests", "prefill_tokens", "kv_reserved_tokens")
    assert [found[f"gateway_{name}"] for name in held] == [0] * len(held)
    assert found["gateway_offered_total"] == found["gateway_requests_total"] == counted(gateway).total()


async def answered(gateway, path, *, stream):
    """Ask once; return the status, the body, and whether it broke off."""
    async with gateway.client() as client:
        await client.post(path, {**PATHS[path], "stream": stream})
        try:
            answer = await client.read_answer()
        except BrokenAnswer as broken:
            return 200, broken.body, True
        return answer.status, answer.body, False


def what_it_says(path, *, stream):
    return b"".join(EVENTS[path]) if stream else json.dumps(WHOLE[path]).encode()


def serving(path, *, stream):
    return answers.raw(stream_answer(path) if stream else whole_answer(path))


async def meets(tmp_path, fault_of, check, cases=CASES, *, stalled=None):
    """Have one request of each case meet its fault; check(case, seen) gives the outcome that has to be counted.

    stalled: waits until all that passed before the fault has arrived; then the engine's time is up.
    """
    async with (
        ScriptedEngine() as engine,
        FaultProxy(engine.port) as proxy,
        running(tmp_path, proxy.url, plan=one_at_a_time(), engine=PATIENT) as gateway,
    ):
        for path, stream in cases:
            engine.script = serving(path, stream=stream)
            before, met = counted(gateway), proxy.faulted
            proxy.fault = fault_of(path, stream)
            asked = spawn(answered(gateway, path, stream=stream), name="asked")
            await proxy.until(lambda met=met: proxy.faulted > met)
            if stalled is not None:
                await stalled(gateway, stream)
                skip(PATIENCE_S)
            outcome = check(path, stream, await asked)
            await gateway.until(lambda: not gateway.exchanges)
            assert counted(gateway) - before == Counter({outcome: 1}), (path, stream)
            if proxy.fault.kind is not Kind.DRIP:
                await proxy.until(lambda: proxy.faulted_open == 0)
            proxy.fault = None
            assert await answered(gateway, path, stream=stream) == (200, what_it_says(path, stream=stream), False)
            await nothing_is_held(gateway)


def refused_with(path, seen, code):
    """A real status, and the dialect's own envelope."""
    status, body, is_broken = seen
    error = json.loads(body)["error"]
    assert not is_broken
    assert status == {"engine_broken": 502, "engine_timeout": 504, "engine_unreachable": 502}[code]
    assert error["details"]["reason"] == code
    if path == "/v1/messages":
        assert (json.loads(body)["type"], error["type"]) == ("error", "api_error")
    else:
        assert (error["type"], error["code"]) == ("api_error", code)


def broken_off_with(path, seen, code):
    """What had come, byte for byte, then one event of the dialect that says so, and no clean end."""
    status, body, is_broken = seen
    assert is_broken and status == 200
    came, words, last = body.rpartition(LAST_WORDS[path])
    assert words and code.encode() in last
    assert came
    whole = b"".join(EVENTS[path])
    assert whole.startswith((came, came.removesuffix(b"\n\n")))
    assert EVENTS[path][-1] not in body


@pytest.mark.parametrize("phase", ["before", "sent", "head", "begun", "middle"])
@pytest.mark.parametrize("kind", [Kind.RESET, Kind.CLOSE, Kind.HALF_CLOSE])
async def test_before_the_first_event_a_break_is_a_502_and_after_it_the_streams_last_event(tmp_path, kind, phase):
    def check(path, stream, seen):
        (broken_off_with if stream and phase == "middle" else refused_with)(path, seen, "engine_broken")
        return "engine_error"

    await meets(tmp_path, lambda path, stream: Fault(kind, place(phase, path, stream=stream)), check)


@pytest.mark.asyncio(loop_factories=["asyncio"])
@pytest.mark.parametrize("phase", ["before", "sent", "head", "begun", "middle"])
async def test_before_the_first_event_a_silence_is_a_504_and_after_it_the_streams_last_event(tmp_path, phase):
    def check(path, stream, seen):
        (broken_off_with if stream and phase == "middle" else refused_with)(path, seen, "engine_timeout")
        return "timed_out"

    async def stalled(gateway, stream):
        if stream and phase == "middle":
            await gateway.until(lambda: gateway.exchanges[0].first_token_at is not None)

    await meets(
        tmp_path, lambda path, stream: Fault(Kind.STALL, place(phase, path, stream=stream)), check, stalled=stalled
    )


@pytest.mark.parametrize("kind", [Kind.RESET, Kind.CLOSE, Kind.HALF_CLOSE, Kind.STALL])
async def test_between_the_last_event_and_the_end_of_the_answer_a_fault_harms_nobody(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(reply, "END_S_MAX", 0.05)

    def check(path, stream, seen):
        assert seen == (200, what_it_says(path, stream=stream), False)
        return "completed"

    def fault(path, stream):
        return Fault(kind, place("end", path, stream=stream))

    await meets(tmp_path, fault, check, [(path, True) for path in PATHS])


async def test_what_is_no_chunk_is_a_broken_engine_at_once(tmp_path):
    def check(path, stream, seen):
        refused_with(path, seen, "engine_broken")
        return "engine_error"

    def fault(path, stream):
        return Fault(Kind.NO_CHUNK, place("begun", path, stream=stream))

    await meets(tmp_path, fault, check, [(path, True) for path in PATHS])


async def test_an_answer_that_drips_byte_by_byte_is_the_same_answer(tmp_path):
    def check(path, stream, seen):
        assert seen == (200, what_it_says(path, stream=stream), False)
        return "completed"

    await meets(tmp_path, lambda *_: Fault(Kind.DRIP, 0), check)


async def test_a_head_whose_line_never_ends_is_a_broken_engine(tmp_path):
    def check(path, stream, seen):
        refused_with(path, seen, "engine_broken")
        return "engine_error"

    await meets(tmp_path, lambda *_: Fault(Kind.ENDLESS_HEAD, 30), check, CASES[:2])


@pytest.mark.parametrize("phase", ["begun", "border"])
async def test_a_line_that_never_ends_passes_as_long_as_the_client_takes_it(tmp_path, phase):
    async with (
        ScriptedEngine() as engine,
        FaultProxy(engine.port) as proxy,
        running(tmp_path, proxy.url, plan=one_at_a_time(), engine=PATIENT) as gateway,
    ):
        for path, body in PATHS.items():
            engine.script = serving(path, stream=True)
            proxy.fault = Fault(Kind.ENDLESS, place(phase, path, stream=True))
            async with gateway.client() as client:
                await client.post(path, {**body, "stream": True})
                assert (await client.read_head()).status == 200
                for _ in range(20):
                    assert await client.read_chunk()
                client.reset()
            await proxy.until(lambda: proxy.faulted_open == 0)
        await nothing_is_held(gateway)
        assert counted(gateway) == Counter(client_gone=len(PATHS))


@pytest.mark.parametrize("stream", [False, True])
async def test_a_connection_that_is_refused_is_502_and_nothing_is_held(tmp_path, stream):
    async with (
        ScriptedEngine() as engine,
        FaultProxy(engine.port) as proxy,
        running(tmp_path, proxy.url, plan=one_at_a_time(), engine=PATIENT) as gateway,
    ):
        await proxy.refuse_connections()
        # A kept connection would still carry the request: it is closed at its first byte.
        proxy.fault = Fault(Kind.CLOSE, Fault.BEFORE_REQUEST)
        codes = set()
        for path in PATHS:
            status, body, _ = await answered(gateway, path, stream=stream)
            codes.add(json.loads(body)["error"]["details"]["reason"])
            assert status in {502, 503, 529}
        assert codes <= {"engine_unreachable", "no_engine"}
        await nothing_is_held(gateway)
        proxy.fault = None
        await proxy.listen()
        await gateway.until(lambda: gateway.gateway.rooms.watches["a"].health.is_up)
        engine.script = serving("/v1/messages", stream=stream)
        assert (await answered(gateway, "/v1/messages", stream=stream))[0] == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_connection_that_is_not_made_in_time_is_502_and_can_be_tried_again(tmp_path, stream):
    times = {"timeouts": {"connect_s": 0.2, "first_byte_s": 30, "idle_s": 30}}
    async with (
        ScriptedEngine() as engine,
        FaultProxy(engine.port) as proxy,
        running(tmp_path, proxy.url, plan=one_at_a_time(), engine=times) as gateway,
    ):
        await proxy.stall_connections()
        status, body, _ = await answered(gateway, "/v1/chat/completions", stream=stream)
        reason = json.loads(body)["error"]["details"]["reason"]
        # The watch may have noticed before the request did.
        assert (status, reason) in {(502, "engine_unreachable"), (503, "no_engine")}
        await nothing_is_held(gateway)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 600 Odd\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 999 Odd\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 302 Found\r\nlocation: http://elsewhere.invalid/\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\ncontent-length: 2\n\n{}",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\nx: y\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\ncontent-length: two\r\n\r\n{}",
        b"HTTP/1.1 2000 OK\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/9.9 OK\r\n\r\n",
    ],
)
@pytest.mark.parametrize("pieces", [1, 1000])
async def test_an_answer_that_is_not_quite_http_is_a_broken_engine(tmp_path, answer, pieces):
    step = -(-len(answer) // pieces)
    script = answers.raw(
        *(answer[at : at + step] for at in range(0, len(answer), step)), then=lambda wire: wire.close()
    )
    async with ScriptedEngine(script) as engine, running(tmp_path, engine, engine=PATIENT) as gateway:
        for path, stream in CASES:
            refused_with(path, await answered(gateway, path, stream=stream), "engine_broken")
        await nothing_is_held(gateway)
        assert counted(gateway) == Counter(engine_error=len(CASES))


@pytest.mark.parametrize(
    "head", [b"HTTP/1.0 200 OK\r\n", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nconnection: close\r\n"]
)
@pytest.mark.parametrize("way", ["reset", "close"])
@pytest.mark.parametrize("body_bytes", [30, 2_000_000])
async def test_an_answer_that_ends_with_its_connection_is_whole_only_where_that_was_closed(
    tmp_path, head, way, body_bytes
):
    body = json.dumps({"id": "x", "choices": [], "text": "x" * body_bytes}).encode()
    script = answers.raw(head + b"content-type: application/json\r\n\r\n", body, then=lambda wire: getattr(wire, way)())
    path = "/v1/chat/completions"
    async with ScriptedEngine(script) as engine, running(tmp_path, engine, engine=PATIENT) as gateway:
        status, seen, is_broken = await answered(gateway, path, stream=False)
        await nothing_is_held(gateway)
        assert counted(gateway) == Counter(["completed" if way == "close" else "engine_error"])
    if way == "close":
        assert (status, seen, is_broken) == (200, body, False)
    elif body_bytes < 1 << 20:
        refused_with(path, (status, seen, is_broken), "engine_broken")
    else:
        assert is_broken or status == 502
