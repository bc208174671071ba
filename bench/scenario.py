"""A comparison as a YAML file: the arms, and the loads that each of them gets. Validated here, run elsewhere.

version: 1
name: first
model: tiny
tokenizer: ./tokenizer                      # relative to this file
arms:
  - {name: fcfs, base_url: "http://127.0.0.1:8000", engine_metrics_url: "http://127.0.0.1:8000"}
  - {name: gateway, base_url: "http://127.0.0.1:8080", credentials: {short: KEY_SHORT, long: KEY_LONG}}
capacity_per_s: 2.2                         # with loads; or rates_per_s: [1.5, 2.1]
loads: [0.7, 0.95]
num_prompts: 120                            # or duration_s: 60; or trace: day.jsonl, at each rate
seeds: [1, 2]
goodput: ["short:ttft:500", "long:ttft:20000"]
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from bench.analysis.comparison import Load
from bench.corpus.tokenizer import PromptForm
from bench.simulated import SimulatedArm, Simulation
from bench.strict_yaml import read, validated
from bench.trace.arrivals import ARRIVALS_MAX, TOKENS_MAX
from bench.trace.reading import CLASSES

Tokens = Annotated[int, Field(ge=1, le=TOKENS_MAX)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
ClassName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,39}$")]
EnvName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
ArmName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,39}$")]
Mix = Annotated[str, Field(pattern=r"^\d{1,6}/\d{1,6}$")]
Int64 = Annotated[int, Field(ge=-(2**63), lt=2**63)]
ANY_ARM = "*"
Prices = Positive | dict[ArmName | Literal["*"], Positive]  # of all engines behind an arm, an hour


ENGINES_MAX = 256


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)


class Arm(_Strict):
    """One target of the comparison; the first arm is what the others are compared with.

    again: it is the first one once more, which shows how large a difference is noise. about: for the report's reader.
    engine_metrics_url: of the engine behind it, or a list of all. ops_url: of a gateway, which says there which policy
    is in force. chunk_tokens_max: what the arm's engine takes of one prompt in a step.
    """

    name: ArmName
    base_url: str = ""
    credentials: dict[ClassName, EnvName] = {}
    priority: dict[ClassName, Int64] = {}
    engine_metrics_url: str | Annotated[list[str], Field(min_length=1, max_length=ENGINES_MAX)] | None = None
    ops_url: str | None = None
    again: bool = False
    about: str = ""
    chunk_tokens_max: Tokens | None = None
    simulated: SimulatedArm | None = None


class Length(_Strict):
    """Tokens of one class of requests."""

    prompt_tokens: Tokens
    output_tokens: Tokens


class Lengths(_Strict):
    """The synthetic start of the measurement contract."""

    short: Length = Length(prompt_tokens=512, output_tokens=128)
    long: Length = Length(prompt_tokens=8192, output_tokens=128)


class Scenario(_Strict):
    """See the module. Seconds, milliseconds, tokens and requests per second, as the names say."""

    version: Annotated[int, Field(ge=1, le=1)]
    name: ArmName
    model: Annotated[str, Field(min_length=1)]
    tokenizer: Path
    endpoint: PromptForm = PromptForm.CHAT
    arms: Annotated[list[Arm], Field(min_length=1, max_length=20)]
    trace: Path | None = None
    trace_classes: list[str] = list(CLASSES)
    lengths: Lengths = Lengths()
    mixes: Annotated[list[Mix], Field(min_length=1, max_length=10)] = ["80/20"]
    rates_per_s: Annotated[list[Positive], Field(max_length=20)] = []
    capacity_per_s: Positive | dict[Mix, Positive] | None = None
    loads: Annotated[list[Positive], Field(max_length=20)] = []
    duration_s: Positive | None = None
    num_prompts: Annotated[int, Field(ge=1, le=ARRIVALS_MAX)] | None = None
    num_prompts_min: Annotated[int, Field(ge=1, le=ARRIVALS_MAX)] | None = None
    burstiness: Positive = 1.0
    warmup_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    drain_deadline_s: Positive = 60.0
    idle_wait_s_max: Positive = 120.0
    seeds: Annotated[list[int], Field(min_length=1, max_length=100)] = [1]
    repeats: Annotated[int, Field(ge=1, le=100)] = 1
    order_seed: int = 1
    goodput: list[str] = []
    lag_tolerance_ms: Positive = 50.0
    cache_salt: bool = True
    speed_probe: bool = False
    engine_cost_per_hour: Prices | None = None
    metadata: dict[str, str] = {}
    simulation: Simulation = Simulation()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [arm.name for arm in self.arms]
        if len(set(names)) != len(names):
            raise ValueError("two arms have one name. Give each its own")
        priced = self.engine_cost_per_hour
        if isinstance(priced, dict) and (strangers := sorted(priced.keys() - {ANY_ARM, *names})):
            raise ValueError(f"engine_cost_per_hour names {strangers[0]}, which is no arm: {', '.join(names)}")
        if bool(self.rates_per_s) == bool(self.loads):
            raise ValueError("give either rates_per_s, or loads with capacity_per_s")
        if bool(self.loads) != (self.capacity_per_s is not None):
            raise ValueError("loads are shares of capacity_per_s: give both or neither")
        if self.trace is not None:
            if self.duration_s is not None or self.num_prompts is not None or isinstance(self.capacity_per_s, dict):
                raise ValueError("trace says what is sent and in which mix: leave out duration_s and num_prompts")
        elif (self.duration_s is None) == (self.num_prompts is None):
            raise ValueError("give either duration_s or num_prompts")
        if self.num_prompts_min is not None and self.duration_s is None:
            raise ValueError("num_prompts_min lengthens duration_s where the rate is low: give both or neither")
        if self.trace is None and isinstance(self.capacity_per_s, dict) and set(self.capacity_per_s) != set(self.mixes):
            raise ValueError("capacity_per_s names other mixes than mixes does. Give one figure for each of them")
        return self

    def offered(self) -> list[Load]:
        """Each load with each mix; a share of the capacity is a share of what the engine carries of that mix."""
        capacity = self.capacity_per_s
        mixes = self.mixes if self.trace is None else [self.trace.name]
        if capacity is None:
            return [Load(f"{rate:g} requests/s", rate, mix) for rate in self.rates_per_s for mix in mixes]
        of_mix = capacity if isinstance(capacity, dict) else dict.fromkeys(mixes, capacity)
        return [Load(f"load {share:g}", share * of_mix[mix], mix) for share in self.loads for mix in mixes]


def price_of(said: Prices | None, arm: str) -> float | None:
    """None where nothing is said of it, neither by its name nor for all others."""
    return said.get(arm, said.get(ANY_ARM)) if isinstance(said, dict) else said


def checked(words: Mapping[str, Any], where: str) -> Scenario:
    """Raises UsageError naming `where` and the key."""
    return validated(words, Scenario, where)


def load(path: Path) -> Scenario:
    """Read a scenario; a relative tokenizer folder is taken from the file's own. Raises UsageError."""
    scenario = read(path, Scenario)
    trace = None if scenario.trace is None else path.parent / scenario.trace
    return scenario.model_copy(update={"tokenizer": path.parent / scenario.tokenizer, "trace": trace})
