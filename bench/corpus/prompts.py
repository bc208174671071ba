"""Prompts of exact token length. Owns how a text is grown to a count; the count itself is the caller's.

Prompt i of a seed depends on nothing but seed, i, length and prefix, so that any process makes the same one, and
prompts are unique; those whose prefix begins with the same blocks begin with the same text. In most tokenizers words
are tokenized one by one: the sum of the words' own costs is then the count, and one count of the whole text proves it.
Where that fails the text is mended word by word and counted again.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from bench.corpus.tokenizer import Count
from bench.corpus.words import WORDS
from bench.errors import UsageError
from bench.trace.arrivals import Trace

FIRST_WORD = "Note"
FREE_TOKENS_MIN = 8
MENDS_MAX = 64
WORDS_A_SENTENCE = 11
CORPUS_TOKENS_MAX = 400_000_000
SHARED_BLOCKS_KEPT = 20_000


@dataclass(frozen=True, slots=True)
class Corpus:
    """The prompts of one trace, in its order. Kept in memory for the whole run: made before it, never during it."""

    prompts: tuple[str, ...]
    sha256: str


class PromptWriter:
    """Writes texts of exact length under one way of counting."""

    def __init__(self, count: Count) -> None:
        self._count = count
        self._fixed = count(FIRST_WORD)
        pieces = [f" {word}" for word in WORDS]
        self._costs = {piece: count(FIRST_WORD + piece) - self._fixed for piece in [*pieces, "."]}
        self._words = [piece for piece in pieces if self._costs[piece] > 0]
        self._by_cost: dict[int, list[str]] = {}
        for piece in [*self._words, *(["."] if self._costs["."] > 0 else [])]:
            self._by_cost.setdefault(self._costs[piece], []).append(piece)
        if not self._words:
            raise UsageError("The tokenizer gives English words no tokens: it cannot be used for prompts.")

    @property
    def tokens_min(self) -> int:
        """The shortest prompt that still has room to be unique."""
        return self._fixed + FREE_TOKENS_MIN

    def block(self, tokens: int, rng: random.Random) -> list[str]:
        """Pieces whose own costs sum to `tokens`, or nearly."""
        pieces: list[str] = []
        self._fill(pieces, tokens, rng)
        return pieces

    def write(self, tokens: int, rng: random.Random, opening: Iterable[Sequence[str]] = ()) -> str:
        """A text that counts exactly `tokens`; raises UsageError where none was found.

        It begins with the blocks of `opening`, as many as leave room for unique text.
        """
        if tokens < self.tokens_min:
            raise UsageError(
                f"A prompt of {tokens} tokens is too short: template and room for unique text take {self.tokens_min}."
            )
        pieces: list[str] = []
        missing = tokens - self._fixed
        for block in opening:
            cost = sum(self._costs[piece] for piece in block)
            if missing - cost < FREE_TOKENS_MIN:
                break
            pieces += block
            missing -= cost
        shared = len(pieces)
        for tried in range(MENDS_MAX):
            self._fill(pieces, missing, rng)
            text = FIRST_WORD + "".join(pieces)
            counted = self._count(text)
            if counted == tokens:
                return text
            # Take back a few words more at each try: where one gap cannot be filled another one can.
            missing = tokens - counted
            taken = 0
            while len(pieces) > shared and (missing < 1 or taken <= tried % 4):
                missing += self._costs[pieces.pop()]
                taken += 1
        raise UsageError(
            f"No text of exactly {tokens} tokens found in {MENDS_MAX} tries: does the tokenizer merge words?"
        )

    def _fill(self, pieces: list[str], missing: int, rng: random.Random) -> None:
        """Append pieces whose own costs sum to `missing`, as nearly as the costs allow."""
        while missing > 0:
            if len(pieces) % WORDS_A_SENTENCE == WORDS_A_SENTENCE - 1 and 0 < self._costs["."] < missing:
                piece = "."
            else:
                piece = rng.choice(self._words)
            if self._costs[piece] > missing:
                fitting = self._by_cost.get(missing)
                if fitting is None:
                    return
                piece = rng.choice(fitting)
            pieces.append(piece)
            missing -= self._costs[piece]


def build(trace: Trace, count: Count, seed: int) -> Corpus:
    """One unique prompt for each arrival of `trace`; raises UsageError where they cannot be made."""
    wanted = [(arrival.prompt_tokens, arrival.prefix) for arrival in trace.arrivals]
    return _build(wanted, trace.prefix_block_tokens or 0, count, seed)


def build_lengths(lengths: Iterable[int], count: Count, seed: int) -> Corpus:
    """One unique prompt for each length in tokens, nothing shared; raises UsageError where they cannot be made."""
    return _build([(tokens, ()) for tokens in lengths], 0, count, seed)


def _build(wanted: Sequence[tuple[int, Sequence[str]]], block_tokens: int, count: Count, seed: int) -> Corpus:
    in_all = sum(tokens for tokens, _ in wanted)
    if in_all > CORPUS_TOKENS_MAX:
        raise UsageError(f"{in_all} prompt tokens in all; at most {CORPUS_TOKENS_MAX} fit in memory. Shorten the run.")
    writer = PromptWriter(count)

    @lru_cache(maxsize=SHARED_BLOCKS_KEPT)
    def block(name: str) -> list[str]:
        return writer.block(block_tokens, random.Random(f"prefix {seed} {name}"))

    prompts = tuple(
        writer.write(tokens, random.Random(f"prompt {seed} {index} {tokens}"), map(block, prefix))
        for index, (tokens, prefix) in enumerate(wanted)
    )
    if len(set(prompts)) != len(prompts):
        raise UsageError("Two prompts are equal: the lengths are too small for so many requests. Ask for longer ones.")
    digest = hashlib.sha256()
    for prompt in prompts:
        digest.update(prompt.encode())
        digest.update(b"\0")
    return Corpus(prompts, digest.hexdigest())
