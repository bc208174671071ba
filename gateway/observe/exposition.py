"""The Prometheus text format, written for a loop that must not stand still.

Owns how families and samples become text. Series keep their label text ready: with twenty classes and twenty engines
there are some 25 000 lines, and while they are written no stream moves.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from typing import ClassVar, Generic, Protocol, TypeVar

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LABEL_TEXTS_MAX = 65_536
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


class Counted(Protocol):
    """One series of a family whose values grow as things happen."""

    kind: ClassVar[str]

    def __init__(self, name: str, labels: str, bounds: tuple[float, ...]) -> None: ...

    def text(self) -> str: ...


S = TypeVar("S", bound=Counted)


class Count:
    """One counter series."""

    kind: ClassVar[str] = "counter"
    __slots__ = ("_head", "_value")

    def __init__(self, name: str, labels: str, bounds: tuple[float, ...]) -> None:
        assert not bounds, "a counter has no buckets"
        self._head = f"{name}{_braced(labels)}"
        self._value = 0

    @property
    def value(self) -> int:
        return self._value

    def inc(self, by: int = 1) -> None:
        self._value += by

    def text(self) -> str:
        return f"{self._head} {self._value}\n"


class Distribution:
    """One histogram series. What was written stays good until the next observation."""

    kind: ClassVar[str] = "histogram"
    __slots__ = ("_bounds", "_counts", "_form", "_sum", "_written")

    def __init__(self, name: str, labels: str, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._written: str | None = None
        lead = f"{labels}," if labels else ""
        escaped = lead.replace("%", "%%")
        ends = (*(repr(float(bound)) for bound in bounds), "+Inf")
        lines = [f'{name}_bucket{{{escaped}le="{end}"}} %d\n' for end in ends]
        tail = _braced(labels).replace("%", "%%")
        self._form = "".join([*lines, f"{name}_sum{tail} %r\n", f"{name}_count{tail} %d\n"])

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value
        self._written = None

    def text(self) -> str:
        if self._written is None:
            below = tuple(accumulate(self._counts))
            self._written = self._form % (*below, self._sum, below[-1])
        return self._written


class Family(Generic[S]):
    """One family of counted series. name: as it is written, `_total` of a counter included."""

    def __init__(
        self, series: type[S], name: str, text: str, labels: tuple[str, ...], bounds: tuple[float, ...] = ()
    ) -> None:
        self._make = series
        self._name = name
        self._opening = _opening(name, series.kind, text)
        self._labels = labels
        self._bounds = bounds
        self._used: dict[tuple[str, ...], S] = {}
        if not labels:
            self.at()  # one series alone is shown at zero

    def at(self, *labels: str) -> S:
        """Return the series of these label values; from its first use it is shown."""
        series = self._used.get(labels)
        if series is None:
            text = label_text(self._labels, labels)
            series = self._used[labels] = self._make(self._name, text, self._bounds)
        return series

    def series(self) -> Iterator[tuple[tuple[str, ...], S]]:
        """Yield the label values of each series in use, and the series."""
        yield from self._used.items()

    def texts(self) -> Iterator[str]:
        yield self._opening
        for series in self._used.values():
            yield series.text()


class Scraped:
    """One family whose samples are looked up at the scrape."""

    def __init__(self, name: str, text: str, labels: tuple[str, ...], kind: str = "gauge") -> None:
        self._name = name
        self._labels = labels
        self._lines = [_opening(name, kind, text)]

    def add(self, labels: Sequence[str], value: float) -> None:
        self._lines.append(f"{self._name}{_braced(label_text(self._labels, tuple(labels)))} {float(value)!r}\n")

    def texts(self) -> Iterable[str]:
        return self._lines


@lru_cache(_LABEL_TEXTS_MAX)
def label_text(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    """Write `a="x",b="y"`."""
    return ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in zip(names, values, strict=True))


def page(families: Iterable[Family[Count] | Family[Distribution] | Scraped]) -> bytes:
    """Write the families, one after the other."""
    return "".join(chain.from_iterable(family.texts() for family in families)).encode()


def _braced(labels: str) -> str:
    return f"{{{labels}}}" if labels else ""


def _opening(name: str, kind: str, text: str) -> str:
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"
