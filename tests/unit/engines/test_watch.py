"""The watch of one engine, over a scripted set of answers."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from gateway.core.types import EngineLimits
from gateway.engines.health import FAILED_MAX, SILENT_MAX, State
from gateway.engines.target import (
    Answer,
    Carrier,
    EngineNotAsked,
    EngineSilent,
    EngineUnreachable,
    Scheduling,
    Target,
    Timeouts,
)
from gateway.engines.watch import (
    CARDS_INTERVAL_S,
    CRASH_PAUSE_S,
    DOWN_TOLD_EVERY_S,
    LOOK_INTERVAL_S,
    PROOF_ATTEMPTS_MAX,
    EngineWatch,
)
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
        self.state_at_posts = []
        self.obeys = False

    async def get(self, _target, path, **_limits):
        return self._answer(path.split("?")[0].rstrip("/"))

    async def post_json(self, _target, path, value, *, headers=None, **_limits):
        self.posted.append((value, headers))
        self.state_at_posts.append(self.watched.state)
        if self.obeys:
            return await self._in_order(value, headers)
        return self._answer(path)

    async def _in_order(self, body, headers):
        """Answer a proof's round as an engine that obeys priorities does: fillers, then high, then low."""
        priority = int((headers or {}).get("X-Vllm-Priority", body.get("priority", 0)))
        if priority > 0:
            self.low = asyncio.Event()
            await self.low.wait()
        elif priority < 0:
            asyncio.get_running_loop().call_soon(asyncio.get_running_loop().call_soon, self.low.set)
        return Answer(200, b"{}")

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
        self.engine.watched = self
        self.changes = 0
        self.pauses = []
        self.watch = EngineWatch(replace(TARGET, **changes), self.engine, lambda: self.now, self.changed, self.pause)

    def changed(self, watch):
        assert watch is self.watch
        self.changes += 1

    async def pause(self, seconds):
        """Note the watch's pause; the third ends the watch."""
        self.pauses.append(seconds)
        if len(self.pauses) == 3:
            raise asyncio.CancelledError

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


@pytest.mark.parametrize(
    ("said", "state", "named"),
    [
        (Answer(401, b'{"error": "Unauthorized"}'), State.CLOSED, "api_key_env"),
        (models(answers.model_card("other", 12288)), State.STRANGE, "(tiny, tiny-lora); it has other"),
    ],
    ids=["key", "models"],
)
async def test_an_engine_that_is_not_the_pools_is_named_and_not_used(said, state, named):
    watched = Watched(models=("tiny", "tiny-lora"))
    watched.engine.answers["/v1/models"] = said
    await watched.watch.look()
    assert watched.state is state
    assert named in watched.watch.known.problem
    watched.engine.answers["/v1/models"] = models(answers.model_card("tiny", 12288))
    await watched.watch.look()
    assert (watched.state, watched.watch.known.problem) == (State.UP, None)


async def test_an_engine_that_serves_others_while_it_is_up_is_used_no_more():
    watched = Watched(models=("tiny",))
    await watched.watch.look()
    watched.engine.answers["/v1/models"] = models(answers.model_card("other", 12288))
    watched.now += CARDS_INTERVAL_S
    await watched.watch.look()
    assert watched.state is State.STRANGE
    # What it lists is no model of the pool: to adapters that all of a pool's engines list it has nothing to say.
    assert [card["id"] for card in watched.watch.known.cards] == ["tiny"]


async def test_an_engine_that_lists_nothing_is_believed():
    watched = Watched(models=("tiny",))
    watched.engine.answers["/v1/models"] = models()
    await watched.watch.look()
    assert watched.state is State.UP


async def test_a_refused_connection_is_told_at_once_and_only_once():
    watched = Watched()
    await watched.watch.look()
    watched.watch.refused()
    watched.watch.refused()
    assert (watched.state, watched.changes) == (State.REFUSING, 2)


def told(logged):
    """The lines about an engine's state: level, state, and why where it is said."""
    return [(line["log_level"], line["state"], line.get("why")) for line in logged if line["event"] == "engine_state"]


@pytest.mark.parametrize("trouble", [EngineUnreachable("nobody listens"), EngineSilent("nothing came")])
async def test_an_engine_that_was_never_up_is_told_of_at_once_and_again_while_it_stays_away(trouble):
    watched = Watched()
    watched.engine.answers["/v1/models"] = trouble
    with capture_logs() as logged:
        await watched.watch.look()
        assert told(logged) == [("warning", "new", str(trouble))]
        assert logged[0]["url"] == "http://a"
        watched.now += DOWN_TOLD_EVERY_S - 1
        await watched.watch.look()
        assert len(logged) == 1
        watched.now += 1
        await watched.watch.look()
    assert told(logged) == [("warning", "new", str(trouble))] * 2


async def test_a_complaint_about_an_engine_is_repeated_while_it_lasts_and_not_said_twice_at_once():
    watched = Watched()
    watched.engine.answers["/v1/models"] = Answer(500, b"")
    with capture_logs() as logged:
        await watched.watch.look()
        assert [line["event"] for line in logged] == ["engine_not_usable"]
        watched.now += DOWN_TOLD_EVERY_S
        await watched.watch.look()
    assert told(logged) == [("warning", "new", watched.watch.known.problem)]


async def test_coming_into_service_is_no_warning_and_leaving_it_is():
    watched = Watched()
    with capture_logs() as logged:
        await watched.watch.look()
        watched.watch.refused()
        await watched.watch.look()
    assert told(logged) == [("info", "up", None), ("warning", "refusing", None), ("info", "up", None)]


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


PROBED = {"scheduling": Scheduling.PROBE, "limits": EngineLimits(max_num_batched_tokens=2048)}


async def test_an_unproved_engine_is_probed_a_few_times_and_only_before_it_gets_requests():
    watched = Watched(**PROBED)
    watched.engine.answers["/v1/completions"] = Answer(400, b"")
    for _ in range(3):
        await watched.watch.look()
    assert watched.watch.known.proofs_tried == PROOF_ATTEMPTS_MAX
    assert watched.state is State.UP
    assert set(watched.engine.state_at_posts) == {State.NEW}


async def test_a_proof_is_announced_before_it_loads_the_engine():
    watched = Watched(**PROBED)
    watched.engine.obeys = True
    with capture_logs() as logged:
        await watched.watch.look()
    events = [line["event"] for line in logged]
    assert events == ["priority_probe_started", "priority_probed", "engine_state"]


async def test_an_engine_without_stated_limits_that_no_proof_fits_says_what_to_state():
    watched = Watched(scheduling=Scheduling.PROBE)
    with capture_logs() as logged:
        await watched.watch.look()
    (line,) = [line for line in logged if line["event"] == "priority_not_probed"]
    assert "limits.max_num_batched_tokens" in line["why"]


async def test_an_engine_that_is_at_work_is_not_loaded_with_a_proof():
    watched = Watched(**PROBED)
    watched.engine.answers["/metrics"] = page(running=1)
    await watched.watch.look()
    watched.engine.answers["/metrics"] = page()
    await watched.watch.look()
    assert (watched.state, watched.engine.posted) == (State.UP, [])


async def test_a_restart_while_it_serves_takes_the_engine_out_until_it_is_proved_again():
    watched = Watched(**PROBED)
    watched.engine.obeys = True
    await watched.watch.look()
    assert watched.watch.priority_effective
    watched.engine.obeys = False
    watched.engine.answers["/metrics"] = page(started=2)
    await watched.watch.look()
    assert (watched.state, watched.watch.priority_effective) == (State.UP, False)
    assert set(watched.engine.state_at_posts) == {State.NEW}


@pytest.mark.parametrize("went", [EngineWatch.refused, EngineWatch.leaving])
@pytest.mark.parametrize(("after", "restarts"), [(page(started=2), 1), (EngineSilent(), 0)])
async def test_a_restart_during_which_connections_or_requests_are_refused_forgets_the_proof(went, after, restarts):
    watched = Watched(**PROBED)
    watched.engine.obeys = True
    await watched.watch.look()
    assert watched.watch.priority_effective
    went(watched.watch)
    watched.engine.obeys = False
    watched.now += 5
    watched.engine.answers["/metrics"] = after
    await watched.watch.look()
    assert (watched.state, watched.watch.priority_effective) == (State.UP, False)
    assert watched.watch.known.restarts == restarts


async def test_a_refused_connection_of_the_same_process_keeps_the_proof():
    watched = Watched(**PROBED)
    watched.engine.obeys = True
    await watched.watch.look()
    posted = len(watched.engine.posted)
    watched.watch.refused()
    watched.now += 5
    await watched.watch.look()
    assert (watched.state, watched.watch.priority_effective) == (State.UP, True)
    assert (watched.watch.known.restarts, len(watched.engine.posted)) == (0, posted)


@pytest.mark.parametrize("path", ["/version", "/metrics"])
async def test_what_is_only_good_to_know_does_not_keep_an_engine_out(path):
    watched = Watched()
    watched.engine.answers[path] = EngineSilent()
    await watched.watch.look()
    assert watched.state is State.UP


async def test_an_engine_that_only_fails_what_callers_ask_stays_in_service():
    watched = Watched()
    await watched.watch.look()
    for _ in range(FAILED_MAX):
        watched.watch.failed()
    watched.engine.answers["/v1/completions"] = Answer(200, b"{}")
    await watched.watch.look()
    assert watched.state is State.UP
    assert not watched.watch.health.is_suspected


async def test_a_suspected_engine_that_could_not_be_asked_is_not_convicted():
    watched = Watched()
    await watched.watch.look()
    for _ in range(FAILED_MAX):
        watched.watch.failed()
    watched.engine.answers["/v1/completions"] = EngineNotAsked()
    await watched.watch.look()
    assert (watched.state, watched.watch.health.is_suspected) == (State.UP, True)


async def test_an_engine_that_fails_again_and_again_comes_back_when_it_generates():
    watched = Watched()
    await watched.watch.look()
    for _ in range(FAILED_MAX):
        watched.watch.failed()
    watched.engine.answers["/v1/completions"] = Answer(500, b"")
    await watched.watch.look()
    assert watched.state is State.FAILING
    await watched.watch.look()
    assert (watched.state, watched.watch.known.problem) == (State.FAILING, "it lists its models, but generates nothing")
    watched.engine.answers["/v1/completions"] = Answer(200, b"{}")
    await watched.watch.look()
    assert (watched.state, watched.watch.known.problem) == (State.UP, None)


@pytest.mark.parametrize(("embeddings", "comes_back"), [(200, True), (404, True), (500, False)])
async def test_an_engine_that_generates_nothing_is_asked_for_an_embedding(embeddings, comes_back):
    watched = Watched()
    await watched.watch.look()
    for _ in range(SILENT_MAX):
        watched.watch.silent()
    watched.engine.answers |= {"/v1/completions": Answer(404, b""), "/v1/embeddings": Answer(embeddings, b"")}
    await watched.watch.look()
    assert watched.watch.health.is_up == comes_back


async def test_an_engine_that_shuts_down_is_told_of_as_no_problem():
    watched = Watched()
    await watched.watch.look()
    watched.engine.answers["/v1/completions"] = Answer(500, b"")
    with capture_logs() as logged:
        watched.watch.leaving()
        await watched.watch.look()
    assert told(logged) == [("warning", "leaving", None)]
    assert (len(logged), watched.watch.known.problem) == (1, None)


async def test_a_problem_of_an_engine_that_serves_is_forgotten_once_its_models_are_read():
    watched = Watched()
    await watched.watch.look()
    watched.engine.answers["/v1/models"] = Answer(500, b"")
    watched.now += CARDS_INTERVAL_S
    await watched.watch.look()
    assert "500" in watched.watch.known.problem
    watched.engine.answers["/v1/models"] = models(answers.model_card("tiny", 12288))
    await watched.watch.look()
    assert (watched.state, watched.watch.known.problem) == (State.UP, None)


async def test_a_look_that_crashes_is_told_of_and_the_watch_goes_on():
    watched = Watched()
    watched.engine.answers["/v1/models"] = RuntimeError("a bug")
    with capture_logs() as logged, pytest.raises(asyncio.CancelledError):
        await watched.watch.run()
    assert watched.pauses == [CRASH_PAUSE_S] * 3
    assert [line["event"] for line in logged] == ["watch_crashed"] * 3
    watched = Watched()
    with pytest.raises(asyncio.CancelledError):
        await watched.watch.run()
    assert watched.pauses == [LOOK_INTERVAL_S] * 3


async def test_the_caches_size_is_the_engines_own_where_it_is_not_stated():
    for stated, in_force in ((None, 65536), (1000, 1000)):
        watched = Watched(limits=EngineLimits(kv_tokens=stated))
        await watched.watch.look()
        assert watched.watch.limits.kv_tokens == in_force


async def test_the_probes_priorities_travel_as_the_callers_would():
    watched = Watched(scheduling=Scheduling.PROBE, limits=EngineLimits(max_num_batched_tokens=2048))
    await watched.watch.look()
    assert {headers["X-Vllm-Priority"] for _, headers in watched.engine.posted} == {"0", "1000", "-1000"}
    watched = Watched(
        scheduling=Scheduling.PROBE, limits=EngineLimits(max_num_batched_tokens=2048), carrier=Carrier.BODY
    )
    await watched.watch.look()
    assert {body["priority"] for body, _ in watched.engine.posted} == {0, 1000, -1000}


@pytest.mark.parametrize("status", [429, 503])
async def test_a_full_engine_is_asked_again_whether_it_judges_a_rank(status):
    watched = Watched()
    watched.engine.answers["/v1/completions"] = Answer(status, b"{}")
    assert not await watched.watch.judges_rank()
    refused = b'{"error": {"message": "data_parallel_rank 2147483647 is out of range [0, 1)."}}'
    watched.engine.answers["/v1/completions"] = Answer(400, refused)
    assert await watched.watch.judges_rank()


async def test_an_engine_that_runs_what_is_meant_for_another_rank_is_asked_once():
    watched = Watched()
    assert not await watched.watch.judges_rank()
    assert not await watched.watch.judges_rank()
    assert watched.engine.asked == ["/v1/completions"]
