"""Parts of a long prompt: how large each is, and how far one prompt has come.

vLLM cannot put a running prefill aside; a gateway can, because the engine keeps the blocks of a prefix that it has
computed. `sliced`: the prompt is sent as growing prefixes, one at a time, the caller's own request last. `recalled`:
the request itself is sent, taken back when a short one comes, and sent again when none is left unserved.

Owns the size of a part and the record of one course. Which course goes is `courses`' to say.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from gateway.core.plan import LongPrefill
from gateway.core.steptime import StepModel
from gateway.core.ticket import Ticket

_LAST_SLICES = 1.25
"""How many slices' time the caller's own request may still take: what is left is not cut for a small rest."""
_FIXED_COSTS_MIN = 4.0
"""No slice is aimed at less than this many times a step's fixed cost, or most of its time were that cost."""


def slice_end(
    model: StepModel, *, done_tokens: int, prompt_tokens: int, slice_s: float, step_tokens: int, block_tokens: int
) -> int | None:
    """Return where the next part ends so that it takes about `slice_s`; None: the rest is one part's work.

    Ends lie on block borders, since only whole blocks are cached: on the nearest one, for far into a prompt one block
    takes long, and parts that end before it would be as much shorter and more.
    """
    aimed_s = max(slice_s, _FIXED_COSTS_MIN * model.base_s)
    if model.part_s(done_tokens, prompt_tokens, step_tokens) <= _LAST_SLICES * aimed_s:
        return None
    tokens = _tokens_within(model, aimed_s, done_tokens, step_tokens)
    blocks = max(1, round((done_tokens % block_tokens + tokens) / block_tokens))
    end = (done_tokens // block_tokens + blocks) * block_tokens
    return end if end < prompt_tokens else None


def _tokens_within(model: StepModel, seconds: float, done_tokens: int, step_tokens: int) -> int:
    """Return how many tokens after `done_tokens` take this long, each step begun paid for whole."""
    per_token_s = model.per_token_s + model.per_token_context_s * done_tokens
    steps = 0
    while True:
        left_s = max(0.0, seconds - (steps + 1) * model.base_s)
        # n/R + q·n·(c + n/2) = left_s, solved for n in the form that holds for q = 0 too.
        tokens = 2 * left_s / (per_token_s + sqrt(per_token_s**2 + 2 * model.per_token_context_s * left_s))
        if tokens <= (steps + 1) * step_tokens:
            return max(steps * step_tokens, int(tokens))
        steps += 1


@dataclass(eq=False, slots=True)
class Course:
    """How far one long prompt is computed. Times in seconds since the epoch.

    done_tokens: in the engine's cache, as far as is known. sent_tokens: the prefix at the engine now; None: put aside.
    is_accepted: the engine would take the request, so that computing it is no waste. is_whole: the rest goes in one
    part. keeps_until: it is not taken back before. deadline_at: of its first token. busy_s: what its parts spent at the
    engine. freed_tokens: of the cache, by others, when it was put aside. found_cached: a part found what lay before it.
    share: of the plan's slice and hold, how large they are now.
    """

    ticket: Ticket
    plan: LongPrefill
    deadline_at: float
    is_accepted: bool
    done_tokens: int = 0
    sent_tokens: int | None = None
    sent_at: float = 0.0
    aside_since: float = 0.0
    freed_tokens: int = 0
    keeps_until: float = 0.0
    recalls: int = 0
    parts_sent: int = 0
    busy_s: float = 0.0
    found_cached: bool = False
    is_whole: bool = False
    share: float = 1.0

    @property
    def prompt_tokens(self) -> int:
        return self.ticket.assignment.prompt_tokens

    @property
    def at_request(self) -> bool:
        """Whether the caller's own request is at the engine."""
        return self.sent_tokens == self.prompt_tokens

    @property
    def slice_s(self) -> float:
        return self.share * self.plan.slice_s

    def hold_s(self, model: StepModel, step_tokens: int, since: float) -> float:
        """Return how long it may be put aside for shorts: as stated, or its slack in equal shares over its parts."""
        if self.plan.hold_max_s is not None:
            return self.share * self.plan.hold_max_s
        left_s = model.part_s(self.done_tokens, self.prompt_tokens, step_tokens)
        parts = max(1.0, left_s / self.slice_s)
        return max(0.0, self.deadline_at - since - left_s) / parts

    def hold_until(self, model: StepModel, step_tokens: int) -> float:
        return self.aside_since + self.hold_s(model, step_tokens, self.aside_since)
