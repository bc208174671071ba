"""How each engine's step model begins, as the configuration says: by probes, from a file, or from a default.

Owns the making of the probes and the reading of the files, and the way of both into admission. Measures nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gateway.core.steptime import PrefillSample, StepFit, StepModel
from gateway.engines import calibration_file
from gateway.engines.calibration import Calibration
from gateway.engines.watch import EngineWatch
from gateway.server.clock import LoopClock
from gateway.server.gate import Gate
from gateway.settings import Engine, Settings

_LOOKS_MAX, _LOOK_INTERVAL_S = 6, 0.5


class Calibrations:
    """probing: the engines that are probed, by name; whoever has them runs them."""

    def __init__(
        self, settings: Settings, gates: Mapping[str, Gate], watches: Mapping[str, EngineWatch], clock: LoopClock
    ) -> None:
        self._files = {
            engine.name: engine.calibration for engine in settings.engines if isinstance(engine.calibration, Path)
        }
        self._gates = gates
        self._watches = watches
        self.probing = {
            engine.name: Calibration(
                watches[engine.name],
                _is_free(gates[engine.pool], engine.name),
                _learning(gates[engine.pool], engine.name),
                clock.now,
            )
            for engine in settings.engines
            if engine.calibration == "probe"
        }

    async def load(self) -> None:
        """Read the files, off the loop, and give admission what they say. Raises ConfigError."""
        for name, path in self._files.items():
            said = await asyncio.to_thread(calibration_file.load, path)
            target = self._watches[name].target
            self._gates[target.pool].calibrated(name, said.samples(target.limits))


async def step_model_of(engine: Engine, watch: EngineWatch, now: Callable[[], float]) -> StepModel | None:
    """Measure an engine once, or read its file: for commands that start no gateway. The watch has looked already.

    None: its calibration is off, or it is not known to be idle, or cannot be measured. Raises ConfigError.
    """
    fit = StepFit()

    def learned(samples: Sequence[PrefillSample]) -> StepModel:
        fit.calibrate(samples)
        return fit.model

    if isinstance(engine.calibration, Path):
        said = await asyncio.to_thread(calibration_file.load, engine.calibration)
        return learned(said.samples(watch.limits))
    if engine.calibration == "probe" and watch.health.is_up:
        calibration = Calibration(watch, lambda: True, learned, now)
        for _ in range(_LOOKS_MAX):
            await watch.look()
            await calibration.look()
            if calibration.is_done:
                break
            await asyncio.sleep(_LOOK_INTERVAL_S)
    return fit.model if fit.model.fitted else None


def _is_free(gate: Gate, engine: str) -> Callable[[], bool]:
    return lambda: not any(gate.snapshot().engines[engine].running.values())


def _learning(gate: Gate, engine: str) -> Callable[[Sequence[PrefillSample]], StepModel]:
    def learned(samples: Sequence[PrefillSample]) -> StepModel:
        gate.calibrated(engine, samples)
        return gate.step_models()[engine]

    return learned
