"""What a simulation said over what was measured of the same arms on the same traces. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.analysis.comparison import ArmResult, LoadResult
from bench.analysis.measurements import ALL
from bench.errors import UsageError

QUANTILES = ("p50", "p95")
CLOSE = 0.15
FLOW = "tokens/s"
# What has to be equal for the traces to be.
_SAME = (
    "lengths",
    "mixes",
    "rates_per_s",
    "capacity_per_s",
    "loads",
    "num_prompts",
    "duration_s",
    "warmup_s",
    "burstiness",
    "seeds",
    "repeats",
)


@dataclass(frozen=True, slots=True)
class Figure:
    """name: `short TTFT p50 ms`. bounds: of what was predicted with other costs, this included.

    repeats: what each repeat alone measured, where there were several.
    """

    name: str
    predicted: float
    measured: float
    bounds: tuple[float, float]
    repeats: tuple[float, ...] = ()

    @property
    def ratio(self) -> float:
        return self.predicted / self.measured

    @property
    def is_close(self) -> bool:
        return abs(self.ratio - 1) <= CLOSE

    @property
    def repeats_are_close(self) -> bool:
        return all(abs(one / other - 1) <= CLOSE for one in self.repeats for other in self.repeats)

    def to_json(self) -> dict[str, Any]:
        low, high = self.bounds
        values = {"predicted": self.predicted, "low": low, "high": high, "measured": self.measured, "ratio": self.ratio}
        said = {"figure": self.name, **{name: round(value, 4) for name, value in values.items()}}
        return {**said, "repeats": [round(value, 4) for value in self.repeats]} if self.repeats else said


@dataclass(frozen=True, slots=True)
class ArmPrediction:
    load: str
    arm: str
    figures: Sequence[Figure]

    def to_json(self) -> dict[str, Any]:
        return {"load": self.load, "arm": self.arm, "figures": [figure.to_json() for figure in self.figures]}


def check_same_traces(simulated: Mapping[str, Any], measured: Mapping[str, Any], where: str) -> None:
    """Raise UsageError where a record is of other loads. Both are scenarios as JSON, defaults included."""
    for key in _SAME:
        if simulated.get(key) != measured.get(key):
            raise UsageError(f"{where}: {key} is {measured.get(key)!r} there and {simulated.get(key)!r} here.")


def predictions(
    each: Sequence[Sequence[LoadResult]], record: Mapping[str, Any], by_repeat: Sequence[Sequence[LoadResult]] = ()
) -> list[ArmPrediction]:
    """For each load and arm that are in both; pooled over the traces, as the record is.

    each: the prediction, and after it those with other costs of the steps. by_repeat: the measurements, apart.
    """
    repeats = [
        {(result.load, arm.arm): _figures(arm) for result in results for arm in result.arms} for results in by_repeat
    ]
    measured = {(load["label"], load["mix"], arm["arm"]): arm for load in record["loads"] for arm in load["arms"]}
    found = []
    for loads in zip(*each, strict=True):
        for arms in zip(*(load.arms for load in loads), strict=True):
            load, arm = loads[0].load, arms[0]
            said = measured.get((load.label, load.mix, arm.arm))
            if said is None:
                continue
            others = [_figures(one) for one in arms]
            again = [own for own in (one.get((load, arm.arm)) for one in repeats) if own]
            figures = [
                Figure(
                    name,
                    value,
                    seen,
                    _bounds([other[name] for other in others if name in other]),
                    tuple(own[name] for own in again if name in own) if len(again) > 1 else (),
                )
                for name, value in others[0].items()
                if (seen := _measured(said, name)) is not None
            ]
            found.append(ArmPrediction(f"{load.label}, {load.mix}", arm.arm, figures))
    return found


def _bounds(values: Sequence[float]) -> tuple[float, float]:
    return min(values), max(values)


def _figures(arm: ArmResult) -> dict[str, float]:
    figures = {
        f"{name} TTFT {quantile} ms": value
        for name, measured in arm.classes.items()
        for quantile in QUANTILES
        if name != ALL and (value := measured.samples["ttft_ms"].value(quantile)) is not None
    }
    tokens = None if arm.throughput is None else arm.throughput.total_tokens_per_s
    return figures if tokens is None else {**figures, FLOW: tokens}


def _measured(arm: Mapping[str, Any], name: str) -> float | None:
    if name == FLOW:
        found = arm.get("total_tokens_per_s")
    else:
        class_name, _, quantile, _ = name.split(" ")
        found = arm["classes"].get(class_name, {}).get("ttft_ms", {}).get(quantile, {}).get("value")
    return found if isinstance(found, int | float) else None
