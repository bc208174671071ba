"""One request of the last ones, explained by its id: what was decided and why, without a word of its prompt."""

from __future__ import annotations

import asyncio
import sys

from gateway.core.plan import AdmissionKind, SlotBudget
from gateway.testing import answers
from gateway.testing.builders import a_class, a_plan, an_admission
from gateway.testing.harness import MODEL, running
from gateway.testing.scripted_engine import ScriptedEngine


def one_at_a_time(requests_max=1):
    return a_plan(
        a_class("interactive", wait_s_max=(30, 30), requests_max=requests_max),
        a_class("batch", rank=1, weight=1),
        admission=an_admission(AdmissionKind.SLOTS, slots=SlotBudget(1)),
    )


async def explain(gateway, request_id, *options):
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "explain", request_id, "--url", f"http://127.0.0.1:{gateway.ops_port}"),
        *options,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, error = await child.communicate()
    return child.returncode, out.decode(), error.decode()


async def told(gateway, request_id):
    return (await gateway.ops(f"/api/explain/{request_id}")).json()


async def test_what_waited_what_was_refused_and_what_never_came_to_admission(tmp_path):
    go_on, began = asyncio.Event(), asyncio.Semaphore(0)

    async def held(request, wire):
        began.release()
        await go_on.wait()
        await answers.completion()(request, wire)

    async with ScriptedEngine(held) as engine, running(tmp_path, engine, plan=one_at_a_time()) as gateway:
        async with asyncio.TaskGroup() as group:
            group.create_task(gateway.chat())
            await began.acquire()
            waiting = group.create_task(gateway.chat(messages=[{"role": "user", "content": "a secret word"}]))
            await gateway.until_metric("gateway_queue_requests", 1)
            refused = await gateway.chat()
            (exchange,) = [each for each in gateway.exchanges if each.waiting_since is not None]
            alive = await told(gateway, exchange.request_id)
            assert (alive["phase"], alive["line"]["engines"][0]["lacks"]) == ("waiting", ["slots"])
            assert alive["waited_s"] > 0
            go_on.set()
        code, out, _ = await explain(gateway, waiting.result().header("x-request-id"))
        assert code == 0
        assert "secret" not in out
        assert "counted from its bytes, roughly" in out
        assert "engine a: no room: sequences (1 of 1 in use)" in out
        assert "It waited " in out and "and went to engine a." in out
        assert "It was answered in full (status 200)" in out
        code, out, _ = await explain(gateway, refused.header("x-request-id"))
        assert code == 0
        assert "When it arrived, 1 others of its class and length waited" in out
        assert "It was refused (status 429)" in out
        assert "Reason queue_full. The queue of service class interactive is full" in out
        assert "Limit 1, observed 2." in out
        assert "Told to try again after " in out
        malformed = await gateway.chat(model=7)
        facts = await told(gateway, malformed.header("x-request-id"))
        assert (facts["judged"], facts["refusal"]["reason"], facts["refusal"]["message"]) == (None, "bad_request", None)
        assert (await explain(gateway, malformed.header("x-request-id")))[0] == 0
        code, _, error = await explain(gateway, "nobody/../%20")
        assert code == 1
        assert error.startswith("error: The gateway gives no such ids. Give the x-request-id of its answer; ")
        code, _, error = await explain(gateway, f"req-{'0' * 24}")
        assert code == 1
        assert error.startswith("error: No request of this id is among those that are kept. Look in the log: ")


async def test_what_takes_no_engine_time_is_explained_as_that(tmp_path):
    async with ScriptedEngine(answers.completion()) as engine, running(tmp_path, engine) as gateway:
        asked = [
            await gateway.ask("/tokenize", {"model": MODEL, "prompt": "a secret word"}),
            await gateway.ask("/v1/models"),
            await gateway.ask("/v1/elsewhere"),
            await gateway.ask("/v1/models", key="gw-unknown-0123456789-0123456789-0123456789"),
            await gateway.ask("/tokenize", {"model": "a secret model", "prompt": "a secret word"}),
        ]
        said = [await told(gateway, each.header("x-request-id")) for each in asked]
        assert [(each["route"], each["engine"], each["status"]) for each in said] == [
            ("/tokenize", "a", asked[0].status),
            ("/v1/models", None, 200),
            (None, None, 404),
            ("/v1/models", None, 401),
            ("/tokenize", None, 404),
        ]
        reasons = [each["refusal"] and each["refusal"]["reason"] for each in said]
        assert reasons == [None, None, "unknown_route", "unauthenticated", "unknown_model"]
        assert "secret" not in str(said)
        code, out, _ = await explain(gateway, asked[0].header("x-request-id"))
        assert code == 0
        assert "take no engine time" in out
        assert "Class interactive. It was passed on to engine a." in out
        code, out, _ = await explain(gateway, asked[2].header("x-request-id"))
        assert code == 0
        assert "Reason unknown_route." in out
