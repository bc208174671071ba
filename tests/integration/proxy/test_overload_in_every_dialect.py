"""What a gateway that is full, ending or without an engine says: in each dialect, streaming or not, the same."""

from __future__ import annotations

import pytest

from gateway.core.plan import AdmissionKind, SlotBudget, TenantBounds
from gateway.testing import answers, raw_client
from gateway.testing.builders import a_class, a_plan, an_admission
from gateway.testing.harness import BATCH_KEY, INTERACTIVE_KEY, MODEL, a_chat, running
from gateway.testing.scripted_engine import ScriptedEngine

BODY_BYTES_MAX = 2000
HELLO = [{"role": "user", "content": "Say hello."}]
BODIES = {
    "/v1/chat/completions": a_chat(),
    "/v1/completions": {"model": MODEL, "prompt": "Hello"},
    "/v1/responses": {"model": MODEL, "input": "Hello"},
    "/v1/messages": {"model": MODEL, "messages": HELLO, "max_tokens": 5},
}
OVERLOAD, UNAVAILABLE = (
    (429, "rate_limit_error", "slow_down"),
    (503, "service_unavailable_error", "server_is_overloaded"),
)
SAID = {
    "tenant_queue_full": (OVERLOAD, (429, "rate_limit_error")),
    "wait_deadline": (OVERLOAD, (429, "rate_limit_error")),
    "queue_full": (OVERLOAD, (429, "rate_limit_error")),
    "body_too_large": ((413, "invalid_request_error", "request_too_large"), (413, "request_too_large")),
    "no_engine": (UNAVAILABLE, (529, "overloaded_error")),
    "draining": (UNAVAILABLE, (529, "overloaded_error")),
}
PLAN = a_plan(
    a_class("interactive", requests_max=1, wait_s_max=(60, 60)),
    a_class("batch", rank=1, weight=1, tenant=TenantBounds(queued_requests_max=0)),
    admission=an_admission(AdmissionKind.SLOTS, slots=SlotBudget(1)),
)


def check(path, answer, reason):
    openai, anthropic = SAID[reason]
    value = answer.json()
    if path == "/v1/messages":
        assert (value["type"], answer.status, value["error"]["type"]) == ("error", *anthropic)
        assert value["request_id"] == answer.header("x-request-id")
    else:
        assert (answer.status, value["error"]["type"], value["error"]["code"]) == openai
    assert value["error"]["details"]["reason"] == answer.header("x-gateway-reason") == reason
    assert answer.header("content-type") == "application/json"
    is_retryable = reason != "body_too_large"
    assert answer.header("x-should-retry") == ("true" if is_retryable else "false")
    assert (answer.header("retry-after") is not None) == is_retryable


@pytest.mark.parametrize("path", BODIES)
async def test_every_refusal_for_want_of_room_has_its_status_and_envelope(tmp_path, path):
    async with (
        ScriptedEngine(answers.hanging()) as engine,
        running(
            tmp_path,
            engine,
            plan=PLAN,
            limits={"body_bytes_max": BODY_BYTES_MAX},
            drain={"settle_s": 0, "deadline_s": 60},
        ) as gateway,
        gateway.client() as first,
        gateway.client() as second,
    ):

        async def refused(reason, key=INTERACTIVE_KEY, wait_ms="60000", **members):
            for stream in (False, True):
                body = {**BODIES[path], "stream": stream, **members}
                check(path, await gateway.ask(path, body, key=key, headers={"x-gateway-wait-ms": wait_ms}), reason)

        await first.post(path, BODIES[path])
        await engine.until(lambda: len(engine.posts) == 1)
        await refused("tenant_queue_full", key=BATCH_KEY)
        await refused("wait_deadline", wait_ms="1")
        await refused("body_too_large", user="x" * BODY_BYTES_MAX)
        await second.post(path, BODIES[path])
        await gateway.until_metric("gateway_queue_requests", 1)
        await refused("queue_full")
        await engine.refuse_connections()
        gateway.gateway.rooms.watches["a"].refused()
        await refused("no_engine")
        await raw_client.request(gateway.ops_port, "/api/drain", {})
        await refused("draining")
        assert len(engine.posts) == 1
