"""Engines to simulate, by name or by a calibration file: what their steps take, and what vLLM starts them with.

Owns the figures. Each is a model of an engine and no measurement of one, whatever its name says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from bench.simulation.steps import StepTime
from bench.strict_yaml import read


@dataclass(frozen=True, slots=True)
class Profile:
    """The defaults of vLLM 0.32 on such a machine, where the flags say nothing, and the cost of a step."""

    name: str
    about: str
    step_time: StepTime
    max_num_batched_tokens: int
    max_num_seqs: int
    block_tokens: int
    kv_tokens: int
    async_scheduling: bool


PROFILES = {
    profile.name: profile
    for profile in (
        Profile(
            name="h200",
            about="a model of an 8B model in BF16 on one H200, put together from its arithmetic, not measured",
            step_time=StepTime(base_s=0.0055, tokens_per_s=37_000.0, per_token_context_s=1.5e-9),
            max_num_batched_tokens=8192,
            max_num_seqs=1024,
            block_tokens=16,
            kv_tokens=800_000,
            async_scheduling=True,
        ),
        Profile(
            name="cpu",
            about="a model of the tiny model on two CPU cores, from a calibration of vLLM 0.32 there",
            step_time=StepTime(base_s=0.0075, tokens_per_s=11_750.0, per_token_context_s=3.84e-8),
            max_num_batched_tokens=2048,
            max_num_seqs=128,
            block_tokens=128,
            kv_tokens=1_048_576,
            async_scheduling=False,
        ),
    )
}


class _Estimate(BaseModel):
    value: Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Calibration(BaseModel):
    model_config = ConfigDict(extra="ignore")

    model: str
    max_num_batched_tokens: Annotated[int, Field(ge=1)] | None = None
    base_s: _Estimate
    per_token_s: _Estimate
    per_token_context_s: _Estimate


def calibrated(profile: Profile, path: Path) -> Profile:
    """Return the profile with the steps of a file that `gateway bench calibrate` wrote. Raises UsageError."""
    said = read(path, _Calibration)
    step_time = StepTime(
        base_s=said.base_s.value,
        tokens_per_s=1 / max(said.per_token_s.value, 1e-9),
        per_token_context_s=said.per_token_context_s.value,
    )
    return replace(
        profile,
        name=path.name,
        about=f"a model of {said.model}, from the calibration {path.name}",
        step_time=step_time,
        max_num_batched_tokens=said.max_num_batched_tokens or profile.max_num_batched_tokens,
    )
