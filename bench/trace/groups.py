"""The three groups of traffic that ship with the bench: chats, long contexts, agents. Seeded and pure.

`chat`: short prompts, answers of a few hundred tokens, nothing shared. `document`: prompts of thousands of tokens with
moderate output. `agent`: sessions of several turns; each begins with instructions or documents that other sessions have
too, each turn's prompt begins with the one before, some turns fan out into several requests at once, answers vary
widely, and some clients leave. All of it is synthetic, and labelled so.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from bench.trace.arrivals import Arrival, Trace
from bench.trace.intensity import Burst, Intensity, laid_along
from bench.trace.random_arrivals import POISSON, unit_times
from bench.trace.shaping import finished

ALL = CHAT, DOCUMENT, AGENT = "chat", "document", "agent"
BLOCK_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Tokens:
    """A log-normal length: half lie under `median`, two in three within a factor of exp(sigma), all in the bounds."""

    median: float
    sigma: float
    least: int
    most: int

    def draw(self, rng: random.Random) -> int:
        return min(self.most, max(self.least, round(self.median * rng.lognormvariate(0.0, self.sigma))))


CHAT_PROMPT, CHAT_OUTPUT = Tokens(350, 0.6, 64, 640), Tokens(128, 0.7, 8, 512)
DOCUMENT_PROMPT, DOCUMENT_OUTPUT = Tokens(8192, 0.5, 2048, 32_768), Tokens(200, 0.5, 32, 512)
AGENT_OUTPUT = Tokens(80, 1.0, 4, 1024)
# Instructions and documents that sessions share: few are used by many.
OPENINGS = 12
OPENING_BLOCKS = Tokens(8, 0.6, 2, 32)
QUESTION_TOKENS = Tokens(90, 0.6, 32, 512)
TURNS_MEAN = 4.0
TURNS_MAX = 16
THINKING_MEAN_S = 3.0
FAN_OUT_SHARE, FAN_OUT_MOST, FAN_OUT_S = 0.2, 5, 0.1
LEAVES_SHARE, LEAVES_MEAN_S = 0.1, 4.0


def generate(
    rates: Mapping[str, float], *, span_s: float, seed: int, burst: Burst | None = None, burstiness: float = POISSON
) -> Trace:
    """rates: group to its requests per second (agent: sessions per second).

    One group's arrivals do not depend on which others there are.
    """
    makers: dict[str, Callable[[float, random.Random], Iterator[Arrival]]] = {
        CHAT: _chat,
        DOCUMENT: _document,
        AGENT: _session,
    }
    arrivals: list[Arrival] = []
    for group, rate in rates.items():
        rng = random.Random(f"group {group} {seed}")
        times_rng = random.Random(f"group {group} times {seed}")
        for at_s in laid_along(unit_times(times_rng, burstiness), Intensity(rate, burst), span_s):
            arrivals += [each for each in makers[group](at_s, rng) if each.at_s < span_s]
    arrivals.sort(key=lambda each: each.at_s)
    origin: dict[str, Any] = {"label": "synthetic", "groups_per_s": dict(rates), "burstiness": burstiness, "seed": seed}
    if burst is not None:
        origin["bursts"] = asdict(burst)
    return finished(arrivals, span_s, origin, BLOCK_TOKENS)


def _chat(at_s: float, rng: random.Random) -> Iterator[Arrival]:
    yield Arrival(at_s, CHAT, CHAT_PROMPT.draw(rng), CHAT_OUTPUT.draw(rng))


def _document(at_s: float, rng: random.Random) -> Iterator[Arrival]:
    yield Arrival(at_s, DOCUMENT, DOCUMENT_PROMPT.draw(rng), DOCUMENT_OUTPUT.draw(rng))


def _session(at_s: float, rng: random.Random) -> Iterator[Arrival]:
    """All requests of one session. Its times are drawn before the run: they do not wait for answers."""
    # The square of a uniform number: the first openings are the most used.
    opening = int(rng.random() ** 2 * OPENINGS)
    blocks = OPENING_BLOCKS.draw(random.Random(f"opening {opening}"))
    session = f"{rng.getrandbits(48):012x}"
    prefix = tuple(f"o{opening}-{number}" for number in range(blocks))
    turns = min(TURNS_MAX, 1 + int(rng.expovariate(1.0) * (TURNS_MEAN - 0.5)))
    for turn in range(turns):
        branches = rng.randint(2, FAN_OUT_MOST) if rng.random() < FAN_OUT_SHARE else 1
        answered = 0
        for _ in range(branches):
            output = AGENT_OUTPUT.draw(rng)
            question = QUESTION_TOKENS.draw(rng)
            leaves = rng.random() < LEAVES_SHARE
            yield Arrival(
                at_s=at_s + (rng.random() * FAN_OUT_S if branches > 1 else 0.0),
                class_name=AGENT,
                prompt_tokens=len(prefix) * BLOCK_TOKENS + question,
                output_tokens=output,
                cancel_after_s=max(0.001, round(rng.expovariate(1 / LEAVES_MEAN_S), 3)) if leaves else None,
                prefix=prefix,
                session=session,
            )
            answered += output + question
        # What was asked and answered stands at the beginning of the next turn.
        more = max(1, answered // BLOCK_TOKENS)
        prefix += tuple(f"{session}-{turn}-{number}" for number in range(more))
        at_s += rng.expovariate(1 / THINKING_MEAN_S)
