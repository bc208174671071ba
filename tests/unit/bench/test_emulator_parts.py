"""The pure parts of the embedded engine: its tokenizer, its answers, the identity of its blocks, its faults and flags."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from bench.corpus import tokenizer
from bench.corpus.words import WORDS
from bench.errors import UsageError
from bench.simulation.emulator import faults, flags, vocabulary
from bench.simulation.emulator.asking import EOS_ID, Prompter, Sampling, answer_of
from bench.simulation.emulator.errors import ApiError
from bench.simulation.emulator.faults import FaultKind, FaultPlan
from bench.simulation.emulator.generation import LiveSequence
from bench.simulation.emulator.words import MadeUp, Vocabulary


@pytest.fixture(scope="module")
def words() -> Vocabulary:
    return Vocabulary()


def test_the_kept_tokenizer_is_what_the_program_makes() -> None:
    kept = {path.name: path.read_text(encoding="utf-8") for path in vocabulary.FOLDER.iterdir()}
    assert kept == vocabulary.files()


def test_the_benchs_words_are_a_token_each() -> None:
    count = tokenizer.load(vocabulary.FOLDER).fast.encode
    longer = [word for word in WORDS if len(count(f" {word}", add_special_tokens=False)) != 1]
    assert longer == []


def test_text_and_tokens_lead_to_each_other(words: Vocabulary) -> None:
    for text in ("Größe 漢字 😀\n", "a <|user|> b", " " * 9, vocabulary.PREAMBLE):
        assert words.text(words.ids(text, add_special_tokens=False)) == text


def an_answer(words: Vocabulary, **asked: object) -> tuple[str, int, str]:
    """What is said to a prompt: the text, its tokens, why it ends."""
    answer = answer_of(words, [65, 66], Sampling(**{"max_tokens": 4000, **asked}), 0)  # type: ignore[arg-type]
    text = answer.made.text(0, answer.visible_tokens)
    return text[: answer.visible_chars], answer.tokens, str(answer.finish)


def test_an_answer_ends_by_itself_by_its_limit_or_by_its_stop_string(words: Vocabulary) -> None:
    free, tokens, finish = an_answer(words)
    assert (tokens <= 401, finish, free.startswith(vocabulary.PREAMBLE)) == (True, "stop", True)
    assert an_answer(words, ignore_eos=True)[1:] == (4000, "length")
    assert an_answer(words, max_tokens=3)[1:] == (3, "length")
    assert an_answer(words, min_tokens=1000)[1:] == (1001, "stop")
    assert an_answer(words, stop=("made",)) == ("This text is ", 4, "stop")
    assert an_answer(words, stop=("made",), with_stop=True)[0] == "This text is made"
    later, tokens, _ = an_answer(words, stop=("e",), min_tokens=12)
    assert (free.startswith(later), tokens > 12) == (True, True)


def test_the_token_that_ends_an_answer_counts_and_says_nothing(words: Vocabulary) -> None:
    answer = answer_of(words, [65], Sampling(max_tokens=4000), 0)
    assert answer.made.token(answer.tokens - 1) == EOS_ID
    assert answer.visible_tokens == answer.tokens - 1


def test_answers_differ_by_prompt_seed_and_sequence_alone(words: Vocabulary) -> None:
    def said(prompt: list[int], seed: int | None, index: int) -> str:
        return answer_of(words, prompt, Sampling(max_tokens=60, ignore_eos=True, seed=seed), index).made.text(0, 60)

    assert said([1, 2], None, 0) == said([1, 2], None, 0)
    assert len({said([1, 2], None, 0), said([1, 3], None, 0), said([1, 2], 7, 0), said([1, 2], None, 1)}) == 4


def a_sequence(words: Vocabulary, ids: list[int], *, salt: str | None = None, seed: int = 1) -> LiveSequence:
    made = MadeUp(words, seed)
    return LiveSequence(ids, made, 8, salt=salt)


def test_a_block_is_known_by_its_tokens_and_all_before_them(words: Vocabulary) -> None:
    prompt = list(range(100, 110))
    one, same, salted = a_sequence(words, prompt), a_sequence(words, prompt), a_sequence(words, prompt, salt="s")
    hashes = [one.block_hash(index, 4) for index in range(4)]
    assert [same.block_hash(index, 4) for index in (3, 0, 1, 2)] == [hashes[index] for index in (3, 0, 1, 2)]
    assert len(set(hashes)) == 4
    assert salted.block_hash(0, 4) != hashes[0]
    other = a_sequence(words, [99, *prompt[1:]])
    assert {other.block_hash(index, 4) for index in range(4)}.isdisjoint(hashes)


def test_a_follow_up_finds_the_answer_before_it(words: Vocabulary) -> None:
    first = a_sequence(words, list(range(100, 106)))
    assert first.answer is not None
    follow_up = a_sequence(words, [*first.ids, *first.answer.tokens(0, 10)], seed=2)
    assert [follow_up.block_hash(index, 4) for index in range(4)] == [first.block_hash(index, 4) for index in range(4)]


def test_prompts_are_held_against_the_context_as_vllm_does(words: Vocabulary) -> None:
    prompter = Prompter(words, 8)
    assert len(prompter.of_ids([65] * 20, keep=-1)) == 7
    for asked in (
        lambda: prompter.of_ids([65] * 9),
        lambda: prompter.of_text("a b c d e f g h i", add_special_tokens=True),
    ):
        with pytest.raises(ApiError, match="contains at least 9 input tokens"):
            asked()
    with pytest.raises(ApiError, match="contains 1000 characters"):
        prompter.of_text("x" * 1000, add_special_tokens=True)
    with pytest.raises(ApiError, match="max_tokens must be at least 1, got 0"):
        prompter.room([65] * 8, Sampling(max_tokens=4))
    assert prompter.room([65] * 6, Sampling(max_tokens=4)).max_tokens == 2


def test_faults_come_once_each_at_their_time_or_their_request() -> None:
    plan = FaultPlan([faults.parse(text) for text in ("hang@20s+5s", "die@3req", "stale-metrics", "slow-start+7s")])
    assert (plan.slow_start_s, [fault.kind for fault in plan.due(0)]) == (7, [FaultKind.STALE_METRICS])
    assert [[fault.kind for fault in plan.asked()] for _ in range(4)] == [[], [], [FaultKind.DIE], []]
    assert [fault.kind for fault in plan.timed] == [FaultKind.HANG]
    (hang,) = plan.due(20)
    assert (hang.lasts_s, plan.due(30)) == (5, [])


@pytest.mark.parametrize(
    "text", ["", "explode", "hang@", "hang@5", "die+5s", "slow-start@5s", "die@1.5req", "hang@-1s"]
)
def test_what_is_no_fault_is_said(text: str) -> None:
    with pytest.raises(UsageError, match="--fault"):
        faults.parse(text)


def settings(*words: str) -> flags.EmulatorSettings:
    parser = argparse.ArgumentParser()
    flags.add_arguments(parser)
    return flags.settings(parser.parse_args(words))


def test_flags_have_the_profiles_defaults_and_their_own_values() -> None:
    h200, cpu = settings().engine, settings("--profile", "cpu", "--no-enable-prefix-caching").engine
    assert (h200.max_num_batched_tokens, h200.batches_in_flight, h200.prefix_caching) == (8192, 2, True)
    assert (cpu.max_num_batched_tokens, cpu.batches_in_flight, cpu.prefix_caching) == (2048, 1, False)
    assert not h200.priority_scheduling
    assert (
        settings("--scheduling-policy", "priority", "--async-scheduling", "--profile", "cpu").engine.batches_in_flight
        == 2
    )


def test_flags_that_the_model_cannot_carry_are_refused() -> None:
    with pytest.raises(UsageError, match="--no-enable-chunked-prefill"):
        settings("--no-enable-chunked-prefill")
    with pytest.raises(UsageError, match="do not hold a request of 16384 tokens"):
        settings("--num-gpu-blocks-override", "1024")


def test_a_calibration_file_gives_the_steps_their_costs(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    lines = ["version: 1", "model: tiny", "max_num_batched_tokens: 512"]
    lines += [f"{name}: {{value: {value}, low: 0, high: 1}}" for name, value in COSTS.items()]
    file.write_text("\n".join(lines))
    profile = settings("--calibration", str(file)).profile
    assert profile.max_num_batched_tokens == 512
    assert profile.step_time.chunk_s(100, 0) == pytest.approx(100 * 1e-4 + 2e-8 * 100 * 50)
    file.write_text("model: tiny\nbase_s: {value: 1}\nper_token_context_s: {value: 0}\n")
    with pytest.raises(UsageError, match="per_token_s: "):
        settings("--calibration", str(file))


def test_a_calibration_may_tell_what_requests_in_a_step_and_tokens_of_the_same_step_cost(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    costs = {**COSTS, "per_sequence_s": 0.0005, "per_token_chunk_s": 6e-8}
    file.write_text("\n".join(["model: tiny", *(f"{name}: {{value: {value}}}" for name, value in costs.items())]))
    step_time = settings("--calibration", str(file)).profile.step_time
    one_s = 0.01 + 0.0005 + 100 * 1e-4 + 6e-8 * 100 * 50
    assert step_time.prefill_s(100, 100) == pytest.approx(one_s)
    assert step_time.prefill_s(200, 100) == pytest.approx(2 * one_s + 2e-8 * 100 * 100)


COSTS = {"base_s": 0.01, "per_token_s": 1e-4, "per_token_context_s": 2e-8, "request_s": 0.001}
