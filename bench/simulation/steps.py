"""What goes into the model of the engine and what comes out: flags, requests, steps and what a step costs.

Owns the words alone; the order in which tokens are given out is virtual_engine's. Reads no clock.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class StepTime:
    """τ = a + n·per_token + s·per_sequence + Σ q·n·context + Σ q'·n²/2, seconds; s: the requests in the step.

    per_token_chunk_s: q', of tokens of the same step; None: as q. Defaults: measured on a CPU engine with a tiny model.
    """

    base_s: float = 0.003
    per_token_s: float = 1 / 27_800
    per_token_context_s: float = 54e-9
    per_sequence_s: float = 0.0
    per_token_chunk_s: float | None = None

    def chunk_s(self, tokens: int, context: int) -> float:
        """Return what one request's tokens add to a step."""
        return self.step_s(tokens, 1, tokens * context, tokens * tokens) - self.base_s

    def prefill_s(self, tokens: int, step_tokens: int) -> float:
        """Return how long the steps of a prompt take that has the engine to itself."""
        starts = range(0, tokens, step_tokens)
        return sum(self.base_s + self.chunk_s(min(step_tokens, tokens - start), start) for start in starts)

    def step_s(self, tokens: int, sequences: int, context: int, chunks: int) -> float:
        """Return how long a step takes. context: the sum of n·context, chunks: of n²; whole, so that no order shows."""
        per_pair_s = self.per_token_context_s
        within_s = per_pair_s if self.per_token_chunk_s is None else self.per_token_chunk_s
        each_s = tokens * self.per_token_s + sequences * self.per_sequence_s
        return self.base_s + each_s + per_pair_s * context + within_s * chunks / 2


@dataclass(frozen=True, slots=True)
class EngineFlags:
    """vLLM's own flags. batches_in_flight: 1 is synchronous scheduling, 2 is asynchronous.

    kv_blocks counts the null block too, as `--num-gpu-blocks-override` does. watermark: the share of all blocks that
    an admission leaves free. max_num_active_seqs: None is max_num_seqs.
    """

    max_num_batched_tokens: int = 2048
    long_prefill_token_threshold: int = 640
    max_num_seqs: int = 128
    kv_blocks: int = 65_536
    block_tokens: int = 16
    priority_scheduling: bool = True
    batches_in_flight: int = 1
    prefix_caching: bool = False
    watermark: float = 0.0
    max_num_active_seqs: int | None = None


class EngineRequest:
    """One request inside the engine.

    Its first prefix_tokens tokens are those of every request with the same prefix; all others are its own. arrived and
    rank: its place in the order of arrival and in that of admission. computed: tokens scheduled so far. sampled: output
    tokens scheduled so far; delivered: those whose step has ended. in_flight: its steps that have not ended; stale:
    those of them scheduled before a preemption. cached_tokens: found in the prefix cache, over all its admissions.
    lost_tokens: computed, and lost by preemption. blocks, named, held: of the KV cache, `kv_blocks.Holder`.
    """

    __slots__ = (
        "arrived",
        "blocks",
        "cached_tokens",
        "computed",
        "delivered",
        "held",
        "id",
        "in_flight",
        "lost_tokens",
        "named",
        "output_tokens",
        "preemptions",
        "prefix",
        "prefix_tokens",
        "priority",
        "prompt_tokens",
        "rank",
        "sampled",
        "stale",
    )

    def __init__(
        self,
        id: int,  # noqa: A002 - as vLLM calls it
        prompt_tokens: int,
        output_tokens: int,
        priority: int = 0,
        *,
        prefix: int = 0,
        prefix_tokens: int = 0,
    ) -> None:
        self.id = id
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.priority = priority
        self.prefix = prefix
        self.prefix_tokens = prefix_tokens
        self.arrived = self.rank = 0
        self.computed = self.sampled = self.delivered = 0
        self.in_flight = self.stale = self.preemptions = 0
        self.cached_tokens = self.lost_tokens = 0
        self.blocks = self.named = 0
        self.held: list[Any] = []

    @property
    def rest(self) -> int:
        """Tokens that it still has to compute before it can sample its next output token."""
        return self.prompt_tokens + self.sampled - self.computed

    @property
    def worked_tokens(self) -> int:
        """Tokens that the engine was scheduled to compute for it, again where it had to."""
        return self.lost_tokens + self.computed - self.cached_tokens

    @property
    def known_tokens(self) -> int:
        """Prompt and the output that has come back: what may be looked up and cached by its hash."""
        return self.prompt_tokens + self.delivered

    @property
    def complete(self) -> bool:
        """Its last token is scheduled: it only waits for that step to end."""
        return self.sampled >= self.output_tokens

    def block_hash(self, index: int, block_tokens: int) -> Hashable:
        """Return the identity of a full block: shared where it lies wholly in the prefix, else this request's own."""
        if (index + 1) * block_tokens <= self.prefix_tokens:
            return "prefix", self.prefix, index
        return "own", self.id, index


class Step:
    """One scheduled step: tokens by request id, in the order given out; who gets a first token and who ends by it.

    grouped: requests beside those, of which each gets its next token.
    """

    __slots__ = ("duration_s", "ended", "first_tokens", "grouped", "tokens")

    def __init__(
        self,
        tokens: dict[int, int],
        duration_s: float,
        first_tokens: list[int],
        ended: list[int],
        grouped: int = 0,
    ) -> None:
        self.tokens = tokens
        self.duration_s = duration_s
        self.first_tokens = first_tokens
        self.ended = ended
        self.grouped = grouped

    @property
    def is_empty(self) -> bool:
        return not self.tokens and not self.grouped
