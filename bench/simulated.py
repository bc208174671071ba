"""What of a scenario only a simulation reads: the engine and policy of an arm, and how many there are of each.

Owns keys and defaults; a live bench passes over them. The engine's words are vLLM's own flags.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
FLEET_MAX = 10_000
DIRECT = "direct"
"""In the place of a policy: no gateway, callers send to the engine themselves."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)


class SimulatedEngine(_Strict):
    """vLLM's flags; None: the profile's default."""

    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    max_num_batched_tokens: Count | None = None
    long_prefill_token_threshold: Annotated[int, Field(ge=0)] = 0
    max_num_seqs: Count | None = None
    max_num_active_seqs: Count | None = None
    num_gpu_blocks_override: Count | None = None
    block_size: Count | None = None
    watermark: Annotated[float, Field(ge=0, lt=1)] = 0.0
    enable_prefix_caching: bool = True
    async_scheduling: bool | None = None


class SimulatedArm(_Strict):
    """policy: a shipped one by name or a file, relative to the scenario; direct: an engine by itself."""

    policy: Annotated[str, Field(min_length=1)] = DIRECT
    engine: SimulatedEngine = SimulatedEngine()


class Simulation(_Strict):
    """All arms alike. service_classes: of each class of the trace. tenants: of each class.

    engines: of all gateways together; gateways: each has its share of the requests, and of the engines to itself, or
    all of them with the others (shared_engines).
    """

    service_classes: dict[str, str] = {"short": "interactive", "long": "batch"}
    tenants: Count = 1
    engines: Annotated[int, Field(ge=1, le=FLEET_MAX)] = 1
    gateways: Annotated[int, Field(ge=1, le=FLEET_MAX)] = 1
    shared_engines: bool = False
