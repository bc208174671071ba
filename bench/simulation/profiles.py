"""Engines to simulate, by name or by a calibration file: what their steps take, and what vLLM starts them with.

Owns the figures. Each is a model of an engine and no measurement of one, whatever its name says.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from bench.simulation.steps import StepTime
from bench.strict_yaml import read

End = Literal["value", "low", "high"]


@dataclass(frozen=True, slots=True)
class Profile:
    """The defaults of vLLM 0.32 on such a machine, where the flags say nothing, and the cost of a step.

    request_s: what a request takes beside its steps; an emulator has that of its own.
    """

    name: str
    about: str
    step_time: StepTime
    max_num_batched_tokens: int
    max_num_seqs: int
    block_tokens: int
    kv_tokens: int
    async_scheduling: bool
    request_s: float

    def to_json(self) -> dict[str, Any]:
        """What a record says of it."""
        costs = {name: value for name, value in asdict(self.step_time).items() if value is not None}
        return {"name": self.name, "about": self.about, "request_s": self.request_s, **costs}


PROFILES = {
    profile.name: profile
    for profile in (
        Profile(
            name="h200",
            about="a model of an 8B model in BF16 on one H200, put together from its arithmetic, not measured",
            step_time=StepTime(base_s=0.0055, per_token_s=1 / 37_000, per_token_context_s=1.5e-9),
            max_num_batched_tokens=8192,
            max_num_seqs=1024,
            block_tokens=16,
            kv_tokens=800_000,
            async_scheduling=True,
            request_s=0.004,
        ),
        Profile(
            name="cpu",
            about="a model of the tiny model on two CPU cores, from a calibration of vLLM 0.32 there",
            step_time=StepTime(base_s=0.0075, per_token_s=8.51e-5, per_token_context_s=3.84e-8),
            max_num_batched_tokens=2048,
            max_num_seqs=128,
            block_tokens=128,
            kv_tokens=1_048_576,
            async_scheduling=False,
            request_s=0.0103,
        ),
    )
}


_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Estimate(BaseModel):
    value: _Seconds
    low: _Seconds | None = None
    high: _Seconds | None = None

    def at(self, end: End) -> float:
        """The value, or where its interval ends; a file by hand may have none."""
        found: float | None = getattr(self, end)
        return self.value if found is None else found


class _Calibration(BaseModel):
    model_config = ConfigDict(extra="ignore")

    model: str
    max_num_batched_tokens: Annotated[int, Field(ge=1)] | None = None
    base_s: _Estimate
    per_token_s: _Estimate
    per_token_context_s: _Estimate
    per_sequence_s: _Estimate | None = None
    per_token_chunk_s: _Estimate | None = None
    request_s: _Estimate


def calibrated(profile: Profile, path: Path, end: End = "value") -> Profile:
    """Return the profile with the steps of a file that `gateway bench calibrate` wrote. Raises UsageError.

    end: low and high take every cost at that end of its interval.
    """
    said = read(path, _Calibration)
    step_time = StepTime(
        base_s=said.base_s.at(end),
        per_token_s=said.per_token_s.at(end),
        per_token_context_s=said.per_token_context_s.at(end),
        per_sequence_s=0.0 if said.per_sequence_s is None else said.per_sequence_s.at(end),
        per_token_chunk_s=None if said.per_token_chunk_s is None else said.per_token_chunk_s.at(end),
    )
    return replace(
        profile,
        name=path.name,
        about=f"a model of {said.model}, from the calibration {path.name}",
        step_time=step_time,
        request_s=said.request_s.at(end),
        max_num_batched_tokens=said.max_num_batched_tokens or profile.max_num_batched_tokens,
    )
