"""The pictures of a report: which figures are drawn against which, by class. Computes nothing that a table has not."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

from bench.analysis.ages import oldest_ages_s
from bench.analysis.classes import ClassMeasure
from bench.analysis.comparison import ArmResult, Load, LoadResult
from bench.analysis.measurements import by_class
from bench.analysis.paired import Interval, interval
from bench.analysis.quantiles import share_interval
from bench.records.material import Material, ReportRun
from bench.records.request import Outcome, Phase, RequestRecord
from bench.report.svg import Axis, Bar, Point, Series, around, legend, linear, lines, logarithmic, stacked
from bench.tables import milliseconds, rate, share

AGE_POINTS = 160
CURVE_POINTS_MAX = 400
# Colours of the style sheet from here on mean ends of requests, below it arms.
_ENDS = (
    "in time",
    "late",
    "completed",
    "refused",
    "expired",
    "timed_out",
    "cancelled",
    "failed",
    "unfinished",
    "unsent",
)
_ENDS_FROM = 20


@dataclass(frozen=True, slots=True)
class Figures:
    """material and its analysis; `pages` gives the sections in the order of the report."""

    material: Material
    results: Sequence[LoadResult]

    def sections(self) -> list[str]:
        arms = legend([(number, name) for number, name in enumerate(self.material.arms)])
        occurring = {str(record.outcome) for run in self.material.runs for record in run.stored.records}
        occurring |= {"in time", "late"} if self.material.limits else set()
        ends = legend(
            [
                (_ENDS_FROM + number, name.replace("_", " "))
                for number, name in enumerate(_ENDS)
                if name in occurring and not (name == "completed" and self.material.limits)
            ]
        )
        made: list[str] = []
        if len({result.load.rate_per_s for result in self.results if result.arms}) > 1:
            made.append(_section("First token over offered rate", arms, self._over_rate("ttft_ms", "TTFT p95, ms")))
            made.append(_section("End to end over offered rate", arms, self._over_rate("e2e_ms", "end to end p95, ms")))
            made.append(_section("Goodput over offered rate", arms, self._goodput()))
        made.append(_section("First token: share of all offered requests that had it by then", arms, self._curves()))
        made.append(_section("What became of the offered requests", ends, self._outcomes()))
        made.append(_section("Age of the oldest request without a first token, over time", arms, self._ages()))
        made.append(_section("Requests that wait inside the engine, over time", arms, self._engine()))
        return [each for each in made if each]

    def _of_class(self) -> Iterable[tuple[str, str, list[LoadResult]]]:
        """(class, mix, results by rate)."""
        usable = sorted((each for each in self.results if each.arms), key=lambda each: each.load.mix)
        for mix, group in groupby(usable, key=lambda each: each.load.mix):
            own = sorted(group, key=lambda each: each.load.rate_per_s)
            for name in self.material.class_names:
                yield name, mix, own

    def _over_rate(self, metric: str, label: str) -> list[str]:
        def point(result: LoadResult, arm: ArmResult, name: str) -> Point | None:
            found = arm.classes[name].samples[metric].quantiles.get("p95") if name in arm.classes else None
            if found is None:
                return None
            said = f"{arm.arm}, {result.load.rate_per_s:.3g}/s: {milliseconds(found.value)} ms"
            if found.low is not None and found.high is not None:
                said += f" ({milliseconds(found.low)} to {milliseconds(found.high)})"
            return Point(result.load.rate_per_s, found.value, found.low, found.high, said)

        return self._lines(label, point, logarithmic)

    def _goodput(self) -> list[str]:
        if not self.material.limits:
            return []

        def point(result: LoadResult, arm: ArmResult, name: str) -> Point | None:
            found = self._goodput_of(result, arm, name)
            if found is None:
                return None
            said = f"{arm.arm}, {result.load.rate_per_s:.3g}/s: {rate(found.mean)}/s"
            if found.low is not None and found.high is not None:
                said += f" ({rate(found.low)} to {rate(found.high)})"
            return Point(result.load.rate_per_s, found.mean, found.low, found.high, said)

        return self._lines("goodput, requests/s", point, linear)

    def _goodput_of(self, result: LoadResult, arm: ArmResult, name: str) -> Interval | None:
        """Over the traces where there are several, else from the one's own count."""
        measured = arm.classes.get(name)
        if measured is None or measured.good is None or measured.goodput_per_s is None or not measured.offered:
            return None
        runs = [run for run in self._runs(result) if run.arm == arm.arm]
        each = [self._measured(run).get(name) for run in runs]
        single = [own.goodput_per_s for own in each if own is not None and own.goodput_per_s is not None]
        offered_per_s = measured.offered / sum(run.stored.window.seconds for run in runs)
        if len(single) > 1:
            found = interval(single)
            # Student's interval knows no bounds; what was offered is one.
            high = None if found.high is None else min(found.high, max(offered_per_s, found.mean))
            return Interval(found.mean, None if found.low is None else max(0.0, found.low), high, found.traces)
        low, high = share_interval(measured.good, measured.offered)
        return Interval(measured.goodput_per_s, low * offered_per_s, high * offered_per_s, 1)

    def _lines(
        self,
        label: str,
        point_of: Callable[[LoadResult, ArmResult, str], Point | None],
        axis: Callable[[str, Sequence[float]], Axis],
    ) -> list[str]:
        charts = []
        for name, mix, results in self._of_class():
            series = []
            for number, arm in enumerate(self.material.arms):
                found = [point_of(result, own, name) for result in results for own in result.arms if own.arm == arm]
                series.append(Series(arm, number, [each for each in found if each is not None]))
            values = [value for own in series for each in own.points for value in (each.low, each.y, each.high)]
            known = [value for value in values if value is not None]
            if not known:
                continue
            x = around("offered, requests/s", [result.load.rate_per_s for result in results])
            title = f"{name} requests, {mix}"
            charts.append(_chart(title, lines(f"{label} over offered rate: {title}", x, axis(label, known), series)))
        return charts

    def _curves(self) -> list[str]:
        charts = []
        for name, _, results in self._of_class():
            for result in results:
                series = []
                for number, arm in enumerate(self.material.arms):
                    records = [record for run in self._runs(result) if run.arm == arm for record in _window(run, name)]
                    series.append(Series(arm, number, _curve(records)))
                times = [point.x for own in series for point in own.points]
                if times:
                    title = f"{name} requests, {_said(result.load)}"
                    x, y = logarithmic("time to first token, ms", times), Axis("share of offered", 0.0, 1.0)
                    charts.append(
                        _chart(title, lines(f"Share with a first token: {title}", x, y, series, stepped=True))
                    )
        return charts

    def _outcomes(self) -> list[str]:
        charts = []
        for name, mix, results in self._of_class():
            for arm in self.material.arms:
                bars = [
                    _bar(f"{result.load.rate_per_s:.3g}/s", own.classes[name])
                    for result in results
                    for own in result.arms
                    if own.arm == arm and name in own.classes
                ]
                title = f"{arm}: {name} requests, {mix}"
                y = linear("requests", [sum(height for _, height, _ in bar.parts) for bar in bars])
                charts.append(_chart(title, stacked(f"Ends of offered requests: {title}", y, bars)))
        return charts

    def _ages(self) -> list[str]:
        charts = []
        for name, _, results in self._of_class():
            for result in results:
                runs = {run.arm: run for run in reversed(self._runs(result))}
                ends = [_end_s(run) for run in runs.values()]
                times = [max(ends, default=1.0) * number / AGE_POINTS for number in range(AGE_POINTS + 1)]
                series = [
                    Series(
                        arm, number, [Point(*each) for each in zip(times, _ages(runs[arm], name, times), strict=True)]
                    )
                    for number, arm in enumerate(self.material.arms)
                    if arm in runs
                ]
                x = linear("seconds from the start of the run", times)
                y = linear("oldest age, s", [point.y for own in series for point in own.points])
                title = f"{name} requests, {_said(result.load)}, {result.traces[0]}"
                charts.append(_chart(title, lines(f"Oldest age over time: {title}", x, y, series)))
        return charts

    def _engine(self) -> list[str]:
        """Where the engine was read during the runs; of the first trace that counts."""
        charts = []
        for result in sorted((each for each in self.results if each.arms), key=lambda each: each.load.mix):
            runs = {run.arm: run for run in reversed(self._runs(result))}
            series = [
                Series(arm, number, _waiting(runs[arm])) for number, arm in enumerate(self.material.arms) if arm in runs
            ]
            points = [point for own in series for point in own.points]
            if points:
                x = linear("seconds from the start of the run", [point.x for point in points])
                y = linear("waiting", [point.y for point in points])
                title = f"{_said(result.load)}, {result.traces[0]}"
                charts.append(_chart(title, lines(f"Waiting in the engine over time: {title}", x, y, series)))
        return charts

    def _runs(self, result: LoadResult) -> list[ReportRun]:
        """Those that count, in the order of their traces."""
        own = [
            run
            for run in self.material.runs
            if run.load == result.load and run.trace in result.traces and run.arm not in result.arms_left_out
        ]
        return sorted(own, key=lambda run: list(result.traces).index(run.trace))

    def _measured(self, run: ReportRun) -> dict[str, ClassMeasure]:
        return by_class(run.stored.records, window=run.stored.window, limits=self.material.limits)


def _section(title: str, key: str, charts: Sequence[str]) -> str:
    return (
        f"<section><h2>{escape(title)}</h2>{key}<div class=charts>{''.join(charts)}</div></section>" if charts else ""
    )


def _chart(title: str, svg: str) -> str:
    return f"<figure><figcaption>{escape(title)}</figcaption>{svg}</figure>"


def _said(load: Load) -> str:
    return f"{load.rate_per_s:.3g} requests/s, {load.mix}"


def _window(run: ReportRun, name: str) -> list[RequestRecord]:
    return [each for each in run.stored.records if each.phase is Phase.WINDOW and each.class_name == name]


def _curve(records: Sequence[RequestRecord]) -> list[Point]:
    """Of many points, evenly many: the eye sees no more."""
    times = sorted(max(time, 0.1) for record in records if (time := record.ttft_ms) is not None)
    step = max(1, math.ceil(len(times) / CURVE_POINTS_MAX))
    numbers = list(range(0, len(times), step))
    if numbers and numbers[-1] != len(times) - 1:
        numbers.append(len(times) - 1)
    return [Point(times[number], (number + 1) / len(records)) for number in numbers]


def _bar(label: str, measured: ClassMeasure) -> Bar:
    counts: dict[str, int] = {str(outcome): number for outcome, number in measured.outcomes.items()}
    if measured.good is not None:
        completed = counts.pop(str(Outcome.COMPLETED))
        counts |= {"in time": measured.good, "late": completed - measured.good}
    parts = [
        (_ENDS_FROM + number, float(counts[end]), f"{end.replace('_', ' ')}: {share(counts[end], measured.offered)}")
        for number, end in enumerate(_ENDS)
        if counts.get(end)
    ]
    return Bar(label, parts)


def _ages(run: ReportRun, name: str, times: Sequence[float]) -> list[float]:
    return oldest_ages_s([each for each in run.stored.records if each.class_name == name], times)


def _waiting(run: ReportRun) -> list[Point]:
    return [
        Point(line["at_ms"] / 1000, line["waiting"])
        for line in run.stored.engine
        if "waiting" in line and line["at_ms"] >= 0
    ]


def _end_s(run: ReportRun) -> float:
    """The last first token, or what was planned last: after it nothing waits that will be served."""
    records = run.stored.records
    return max(max(each.planned_ms, each.first_token_ms or 0.0) for each in records) / 1000 if records else 1.0
