"""All that was measured in one run, put together from its records. Pure; the configuration is not in here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.analysis.classes import ClassMeasure, Sample, Window, measure, sample
from bench.analysis.limits import Limits
from bench.records.request import NO_SOCKET, NOBODY_LISTENS, Outcome, Phase, RequestRecord

ALL = "all"  # the classes together, in the place of a class's name
# What says that the request itself is wrong, or who sends it: never load.
TURNED_AWAY = (400, 401, 403, 404)
# What says that somebody whom the run needs was not there, as no load makes it so: reasons of requests.
ABSENCES = (NO_SOCKET, NOBODY_LISTENS, "engine_unreachable", "no_engine")


@dataclass(frozen=True, slots=True)
class Throughput:
    """Over the whole run, from the first dispatch to the end of the last request, warm-up and drain included.

    Tokens are None where a completed request came without the server's count of them.
    """

    seconds: float
    completed_per_s: float
    output_tokens_per_s: float | None
    total_tokens_per_s: float | None


@dataclass(frozen=True, slots=True)
class Exactness:
    """Whether requests had the asked lengths, by the server's own usage, over completed requests of the whole run."""

    exact: int
    differ: int
    unknown: int


@dataclass(frozen=True, slots=True)
class Measurements:
    """One run. `classes` by name, `all` among them. Throughput is None where nothing completed.

    turned_away: how many requests of the whole run were answered with each status of TURNED_AWAY. absences: how many
    ended for each reason of ABSENCES.
    cached_share: of all prompt tokens, those that the server found in its prefix cache; None where it does not say.
    loop_late_share: of the run's time, how much the event loop spent being late by more than the tolerance.
    """

    window_s: float
    classes: dict[str, ClassMeasure]
    warmup_outcomes: dict[str, int]
    turned_away: dict[int, int]
    absences: dict[str, int]
    throughput: Throughput | None
    dispatch_lag_ms: Sample
    dispatch_lag_ms_max: float | None
    loop_lag_ms: Sample
    loop_lag_ms_max: float | None
    loop_late_share: float
    connect_ms: Sample
    prompt_lengths: Exactness
    output_lengths: Exactness
    cached_share: float | None
    malformed_events: int

    @property
    def offered_per_s(self) -> float:
        return self.classes["all"].offered / self.window_s

    def to_json(self) -> dict[str, Any]:
        client: dict[str, Any] = {
            "dispatch_lag_ms": _with_max(self.dispatch_lag_ms, self.dispatch_lag_ms_max),
            "event_loop_lag_ms": _with_max(self.loop_lag_ms, self.loop_lag_ms_max),
            "event_loop_late_share": round(self.loop_late_share, 5),
            "connections_opened": self.connect_ms.count,
            "connect_ms": self.connect_ms.to_json(),
            "malformed_events": self.malformed_events,
        }
        said: dict[str, Any] = {
            "window": {"seconds": self.window_s, "offered_per_s": round(self.offered_per_s, 4)},
            "classes": {name: each.to_json() for name, each in self.classes.items()},
            "warmup": {"outcomes": self.warmup_outcomes},
        }
        if self.throughput is not None:
            flow = self.throughput
            said["throughput"] = {
                "seconds": round(flow.seconds, 3),
                "completed_per_s": round(flow.completed_per_s, 4),
                **{
                    name: round(value, 2)
                    for name in ("output_tokens_per_s", "total_tokens_per_s")
                    if (value := getattr(flow, name)) is not None
                },
            }
        if self.cached_share is not None:
            said["cached_prompt_tokens_share"] = round(self.cached_share, 4)
        said["client"] = {key: value for key, value in client.items() if value != {"count": 0}}
        said["lengths"] = {
            "prompt_tokens": _lengths(self.prompt_lengths),
            "output_tokens": _lengths(self.output_lengths),
        }
        return said


def put_together(
    records: Sequence[RequestRecord],
    *,
    window: Window,
    limits: Limits,
    loop_lags_s: Sequence[float],
    loop_period_s: float,
    lag_tolerance_ms: float,
) -> Measurements:
    """loop_lags_s: by how much the event loop was late each time it should have woken after `loop_period_s`."""
    classes = by_class(records, window=window, limits=limits)
    lags = [record.lag_ms for record in records if record.lag_ms is not None]
    completed = [record for record in records if record.outcome is Outcome.COMPLETED]
    return Measurements(
        window_s=window.seconds,
        classes=classes,
        warmup_outcomes=dict(Counter(str(r.outcome) for r in records if r.phase is Phase.WARMUP)),
        turned_away=dict(Counter(each.status for each in records if each.status in TURNED_AWAY)),
        absences=dict(Counter(each.reason for each in records if each.reason in ABSENCES)),
        throughput=throughput(records),
        dispatch_lag_ms=sample(lags),
        dispatch_lag_ms_max=max(lags, default=None),
        loop_lag_ms=sample(lag * 1000 for lag in loop_lags_s),
        loop_lag_ms_max=max(loop_lags_s) * 1000 if loop_lags_s else None,
        loop_late_share=_late_share(loop_lags_s, loop_period_s, lag_tolerance_ms / 1000),
        connect_ms=sample(record.connect_ms for record in records if record.connect_ms is not None),
        prompt_lengths=_exactness([(r.prompt_tokens_planned, r.prompt_tokens) for r in completed]),
        output_lengths=_exactness([(r.output_tokens_planned, r.output_tokens) for r in completed]),
        cached_share=_share_of_all([(r.cached_tokens, r.prompt_tokens) for r in completed]),
        malformed_events=sum(record.malformed_events for record in records),
    )


def by_class(records: Sequence[RequestRecord], *, window: Window, limits: Limits) -> dict[str, ClassMeasure]:
    """Each class of a run, and `all`, over its window."""
    planned, answers = [each for each in records if each.phase is Phase.WINDOW], window.answers(records)
    names = list(dict.fromkeys(record.class_name for record in records))
    return each_class(names, planned, answers, window_s=window.seconds, limits=limits)


def each_class(
    names: Sequence[str],
    planned: Sequence[RequestRecord],
    answers: Sequence[RequestRecord],
    *,
    window_s: float,
    limits: Limits,
) -> dict[str, ClassMeasure]:
    """Each of these classes, and `all`, over a window of so many seconds or several of as many together."""
    classes = {
        name: measure(
            [each for each in planned if each.class_name == name],
            [each for each in answers if each.class_name == name],
            window_s=window_s,
            limits=limits,
        )
        for name in names
    }
    return {**classes, ALL: measure(planned, answers, window_s=window_s, limits=limits)}


def throughput(records: Sequence[RequestRecord]) -> Throughput | None:
    """Tokens of completed requests, by the server's own count, over first dispatch to last end."""
    completed = [record for record in records if record.outcome is Outcome.COMPLETED]
    starts = [record.dispatched_ms for record in records if record.dispatched_ms is not None]
    ends = [record.ended_ms for record in records if record.ended_ms is not None]
    if not completed or not starts or max(ends) <= min(starts):
        return None
    seconds = (max(ends) - min(starts)) / 1000
    output = _sum_of_all(record.output_tokens for record in completed)
    prompt = _sum_of_all(record.prompt_tokens for record in completed)
    return Throughput(
        seconds,
        len(completed) / seconds,
        None if output is None else output / seconds,
        None if output is None or prompt is None else (output + prompt) / seconds,
    )


def _late_share(lags_s: Sequence[float], period_s: float, tolerance_s: float) -> float:
    watched_s = sum(lags_s) + period_s * len(lags_s)
    return sum(lag for lag in lags_s if lag > tolerance_s) / watched_s if watched_s else 0.0


def _share_of_all(parts: Sequence[tuple[int | None, int | None]]) -> float | None:
    part, whole = _sum_of_all(each for each, _ in parts), _sum_of_all(each for _, each in parts)
    return None if part is None or not whole else part / whole


def _sum_of_all(counts: Iterable[int | None]) -> int | None:
    """None where one is not known: what was asked for is no count of what came."""
    known = list(counts)
    return None if None in known else sum(count for count in known if count is not None)


def _exactness(lengths: Sequence[tuple[int, int | None]]) -> Exactness:
    known = [(planned, counted) for planned, counted in lengths if counted is not None]
    exact = sum(planned == counted for planned, counted in known)
    return Exactness(exact=exact, differ=len(known) - exact, unknown=len(lengths) - len(known))


def _lengths(exactness: Exactness) -> dict[str, int]:
    return {"exact": exactness.exact, "differ": exactness.differ, "not_reported": exactness.unknown}


def _with_max(found: Sample, largest: float | None) -> dict[str, Any]:
    said = found.to_json()
    return said if largest is None else {**said, "max": round(largest, 3)}
