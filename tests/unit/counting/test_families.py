"""Tokenizer files of every family that engines load: whoever counts gives the reference's tokens.

Each is trained on the spot, with the family's own steps; texts are others than those that the choice is made by.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from gateway.counting.bounds import text_bounds
from gateway.counting.encoder import ReferenceEncoder, encoder_of

CORPUS = [
    *(
        "the quick brown fox jumps over the lazy dog",
        "She'll say: 12345 + 678 = 13023!",
        "def f(x):\n    return x ** 2",
    ),
    *("Größe und Übung", "漢字かな交じり文", "привет, мир", "👩‍👩‍👧 😀😀", "e\u0301tude ﬁn Å"),
] * 4
SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>", "[INST]"]
BY_WORD = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BY_CASE = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PIECES = [word for line in CORPUS[:8] for word in line.split()] + [
    *SPECIAL,
    " ",
    "  ",
    "\n",
    "\t",
    "\u0000",
    "\u200d",
    "▁",
    "🇩🇪",
]


def byte_level(pattern: str, normalizer: normalizers.Normalizer | None = None) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    bytes_of_words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_of_words])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return trained(tokenizer, trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False))


def sentencepiece() -> Tokenizer:
    """As Llama 2 and Mistral: no words, spaces as a letter, bytes for what the vocabulary lacks."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    alphabet = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=520, special_tokens=[*SPECIAL, *alphabet], limit_alphabet=60, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    # The trainer marks the bytes as special; in the family's files they are plain members of the vocabulary.
    description = Tokenizer.from_str(tokenizer.to_str())
    bare = Tokenizer(description.model)
    bare.normalizer = description.normalizer
    bare.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    return bare


def unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return trained(tokenizer, trainers.UnigramTrainer(vocab_size=120, unk_token="<unk>", show_progress=False))


def word_piece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return trained(tokenizer, trainers.WordPieceTrainer(vocab_size=200, special_tokens=["<unk>"], show_progress=False))


def trained(tokenizer: Tokenizer, trainer: object) -> Tokenizer:
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    return tokenizer


FAMILIES: dict[str, Callable[[], Tokenizer]] = {
    "byte-level by words": lambda: byte_level(BY_WORD),
    "byte-level, NFC": lambda: byte_level(BY_WORD, normalizers.NFC()),
    "byte-level by case, as tekken": lambda: byte_level(BY_CASE),
    "byte-level, NFKC": lambda: byte_level(BY_WORD, normalizers.NFKC()),
    "sentencepiece": sentencepiece,
    "unigram": unigram,
    "word pieces": word_piece,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_whoever_counts_a_family_gives_the_references_tokens(family: str):
    tokenizer = FAMILIES[family]()
    reference, chosen, bounds = ReferenceEncoder(tokenizer), encoder_of(tokenizer), text_bounds(tokenizer)
    random = Random(family)
    for _ in range(150):
        text = random.choice(["", " "]).join(random.choices(PIECES, k=random.randrange(60)))
        ids = reference.ids(text, add_special_tokens=True)
        assert chosen.ids(text, add_special_tokens=True) == ids
        assert chosen.count(text, add_special_tokens=True) == len(ids) >= bounds.tokens_at_least(text)
