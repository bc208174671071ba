"""How each engine's step model begins, as the configuration says: by probes, from a file, or from a default.

Owns the making of the probes and the reading of the files, and the way of both into admission. Measures nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gateway.core.steptime import PrefillSample, StepModel
from gateway.engines import calibration_file
from gateway.engines.calibration import Calibration
from gateway.engines.watch import EngineWatch
from gateway.server.clock import LoopClock
from gateway.server.gate import Gate
from gateway.settings import Settings


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


def _is_free(gate: Gate, engine: str) -> Callable[[], bool]:
    return lambda: not any(gate.snapshot().engines[engine].running.values())


def _learning(gate: Gate, engine: str) -> Callable[[Sequence[PrefillSample]], StepModel]:
    def learned(samples: Sequence[PrefillSample]) -> StepModel:
        gate.calibrated(engine, samples)
        return gate.step_models()[engine]

    return learned
