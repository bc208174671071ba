"""From text to token ids and back, and the made-up answers.

Owns the loaded tokenizer and the page that answers are read from. The same prompt and seed give the same answer, and
any token of it is known without the ones before: the page is read in a circle, from a place that the prompt decides.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from bench.corpus import tokenizer
from bench.corpus.words import WORDS
from bench.errors import UsageError
from bench.simulation.emulator.vocabulary import FOLDER, PREAMBLE, SPECIAL_TOKENS

PAGE_TOKENS = 4096
NATURAL_TOKENS = (16, 400)
"""How long an answer is that nobody limits, in tokens: the shortest and the longest."""
_SENTENCE = 11


class Vocabulary:
    """The emulator's own tokenizer, loaded once."""

    def __init__(self) -> None:
        served = tokenizer.load(FOLDER)
        if served.template is None:
            raise UsageError(f"{FOLDER}: no chat template.")
        self._fast = served.fast
        self._template = served.template
        self._special_tokens = served.special_tokens
        self.size = served.fast.get_vocab_size()
        self.special_ids = frozenset(range(len(SPECIAL_TOKENS)))
        self.pieces = [served.fast.decode([token], skip_special_tokens=False) for token in range(self.size)]
        self.chars_per_token_max = max(map(len, served.fast.get_vocab()))
        self.page = self._page()
        self.preamble = self.ids(PREAMBLE, add_special_tokens=False)

    def ids(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return a text's tokens. The batch form lets go of the interpreter lock: fit for a thread."""
        (encoding,) = self._fast.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return ids

    def rendered(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        """Return the prompt of a conversation as the chat template writes it. Raises jinja2.TemplateError."""
        return self._template.render(
            messages=messages, **{"add_generation_prompt": True, **options}, **self._special_tokens
        )

    def text(self, ids: Sequence[int]) -> str:
        return self._fast.decode(list(ids), skip_special_tokens=False)

    def names(self, ids: Sequence[int]) -> list[str]:
        return [self._fast.id_to_token(token) or "" for token in ids]

    def _page(self) -> list[int]:
        draw = random.Random("the page of made-up text")
        text = "".join(
            f" {word}" + ("." if index % _SENTENCE == _SENTENCE - 1 else "")
            for index, word in enumerate(draw.choices(WORDS, k=PAGE_TOKENS))
        )
        return self.ids(text, add_special_tokens=False)[:PAGE_TOKENS]


class MadeUp:
    """One answer. natural_tokens: how long it is where nothing limits it."""

    __slots__ = ("_end", "_page", "_pieces", "_place", "_preamble", "natural_tokens")

    def __init__(self, vocabulary: Vocabulary, seed: int) -> None:
        self._page, self._preamble, self._pieces = vocabulary.page, vocabulary.preamble, vocabulary.pieces
        self._place = seed % len(self._page)
        self._end: tuple[int, int] | None = None
        shortest, longest = NATURAL_TOKENS
        self.natural_tokens = shortest + seed // len(self._page) % (longest - shortest + 1)

    def ends_at(self, index: int, token: int) -> None:
        """Let the answer end by itself: with this token, at this place."""
        self._end = index, token

    def token(self, index: int) -> int:
        """Return the answer's token at `index`; there is always a further one."""
        begun = len(self._preamble)
        if self._end is not None and index == self._end[0]:
            return self._end[1]
        if index < begun:
            return self._preamble[index]
        return self._page[(self._place + index - begun) % len(self._page)]

    def tokens(self, start: int, end: int) -> list[int]:
        return [self.token(index) for index in range(start, end)]

    def text(self, start: int, end: int) -> str:
        """Return the text of the tokens from `start` to before `end`: each is whole characters by itself."""
        pieces = self._pieces
        return "".join([pieces[self.token(index)] for index in range(start, end)])
