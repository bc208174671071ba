"""How each engine's step model begins, as the configuration says: by probes, from a file, or from a default.

Owns the making of the probes and the reading of the files, and the way of both into admission. Measures nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from gateway.core.steptime import PrefillSample, StepFit, StepModel
from gateway.engines import calibration_file
from gateway.engines.calibration import Calibration
from gateway.engines.watch import EngineWatch
from gateway.server.gate import Gate
from gateway.server.rooms import Rooms
from gateway.settings import Engine, Settings

_LOOKS_MAX, _LOOK_INTERVAL_S = 6, 0.5


class Calibrations:
    """The calibration of every engine in force. settings: those in force. probing: the probes of engines, by name."""

    def __init__(self, settings: Callable[[], Settings], rooms: Rooms) -> None:
        self._settings = settings
        self._rooms = rooms
        self.probing: dict[str, Calibration] = {}

    async def load(self) -> None:
        """Read every file at the start: a fault of one is told before anything is served. Raises ConfigError."""
        for engine in self._settings().engines:
            if isinstance(engine.calibration, Path):
                await self._take(engine.name, engine.calibration)

    async def keep(self, watch: EngineWatch) -> None:
        """Calibrate one engine as its configuration says, until cancelled or done."""
        name, gate = watch.target.name, self._rooms.gates[watch.target.pool]
        (how,) = (engine.calibration for engine in self._settings().engines if engine.name == name)
        if isinstance(how, Path) and not gate.step_models()[name].fitted:
            await self._take(name, how)
        elif how == "probe":
            learned = _learning(gate, name)
            calibration = Calibration(watch, _is_free(gate, name), learned, self._rooms.clock.now)
            self.probing[name] = calibration
            await calibration.run()

    async def _take(self, engine: str, path: Path) -> None:
        said = await asyncio.to_thread(calibration_file.load, path)
        target = self._rooms.watches[engine].target
        self._rooms.gates[target.pool].calibrated(engine, said.samples(target.limits))


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
    def is_free() -> bool:
        ledger = gate.snapshot().engines.get(engine)  # none: it has left the configuration
        return ledger is not None and not any(ledger.running.values())

    return is_free


def _learning(gate: Gate, engine: str) -> Callable[[Sequence[PrefillSample]], StepModel]:
    def learned(samples: Sequence[PrefillSample]) -> StepModel:
        gate.calibrated(engine, samples)
        return gate.step_models()[engine]

    return learned
