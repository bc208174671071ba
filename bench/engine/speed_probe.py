"""How fast an engine is in these minutes: a few lone requests, always the same, before and after a run.

Owns what is sent and what is kept of it. A machine drifts; held against the same requests at another time the figures
say by how much. Judges nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

from bench.engine.lone_requests import LONE_PATH, LoneRequests, Timed
from bench.load.client import StreamingClient
from bench.load.target import Target

PROMPT_TOKENS, OUTPUT_TOKENS, ROUNDS = 1024, 9, 8
REQUEST_S_MAX = 30.0


async def probe_all(metrics_urls: Iterable[str], model: str, clock: Callable[[], float]) -> list[dict[str, Any]]:
    """Time several engines, one after another."""
    engines = (Target("engine", url.removesuffix("/metrics"), key_names={}, priority={}) for url in metrics_urls)
    return [await probe(engine, model, clock) for engine in engines]


async def probe(engine: Target, model: str, clock: Callable[[], float]) -> dict[str, Any]:
    """Time one engine.

    Return seconds from sending to the first token and from there to the last, one each round; or why not.
    """
    ttft_s: list[float] = []
    decode_s: list[float] = []
    async with StreamingClient(engine.base_url, LONE_PATH, clock) as client:
        requests = LoneRequests(client, engine, model, clock)
        for _ in range(ROUNDS):
            timed = await requests.ask(PROMPT_TOKENS, OUTPUT_TOKENS, s_max=REQUEST_S_MAX)
            if not isinstance(timed, Timed):
                return {"failed": timed.reason}
            ttft_s.append(round(timed.ttft_s, 6))
            decode_s.append(round(timed.decode_s, 6))
    return {"prompt_tokens": PROMPT_TOKENS, "output_tokens": OUTPUT_TOKENS, "ttft_s": ttft_s, "decode_s": decode_s}


def typical_s(said: dict[str, Any]) -> float | None:
    """Return what one of its requests took to its last token, by medians; None: it failed."""
    if "failed" in said or said.get("prompt_tokens") != PROMPT_TOKENS or said.get("output_tokens") != OUTPUT_TOKENS:
        return None
    return float(median(said["ttft_s"]) + median(said["decode_s"]))
