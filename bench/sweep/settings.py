"""sweep.yaml: how the engine is started, and which settings are tried on it. Validated here, run elsewhere.

Owns the keys that a scenario does not have, and what its keys are where a sweep leaves them out; all other keys are a
scenario's own (bench.scenario). Starts nothing.

version: 1
model: tiny
tokenizer: ./tokenizer
engine:
  command: [vllm, serve, ./model, --served-model-name, tiny, --port, "8000"]   # the approved baseline, as it is: B0
  base_url: http://127.0.0.1:8000
grid: {max_num_batched_tokens: [2048, 4096, 8192], max_num_seqs: [16, 32]}
num_prompts: 120
goodput: ["short:ttft:500", "long:ttft:20000"]
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, RootModel, model_validator

from bench.errors import UsageError
from bench.load.target import clean_url
from bench.options import LONG, SHORT
from bench.scenario import Arm, ArmName, ClassName, EnvName, Positive, Scenario, checked
from bench.secret_names import is_secret
from bench.strict_yaml import read, validated
from bench.sweep.flags import Value, with_flags

BASELINE = "B0"
FlagName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
GRID: dict[str, list[Value]] = {"max_num_batched_tokens": [2048, 4096, 8192], "max_num_seqs": [16, 32]}
CELLS_MAX = 19  # a scenario has twenty arms, of which one is B0
# What an engine reads in the place of a flag that would show a secret to every user of the machine, and in records.
_READ_INSTEAD = {"api_key": "VLLM_API_KEY", "hf_token": "HF_TOKEN"}
_SAID_SHORT = {
    "max_num_batched_tokens": "tokens",
    "max_num_seqs": "seqs",
    "long_prefill_token_threshold": "threshold",
}
_USUAL: Mapping[str, Any] = {"name": "sweep", "mixes": ["100/0", "80/20", "50/50"], "repeats": 3}
_USUAL_LOADS = [0.5, 0.9]  # low, and near the capacity


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)


class EngineCommand(_Strict):
    """command: of the baseline, and what the others' flags are added to or replaced in. environment: beside ours.

    ready_url: answers 200 once it serves (base_url/health). log_file: where it logs, if not to its output. help: the
    command that prints its flags (the words before the first flag, with --help=all). restart: a fresh engine for each
    run, or one for all of a cell's runs in one repeat. starts_max: starts that fail before a cell is given up.
    """

    command: Annotated[list[str], Field(min_length=1)]
    environment: dict[EnvName, str] = {}
    base_url: str
    ready_url: str | None = None
    ready_s_max: Positive = 900.0
    log_file: Path | None = None
    help: list[str] = []
    api_key_env: EnvName | None = None
    restart: Literal["run", "repeat"] = "run"
    starts_max: Annotated[int, Field(ge=1, le=10)] = 2

    @model_validator(mode="after")
    def _no_secret(self) -> Self:
        _refuse_secrets(word.partition("=")[0] for word in self.command if word.startswith("--"))
        if shown := [name for name in self.environment if is_secret(name)]:
            raise ValueError(f"environment: {shown[0]} would be kept in plan.json. Export it: the engine gets it too")
        return self


class Saturation(_Strict):
    """The closed loop that finds the rates on B0, where neither rates_per_s nor capacity_per_s is given."""

    concurrency: Annotated[int, Field(ge=1, le=10_000)] = 64
    warmup_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 15.0
    duration_s: Positive = 90.0
    num_prompts: Annotated[int, Field(ge=1, le=100_000)] = 200


class Settings(_Strict):
    """grid: every combination of these values is a cell. cells: further ones, by name. policy: of a gateway before it.

    service_classes: of each class of requests, at that gateway.
    """

    engine: EngineCommand
    grid: dict[FlagName, Annotated[list[Value], Field(min_length=1)]] | None = None
    cells: dict[ArmName, dict[FlagName, Value]] = {}
    policy: Annotated[str, Field(min_length=1)] | None = None
    service_classes: dict[ClassName, ClassName] = {SHORT: "interactive", LONG: "batch"}
    saturation: Saturation = Saturation()

    @model_validator(mode="after")
    def _no_secret(self) -> Self:
        names = [*(self.grid or {}), *(name for flags in self.cells.values() for name in flags)]
        _refuse_secrets(f"--{name}" for name in names)
        return self


def _refuse_secrets(flags: Iterable[str]) -> None:
    for flag in flags:
        if is_secret(flag):
            variable = _READ_INSTEAD.get(flag.removeprefix("--").replace("-", "_"), "what the engine reads it from")
            raise ValueError(f"{flag} shows a secret to everybody. Export {variable} instead")


class _Words(RootModel[dict[str, Any]]):
    """A file of keys that several models share."""


@dataclass(frozen=True, slots=True)
class Way:
    """Where the load goes, the engine or the gateway before it, and as whom: class to the variable with its key."""

    base_url: str
    credentials: Mapping[str, str]
    ops_url: str | None = None


@dataclass(frozen=True, slots=True)
class Sweep:
    """settings: the sweep's own keys. load: the scenario's, paths absolute. where: what errors name.

    folder: sweep.yaml's own, which the engine's command is run in: its paths are from there, also where it goes on.
    """

    settings: Settings
    load: Mapping[str, Any]
    where: str
    folder: Path

    @property
    def cells(self) -> dict[str, dict[str, Value]]:
        """The settings of each cell by name, B0 first: it changes nothing."""
        return {BASELINE: {}, **_cells(self.settings, self.where)}

    def command_of(self, cell: str) -> list[str]:
        return with_flags(self.settings.engine.command, self.cells[cell])

    @property
    def measures_capacity(self) -> bool:
        """Whether the rates are to be found on B0 first."""
        return "rates_per_s" not in self.load and "capacity_per_s" not in self.load

    def scenario(self, way: Way, capacity: Mapping[str, float] | None) -> Scenario:
        """capacity: by mix, as it was found; None: nothing was to be found. Raises UsageError."""
        words: dict[str, Any] = {**_USUAL, **self.load}
        if self.measures_capacity and "trace" in self.load:
            raise UsageError(f"{self.where}: trace: it has a mix of its own. Give rates_per_s, or capacity_per_s.")
        if self.measures_capacity:
            words = {"loads": _USUAL_LOADS, **words, "capacity_per_s": capacity}
        elif "capacity_per_s" in words:
            words = {"loads": _USUAL_LOADS, **words}
        words["arms"] = [self._arm(name, way).model_dump() for name in self.cells]
        return checked(words, self.where)

    def mixes(self) -> list[str]:
        """As the file has them; none where that is no list of mixes, which `scenario` then says."""
        found = self.load.get("mixes", _USUAL["mixes"])
        return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []

    def _arm(self, name: str, way: Way) -> Arm:
        flags = self.cells[name]
        said = ", ".join(f"{flag} {value}" for flag, value in flags.items())
        chunk = flags.get("long_prefill_token_threshold") or flags.get("max_num_batched_tokens")
        return Arm(
            name=name,
            base_url=way.base_url,
            ops_url=way.ops_url,
            credentials=dict(way.credentials),
            engine_metrics_url=self.settings.engine.base_url,
            again=bool(flags) and self.command_of(name) == self.settings.engine.command,
            about=said or "the baseline's command as it is",
            chunk_tokens_max=chunk if isinstance(chunk, int) and not isinstance(chunk, bool) and chunk > 0 else None,
        )


def load(path: Path) -> Sweep:
    """Read sweep.yaml; relative paths are from its folder. Raises UsageError."""
    words = read(path, _Words).root
    own = {key: words.pop(key) for key in Settings.model_fields if key in words}
    settings = validated(own, Settings, str(path))
    for key in ("arms", "simulation", "speed_probe"):
        if key in words:
            raise UsageError(f"{path}: {key}: no key of a sweep. Its arms are B0, `grid` and `cells`. Remove it.")
    folder = path.parent.absolute()
    for key in ("tokenizer", "trace"):
        if isinstance(words.get(key), str):
            words[key] = str(folder / words[key])
    return Sweep(_absolute(settings, folder, str(path)), words, str(path), folder)


def _absolute(settings: Settings, folder: Path, where: str) -> Settings:
    engine, policy = settings.engine, settings.policy
    base_url = clean_url(engine.base_url, f"{where}: engine.base_url")
    if engine.ready_url is not None:
        clean_url(engine.ready_url, f"{where}: engine.ready_url")
    log_file = None if engine.log_file is None else folder / engine.log_file
    if policy is not None and (policy.endswith((".yaml", ".yml")) or "/" in policy):
        policy = str(folder / policy)
    changed = engine.model_copy(update={"base_url": base_url, "log_file": log_file})
    return settings.model_copy(update={"engine": changed, "policy": policy})


def _cells(settings: Settings, where: str) -> dict[str, dict[str, Value]]:
    grid = settings.grid
    if grid is None:
        grid = {} if settings.cells else GRID
    found: dict[str, dict[str, Value]] = {}
    for values in itertools.product(*grid.values()) if grid else ():
        flags = dict(zip(grid, values, strict=True))
        found[_name(flags, where)] = flags
    for name, flags in settings.cells.items():
        if name in found or name == BASELINE:
            raise UsageError(f"{where}: cells.{name}: there is a cell of this name already. Give it another.")
        found[name] = flags
    if not found:
        raise UsageError(f"{where}: grid: no cell beside {BASELINE}. Give values to try, or `cells`.")
    if len(found) > CELLS_MAX:
        raise UsageError(
            f"{where}: grid: {len(found)} cells, at most {CELLS_MAX} beside {BASELINE}. Give fewer values."
        )
    return found


def _name(flags: Mapping[str, Value], where: str) -> str:
    """What a combination is called: `tokens2048-seqs16`."""
    said = []
    for flag, value in flags.items():
        shown = str(value).lower() if isinstance(value, bool) else str(value)
        said.append(f"{_SAID_SHORT.get(flag, flag)}{'' if flag in _SAID_SHORT else '-'}{shown}")
    name = "-".join(said)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}", name):
        raise UsageError(f"{where}: grid: {name} is too long or odd to name a cell. List it under `cells` by a name.")
    return name
