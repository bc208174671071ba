"""The calibration's fit, its choice of requests, and what of an answer counts as measured."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any

import pytest
from bench_kit import scripted, usage_event

from bench import calibration
from bench.analysis.step_model import TERMS, Sample, decode, fit, prefill, together
from bench.calibration import Measured, measure, prompt_lengths
from bench.engine.lone_requests import LONE_PATH, LoneRequests, Timed, Untimed
from bench.errors import TargetUnreachableError
from bench.load.client import StreamingClient
from bench.load.target import Target
from bench.records.calibration import contents
from bench.report.calibration_table import describe

TRUE = (0.008, 0.006, 1 / 27_800, 54e-9, 0.0003, 90e-9)
STEP = 2048
LENGTHS = [256, 512, 1024, 2048, 4096, 8192]


def true_s(sample: Sample) -> float:
    return sum(value * term for value, term in zip(TRUE, sample.terms, strict=True))


def samples(noise: float = 0.0, spoilt: float = 0.0, rounds: int = 6) -> list[Sample]:
    """`noise`: each is up to so much too long; `spoilt`: the share that takes three times as long."""
    draw = random.Random(1)
    shapes = [*(prefill(tokens, STEP, 1.0) for tokens in LENGTHS), prefill(16, STEP, 1.0), decode(16, 64, 1.0)]
    shapes.append(decode(16, 64, 1.0, sequences=16))
    return [
        shape._replace(seconds=true_s(shape) * draw.uniform(1, 1 + noise) * (3 if draw.random() < spoilt else 1))
        for _ in range(rounds)
        for shape in shapes
    ]


def test_exact_times_give_the_true_terms() -> None:
    found = fit(samples())
    assert [found.terms[name].value for name in TERMS] == pytest.approx(list(TRUE), rel=0.01)
    assert found.error_p95 < 0.001


def test_a_quarter_of_the_times_far_too_long_moves_the_prediction_little() -> None:
    found = fit(samples(noise=0.05, spoilt=0.25))
    for tokens in (100, 700, 3000, 12_000):
        sample = prefill(tokens, STEP, 1.0)
        assert found.seconds(sample) == pytest.approx(true_s(sample), rel=0.1)
    for name in TERMS:
        assert found.terms[name].low <= found.terms[name].value <= found.terms[name].high


def test_more_noise_gives_wider_intervals() -> None:
    def width(noise: float) -> float:
        estimate = fit(samples(noise=noise)).terms["per_token_s"]
        return (estimate.high - estimate.low) / estimate.value

    assert width(0.2) > width(0.02)


def test_where_no_prompt_takes_two_steps_tokens_of_earlier_steps_cost_what_those_of_the_same_do() -> None:
    short = [each for each in samples() if not each.terms[0] or each.terms[1] == 1]
    found = fit(short).terms
    assert found["per_token_chunk_s"] == found["per_token_context_s"]
    assert found["per_token_context_s"].value == pytest.approx(TRUE[-1], rel=0.05)


def test_those_that_start_one_after_another_decode_beside_fewer_and_beside_the_prompts_of_the_later() -> None:
    """Two, of which the second begins when the first is half done: each has the other beside it in half of its steps."""
    sample = together(16, 64, [(0.0, 1.0), (0.5, 1.5)])
    assert sample.seconds == 1.0
    assert sample.terms[:2] == (0, 64)
    assert sample.terms[4] == 64 * 1.5 + 0.5
    assert sample.terms[2] == 64 * 1.5 + 0.5 * 16


def test_no_term_is_ever_negative() -> None:
    flat = [Sample(each.terms, 0.05 + each.terms[2] ** 0.5 / 1000) for each in samples()]
    assert all(estimate.low >= 0 for estimate in fit(flat).terms.values())


@pytest.mark.parametrize(
    ("step_tokens", "context", "lengths"),
    [
        (2048, 12288, LENGTHS),
        (8192, 513, [64, 128, 256, 512]),
        (65_536, None, [8192, 16384, 32768, 65536]),
    ],
)
def test_prompts_go_from_a_part_of_a_step_to_what_fits(
    step_tokens: int, context: int | None, lengths: list[int]
) -> None:
    assert prompt_lengths(step_tokens, context) == lengths


class Engine:
    """Answers in no time, and moves its clock by what the true model says; who asks at once decodes at once."""

    def __init__(self, slower: float = 1.0, read_late: Callable[[int], float] = lambda _decoded: 1.0) -> None:
        self.now = 0.0
        self.read_late = read_late  # the share of its time that the given answer of many tokens seems to take
        self.decoded = 0
        self.slower = slower
        self.asked: list[int] = []
        self.inside = self.together = 0

    async def ask(self, prompt_tokens: int, output_tokens: int, _s_max: float) -> Timed | Untimed:
        self.asked.append(prompt_tokens)
        self.together = self.together + 1 if self.inside else 1
        self.inside += 1
        await asyncio.sleep(0)
        self.inside -= 1
        ttft_s = self.slower * true_s(prefill(prompt_tokens, STEP, 1.0))
        self.decoded += output_tokens > calibration.PREFILL_OUTPUT_TOKENS
        read_late = self.read_late(self.decoded)
        decode_s = (
            read_late * self.slower * true_s(decode(prompt_tokens, output_tokens - 1, 1.0, sequences=self.together))
        )
        self.now += (ttft_s + decode_s) / self.together
        return Timed(prompt_tokens, ttft_s, output_tokens - 1, decode_s)

    async def measured(self, seconds: float = 80.0) -> Measured:
        return await measure(self.ask, LENGTHS, step_tokens=STEP, seconds=seconds, clock=lambda: self.now)


async def test_every_length_is_timed_in_every_round_after_a_warm_up_that_is_thrown_away() -> None:
    engine = Engine()
    measured = await engine.measured()
    assert engine.asked[:8] == [256, calibration.DECODE_PROMPT_TOKENS, *LENGTHS]
    assert {length: len(times) for length, times in measured.ttft_s.items()} == dict.fromkeys(
        LENGTHS, calibration.ROUNDS_MAX
    )
    assert len(measured.decode) == calibration.ROUNDS_MAX
    assert measured.prompt_tokens_sent == sum(engine.asked)
    assert len(measured.together) == calibration.ROUNDS_MAX
    found = fit(measured.samples).terms
    assert [found[name].value for name in TERMS] == pytest.approx(list(TRUE), rel=0.02)


async def test_a_slow_engine_is_timed_in_what_fits_into_the_time() -> None:
    engine = Engine(slower=8)
    measured = await engine.measured(seconds=30)
    assert max(measured.ttft_s) < 8192
    decodes_s = true_s(decode(16, 64, 1.0)) + true_s(decode(16, 64, 1.0, sequences=16))
    assert engine.now <= 30 + 8 * decodes_s + 16 * true_s(prefill(16, STEP, 1.0))


async def test_an_engine_that_is_too_slow_for_three_lengths_is_told_with_what_helps() -> None:
    with pytest.raises(TargetUnreachableError, match="--duration"):
        await Engine(slower=100).measured(seconds=20)


@pytest.mark.parametrize("share", [0.0, 1e-4, 0.2])
async def test_answers_that_were_read_in_a_bunch_say_nothing_of_a_step(share: float) -> None:
    round_size = 1 + calibration.TOGETHER  # answers of many tokens in each, the lone one first, after one that warms up
    measured = await Engine(read_late=lambda decoded: share if decoded % (3 * round_size) == 2 else 1.0).measured()
    assert len(measured.decode) == calibration.ROUNDS_MAX - -(-calibration.ROUNDS_MAX // 3)
    found = fit(measured.samples).terms
    assert [found[name].value for name in TERMS] == pytest.approx(list(TRUE), rel=0.02)


@pytest.mark.parametrize(("first", "last", "share"), [(5, 5, 0.0), (3, 2 + calibration.TOGETHER, 0.2)])
async def test_answers_side_by_side_that_were_read_in_a_bunch_say_nothing_of_a_step(
    first: int, last: int, share: float
) -> None:
    measured = await Engine(read_late=lambda decoded: share if first <= decoded <= last else 1.0).measured()
    assert len(measured.together) == calibration.ROUNDS_MAX - 1


async def test_answers_that_come_whole_are_told_with_where_to_look() -> None:
    with pytest.raises(TargetUnreachableError, match="holds its answers back"):
        await Engine(read_late=lambda _decoded: 0.0).measured()


async def test_a_request_that_gives_no_times_ends_the_calibration_with_its_reason() -> None:
    async def refused(*_: Any) -> Untimed:
        return Untimed("http_401")

    with pytest.raises(TargetUnreachableError, match="http_401"):
        await measure(refused, LENGTHS, step_tokens=STEP, seconds=80, clock=lambda: 0.0)


async def test_the_table_shows_each_length_and_each_term() -> None:
    measured = await Engine().measured()
    said = describe(fit(measured.samples), measured, STEP)
    assert f"| prefill of 8192   |    {calibration.ROUNDS_MAX} |" in said
    assert "27,800 tokens/s" in said
    assert "54 ns" in said
    assert f"| decode step of 16 |    {calibration.ROUNDS_MAX} |" in said


async def test_what_is_not_known_has_no_key_in_the_file() -> None:
    measured = await Engine().measured()
    said = contents(
        fit(measured.samples), model="m", engine_version=None, max_num_batched_tokens=None, requests=9, made_at="now"
    )
    assert said.keys() == {"version", "model", "made_at", *TERMS, "error", "requests"}
    assert said["base_s"].keys() == {"value", "low", "high"}


def answering(*, prompt_tokens: int = 5, cached: int = 0, output_tokens: int = 2) -> Any:
    async def script(_asked: Any, reply: Any) -> None:
        await reply.begin()
        for number in range(output_tokens):
            finish = "length" if number == output_tokens - 1 else None
            await reply.event({"choices": [{"index": 0, "text": "a", "finish_reason": finish}]})
        usage = usage_event(prompt_tokens, output_tokens)
        usage["usage"]["prompt_tokens_details"] = {"cached_tokens": cached}
        await reply.event(usage)
        await reply.end()

    return script


async def asked(script: Any, **keys: str) -> tuple[Timed | Untimed, list[Any]]:
    clock = time.perf_counter
    async with scripted(script) as server, StreamingClient(server.url, LONE_PATH, clock) as client:
        target = Target("engine", server.url, {"*": "KEY"}, {}, keys=keys)
        requests = LoneRequests(client, target, "tiny", clock)
        timed = await requests.ask(5, 2, s_max=30)
        await requests.ask(5, 2, s_max=30)
        return timed, server.asked


async def test_a_lone_request_is_token_ids_of_its_own_with_the_engines_key() -> None:
    timed, (first, second) = await asked(answering(), **{"*": "secret"})
    assert isinstance(timed, Timed)
    assert (timed.prompt_tokens, timed.further_tokens) == (5, 1)
    assert first.path == "/v1/completions"
    assert first.headers["authorization"] == "Bearer secret"
    assert len(first.json["prompt"]) == 5 and first.json["prompt"] != second.json["prompt"]
    assert first.json["cache_salt"] != second.json["cache_salt"]
    assert first.json["max_tokens"] == first.json["min_tokens"] == 2


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (answering(cached=4), "prompt_was_cached"),
        (answering(prompt_tokens=6), "other_lengths"),
        (lambda _asked, reply: reply.whole(404, b"{}"), "http_404"),
    ],
)
async def test_an_answer_that_is_not_what_was_asked_for_is_not_measured(script: Any, reason: str) -> None:
    timed, _ = await asked(script)
    assert timed == Untimed(reason)
