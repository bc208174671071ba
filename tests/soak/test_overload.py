"""Overload for a while, by callers and engines that do everything wrong: at rest everything is as it was.

SOAK_S: how long, seconds; `make soak` takes ten minutes. A few rounds of load, each followed by a rest in which what the
process holds is counted. What it needs for itself is there after the first ones.
"""

from __future__ import annotations

import asyncio
import gc
import io
import os
import random
from pathlib import Path

import pytest
import structlog
import yaml

from gateway.core.plan import AdmissionKind, OrderKind, SlotBudget, TenantBounds
from gateway.observe import logs
from gateway.testing import answers, raw_client
from gateway.testing.builders import a_class, a_plan, an_admission
from gateway.testing.crowd import Crowd
from gateway.testing.dialect_answers import a_message, a_response, embeddings, message_events, response_events
from gateway.testing.harness import BATCH_KEY, INTERACTIVE_KEY, MODEL, a_chat, running
from gateway.testing.scripted_engine import ScriptedEngine

SOAK_S = float(os.environ.get("SOAK_S", "6"))
ROUNDS, WARM_ROUNDS = (5, 2) if SOAK_S >= 60 else (3, 1)
CALLERS = 24
GROWTH_BYTES_MAX = 24 << 20
KEPT_MAX = 5  # of connections to one engine, while only its watch asks: each is dropped after 4 s without use
SHOWN = Path(os.environ["SOAK_SHOWN"]) if "SOAK_SHOWN" in os.environ else None
CONSERVED = (
    "gateway_offered_total",
    "gateway_requests_total",
    "gateway_receiving_requests",
    "gateway_queue_requests",
    "gateway_running_requests",
)
HELLO = [{"role": "user", "content": "Say hello."}]
BODIES = {
    "/v1/chat/completions": [
        a_chat(),
        a_chat(stream=True),
        a_chat(stream=True, n=2, messages=[{"role": "user", "content": "long " * 2000}]),
        a_chat(model="nope"),
        a_chat(max_tokens=-1),
    ],
    "/v1/responses": [{"model": MODEL, "input": "Hello", "stream": stream} for stream in (False, True)],
    "/v1/messages": [
        {"model": MODEL, "messages": HELLO, "max_tokens": 5, "stream": stream} for stream in (False, True)
    ],
    "/v1/embeddings": [{"model": MODEL, "input": ["a", "b"]}],
    "/tokenize": [{"model": MODEL, "prompt": "Hello"}],
}


def overloaded():
    """Few slots, short lines, short waits."""
    tenant = TenantBounds(queued_requests_max=12, running_max=6)
    return a_plan(
        a_class("interactive", requests_max=10, wait_s_max=(1, 2), tenant=tenant),
        a_class("batch", rank=1, weight=1, requests_max=6, wait_s_max=(0.5, 1), tenant=tenant),
        admission=an_admission(AdmissionKind.TOKEN_BUDGET, slots=SlotBudget(4, short_reserve=1, long_reserve=1)),
        order=OrderKind.WEIGHTED_FAIR,
    )


def well(request):
    """The answer that the request asks for, in its dialect."""
    stream = bool(request.json().get("stream"))
    words = ["word "] * 30
    if request.path.endswith("/responses"):
        name = f"resp_{random.getrandbits(40):x}"
        events = response_events(*words, response_id=name)
        return answers.stream_of(*events) if stream else answers.json_answer(a_response(response_id=name))
    if request.path.endswith("/messages"):
        return answers.stream_of(*message_events(*words)) if stream else answers.json_answer(a_message())
    if request.path.endswith("/embeddings"):
        return answers.json_answer(embeddings(2))
    return answers.stream_or_whole(*words)


def an_engines_script(rng):
    async def large(_request, wire):
        await wire.send(answers.STREAM_HEAD)
        for _ in range(40):
            await wire.send(answers.chunk(answers.token("x" * 30_000)))
        await wire.send(answers.chunk(answers.DONE), answers.CHUNKS_END)

    faults = [
        answers.error(500),
        answers.busy(),
        answers.busy(),
        answers.raw(then=lambda wire: wire.reset()),
        answers.raw(answers.STREAM_HEAD, answers.chunk(answers.token("a")), then=lambda wire: wire.reset()),
        answers.raw(answers.STREAM_HEAD, answers.chunk(answers.token("a")), then=lambda wire: wire.close()),
        answers.hanging(),
        answers.hanging(answers.STREAM_HEAD, answers.chunk(answers.token("a"))),
        answers.raw(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{", then=lambda wire: wire.close()),
        answers.raw(b"HTTP/1.1 200 OK\r\n\r\n{", then=lambda wire: wire.reset()),
        answers.raw(b"no HTTP\r\n\r\n"),
        large,
    ]

    async def script(request, wire):
        await asyncio.sleep(rng.random() * 0.03)
        await (rng.choice(faults) if rng.random() < 0.15 else well(request))(request, wire)

    return script


@pytest.fixture
def crashes_logged():
    before = structlog.get_config()
    sink = _Sink()
    writer = logs.LineWriter(sink)
    logs.configure(writer)
    yield sink.crashes
    writer.close()
    structlog.configure(**before)


class _Sink(io.StringIO):
    """Keeps of the log what must not be there."""

    def __init__(self):
        super().__init__()
        self.crashes = []

    def write(self, text):
        self.crashes += [line for line in text.splitlines() if "crashed" in line]
        return len(text)


def sums(page):
    """The parts of conservation, of one scrape."""
    found = dict.fromkeys(CONSERVED, 0.0)
    for line in page.decode().splitlines():
        name = line.partition("{")[0]
        if name in found:
            found[name] += float(line.rpartition(" ")[2])
    return found


async def conserved(gateway):
    offered, *parts = (found := sums((await gateway.ops("/metrics")).body)).values()
    assert offered == sum(parts), found
    return found


async def watched(gateway, until):
    """Scrape while the load lasts; return how often."""
    scrapes = 0
    while not until.is_set():
        await conserved(gateway)
        scrapes += 1
        await asyncio.sleep(0.2)
    return scrapes


async def reloaded(gateway, folder, until):
    """Take one engine out of the configuration and back again; return how often, and leave it as it was."""
    path = folder / "gateway.yaml"
    whole = await asyncio.to_thread(path.read_text)
    value = yaml.safe_load(whole)
    fewer = yaml.safe_dump({**value, "engines": value["engines"][:1]})
    reloads = 0
    while not until.is_set():
        for text in (fewer, whole):
            await asyncio.to_thread(path.write_text, text)
            answer = await raw_client.request(gateway.ops_port, "/api/reload", {}, key=None)
            assert answer.status == 200
            reloads += 1
            await asyncio.sleep(0.3)
    return reloads


def held(engines):
    """Tasks, open files and memory of this process, as they are now; without the kept connections to engines.

    Each of these is a task of the scripted engine and two files, and the watches' questions keep a few of them alive.
    """
    kept = sum(engine.connections_open for engine in engines)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    files = len(list(Path("/proc/self/fd").iterdir()))
    return len(asyncio.all_tasks()) - kept, files - 2 * kept, pages * os.sysconf("SC_PAGE_SIZE")


async def at_rest(gateway, engines, tasks_and_files):
    """Wait until nothing is under way and kept connections have gone; return what is held then."""
    await gateway.until(lambda: not gateway.exchanges)
    await gateway.until(lambda: not any(engine._busy for engine in engines))
    for engine in engines:
        engine.requests.clear()
        engine.finished.clear()
        engine.aborted.clear()
    if tasks_and_files is not None:
        await gateway.until(lambda: all(engine.connections_open <= KEPT_MAX for engine in engines))
        tasks, files = tasks_and_files
        await gateway.until(lambda: held(engines)[0] <= tasks and held(engines)[1] <= files)
    return held(engines)


def tell(*words):
    if SHOWN is not None:
        with SHOWN.open("a") as file:
            print(*words, file=file)


@pytest.mark.timeout(3 * SOAK_S + 120)
async def test_overload_leaves_nothing_behind(tmp_path, crashes_logged):
    rng = random.Random(11)
    times = {"connect_s": 2, "first_byte_s": 3, "idle_s": 3}
    limits = {"client_stall_s": 2, "body_read_s": 2, "connections_max": CALLERS}
    async with (
        ScriptedEngine(an_engines_script(rng)) as one,
        ScriptedEngine(an_engines_script(rng)) as two,
        running(tmp_path, one, two, plan=overloaded(), engine={"timeouts": times}, limits=limits) as gateway,
    ):
        crowd = Crowd(gateway.port, BODIES, [INTERACTIVE_KEY, BATCH_KEY], seed=7)
        await asyncio.sleep(2)  # both engines' watches have a connection of their own by then
        rests = [await at_rest(gateway, (one, two), None)]
        tell("before", rests[0])
        for number in range(ROUNDS):
            over = asyncio.Event()
            asyncio.get_running_loop().call_later(SOAK_S / ROUNDS, over.set)
            async with asyncio.TaskGroup() as group:
                group.create_task(crowd.come(CALLERS, over))
                scrapes = group.create_task(watched(gateway, over))
                reloads = group.create_task(reloaded(gateway, tmp_path, over))
            assert scrapes.result() > 0 and reloads.result() > 0
            gc.collect()
            rests.append(await at_rest(gateway, (one, two), rests[0][:2]))
            found = await conserved(gateway)
            assert found["gateway_offered_total"] == found["gateway_requests_total"] > 0
            tell("round", number, rests[-1], found, "scrapes", scrapes.result(), "reloads", reloads.result())
        outcomes = {
            outcome: await gateway.metric("gateway_requests_total", outcome=outcome)
            for outcome in ("completed", "refused", "expired", "client_gone", "engine_error", "timed_out")
        }
        tell(outcomes, dict(crowd.done))
    assert outcomes["completed"] and outcomes["client_gone"], outcomes
    assert crashes_logged == []
    warm, last = rests[WARM_ROUNDS][2], max(memory for _, _, memory in rests[WARM_ROUNDS:])
    assert last - warm <= GROWTH_BYTES_MAX, rests
