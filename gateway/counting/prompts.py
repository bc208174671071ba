"""What a call's prompts are, whoever counts them: how many, how far they are cut, what in them is not text.

Owns the reading of a judged call for counting. Tokenises nothing and decodes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.counting.counter import uncountable
from gateway.wire import media
from gateway.wire.media import Medium
from gateway.wire.requests import Call

# One megapixel in patches of 28 pixels, thirty seconds of speech, sixteen frames: what common encoders take, upward.
MEDIA_TOKENS: Mapping[Medium, int] = {Medium.IMAGE: 1344, Medium.AUDIO: 1500, Medium.VIDEO: 8192}


def completion_prompts(members: Mapping[str, Any]) -> list[str | list[int]]:
    """Each prompt of a completion: text, or token ids."""
    prompt = members["prompt"]
    return prompt if isinstance(prompt, list) and not isinstance(prompt[0], int) else [prompt]


def kept_tokens_max(call: Call, context_tokens: int | None) -> int | None:
    """How many tokens of each prompt the caller lets the engine keep; None: all, or what no known context decides."""
    stated = call.members.get("truncate_prompt_tokens")
    if stated is None:
        return None
    if stated >= 0:
        return int(stated)
    if context_tokens is None:
        return None
    # The engine keeps one token of its context free for the answer, where the answer's length is stated.
    is_stated = call.output_tokens_stated is not None or call.output_tokens_default is not None
    return context_tokens - 1 if is_stated else context_tokens


def cut(tokens: int, kept_max: int | None) -> int:
    """A prompt's tokens after the cut."""
    return tokens if kept_max is None else min(tokens, kept_max)


def declared_media_tokens(members: Mapping[str, Any], media_tokens: Mapping[Medium, int] = MEDIA_TOKENS) -> int:
    """Tokens declared for the messages' media, which are never decoded to be measured."""
    found = (media.medium(part) for _, part in media.parts(members["messages"]))
    return sum(media_tokens[medium] for medium in found if medium is not None)


def refuse_uncountable(members: Mapping[str, Any]) -> None:
    """Uncountable for what no rule covers: tensors in place of text, a template of the caller's own."""
    if members.get("prompt_embeds") is not None:
        raise uncountable("unsupported_parameter", "A prompt of tensors has no token count.", "prompt_embeds")
    for path, part in media.parts(members.get("messages") or ()):
        if media.embedded(part) is not None:
            raise uncountable("unsupported_parameter", f"{path} holds tensors, which have no token count.", path)
    if members.get("chat_template") is not None:
        message = "chat_template is not accepted here: the model's own is used."
        raise uncountable("unsupported_parameter", message, "chat_template")
    transfer = members.get("kv_transfer_params")
    if isinstance(transfer, dict) and transfer.get("prompt_token_ids") is not None:
        param = "kv_transfer_params.prompt_token_ids"
        raise uncountable("unsupported_parameter", f"{param} would replace the prompt that is counted.", param)
