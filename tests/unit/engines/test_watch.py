"""The watch of one engine, over a scripted set of answers."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gateway.core.types import EngineLimits
from gateway.engines.health import SILENT_MAX, State
from gateway.engines.target import Answer, Carrier, EngineSilent, EngineUnreachable, Scheduling, Target, Timeouts
from gateway.engines.watch import CARDS_INTERVAL_S, PROOF_ATTEMPTS_MAX, EngineWatch
from gateway.testing import answers


def page(**values):
    return Answer(200, answers.metrics_text({"running": 0, "waiting": 0, "kv_usage": 0, "started": 1} | values))


def models(*cards):
    return Answer(200, json.dumps({"data": [*cards]}).encode())


class Engine:
    """Answers by path; an exception in place of an answer is raised."""

    def __init__(self):
        self.answers = {
            "/v1/models": models(answers.model_card("tiny", 12288)),
            "/version": Answer(200, b'{"version": "0.32.0"}'),
            "/metrics": page(),
            "/v1/completions": Answer(200, b"{}"),
        }
        self.asked = []
        self.posted = []

    async def get(self, _target, path, **_limits):
        return self._answer(path.split("?")[0].rstrip("/"))

    async def post_json(self, _target, path, value, *, headers=None, **_limits):
        self.posted.append((value, headers))
        return self._answer(path)

    def _answer(self, path):
        self.asked.append(path)
        answer = self.answers[path]
        if isinstance(answer, Exception):
            raise answer
        return answer


TARGET = Target("a", "http://a", "chat", Scheduling.FCFS, Carrier.AUTO, EngineLimits(), Timeouts(1, 1, 1), api_key="k")


class Watched:
    def __init__(self, **changes):
        self.now = 100.0
        self.engine = Engine()
        self.changes = 0
        self.watch = EngineWatch(replace(TARGET, **changes), self.engine, lambda: self.now, self.changed)

    def changed(self, watch):
        assert watch is self.watch
        self.changes += 1

    @property
    def state(self):
        return self.watch.health.state


async def test_the_first_answer_brings_an_engine_up_and_tells_its_models_and_cache():
    watched = Watched()
    await watched.watch.look()
    assert watched.state is State.UP
    assert watched.changes == 1
    assert watched.watch.known.cards[0]["max_model_len"] == 12288
    assert watched.watch.known.load.kv_tokens == 65536
    assert watched.watch.priority_in_header


async def test_an_engine_that_refuses_the_gateways_key_is_named_and_not_used():
    watched = Watched()
    watched.engine.answers["/v1/models"] = Answer(401, b'{"error": "Unauthorized"}')
    await watched.watch.look()
    assert watched.state is State.CLOSED
    assert "api_key_env" in watched.watch.known.problem
    watched.engine.answers["/v1/models"] = models(answers.model_card("tiny", 12288))
    await watched.watch.look()
    assert (watched.state, watched.watch.known.problem) == (State.UP, None)


async def test_a_refused_connection_is_told_at_once_and_only_once():
    watched = Watched()
    await watched.watch.look()
    watched.watch.refused()
    watched.watch.refused()
    assert (watched.state, watched.changes) == (State.REFUSING, 2)


async def test_a_look_that_is_refused_takes_the_engine_out():
    watched = Watched()
    await watched.watch.look()
    watched.engine.answers["/metrics"] = EngineUnreachable()
    await watched.watch.look()
    assert watched.state is State.REFUSING


@pytest.mark.parametrize("trouble", [EngineSilent(), Answer(500, b""), Answer(200, b"")])
async def test_metrics_that_do_not_come_change_nothing(trouble):
    watched = Watched()
    await watched.watch.look()
    watched.now += 5
    watched.engine.answers["/metrics"] = trouble
    await watched.watch.look()
    assert (watched.state, watched.changes, watched.watch.known.load_at) == (State.UP, 1, 100.0)


async def test_a_silent_engine_comes_back_when_it_generates_not_when_it_lists_models():
    watched = Watched()
    await watched.watch.look()
    for _ in range(SILENT_MAX):
        watched.watch.silent()
    watched.engine.answers["/v1/completions"] = EngineSilent()
    await watched.watch.look()
    assert watched.state is State.SILENT
    watched.engine.answers["/v1/completions"] = Answer(200, b"{}")
    await watched.watch.look()
    assert watched.state is State.UP


async def test_a_restart_is_counted_and_the_cards_are_read_again():
    watched = Watched()
    await watched.watch.look()
    watched.engine.answers["/metrics"] = page(started=2)
    watched.engine.answers["/v1/models"] = models(answers.model_card("tiny", 4096))
    await watched.watch.look()
    assert watched.watch.known.restarts == 1
    assert watched.watch.known.cards[0]["max_model_len"] == 4096


async def test_cards_are_read_again_now_and_then():
    watched = Watched()
    await watched.watch.look()
    asked = watched.engine.asked.count("/v1/models")
    await watched.watch.look()
    assert watched.engine.asked.count("/v1/models") == asked
    watched.now += CARDS_INTERVAL_S
    await watched.watch.look()
    assert watched.engine.asked.count("/v1/models") == asked + 1


@pytest.mark.parametrize(
    ("scheduling", "effective"), [(Scheduling.PRIORITY, True), (Scheduling.FCFS, False), (Scheduling.PROBE, False)]
)
async def test_stated_scheduling_is_believed_and_a_probe_without_proof_is_none(scheduling, effective):
    watched = Watched(scheduling=scheduling)
    watched.engine.answers["/v1/completions"] = Answer(400, b"")
    await watched.watch.look()
    assert watched.state is State.UP
    assert watched.watch.priority_effective is effective


async def test_an_unproved_engine_is_probed_a_few_times_and_only_while_it_is_idle():
    watched = Watched(scheduling=Scheduling.PROBE, limits=EngineLimits(max_num_batched_tokens=2048))
    watched.engine.answers["/v1/completions"] = Answer(400, b"")
    watched.engine.answers["/metrics"] = page(running=1)
    await watched.watch.look()
    assert watched.engine.posted == []
    watched.engine.answers["/metrics"] = page()
    for _ in range(PROOF_ATTEMPTS_MAX + 2):
        await watched.watch.look()
    assert watched.watch.known.proofs_tried == PROOF_ATTEMPTS_MAX


async def test_the_probes_priorities_travel_as_the_callers_would():
    watched = Watched(scheduling=Scheduling.PROBE, limits=EngineLimits(max_num_batched_tokens=2048))
    await watched.watch.look()
    assert {headers["X-Vllm-Priority"] for _, headers in watched.engine.posted} == {"0", "1000", "-1000"}
    watched = Watched(
        scheduling=Scheduling.PROBE, limits=EngineLimits(max_num_batched_tokens=2048), carrier=Carrier.BODY
    )
    await watched.watch.look()
    assert {body["priority"] for body, _ in watched.engine.posted} == {0, 1000, -1000}
