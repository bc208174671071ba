"""The Prometheus text format and OpenMetrics, written for a loop that must not stand still.

Owns how families and samples become text: in OpenMetrics a counter's family goes without its `_total`, a bucket may
name a trace, and the rest is the same. Series keep their label text ready: with twenty classes and twenty engines
there are some 25 000 lines, and while they are written no stream moves.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from typing import ClassVar, Generic, Protocol, TypeVar

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_TOTAL = "_total"
_LABEL_TEXTS_MAX = 65_536
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


class Counted(Protocol):
    """One series of a family whose values grow as things happen."""

    kind: ClassVar[str]

    def __init__(self, name: str, labels: str, bounds: tuple[float, ...]) -> None: ...

    def text(self) -> str: ...

    def open_metrics(self) -> str: ...


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

    def open_metrics(self) -> str:
        return self.text()


class Distribution:
    """One histogram series. What was written stays good until the next observation.

    Each bucket keeps the last exemplar that fell into it, as it is written.
    """

    kind: ClassVar[str] = "histogram"
    __slots__ = ("_bounds", "_counts", "_exemplars", "_form", "_sum", "_written")

    def __init__(self, name: str, labels: str, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._exemplars: dict[int, str] = {}
        self._written: str | None = None
        lead = f"{labels}," if labels else ""
        escaped = lead.replace("%", "%%")
        ends = (*(repr(float(bound)) for bound in bounds), "+Inf")
        lines = [f'{name}_bucket{{{escaped}le="{end}"}} %d\n' for end in ends]
        tail = _braced(labels).replace("%", "%%")
        self._form = "".join([*lines, f"{name}_sum{tail} %r\n", f"{name}_count{tail} %d\n"])

    def observe(self, value: float, trace_id: str | None = None, now: float = 0.0) -> None:
        """Count a value. trace_id: of a trace that shows one such case; now: when, seconds since the epoch."""
        bucket = bisect_left(self._bounds, value)
        self._counts[bucket] += 1
        self._sum += value
        self._written = None
        if trace_id is not None:
            self._exemplars[bucket] = f' # {{trace_id="{trace_id}"}} {value!r} {now:.3f}'

    def text(self) -> str:
        if self._written is None:
            below = tuple(accumulate(self._counts))
            self._written = self._form % (*below, self._sum, below[-1])
        return self._written

    def open_metrics(self) -> str:
        if not self._exemplars:
            return self.text()
        lines = self.text().split("\n")
        for bucket, exemplar in self._exemplars.items():
            lines[bucket] += exemplar
        return "\n".join(lines)


class Family(Generic[S]):
    """One family of counted series. name: as it is written, `_total` of a counter included."""

    def __init__(
        self, series: type[S], name: str, text: str, labels: tuple[str, ...], bounds: tuple[float, ...] = ()
    ) -> None:
        self._make = series
        self._name = name
        self._opening = _opening(name, series.kind, text)
        self._open_metrics_opening = _opening(name.removesuffix(_TOTAL), series.kind, text)
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

    def open_metrics_texts(self) -> Iterator[str]:
        yield self._open_metrics_opening
        for series in self._used.values():
            yield series.open_metrics()


class Scraped:
    """One family whose samples are looked up at the scrape."""

    def __init__(self, name: str, text: str, labels: tuple[str, ...], kind: str = "gauge") -> None:
        self._name = name
        self._labels = labels
        self._lines = [_opening(name, kind, text)]
        self._open_metrics_opening = _opening(name.removesuffix(_TOTAL), kind, text)

    def add(self, labels: Sequence[str], value: float) -> None:
        self._lines.append(f"{self._name}{_braced(label_text(self._labels, tuple(labels)))} {float(value)!r}\n")

    def texts(self) -> Iterable[str]:
        return self._lines

    def open_metrics_texts(self) -> Iterable[str]:
        return [self._open_metrics_opening, *self._lines[1:]]


@lru_cache(_LABEL_TEXTS_MAX)
def label_text(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    """Write `a="x",b="y"`."""
    return ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in zip(names, values, strict=True))


def page(families: Iterable[Family[Count] | Family[Distribution] | Scraped], *, open_metrics: bool = False) -> bytes:
    """Write the families, one after the other; OpenMetrics' end mark is the caller's to write."""
    texts = (family.open_metrics_texts() if open_metrics else family.texts() for family in families)
    return "".join(chain.from_iterable(texts)).encode()


def _braced(labels: str) -> str:
    return f"{{{labels}}}" if labels else ""


def _opening(name: str, kind: str, text: str) -> str:
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"
