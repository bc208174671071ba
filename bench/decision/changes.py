"""Which failure justifies which change, and which it does not: a table. Pure.

A sign is a figure of one arm, load and class beside a bound; a failure is seen where all its signs are. What is not
measured is no sign. Seeing a failure proves no cure: it says what is worth measuring next, and what is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from bench.analysis.scores import BEHIND_NOTED, KV_PRESSING, PREEMPTIONS_NOTED


class Change(StrEnum):
    BUDGET = "budget"  # max_num_batched_tokens
    SEQUENCES = "sequence limit"  # max_num_seqs
    ADMISSION = "admission"  # policy: queues, waits, budgets before the engine
    SLICING = "slicing"  # long prompts in parts: threshold, sliced, recalled
    ISOLATION = "isolation"  # engines of their own for a class
    CAPACITY = "more engine, or less load"
    MENDING = "mend the fault first"


class Is(StrEnum):
    ABOVE = "above"
    BELOW = "below"
    LEAST = "at least"


@dataclass(frozen=True, slots=True)
class Sign:
    """or_absent: it is there too where nothing says the figure, as there is no queue without a gateway."""

    figure: str
    is_: Is
    bound: float
    or_absent: bool = False

    def seen(self, figures: Mapping[str, float]) -> bool:
        value = figures.get(self.figure)
        if value is None:
            return self.or_absent
        match self.is_:
            case Is.ABOVE:
                return value > self.bound
            case Is.BELOW:
                return value < self.bound
            case Is.LEAST:
                return value >= self.bound


@dataclass(frozen=True, slots=True)
class Failure:
    """justifies: worth measuring. does_not: change to why it is none."""

    name: str
    signs: tuple[Sign, ...]
    justifies: tuple[Change, ...]
    does_not: Mapping[Change, str]


# Figures (`symptoms`): shares of requests; p95, or the engine's mean wait, over the limit of the first token.
FAILURES = (
    Failure(
        "first tokens late where long prompts are in work",
        (Sign("first token over limit", Is.ABOVE, 1), Sign("late together − late alone", Is.ABOVE, 0.1)),
        (Change.SLICING, Change.BUDGET, Change.ADMISSION),
        {Change.SEQUENCES: "a free place does not shorten the step that is under way"},
    ),
    Failure(
        "first tokens late though nothing waits in line",
        (
            Sign("first token over limit", Is.ABOVE, 1),
            Sign("engine wait over limit", Is.BELOW, 0.1),
            Sign("gateway queue over limit", Is.BELOW, 0.1, or_absent=True),
        ),
        (Change.ADMISSION, Change.SLICING, Change.BUDGET),
        {Change.SEQUENCES: "more at once share the same steps: each one's first token comes later"},
    ),
    Failure(
        "streams stall",
        (Sign("stall over limit", Is.ABOVE, 1),),
        (Change.BUDGET, Change.SLICING),
        {
            Change.ADMISSION: "who is let in first does not shorten a step, once long prompts are in it",
            Change.SEQUENCES: "a stream that runs has its place",
        },
    ),
    Failure(
        "waits before an engine that has room",
        (
            Sign("gateway queue over limit", Is.ABOVE, 0.5),
            Sign("KV used", Is.BELOW, 0.8),
            Sign("engine wait over limit", Is.BELOW, 0.1),
        ),
        (Change.ADMISSION,),
        {
            Change.BUDGET: "the engine takes what it is given: the line is before it",
            Change.ISOLATION: "another engine is no use while this one is not full",
        },
    ),
    Failure(
        "waits inside the engine with KV free",
        (Sign("engine wait over limit", Is.ABOVE, 0.25), Sign("KV used", Is.BELOW, 0.8)),
        (Change.SEQUENCES, Change.BUDGET, Change.ADMISSION),
        {Change.ISOLATION: "the line is one for all classes: its order and length are admission's"},
    ),
    Failure(
        "KV runs out",
        (Sign("preemptions a request", Is.ABOVE, PREEMPTIONS_NOTED),),
        (Change.ADMISSION, Change.SEQUENCES),
        {
            Change.BUDGET: "more tokens a step fill the KV sooner",
            Change.SLICING: "a prompt in parts holds as much KV, for longer",
        },
    ),
    Failure(
        "KV nearly full",
        (Sign("KV used", Is.ABOVE, KV_PRESSING),),
        (Change.ADMISSION, Change.SEQUENCES),
        {Change.BUDGET: "more tokens a step fill the KV sooner"},
    ),
    Failure(
        "refusals though the load fits",
        (Sign("refused", Is.ABOVE, 0.01), Sign("answered of offered", Is.LEAST, 1 - BEHIND_NOTED)),
        (Change.ADMISSION,),
        {
            Change.BUDGET: "what is refused never reaches a step",
            Change.ISOLATION: "the engine has room: it is the bounds that are too tight",
        },
    ),
    Failure(
        "answers fall behind what is offered",
        (Sign("answered of offered", Is.BELOW, 1 - BEHIND_NOTED), Sign("late alone", Is.ABOVE, 0.05)),
        (Change.CAPACITY,),
        {
            Change.ADMISSION: "it chooses who waits, and makes no work less",
            Change.ISOLATION: "the same work on the same engines, apart",
        },
    ),
    Failure(
        "errors",
        (Sign("errors", Is.ABOVE, 0.01),),
        (Change.MENDING,),
        dict.fromkeys(
            (Change.BUDGET, Change.SEQUENCES, Change.ADMISSION, Change.SLICING, Change.ISOLATION),
            "an engine or a network that breaks is not tuned",
        ),
    ),
    Failure(
        "late in company, in time alone, in every arm",
        (Sign("classes disturb each other", Is.LEAST, 1),),
        (Change.ISOLATION,),
        {Change.CAPACITY: "each class alone is in time on this engine"},
    ),
)


def seen(figures: Mapping[str, float]) -> list[Failure]:
    return [failure for failure in FAILURES if all(sign.seen(figures) for sign in failure.signs)]
