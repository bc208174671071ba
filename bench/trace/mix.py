"""Which classes in which proportion. Exact by count, in an order drawn from a seed.

A mix drawn request by request would move the offered work by more than the difference between two policies.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClassLoad:
    """One class of a mix. `share` is a whole number of parts by request count, as the 80 of 80/20."""

    name: str
    share: int
    prompt_tokens: int
    output_tokens: int


def shuffled(count: int, mix: Sequence[ClassLoad], rng: random.Random) -> list[ClassLoad]:
    """`count` classes in random order, each as often as its share says; the rest goes to the largest remainders."""
    shares = sum(load.share for load in mix)
    exact = [count * load.share / shares for load in mix]
    numbers = [int(number) for number in exact]
    by_remainder = sorted(range(len(mix)), key=lambda i: exact[i] - numbers[i], reverse=True)
    for i in by_remainder[: count - sum(numbers)]:
        numbers[i] += 1
    classes = [load for load, number in zip(mix, numbers, strict=True) for _ in range(number)]
    rng.shuffle(classes)
    return classes


def endless(mix: Sequence[ClassLoad], rng: random.Random) -> Iterator[ClassLoad]:
    """Classes without end, the proportion exact in every block as small as the shares allow: 80/20 in fives."""
    block = sum(load.share for load in mix) // math.gcd(*(load.share for load in mix))
    while True:
        yield from shuffled(block, mix, rng)
