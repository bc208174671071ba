"""Whether a calibration file is of the engine that it is given to, as far as both say who they are.

Owns the words of a difference. Reads the files anew: they were found valid when the configuration was read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from gateway.core.steptime import StepFit, StepModel
from gateway.core.types import EngineLimits
from gateway.engines import calibration_file
from gateway.settings import Engine, Settings


def step_model(engine: Engine, limits: EngineLimits) -> StepModel | None:
    """Return what the engine's calibration file says of its steps, or None where it has none."""
    if not isinstance(engine.calibration, Path):
        return None
    fit = StepFit()
    fit.calibrate(calibration_file.load(engine.calibration).samples(limits))
    return fit.model


def differences(settings: Settings, versions: Mapping[str, str | None]) -> Iterator[str]:
    """Yield what differs. versions: of the engines that were asked, by name."""
    for engine in settings.engines:
        if not isinstance(engine.calibration, Path):
            continue
        said = calibration_file.load(engine.calibration)
        of = f"engine {engine.name}: its calibration is of"
        models = settings.pools[engine.pool].models
        if said.model not in models:
            yield f"{of} the model {said.model}; its pool serves {', '.join(models)}"
        stated = engine.limits.max_num_batched_tokens
        measured = said.max_num_batched_tokens
        if None not in (stated, measured) and stated != measured:
            yield f"{of} max_num_batched_tokens {measured}; its limits state {stated}"
        version = versions.get(engine.name)
        if None not in (version, said.engine_version) and version != said.engine_version:
            yield f"{of} vLLM {said.engine_version}; the engine is {version}"
