"""What a text's length alone proves about its tokens.

Owns the proofs, and for which tokenizers they hold. Nothing is tokenised here; where nothing can be proved, it says so.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel


@dataclass(frozen=True, slots=True)
class TextBounds:
    """Bounds of one tokenizer.

    chars_per_token_max: characters of the longest token of the vocabulary. is_lossless: every character of a text is
    part of some token, so that the text's length bounds the count from below.
    """

    chars_per_token_max: int
    is_lossless: bool

    def overruns(self, chars: int, context_tokens: int | None) -> bool:
        """Whether the engine refuses a text of so many characters before it tokenises it."""
        return context_tokens is not None and chars > context_tokens * self.chars_per_token_max

    def tokens_at_least(self, text: str) -> int:
        """Tokens that the text surely has; 0 where nothing is proved."""
        return -(-len(text) // self.chars_per_token_max) if self.is_lossless else 0


def text_bounds(tokenizer: Tokenizer) -> TextBounds:
    """The bounds of a tokenizer. Reads its whole vocabulary once."""
    description: dict[str, Any] = json.loads(tokenizer.to_str())
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    return TextBounds(chars_per_token_max=max(map(len, vocabulary)), is_lossless=_is_lossless(description, vocabulary))


def _is_lossless(description: dict[str, Any], vocabulary: dict[str, int]) -> bool:
    """Byte-level, with every byte in the vocabulary, and no step that drops or folds characters."""
    pre_tokenizer = description.get("pre_tokenizer") or {}
    steps = pre_tokenizer.get("pretokenizers") or [pre_tokenizer]
    return (
        description.get("normalizer") is None
        and any(step.get("type") == "ByteLevel" for step in steps)
        and not any(step.get("behavior") == "Removed" for step in steps)
        and not any(token["lstrip"] or token["rstrip"] for token in description.get("added_tokens", ()))
        and vocabulary.keys() >= set(ByteLevel.alphabet())
    )
