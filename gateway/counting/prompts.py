"""What a call's prompts are, whoever counts them: how many, how far they are cut, what in them is not text.

Owns the reading of a judged call for counting: every form of body comes out as chats, texts, token ids and pairs.
Tokenises nothing and decodes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gateway.counting.counter import Count, CountingMethod, uncountable
from gateway.counting.messages_form import chat_of_messages
from gateway.counting.pooling_form import Pair, embedded_chats, pairs_of
from gateway.counting.responses_form import chat_of_response, continues_elsewhere
from gateway.wire import media
from gateway.wire.dialects import PromptForm
from gateway.wire.media import Medium
from gateway.wire.requests import Call

# One megapixel in patches of 28 pixels, thirty seconds of speech, sixteen frames: what common encoders take, upward.
MEDIA_TOKENS: Mapping[Medium, int] = {Medium.IMAGE: 1344, Medium.AUDIO: 1500, Medium.VIDEO: 8192}
AUDIO_PROMPT_BYTES = 480_000  # thirty seconds at 128 kbit/s
# Most bodies have none of them: one look then stands for a look at each.
_CUTTING = frozenset({"truncation", "truncate_prompt_tokens"})
_REPLACING = frozenset({"chat_template", "kv_transfer_params"})
_CHAT = PromptForm.CHAT  # to look up an enum's member costs Python 3.11 as much as a function of three lines
_POOLING = frozenset({PromptForm.EMBEDDING, PromptForm.RERANK, PromptForm.SCORE})


@dataclass(frozen=True, slots=True)
class TemplateTraits:
    """What the engine finds out of a model's template before it converts a Messages request."""

    merges_system: bool = False
    effort_when_disabled: str = "none"


class Prompts(NamedTuple):
    """A call's prompts; those of one call are of one kind. chats: each the members of a chat request.

    texts: text, or token ids. is_whole: whether the body tells all that the prompt will hold.
    """

    chats: Sequence[Mapping[str, Any]] = ()
    texts: Sequence[str | list[int]] = ()
    pairs: Sequence[Pair] = ()
    is_whole: bool = True


def prompts_of(call: Call, traits: TemplateTraits) -> Prompts:
    """The prompts of a call in any form. Raises Uncountable."""
    members = call.members
    if call.route.form is _CHAT:
        return Prompts(chats=[members])
    match call.route.form:
        case PromptForm.COMPLETION:
            return Prompts(texts=_texts(members["prompt"]))
        case PromptForm.RESPONSES:
            return Prompts(chats=[chat_of_response(members)], is_whole=not continues_elsewhere(members))
        case PromptForm.MESSAGES:
            chat = chat_of_messages(
                members, merges_system=traits.merges_system, effort_when_disabled=traits.effort_when_disabled
            )
            return Prompts(chats=[chat])
        case PromptForm.EMBEDDING:
            chats = embedded_chats(members)
            return Prompts(chats=chats) if chats else Prompts(texts=_texts(members["input"]))
        case PromptForm.RERANK | PromptForm.SCORE:
            return Prompts(pairs=pairs_of(members))
        case PromptForm.CHAT | PromptForm.NONE | PromptForm.TOKENIZE | PromptForm.DETOKENIZE | PromptForm.AUDIO:
            raise AssertionError("a route without a prompt of text is not counted")


def one_prompt(prompts: Prompts) -> Mapping[str, Any] | str | list[int] | None:
    """The call's one prompt: a chat's members, a text, or token ids. None: several, a medium in it, or not all told."""
    told = [*prompts.chats, *prompts.texts]
    if len(told) != 1 or prompts.pairs or not prompts.is_whole:
        return None
    if prompts.chats and declared_media_tokens(prompts.chats[0]):
        return None
    return told[0]


def _texts(prompt: Any) -> list[str | list[int]]:
    return prompt if isinstance(prompt, list) and not isinstance(prompt[0], int) else [prompt]


def kept_tokens_max(call: Call, context_tokens: int | None) -> int | None:
    """How many tokens of each prompt the caller lets the engine keep; None: all, or what no known context decides."""
    stated = None if _CUTTING.isdisjoint(call.members) else _truncation(call)
    if stated is None:
        return None
    if stated >= 0:
        return stated
    if context_tokens is None:
        return None
    # The engine keeps one token of its context free for the answer, where the answer's length is stated.
    generates = call.route.form not in _POOLING
    is_stated = call.output_tokens_stated is not None or call.output_tokens_default is not None
    return context_tokens - 1 if generates and is_stated else context_tokens


def _truncation(call: Call) -> int | None:
    """Tokens to keep, -1: what fits the context, None: all."""
    match call.route.form:
        case PromptForm.RESPONSES:
            return None if call.members.get("truncation", "disabled") == "disabled" else -1
        case PromptForm.MESSAGES:
            return None
        case _:
            stated = call.members.get("truncate_prompt_tokens")
            return None if stated is None else int(stated)


def declared_audio(body_bytes: int) -> Count:
    """What is declared for a recording, which is never decoded: the engine takes each half minute as a prompt."""
    prompts = max(1, -(-body_bytes // AUDIO_PROMPT_BYTES))
    tokens = MEDIA_TOKENS[Medium.AUDIO]
    return Count(prompts * tokens, tokens, CountingMethod.ESTIMATE, is_comparable=False)


def cut(tokens: int, kept_max: int | None) -> int:
    """A prompt's tokens after the cut."""
    return tokens if kept_max is None else min(tokens, kept_max)


def declared_media_tokens(members: Mapping[str, Any], media_tokens: Mapping[Medium, int] = MEDIA_TOKENS) -> int:
    """Tokens declared for the messages' media, which are never decoded to be measured."""
    tokens = 0
    for _, part in media.parts(members["messages"]):
        medium = media.medium(part)
        if medium is not None:
            tokens += media_tokens[medium]
    return tokens


def refuse_uncountable(members: Mapping[str, Any]) -> None:
    """Uncountable for what no rule covers: tensors in place of text, a template of the caller's own."""
    if members.get("prompt_embeds") is not None:
        raise uncountable("unsupported_parameter", "A prompt of tensors has no token count.", "prompt_embeds")
    for path, part in media.parts(members.get("messages") or ()):
        if media.embedded(part) is not None:
            raise uncountable("unsupported_parameter", f"{path} holds tensors, which have no token count.", path)
    if _REPLACING.isdisjoint(members):
        return
    if members.get("chat_template") is not None:
        message = "chat_template is not accepted here: the model's own is used."
        raise uncountable("unsupported_parameter", message, "chat_template")
    transfer = members.get("kv_transfer_params")
    if isinstance(transfer, dict) and transfer.get("prompt_token_ids") is not None:
        param = "kv_transfer_params.prompt_token_ids"
        raise uncountable("unsupported_parameter", f"{param} would replace the prompt that is counted.", param)
