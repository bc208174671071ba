"""Does the engine obey priorities? A live engine cannot be asked, but its order can be watched.

Every step's token budget is filled by prompts already running; then a prompt of low urgency is sent, then one of
high urgency, and the one whose answer comes first tells the order of the waiting queue. First come, first served
answers the low one first; only an arrival overtaken on its way could look otherwise, so all of `ROUNDS` must put the
high one first. Anything else proves nothing, and nothing is sent. Prompts are token ids, new in each round, so that
no prefix cache shortens them; each asks for one token. Costs a few engine steps a round; for an idle engine only.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from gateway.core.types import EngineLimits
from gateway.engines.probe_prompts import ProbePrompts

ROUNDS = 3
ROUND_TOKENS_MAX = 131_072
ANSWER_S_MAX = 60.0
_BUDGET_TOKENS_DEFAULT = 8192  # vLLM's on large GPUs; a larger guess than true only makes the fillers longer
_ARRIVAL_GAP_S = 0.05
_FILLER_PRIORITY, _LOW, _HIGH = 0, 1000, -1000

Complete = Callable[[dict[str, Any], int], Coroutine[Any, Any, bool]]
Pause = Callable[[float], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Load:
    """Prompt lengths of one round, in tokens: what fills the budget, and the two that contend."""

    filler_tokens: tuple[int, ...]
    contender_tokens: int


def plan_load(limits: EngineLimits, context_tokens: int | None) -> Load | None:
    """Size a round for an engine; None where it cannot be made within the context and `ROUND_TOKENS_MAX`.

    With a threshold T under the budget B each running prefill takes at most T a step: ceil(B / T) fillers leave
    nothing over, and staggered lengths free the budget one share at a time, so that the contenders start in
    different steps.
    """
    budget = limits.max_num_batched_tokens or _BUDGET_TOKENS_DEFAULT
    share = min(limits.long_prefill_token_threshold or budget, budget)
    fillers = tuple(share * (3 + extra) for extra in range(math.ceil(budget / share)))
    room = ROUND_TOKENS_MAX if context_tokens is None else context_tokens - 1
    if max(fillers) > room or sum(fillers) + 2 * share > ROUND_TOKENS_MAX:
        return None
    return Load(fillers, share)


def why_not_planned(limits: EngineLimits) -> str:
    """Say why `plan_load` found no round for this engine, and what to state where it had to guess."""
    reason = "no round of the proof fits the model's context"
    if limits.max_num_batched_tokens is None:
        reason += "; state the engine's limits.max_num_batched_tokens and limits.max_num_seqs"
    return reason


async def obeys_priority(complete: Complete, load: Load, model: str, salt: bytes, pause: Pause) -> bool:
    """Run the rounds; True where the order is proved.

    complete: sends a /v1/completions body with a priority and returns whether it was answered with 200; salt: new
    bytes for each proof.
    """
    for number in range(ROUNDS):
        body = ProbePrompts(model, salt + number.to_bytes(2, "big"))
        if not await _high_came_first(complete, load, body, pause):
            return False
    return True


async def _high_came_first(complete: Complete, load: Load, body: ProbePrompts, pause: Pause) -> bool:
    order: list[int] = []

    async def contend(priority: int) -> None:
        if await complete(body.of(load.contender_tokens), priority):
            order.append(priority)

    async with asyncio.timeout(ANSWER_S_MAX), asyncio.TaskGroup() as group:
        fillers = [group.create_task(complete(body.of(tokens), _FILLER_PRIORITY)) for tokens in load.filler_tokens]
        # The gaps are the experiment itself: the order of arrival must be known. They wait for no condition.
        await pause(_ARRIVAL_GAP_S)
        group.create_task(contend(_LOW))
        await pause(_ARRIVAL_GAP_S)
        group.create_task(contend(_HIGH))
    return all(filler.result() for filler in fillers) and order == [_HIGH, _LOW]
