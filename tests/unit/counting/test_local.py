from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.core.plan import RequestBounds
from gateway.core.types import Reason, Refusal, Shape
from gateway.counting.counter import Count, CountingMethod, CountingOverloaded, TokenCounter, Uncountable, shape_of
from gateway.counting.encoder import ReferenceEncoder
from gateway.counting.local import AT_ONCE_BYTES_MAX, LocalTokenizer
from gateway.counting.model_files import TokenizerUnusable, read_model_files
from gateway.counting.prompts import MEDIA_TOKENS
from gateway.counting.threads import CountingThreads
from gateway.wire.dialects import CHAT_COMPLETIONS, COMPLETIONS
from gateway.wire.media import Medium
from gateway.wire.requests import Call, parse

BOUNDS = RequestBounds(sequences_max=16, stop_max=4, list_items_max=64)
ADA = {"role": "user", "content": "who was ada"}
ALLOWED = frozenset({"prompt_embeds", "kv_transfer_params"})


def chat(**members: Any) -> Call:
    body = {"model": "m", "messages": [ADA], **members}
    return parse(CHAT_COMPLETIONS, json.dumps(body).encode(), BOUNDS, ALLOWED)


def completion(prompt: Any, **members: Any) -> Call:
    body = {"model": "m", "prompt": prompt, **members}
    return parse(COMPLETIONS, json.dumps(body).encode(), BOUNDS, ALLOWED)


@pytest.fixture
def tokens_of(model_folder: Path):
    """How many tokens a text has, its special tokens counted as the text spells them."""
    tokenizer = read_model_files(model_folder).tokenizer
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False))


def uncountable(tokenizer: LocalTokenizer, call: Call, context_tokens: int | None = None) -> Refusal:
    with pytest.raises(Uncountable) as caught:
        tokenizer.count_now(call, context_tokens)
    return caught.value.refusal


async def test_a_chat_is_counted_after_its_template(tokenizer: LocalTokenizer, tokens_of: Any) -> None:
    counter: TokenCounter = tokenizer
    tokens = tokens_of("<|begin|>user: who was ada<|end|>assistant: ")
    assert await counter.count(chat()) == Count(tokens, tokens, CountingMethod.LOCAL)


def test_tools_and_calls_count_as_the_template_writes_them(tokenizer: LocalTokenizer, tokens_of: Any) -> None:
    tool = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"é": 1}}}
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    counted = tokenizer.count_now(chat(tools=[tool], messages=[{"role": "assistant", "tool_calls": [call]}]))
    text = '{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"é": 1}}}'
    assert counted.prompt_tokens == tokens_of(f'<|begin|>{text}assistant: f{{"a": 1}}<|end|>assistant: ')


def test_special_tokens_come_with_a_completion_and_not_again_with_a_chat(
    tokenizer: LocalTokenizer, tokens_of: Any
) -> None:
    bare = tokens_of("who was ada")
    for _ in range(2):  # the two forms alternate, as they do in traffic
        assert tokenizer.count_now(completion("who was ada")).prompt_tokens == bare + 1
        assert tokenizer.count_now(completion("who was ada", add_special_tokens=False)).prompt_tokens == bare
        once = tokenizer.count_now(chat()).prompt_tokens
        assert tokenizer.count_now(chat(add_special_tokens=True)).prompt_tokens == once + 1


def test_a_prompt_list_counts_its_sum_and_its_longest(tokenizer: LocalTokenizer, tokens_of: Any) -> None:
    texts = ["who", "who was ada lovelace", ""]
    counts = [tokens_of(text) + 1 for text in texts]
    counted = tokenizer.count_now(completion(texts))
    assert (counted.prompt_tokens, counted.longest_prompt_tokens) == (sum(counts), max(counts))


@pytest.mark.parametrize(
    ("prompt", "total", "longest"), [([5, 6, 7], 3, 3), ([[5], [6, 7, 8]], 4, 3), ([[1]] * 16, 16, 1)]
)
def test_token_ids_are_counted_by_their_number(
    tokenizer: LocalTokenizer, prompt: Any, total: int, longest: int
) -> None:
    assert tokenizer.count_now(completion(prompt)) == Count(total, longest, CountingMethod.LOCAL)


@pytest.mark.parametrize(
    ("stated", "context_tokens", "kept"),
    [(3, None, 3), (900, None, None), (0, None, 0), (-1, 6, 5), (-1, None, None), (-1, 900, None)],
)
def test_a_prompt_is_cut_where_the_caller_says(
    tokenizer: LocalTokenizer, stated: int, context_tokens: int | None, kept: int | None
) -> None:
    text = "who was ada lovelace the quick brown fox"
    whole = tokenizer.count_now(completion(text)).prompt_tokens
    cut = completion(text, truncate_prompt_tokens=stated)
    assert tokenizer.count_now(cut, context_tokens).prompt_tokens == (whole if kept is None else kept)
    ids = completion([5] * 20, truncate_prompt_tokens=stated)
    assert tokenizer.count_now(ids, context_tokens).prompt_tokens == (20 if kept is None else kept)


def test_a_chat_without_a_stated_output_may_fill_the_context(tokenizer: LocalTokenizer) -> None:
    assert tokenizer.count_now(chat(truncate_prompt_tokens=-1), 6).prompt_tokens == 6
    assert tokenizer.count_now(chat(truncate_prompt_tokens=-1, max_tokens=1), 6).prompt_tokens == 5


def test_a_text_that_no_context_holds_is_refused_for_its_length(tokenizer: LocalTokenizer) -> None:
    refusal = uncountable(tokenizer, completion("x" * 10_000), 100)
    assert (refusal.reason, refusal.limit) == (Reason.CONTEXT_LENGTH, 100)
    assert refusal.observed is not None and refusal.observed > 100
    assert uncountable(tokenizer, chat(messages=[{"role": "user", "content": "x" * 10_000}]), 100).limit == 100
    assert tokenizer.count_now(completion("x" * 10_000)).prompt_tokens > 100


@pytest.mark.parametrize("escape", ["\\ud800", "\\udfff", "\\ude00\\ud83d"])
def test_a_call_whose_arguments_hold_half_a_character_is_refused(tokenizer: LocalTokenizer, escape: str) -> None:
    """Its arguments are JSON of their own, in which the body's own reader looks for nothing."""
    called = {"id": "c", "type": "function", "function": {"name": "f", "arguments": f'{{"a": "{escape}"}}'}}
    refusal = uncountable(tokenizer, chat(messages=[ADA, {"role": "assistant", "tool_calls": [called]}]))
    assert (refusal.reason, refusal.code, refusal.param) == (Reason.BAD_REQUEST, "lone_surrogate", "messages")


def test_media_have_declared_tokens_and_make_the_count_an_estimate(tokenizer: LocalTokenizer) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
    plain = tokenizer.count_now(chat())
    counted = tokenizer.count_now(chat(messages=[{"role": "user", "content": ["who was ada", image, image]}]))
    assert counted.prompt_tokens == plain.prompt_tokens + 2 * MEDIA_TOKENS[Medium.IMAGE]
    assert counted.method is CountingMethod.ESTIMATE


@pytest.mark.parametrize(
    ("call", "param"),
    [
        (chat(chat_template="{{ messages }}"), "chat_template"),
        (chat(chat_template_kwargs={"chat_template": "x"}), "chat_template_kwargs.chat_template"),
        (completion(None, prompt_embeds="QQ"), "prompt_embeds"),
        (completion("x", prompt_embeds="QQ"), "prompt_embeds"),
        (chat(messages=[{"role": "user", "content": [{"type": "prompt_embeds", "data": "Q"}]}]), "messages[0].content[0]"),
        (chat(kv_transfer_params={"prompt_token_ids": [1]}), "kv_transfer_params.prompt_token_ids"),
    ],
)  # fmt: skip
def test_what_no_rule_covers_is_said_and_not_guessed(tokenizer: LocalTokenizer, call: Call, param: str) -> None:
    refusal = uncountable(tokenizer, call)
    assert (refusal.reason, refusal.code, refusal.param) == (Reason.BAD_REQUEST, "unsupported_parameter", param)


def _with_template(folder: Path, *, default: str, tool_use: str | None = None) -> LocalTokenizer:
    (folder / "chat_template.jinja").write_text(default)
    if tool_use is not None:
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates" / "tool_use.jinja").write_text(tool_use)
    return LocalTokenizer.load(folder)


def test_a_conversation_that_the_template_refuses_is_refused_with_its_words(model_folder: Path) -> None:
    tokenizer = _with_template(model_folder, default="{{ raise_exception('roles must alternate') }}")
    refusal = uncountable(tokenizer, chat())
    assert (refusal.code, refusal.param) == ("invalid_messages", "messages")
    assert "roles must alternate" in refusal.message
    tokenizer.close()


@pytest.mark.parametrize("source", ["{{ 1 / 0 }}", "{{ messages[0].content + 1 }}", "{{ nothing.at.all }}"])
def test_a_template_that_fails_on_a_conversation_refuses_it(model_folder: Path, source: str) -> None:
    tokenizer = _with_template(model_folder, default=source)
    assert uncountable(tokenizer, chat()).param == "messages"
    tokenizer.close()


def test_tools_have_a_template_of_their_own_where_the_model_has_one(model_folder: Path, tokens_of: Any) -> None:
    tokenizer = _with_template(model_folder, default="one", tool_use="one two three")
    tool = {"function": {"name": "f"}}
    assert tokenizer.count_now(chat()).prompt_tokens == tokens_of("one")
    assert tokenizer.count_now(chat(tools=[tool])).prompt_tokens == tokens_of("one two three")
    assert tokenizer.count_now(chat(chat_template_kwargs={"tools": [tool]})).prompt_tokens == tokens_of("one two three")
    tokenizer.close()


def test_a_developers_words_are_kept_where_the_template_knows_the_role(model_folder: Path, tokens_of: Any) -> None:
    source = "{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}"
    messages = [{"role": "system", "content": "a"}, ADA, {"role": "developer", "content": "b"}]
    plain = _with_template(model_folder, default=source)
    assert plain.count_now(chat(messages=messages)).prompt_tokens == tokens_of("systema\n\nbuserwho was ada")
    knowing = _with_template(model_folder, default=source + "{% if false %}{{ 'developer' }}{% endif %}")
    assert knowing.count_now(chat(messages=messages)).prompt_tokens == tokens_of("systemauserwho was adadeveloperb")
    plain.close()
    knowing.close()


def test_a_callers_variables_reach_the_template_and_may_replace_named_tokens(
    model_folder: Path, tokens_of: Any
) -> None:
    tokenizer = _with_template(model_folder, default="{{ bos_token }}{{ words }}{{ unused is defined }}")
    counted = tokenizer.count_now(chat(chat_template_kwargs={"words": "who was", "bos_token": "ada"}))
    assert counted.prompt_tokens == tokens_of("adawho wasFalse")
    tokenizer.close()


def test_a_model_without_a_template_counts_completions_only(model_folder: Path) -> None:
    (model_folder / "tokenizer_config.json").unlink()
    tokenizer = LocalTokenizer.load(model_folder)
    assert tokenizer.count_now(completion("who")).prompt_tokens
    assert "no chat template" in uncountable(tokenizer, chat()).message
    tokenizer.close()


def test_a_template_that_does_not_compile_is_found_at_start(model_folder: Path) -> None:
    (model_folder / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(TokenizerUnusable, match="chat template does not compile"):
        LocalTokenizer.load(model_folder)


LARGE = [{"role": "user", "content": "ada " * AT_ONCE_BYTES_MAX}]


async def test_a_full_house_is_said_at_once(model_folder: Path) -> None:
    threads = CountingThreads(job_bytes_max=10)
    tokenizer = LocalTokenizer(read_model_files(model_folder), threads=threads)
    with pytest.raises(CountingOverloaded):
        await tokenizer.count(chat(messages=LARGE))
    tokenizer.close()


async def test_a_small_body_takes_no_threads_turn_where_the_encoder_is_quick(model_folder: Path) -> None:
    files = read_model_files(model_folder)
    reference = ReferenceEncoder(files.tokenizer)
    expected = LocalTokenizer(files, encoder=reference).count_now(chat())
    quick, slow = (
        LocalTokenizer(files, encoder=encoder, threads=CountingThreads(jobs_max=0))
        for encoder in (AQuickEncoder(files.tokenizer), reference)
    )
    assert await quick.count(chat()) == expected
    for tokenizer, call in (
        (quick, chat(messages=LARGE)),
        (quick, completion(["who", "was"])),
        (slow, chat()),
    ):
        with pytest.raises(CountingOverloaded):
            await tokenizer.count(call)


class AQuickEncoder(ReferenceEncoder):
    is_quick = True


def test_a_shape_says_what_admission_goes_by() -> None:
    call = completion(["a", "b"], n=2, stream=True)
    assert shape_of(call, Count(9, 6, CountingMethod.LOCAL)) == Shape(
        prompt_tokens=9,
        longest_prompt_tokens=6,
        output_tokens_stated=None,
        output_tokens_default=16,
        sequences=4,
        body_bytes=len(call.body),
        stream=True,
    )
