"""Small charts as SVG text: lines with whiskers, steps, stacked bars. Knows numbers and labels, no meanings.

Colours are classes of the page's style sheet (`s0`, `s1`, …), so that a chart follows the page's light or dark. Series
differ in dash and marker too, for whoever does not tell colours apart. Each chart says in words what it shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 520, 300
LEFT, RIGHT, TOP, BOTTOM = 62, 12, 14, 44
TICKS = 5


@dataclass(frozen=True, slots=True)
class Point:
    """y in the axis's unit; low and high make a whisker; note is the tooltip."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Series:
    """One line. colour: a number of the style sheet."""

    name: str
    colour: int
    points: Sequence[Point]


@dataclass(frozen=True, slots=True)
class Bar:
    """One stacked bar: parts as (colour, height, tooltip), from the bottom."""

    label: str
    parts: Sequence[tuple[int, float, str]]


@dataclass(frozen=True, slots=True)
class Axis:
    """What a direction means; log: by powers of ten, and nothing at or under 0."""

    label: str
    low: float
    high: float
    log: bool = False

    def place(self, value: float) -> float:
        """From 0 to 1."""
        if self.log:
            value = max(value, self.low)
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        if self.log:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            marks = [base * 10.0**power for power in powers for base in (1, 2, 5)]
            inside = [mark for mark in marks if self.low <= mark <= self.high * 1.0001]
            return inside if len(inside) <= 2 * TICKS else [10.0**power for power in powers if self.low <= 10.0**power]
        raw = (self.high - self.low) / TICKS
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(base * power for base in (1, 2, 5, 10) if base * power >= raw)
        first = math.ceil(self.low / step)
        return [number * step for number in range(first, math.floor(self.high / step + 1e-9) + 1)]


def linear(label: str, values: Sequence[float]) -> Axis:
    """From 0 to the highest finite value."""
    finite = [value for value in values if math.isfinite(value)]
    return Axis(label, 0.0, max(finite, default=0.0) * 1.05 or 1.0)


def around(label: str, values: Sequence[float]) -> Axis:
    """A little wider than the values, from 0 where they begin near it."""
    low, high = min(values), max(values)
    return Axis(label, 0.0 if low < 0.3 * high else low * 0.9, high * 1.05)


def logarithmic(label: str, values: Sequence[float]) -> Axis:
    finite = [value for value in values if math.isfinite(value) and value > 0]
    low, high = min(finite, default=1.0), max(finite, default=10.0)
    return Axis(label, low / 1.15, max(high * 1.15, low * 2), log=True)


def lines(title: str, x: Axis, y: Axis, series: Sequence[Series], *, stepped: bool = False) -> str:
    """Markers where points are few."""
    body = [_frame(x, y)]
    for own in series:
        drawn = [point for point in own.points if math.isfinite(point.y)]
        places = [(_x(x, point.x), _y(y, point.y)) for point in drawn]
        if places:
            body.append(f'<path class="line s{own.colour}" d="{_path(places, stepped=stepped)}"/>')
        if not stepped and len(drawn) <= 30:
            body += [_marker(own, point, place, y) for point, place in zip(drawn, places, strict=True)]
    return _svg(title, "".join(body))


def stacked(title: str, y: Axis, bars: Sequence[Bar]) -> str:
    width = (WIDTH - LEFT - RIGHT) / max(1, len(bars))
    body = [_frame(None, y)]
    for number, bar in enumerate(bars):
        left, below = LEFT + width * (number + 0.15), 0.0
        for colour, height, note in bar.parts:
            top = _y(y, below + height)
            body.append(
                f'<rect class="bar s{colour}" x="{left:.1f}" y="{top:.1f}" width="{width * 0.7:.1f}" '
                f'height="{max(0.0, _y(y, below) - top):.1f}"><title>{escape(note)}</title></rect>'
            )
            below += height
        middle = left + width * 0.35
        words = bar.label.split("\n")
        body += [
            f'<text class="tick" text-anchor="middle" x="{middle:.1f}" y="{HEIGHT - BOTTOM + 14 + 12 * row}">'
            f"{escape(word)}</text>"
            for row, word in enumerate(words)
        ]
    return _svg(title, "".join(body))


def legend(names: Sequence[tuple[int, str]]) -> str:
    """HTML, beside the charts that share it."""
    items = "".join(
        f'<li><svg class="key" viewBox="0 0 26 10" aria-hidden="true"><path class="line s{colour}" d="M0 5H26"/>'
        f'<rect class="bar s{colour}" x="9" y="1" width="8" height="8"/></svg>{escape(name)}</li>'
        for colour, name in names
    )
    return f'<ul class="legend">{items}</ul>'


def short(value: float) -> str:
    """A number as an axis has it."""
    if value and (abs(value) >= 10_000 or abs(value) < 0.01):
        return f"{value:.0e}".replace("e+0", "e").replace("e-0", "e-")
    return f"{value:.4g}"


def _frame(x: Axis | None, y: Axis) -> str:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = []
    for tick in y.ticks():
        at = _y(y, tick)
        parts.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{right}"/>')
        parts.append(f'<text class="tick" text-anchor="end" x="{LEFT - 6}" y="{at + 4:.1f}">{short(tick)}</text>')
    for tick in [] if x is None else x.ticks():
        at = _x(x, tick) if x is not None else 0.0
        parts.append(f'<path class="grid" d="M{at:.1f} {TOP}V{bottom}"/>')
        parts.append(f'<text class="tick" text-anchor="middle" x="{at:.1f}" y="{bottom + 15}">{short(tick)}</text>')
    parts.append(f'<path class="axis" d="M{LEFT} {TOP}V{bottom}H{right}"/>')
    middle = (TOP + bottom) / 2
    parts.append(
        f'<text class="label" text-anchor="middle" transform="rotate(-90 13 {middle})" x="13" y="{middle}">'
        f"{escape(y.label)}</text>"
    )
    if x is not None:
        centre = (LEFT + right) / 2
        parts.append(f'<text class="label" text-anchor="middle" x="{centre}" y="{HEIGHT - 8}">{escape(x.label)}</text>')
    return "".join(parts)


def _marker(own: Series, point: Point, place: tuple[float, float], y: Axis) -> str:
    across, down = place
    shapes: Sequence[Callable[[], str]] = (
        lambda: f'<circle cx="{across:.1f}" cy="{down:.1f}" r="4"/>',
        lambda: f'<rect x="{across - 4:.1f}" y="{down - 4:.1f}" width="8" height="8"/>',
        lambda: f'<path d="M{across:.1f} {down - 5:.1f}l5 9h-10z"/>',
        lambda: f'<path d="M{across:.1f} {down - 5:.1f}l5 5l-5 5l-5 -5z"/>',
    )
    whisker = ""
    if point.low is not None and point.high is not None:
        low, high = _y(y, point.low), _y(y, min(point.high, y.high))
        whisker = f'<path class="line whisker s{own.colour}" d="M{across:.1f} {low:.1f}V{high:.1f}"/>'
    note = f"<title>{escape(point.note)}</title>"
    return f'{whisker}<g class="mark s{own.colour}">{shapes[own.colour % len(shapes)]()}{note}</g>'


def _path(places: Sequence[tuple[float, float]], *, stepped: bool) -> str:
    first, *others = places
    words = [f"M{first[0]:.1f} {first[1]:.1f}"]
    for across, down in others:
        words.append(f"H{across:.1f}V{down:.1f}" if stepped else f"L{across:.1f} {down:.1f}")
    return "".join(words)


def _x(axis: Axis, value: float) -> float:
    return LEFT + axis.place(value) * (WIDTH - LEFT - RIGHT)


def _y(axis: Axis, value: float) -> float:
    return HEIGHT - BOTTOM - axis.place(value) * (HEIGHT - TOP - BOTTOM)


def _svg(title: str, body: str) -> str:
    return f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">{body}</svg>'
