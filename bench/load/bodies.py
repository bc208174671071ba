"""Requests made ready before the run: bytes, headers, ids. Nothing is built while time is measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.corpus.prompts import Corpus
from bench.corpus.tokenizer import PromptForm
from bench.load.pacing import Windows
from bench.load.target import Target
from bench.records.request import Phase
from bench.trace.arrivals import Arrival, Trace


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """One request, ready to be sent to one target. head_lines: its own headers as they are sent, and the empty line."""

    index: int
    request_id: str
    arrival: Arrival
    phase: Phase
    headers: Mapping[str, str]
    body: bytes
    head_lines: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        lines = [f"{name}: {value}\r\n" for name, value in self.headers.items()]
        object.__setattr__(self, "head_lines", "".join([*lines, f"Content-Length: {len(self.body)}\r\n\r\n"]).encode())


@dataclass(frozen=True, slots=True)
class BodyStyle:
    """What all bodies of a run share.

    cache_salt: sent with each body so that a repeated trace finds no warm prefix cache; None: not sent.
    """

    form: PromptForm
    model: str
    cache_salt: str | None


def prepare(
    trace: Trace, corpus: Corpus, *, style: BodyStyle, target: Target, windows: Windows, run_id: str
) -> list[PreparedRequest]:
    return [
        prepare_one(
            index, arrival, prompt, style=style, target=target, phase=windows.phase(arrival.at_s), run_id=run_id
        )
        for index, (arrival, prompt) in enumerate(zip(trace.arrivals, corpus.prompts, strict=True))
    ]


def prepare_one(
    index: int, arrival: Arrival, prompt: str, *, style: BodyStyle, target: Target, phase: Phase, run_id: str
) -> PreparedRequest:
    # The run's own id is in each request id: two benches with one seed never send the same one.
    request_id = f"{run_id}-{index}"
    return PreparedRequest(
        index=index,
        request_id=request_id,
        arrival=arrival,
        phase=phase,
        headers={
            **target.headers(arrival.class_name, arrival.tenant, arrival.service_class),
            "X-Request-Id": request_id,
        },
        body=json.dumps(body(prompt, arrival.output_tokens, style)).encode(),
    )


def body(prompt: str, output_tokens: int, style: BodyStyle) -> dict[str, Any]:
    """A streaming body whose output has exactly `output_tokens` where the engine honours ignore_eos and min_tokens."""
    if style.form is PromptForm.CHAT:
        asked: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}]}
    else:
        asked = {"prompt": prompt}
    asked |= {
        "model": style.model,
        "max_tokens": output_tokens,
        "min_tokens": output_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        # The running count shows tokens whose text the engine still holds back.
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    if style.cache_salt is not None:
        asked["cache_salt"] = style.cache_salt
    return asked
