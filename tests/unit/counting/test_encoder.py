"""The faster encoder is taken only where it gives the reference's tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, normalizers

from gateway.counting.encoder import SHORT_TEXT_CHARS_MAX, FastEncoder, ReferenceEncoder, agrees, encoder_of, probes
from gateway.counting.model_files import TokenizerUnusable, read_model_files

fastokens = pytest.importorskip("fastokens")


@pytest.fixture
def trained(model_folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(model_folder / "tokenizer.json"))


def fast_of(tokenizer: Tokenizer) -> FastEncoder:
    return FastEncoder(fastokens.Tokenizer.from_json_str(tokenizer.to_str()))


def test_the_faster_encoder_counts_this_model(trained: Tokenizer):
    assert encoder_of(trained).name == "fastokens"


def test_added_special_tokens_are_part_of_what_is_compared_and_cached_apart(trained: Tokenizer):
    reference, fast = ReferenceEncoder(trained), fast_of(trained)
    for _ in range(2):
        for special in (True, False):
            text = "who was ada<|end|>"
            assert fast.count(text, add_special_tokens=special) == reference.count(text, add_special_tokens=special)
    assert reference.count("a", add_special_tokens=True) != reference.count("a", add_special_tokens=False)


@pytest.mark.parametrize("chars", [SHORT_TEXT_CHARS_MAX, SHORT_TEXT_CHARS_MAX + 1])
def test_a_text_has_one_count_however_long_it_is(trained: Tokenizer, chars: int):
    text = ("who was ada<|end|> 😀" * chars)[:chars]
    counts = {
        count(text, add_special_tokens=True)
        for fast in (fast_of(trained),)
        for count in (ReferenceEncoder(trained).count, fast.count, fast.count_short, fast.count_long)
    }
    assert len(counts) == 1


def test_an_encoder_of_another_vocabulary_does_not_agree(trained: Tokenizer):
    other = Tokenizer.from_str(trained.to_str())
    other.add_special_tokens([AddedToken("fox", special=True)])
    assert not agrees(ReferenceEncoder(other), fast_of(trained), probes(other))


def test_a_step_that_the_faster_library_does_not_know_is_left_to_the_reference(trained: Tokenizer):
    trained.normalizer = normalizers.NFKC()
    assert encoder_of(trained).name == "tokenizers"


def test_the_pinned_fingerprint_is_the_files_own(model_folder: Path):
    fingerprint = read_model_files(model_folder).fingerprint
    assert read_model_files(model_folder, f"sha256:{fingerprint}").fingerprint == fingerprint
    config = model_folder / "tokenizer_config.json"
    config.write_text(config.read_text() + " ")
    with pytest.raises(TokenizerUnusable, match="not the pinned ones"):
        read_model_files(model_folder, f"sha256:{fingerprint}")


def test_probes_are_the_same_for_the_same_tokenizer(trained: Tokenizer):
    drawn: list[Any] = [list(probes(trained)) for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert len(drawn[0]) > 400
