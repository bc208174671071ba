from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from gateway.counting.bounds import TextBounds, text_bounds


def _tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def test_a_text_longer_than_any_tokens_of_the_context_overruns_it() -> None:
    bounds = TextBounds(chars_per_token_max=4, is_lossless=True)
    assert not bounds.overruns(40, 10)
    assert bounds.overruns(41, 10)
    assert not bounds.overruns(41, None)


def test_a_byte_level_tokenizer_keeps_every_character(model_folder: Path) -> None:
    assert text_bounds(_tokenizer(model_folder)).is_lossless


def test_a_tokenizer_that_may_drop_characters_proves_nothing(model_folder: Path) -> None:
    normalizing = _tokenizer(model_folder)
    normalizing.normalizer = normalizers.Strip()
    stripping = _tokenizer(model_folder)
    stripping.add_tokens([AddedToken("<s>", lstrip=True)])
    removing = _tokenizer(model_folder)
    removing.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    words = Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>"))
    bytes_missing = Tokenizer(models.BPE({"a": 0}, []))
    bytes_missing.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    for tokenizer in (normalizing, stripping, removing, words, bytes_missing):
        bounds = text_bounds(tokenizer)
        assert not bounds.is_lossless
        assert bounds.tokens_at_least("a" * 100) == 0


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=60) | st.text("thequick ", max_size=90))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_text_never_has_fewer_tokens_than_proved(model_folder: Path, text: str) -> None:
    tokenizer = _tokenizer(model_folder)
    assert len(tokenizer.encode(text, add_special_tokens=False)) >= text_bounds(tokenizer).tokens_at_least(text)
