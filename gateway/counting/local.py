"""The served model's own tokenizer and chat template, in this process.

Owns the whole way from a call to its count: the rendered prompt, its tokens, the cut that the caller asks for. Counts
as vLLM 0.32 does, on threads of its own, and refuses by size what the engine would refuse by size. Never decodes a
medium: an image's tokens are declared, and a count that holds one says that it is an estimate.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jinja2

from gateway.core.types import Reason, Refusal
from gateway.counting.bounds import text_bounds
from gateway.counting.counter import Count, CountingMethod, Uncountable, as_ids, uncountable
from gateway.counting.encoder import Encoder, encoder_of
from gateway.counting.model_files import ModelFiles, TokenizerUnusable, read_model_files
from gateway.counting.pooling_form import Pair
from gateway.counting.prompts import (
    MEDIA_TOKENS,
    cut,
    declared_media_tokens,
    kept_tokens_max,
    one_prompt,
    prompts_of,
    refuse_uncountable,
)
from gateway.counting.rendering import ChatRenderer
from gateway.counting.threads import CountingThreads
from gateway.wire.media import Medium
from gateway.wire.requests import Call

# A thread's turn takes the loop some 90 µs, and the caller three times that; such a body takes it 60 to 150 µs.
AT_ONCE_BYTES_MAX = 4 * 1024


class LocalTokenizer:
    """A TokenCounter over one model's files. `close` ends its threads.

    encoder: the library that counts. fingerprint: of the files, as ModelFiles has it.
    """

    method = CountingMethod.LOCAL

    def __init__(
        self,
        files: ModelFiles,
        *,
        encoder: Encoder | None = None,
        threads: CountingThreads | None = None,
        media_tokens: Mapping[Medium, int] = MEDIA_TOKENS,
    ) -> None:
        """Compile the templates, and choose the encoder where none is given. Raises jinja2.TemplateSyntaxError."""
        self._renderer = ChatRenderer(files)
        self._bounds = text_bounds(files.tokenizer)
        self._pair_tokens = files.tokenizer.num_special_tokens_to_add(True)
        self._encoder = encoder_of(files.tokenizer) if encoder is None else encoder
        self._media_tokens = media_tokens
        self.threads = CountingThreads() if threads is None else threads
        self.encoder = self._encoder.name
        self.fingerprint = files.fingerprint

    @classmethod
    def load(cls, path: Path, revision: str | None = None) -> LocalTokenizer:
        """The counter of the model in `path`. Raises TokenizerUnusable."""
        # Its own threads are the parallelism; the library's pool would be one line for short and long prompts alike.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        try:
            return cls(read_model_files(path, revision))
        except jinja2.TemplateSyntaxError as error:
            problem = f"the chat template does not compile: {error.message} (line {error.lineno})"
            raise TokenizerUnusable(path, problem, "Copy the model's chat template again") from error

    async def count(self, call: Call, *, context_tokens: int | None = None) -> Count:
        """The count: at once where that is cheaper than a thread's turn. Raises CountingOverloaded and Uncountable."""
        if self._encoder.is_quick and call.prompts == 1 and len(call.body) <= AT_ONCE_BYTES_MAX:
            return self.count_now(call, context_tokens)
        return await self.threads.run(partial(self.count_now, call, context_tokens), len(call.body))

    def count_now(self, call: Call, context_tokens: int | None = None) -> Count:
        """The count, in this thread."""
        refuse_uncountable(call.members)
        kept_max = kept_tokens_max(call, context_tokens)
        prompts = prompts_of(call, self._renderer.traits)
        is_exact = prompts.is_whole and not prompts.pairs
        counts: list[int] = []
        for chat in prompts.chats:
            declared = declared_media_tokens(chat, self._media_tokens)
            is_exact = is_exact and not declared
            counts.append(self._chat_tokens(chat, kept_max, context_tokens) + declared)
        if prompts.texts:
            with_special_tokens = call.members.get("add_special_tokens") is not False
            counts += [
                self._tokens(text, with_special_tokens, kept_max, context_tokens)
                if isinstance(text, str)
                else len(text)
                for text in prompts.texts
            ]
        counts += map(self._pair, prompts.pairs)
        kept = counts if kept_max is None else [min(count, kept_max) for count in counts]
        return Count(sum(kept), max(kept), self.method if is_exact else CountingMethod.ESTIMATE)

    async def prompt_ids(self, call: Call) -> array[int] | None:
        """The ids of a call's one prompt, from a thread; None where it is several, or a medium stands in it."""
        return await self.threads.run(partial(self._ids_now, call), len(call.body))

    def _ids_now(self, call: Call) -> array[int] | None:
        prompt = one_prompt(prompts_of(call, self._renderer.traits))
        if prompt is None or isinstance(prompt, list):
            return None if prompt is None else as_ids(prompt)
        if isinstance(prompt, str):
            with_special_tokens = call.members.get("add_special_tokens") is not False
            return self._encoder.ids(prompt, add_special_tokens=with_special_tokens)
        with_special_tokens = prompt.get("add_special_tokens") is True
        return self._encoder.ids(self._renderer.rendered(prompt), add_special_tokens=with_special_tokens)

    def learn(self, count: Count, engine_tokens: int) -> None:
        """Nothing: the files say what they say."""

    def close(self) -> None:
        self.threads.close()

    def _chat_tokens(self, members: Mapping[str, Any], kept_max: int | None, context_tokens: int | None) -> int:
        pieces = self._renderer.pieces(members)
        if kept_max is None:
            self._refuse_overrun(sum(map(len, pieces)), context_tokens)
        try:
            return self._tokens("".join(pieces), members.get("add_special_tokens") is True, kept_max, context_tokens)
        except UnicodeEncodeError:
            # The arguments of a call are JSON inside of JSON: they may escape what a body may not.
            message = "messages hold half of a surrogate pair, which is no character."
            raise uncountable("lone_surrogate", message, "messages") from None

    def _tokens(self, text: str, add_special_tokens: bool, kept_max: int | None, context_tokens: int | None) -> int:
        """A text's tokens, by its length alone where that proves enough: that none can be kept more, or none fits."""
        if kept_max is None:
            self._refuse_overrun(len(text), context_tokens)
        elif self._bounds.tokens_at_least(text) >= kept_max:
            return kept_max
        return self._encoder.count(text, add_special_tokens=add_special_tokens)

    def _pair(self, pair: Pair) -> int:
        query = cut(self._encoder.count(pair.query, add_special_tokens=False), pair.query_tokens_max)
        document = cut(self._encoder.count(pair.document, add_special_tokens=False), pair.document_tokens_max)
        return query + document + self._pair_tokens

    def _refuse_overrun(self, chars: int, context_tokens: int | None) -> None:
        if not self._bounds.overruns(chars, context_tokens):
            return
        tokens = -(-chars // self._bounds.chars_per_token_max)
        message = f"The model's context is {context_tokens} tokens; {chars} characters are at least {tokens}."
        raise Uncountable(Refusal(Reason.CONTEXT_LENGTH, message, limit=context_tokens, observed=tokens))
