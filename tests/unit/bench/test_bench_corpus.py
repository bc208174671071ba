"""Prompts: exact in length by the served tokenizer, unique, the same from a seed wherever they are made."""

import json
import os
import subprocess
import sys
from pathlib import Path

import bench_kit
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from bench.corpus import prompts, tokenizer
from bench.corpus.prompts import PromptWriter
from bench.corpus.tokenizer import PromptForm
from bench.errors import UsageError
from bench.trace.arrivals import Arrival, Trace


def test_completion_prompts_count_exactly_by_the_tokenizer_itself(tokenizer_folder: Path) -> None:
    count = tokenizer.load(tokenizer_folder).count_for(PromptForm.COMPLETIONS)
    corpus = prompts.build_lengths([32, 512, 2048, 33], count, seed=1)
    itself = Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    assert [len(itself.encode(prompt).ids) for prompt in corpus.prompts] == [32, 512, 2048, 33]


def test_chat_prompts_count_exactly_after_the_template(tokenizer_folder: Path) -> None:
    count = tokenizer.load(tokenizer_folder).count_for(PromptForm.CHAT)
    corpus = prompts.build_lengths([32, 512, 2048], count, seed=1)
    itself = Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    rendered = [f"<s><|user|>\n{prompt}\n<|assistant|>\n" for prompt in corpus.prompts]
    assert [len(itself.encode(text, add_special_tokens=False).ids) for text in rendered] == [32, 512, 2048]


def test_prompts_are_unique_although_their_lengths_are_equal(tokenizer_folder: Path) -> None:
    count = tokenizer.load(tokenizer_folder).count_for(PromptForm.CHAT)
    corpus = prompts.build_lengths([64] * 200, count, seed=1)
    assert len(set(corpus.prompts)) == 200


def test_one_seed_gives_the_same_prompts_in_every_process_and_beside_any_others(tokenizer_folder: Path) -> None:
    script = (
        "import sys, pathlib; from bench.corpus import prompts, tokenizer;"
        "served = tokenizer.load(pathlib.Path(sys.argv[1]));"
        "count = served.count_for(tokenizer.PromptForm.CHAT);"
        "print(prompts.build_lengths([64, 128, 64], count, seed=5).sha256)"
    )
    hashes = {
        subprocess.run(
            [sys.executable, "-c", script, str(tokenizer_folder)],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        ).stdout
        for hash_seed in ("1", "2")
    }
    count = tokenizer.load(tokenizer_folder).count_for(PromptForm.CHAT)
    assert hashes == {prompts.build_lengths([64, 128, 64], count, seed=5).sha256 + "\n"}
    assert (
        prompts.build_lengths([64, 999, 64], count, seed=5).prompts[2]
        == (prompts.build_lengths([64, 128, 64], count, seed=5).prompts[2])
    )


def test_another_seed_gives_other_prompts(tokenizer_folder: Path) -> None:
    count = tokenizer.load(tokenizer_folder).count_for(PromptForm.CHAT)
    assert prompts.build_lengths([64], count, 1).prompts != prompts.build_lengths([64], count, 2).prompts


def characters_in_threes(text: str) -> int:
    """A count in which words are not counted one by one, as in tokenizers that merge over spaces."""
    return 3 + (len(text) + 2) // 3


@settings(max_examples=60)
@given(tokens=st.integers(20, 400), seed=st.integers(0, 50))
def test_lengths_are_exact_where_words_do_not_count_one_by_one(tokens: int, seed: int) -> None:
    text = PromptWriter(characters_in_threes).write(tokens, bench_kit.seeded(seed))
    assert characters_in_threes(text) == tokens


def test_prompts_are_plain_text_without_edges_that_a_template_would_trim(tokenizer_folder: Path) -> None:
    count = tokenizer.load(tokenizer_folder).count_for(PromptForm.CHAT)
    (prompt,) = prompts.build_lengths([512], count, seed=1).prompts
    assert prompt.isascii()
    assert prompt == prompt.strip()
    assert prompt.count(". ") > 3


def test_a_prompt_without_room_to_be_unique_is_refused(tokenizer_folder: Path) -> None:
    count = tokenizer.load(tokenizer_folder).count_for(PromptForm.CHAT)
    with pytest.raises(UsageError, match="too short"):
        prompts.build_lengths([4], count, seed=1)


def test_a_tokenizer_that_reaches_no_such_length_is_refused() -> None:
    with pytest.raises(UsageError, match="No text of exactly 101 tokens"):
        PromptWriter(lambda text: 2 * len(text.split())).write(101, bench_kit.seeded(1))


def test_a_corpus_too_large_for_memory_is_refused() -> None:
    with pytest.raises(UsageError, match="Shorten the run"):
        prompts.build_lengths([4_000_000] * 200, len, seed=1)


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"tokenizer\.json: not there"):
        tokenizer.load(tmp_path)


def test_a_file_that_is_no_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UsageError, match=r"tokenizer\.json: not a tokenizer"):
        tokenizer.load(tmp_path)


def test_chat_without_a_template_is_refused_with_the_fix(tmp_path: Path) -> None:
    served = tokenizer.load(bench_kit.a_tokenizer(tmp_path, template=None))
    with pytest.raises(UsageError, match="--endpoint completions"):
        served.count_for(PromptForm.CHAT)
    assert served.count_for(PromptForm.COMPLETIONS)("Note") > 0


def test_a_template_that_does_not_compile_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not compile"):
        tokenizer.load(bench_kit.a_tokenizer(tmp_path, template="{% for %}"))


def test_a_template_file_and_a_list_of_named_templates_count_alike(tmp_path: Path, tokenizer_folder: Path) -> None:
    in_file = bench_kit.a_tokenizer(tmp_path / "file", template=None)
    (in_file / "chat_template.jinja").write_text(bench_kit.TEMPLATE)
    in_list = bench_kit.a_tokenizer(tmp_path / "list", template=None)
    named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": bench_kit.TEMPLATE}]
    config = {"bos_token": "<s>", "chat_template": named}
    (in_list / "tokenizer_config.json").write_text(json.dumps(config))
    counts = {
        tokenizer.load(folder).count_for(PromptForm.CHAT)("one two three")
        for folder in (in_file, in_list, tokenizer_folder)
    }
    assert len(counts) == 1


def test_the_tokenizer_hash_covers_the_template(tmp_path: Path, tokenizer_folder: Path) -> None:
    other = bench_kit.a_tokenizer(tmp_path, template="{{ messages[0]['content'] }}")
    assert tokenizer.load(other).sha256 != tokenizer.load(tokenizer_folder).sha256


def test_prompts_with_equal_prefix_names_begin_with_equal_text_and_end_apart(tokenizer_folder: Path) -> None:
    def common(one: str, other: str) -> str:
        return one[: next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))]

    count = tokenizer.load(tokenizer_folder).count_for(PromptForm.CHAT)
    prefixes = [("a", "b", "c"), ("a", "b", "d"), ("a", "b", "c"), ()]
    arrivals = tuple(Arrival(0.0, "agent", 300 + number, 9, prefix=prefix) for number, prefix in enumerate(prefixes))
    made = prompts.build(Trace(arrivals, 1.0, {}, 60), count, 1)
    assert [count(text) for text in made.prompts] == [300, 301, 302, 303]
    shared = [common(made.prompts[0], other) for other in made.prompts[1:]]
    block = len(made.prompts[0]) / 300 * 60
    assert [round(len(text) / block) for text in shared] == [2, 3, 0]
