"""What the bench and its client processes tell each other. Words alone; who sends what when stands at each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.load.bodies import PreparedRequest


@dataclass(frozen=True, slots=True)
class Share:
    """To the process, first: what it is to send, by planned arrival, and how many sockets to open before."""

    base_url: str
    path: str
    requests: Sequence[PreparedRequest]
    sockets: int


@dataclass(frozen=True, slots=True)
class Ready:
    """From the process: so many sockets are open."""

    sockets: int


@dataclass(frozen=True, slots=True)
class Go:
    """To the process, when all are ready. Both are readings of the clock, which all processes share."""

    started_at: float
    cut_at: float


@dataclass(frozen=True, slots=True)
class Stop:
    """To the process: give up what is open, and tell."""


@dataclass(frozen=True, slots=True)
class Heard:
    """From the process, again and again.

    sent: how many of its share so far. seen: of requests that have ended, by index; the last also has all others.
    """

    sent: int
    seen: Sequence[tuple[int, tuple[Any, ...]]]
    lags_s: Sequence[float]
    last: bool = False
