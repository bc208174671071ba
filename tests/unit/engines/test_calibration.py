"""Probing an idle engine, over an engine whose prefills take what a step model says, on a fake clock."""

from __future__ import annotations

import asyncio
import json

import pytest
from structlog.testing import capture_logs

from gateway.core.steptime import StepFit, StepModel
from gateway.core.types import EngineLimits
from gateway.engines import calibration
from gateway.engines.calibration import Calibration, Ladder, prompt_lengths
from gateway.engines.target import Answer, Carrier, EngineSilent, EngineUnreachable, Scheduling, Target, Timeouts
from gateway.engines.watch import EngineWatch
from gateway.testing import answers

TRUE = StepModel(base_s=0.004, per_token_s=1 / 27_800, per_token_context_s=54e-9)
LIMITS = EngineLimits(max_num_batched_tokens=2048, long_prefill_token_threshold=640)
LENGTHS = [256, 512, 1024, 2048, 4096, 8192]


class Probed:
    """One engine, its watch and its calibration. `on_post`: what the next posts do in place of answering."""

    def __init__(self, *, model=TRUE, scheduling=Scheduling.PRIORITY, max_model_len=12288):
        self.now = 1000.0
        self.model = model
        self.metrics = {"running": 0, "waiting": 0, "kv_usage": 0, "started": 1}
        self.max_model_len = max_model_len
        self.posted = []
        self.on_post = {}
        self.is_free = True
        self.learned = []
        target = Target("a", "http://a", "chat", scheduling, Carrier.HEADER, LIMITS, Timeouts(1, 1, 1))
        self.watch = EngineWatch(target, self, lambda: self.now, lambda _watch: None)
        self.calibration = Calibration(
            self.watch, lambda: self.is_free, self.learn, lambda: self.now, pause=self.never_paused
        )

    async def never_paused(self, _seconds):
        raise AssertionError("`run` is not under test here")

    def learn(self, samples):
        self.learned.append(samples)
        fit = StepFit()
        fit.calibrate(samples)
        return fit.model

    async def get(self, _target, path, **_limits):
        match path.split("?")[0].rstrip("/"):
            case "/v1/models":
                return Answer(200, json.dumps({"data": [answers.model_card("tiny", self.max_model_len)]}).encode())
            case "/metrics":
                return Answer(200, answers.metrics_text(self.metrics))
            case _:
                return Answer(200, b'{"version": "0.32.0"}')

    async def post_json(self, _target, _path, value, *, headers=None, **_limits):
        self.posted.append((value, headers))
        if (does := self.on_post.get(len(self.posted))) is not None:
            return await does()
        self.now += self.model.prefill_s(len(value["prompt"]), 2048)
        return Answer(200, b"{}")

    async def look(self):
        await self.watch.look()
        await self.calibration.look()

    @property
    def lengths(self):
        return [len(body["prompt"]) for body, _ in self.posted]


@pytest.mark.parametrize(
    ("limits", "context", "lengths"),
    [
        (LIMITS, 12288, LENGTHS),
        (EngineLimits(max_num_batched_tokens=8192, kv_tokens=40_000), 131_072, [1024, 2048, 4096, 8192, 16384, 32768]),
        (EngineLimits(max_num_batched_tokens=8192), 513, [64, 128, 256, 512]),
        (EngineLimits(max_num_batched_tokens=65_536), None, [8192, 16384, 32768, 65536]),
        (EngineLimits(), 2, [1]),
    ],
)
def test_prompts_go_from_a_part_of_a_step_to_what_fits(limits, context, lengths):
    assert prompt_lengths(limits, context) == lengths


async def test_an_idle_engine_is_measured_upwards_twice_after_a_warm_up_and_once_a_start():
    probed = Probed()
    await probed.look()
    assert probed.lengths == [256, *LENGTHS, *LENGTHS]
    (samples,) = probed.learned
    assert [sample.prompt_tokens for sample in samples] == LENGTHS
    assert [sample.steps for sample in samples] == [1, 1, 1, 1, 2, 4]
    assert probed.calibration.is_done
    await probed.look()
    assert len(probed.learned) == 1


async def test_what_is_learned_predicts_lengths_that_were_not_measured():
    probed = Probed()
    await probed.look()
    model = probed.learn(probed.learned[0])
    assert model.fitted
    for tokens in (100, 700, 3000, 12_000):
        assert model.prefill_s(tokens, 2048) == pytest.approx(TRUE.prefill_s(tokens, 2048), rel=0.03)


async def test_the_fastest_of_a_length_counts():
    probed = Probed()

    async def late():
        probed.now += 1.0
        return Answer(200, b"{}")

    probed.on_post = {2: late, 11: late}
    await probed.look()
    assert [sample.seconds for sample in probed.learned[0]] == pytest.approx(
        [TRUE.prefill_s(tokens, 2048) for tokens in LENGTHS]
    )


async def test_a_slow_engine_is_not_loaded_for_longer_than_the_time_there_is():
    slow = StepModel(base_s=0.1, per_token_s=1 / 1000)
    probed = Probed(model=slow)
    began_at = probed.now
    await probed.look()
    assert max(probed.lengths) == 2048
    assert probed.now - began_at - slow.prefill_s(256, 2048) <= calibration.PROBING_S_MAX


async def test_prompts_share_no_beginning_ask_for_one_token_and_are_the_least_urgent():
    probed = Probed()
    await probed.look()
    bodies = [body for body, _ in probed.posted]
    assert len({tuple(body["prompt"][:16]) for body in bodies}) == len(bodies)
    assert len({body["cache_salt"] for body in bodies}) == len(bodies)
    assert {(body["max_tokens"], body["temperature"], body["model"]) for body in bodies} == {(1, 0, "tiny")}
    assert {int(headers["X-Vllm-Priority"]) for _, headers in probed.posted} == {2**62}


async def test_an_engine_whose_priority_is_not_effective_is_sent_none():
    probed = Probed(scheduling=Scheduling.FCFS)
    await probed.look()
    assert {tuple(headers) for _, headers in probed.posted} == {()}


@pytest.mark.parametrize("gauge", ["running", "waiting"])
async def test_an_engine_at_work_is_left_alone_until_it_is_idle(gauge):
    probed = Probed()
    probed.metrics[gauge] = 1
    await probed.look()
    assert probed.posted == []
    probed.metrics[gauge] = 0
    await probed.look()
    assert probed.calibration.is_done and len(probed.learned) == 1


async def test_an_engine_that_does_not_say_whether_it_is_idle_is_left_alone():
    probed = Probed()
    await probed.watch.look()
    probed.now += calibration.LOAD_AGE_S_MAX + 1
    await probed.calibration.look()
    assert probed.posted == []


async def test_nothing_is_sent_while_a_request_runs_there_or_has_just_been():
    probed = Probed()
    probed.is_free = False
    await probed.look()
    probed.is_free = True
    await probed.watch.look()
    probed.watch.dispatched()
    await probed.calibration.look()
    assert probed.posted == []
    probed.now += calibration.QUIET_S
    await probed.look()
    assert probed.calibration.is_done


def a_caller_comes(probed):
    async def computing():
        probed.watch.dispatched()
        probed.watch.dispatched()  # a second one changes nothing
        await asyncio.Event().wait()

    return computing


async def test_a_request_cuts_the_probe_under_way_and_what_was_measured_before_is_kept():
    probed = Probed()
    probed.on_post = {5: a_caller_comes(probed)}
    await probed.look()
    assert [sample.prompt_tokens for sample in probed.learned[0]] == LENGTHS[:3]
    assert not probed.calibration.is_done


async def test_a_cut_ladder_goes_on_when_the_engine_is_idle_again():
    probed = Probed()
    probed.on_post = {5: a_caller_comes(probed)}
    await probed.look()
    probed.now += calibration.QUIET_S
    await probed.look()
    assert probed.lengths == [256, *LENGTHS[:4], *LENGTHS[3:], *LENGTHS]
    assert [sample.prompt_tokens for sample in probed.learned[-1]] == LENGTHS


async def test_an_engine_that_callers_come_to_again_and_again_is_given_up():
    probed = Probed()
    probed.on_post = dict.fromkeys(range(1, 100), a_caller_comes(probed))
    for _ in range(calibration.CUTS_MAX + 2):
        await probed.look()
        probed.now += calibration.QUIET_S
    assert len(probed.posted) == calibration.CUTS_MAX
    assert probed.calibration.is_done and probed.learned == []


def raising(error):
    async def raise_it():
        raise error

    return raise_it


def answering(status):
    async def answer():
        return Answer(status, b"{}")

    return answer


@pytest.mark.parametrize("trouble", [raising(EngineUnreachable()), answering(429), answering(503)])
async def test_an_engine_without_room_or_gone_is_tried_again(trouble):
    probed = Probed()
    probed.on_post = {4: trouble}
    await probed.look()
    assert not probed.calibration.is_done and len(probed.learned[0]) == 2
    await probed.look()
    assert probed.calibration.is_done and len(probed.learned[1]) == len(LENGTHS)


async def test_a_probe_that_takes_too_long_is_the_last():
    probed = Probed()
    probed.on_post = {4: raising(EngineSilent())}
    await probed.look()
    assert probed.calibration.is_done and len(probed.learned[0]) == 2


async def test_a_warm_up_that_takes_too_long_is_tried_again():
    probed = Probed()
    probed.on_post = {1: raising(EngineSilent())}
    await probed.look()
    await probed.look()
    assert probed.calibration.is_done and len(probed.learned) == 1


@pytest.mark.parametrize("status", [400, 404, 501])
async def test_an_engine_that_completes_no_token_ids_is_told_of_once_and_not_asked_again(status):
    probed = Probed()
    probed.on_post = {1: answering(status)}
    with capture_logs() as logged:
        await probed.look()
        await probed.look()
    assert [line["event"] for line in logged if line["log_level"] == "warning"] == ["engine_not_calibrated"]
    assert len(probed.posted) == 1 and probed.learned == []


async def test_another_start_of_the_engine_is_measured_anew():
    probed = Probed()
    await probed.look()
    probed.metrics["started"] = 2
    probed.model = StepModel(base_s=0.008, per_token_s=1 / 50_000)
    await probed.look()
    assert len(probed.learned) == 2
    assert probed.learned[1][0].seconds == pytest.approx(probed.model.prefill_s(256, 2048))


async def test_what_was_learned_is_logged_in_seconds():
    probed = Probed()
    with capture_logs() as logged:
        await probed.look()
    (line,) = [line for line in logged if line["event"] == "engine_calibrated"]
    assert (line["prefills"], line["prompt_tokens_max"]) == (len(LENGTHS), 8192)
    assert line["base_s"] == pytest.approx(TRUE.base_s, rel=0.1)


def test_a_ladder_of_nothing_has_no_next():
    assert Ladder([]).next() is None
