"""A rollback rehearsed: a small load through the gateway, and in the middle of it the way back to the baseline.

Owns when the switch comes, and that what was found is put back afterwards, whatever happened. Judges nothing.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event

from bench.cell import CellPlan, CellResult, Seen
from bench.drive import run_cell
from bench.errors import TargetUnreachableError, UsageError
from bench.load.flight import Flight
from bench.manifest import gateway_files, ops, rollback
from bench.manifest.ops import Place, RefusedError
from bench.manifest.rehearsed import Switch
from bench.manifest.schema import Manifest
from bench.progress import Progress
from bench.records.request import RequestRecord
from bench.told_to_end import ToldToEnd

ASK_EVERY_S = 0.5
_FAILURES = (RefusedError, TargetUnreachableError, UsageError)


@dataclass(slots=True)
class Rehearsal:
    """switch: what came of it; None: it has not come. went_to: by index, the engine that a request went to.

    untold: what nothing that runs tells of the baseline. not_put_back: why what was found is not in force afterwards.
    """

    baseline: Manifest
    candidate: Manifest
    place: Place
    before_s: float
    logs: Mapping[str, str]
    switch: Switch | None = None
    went_to: dict[int, str | None] = field(default_factory=dict)
    untold: Sequence[str] = ()
    not_put_back: str | None = None
    _stopped: Event = field(default_factory=Event)

    def run(self, plan: CellPlan, folder: Path) -> CellResult:
        """What was found is back in any case. Raises RefusedError, UsageError and TargetUnreachableError."""
        ours = {**self._files(self.candidate), **self._files(self.baseline)}
        found, shifted = gateway_files.as_found(list(ours)), ops.shifted(ops.pools(self.place))
        _keep(found, folder)
        with ToldToEnd() as told:
            try:
                self._begin()
                if told.heard:
                    raise KeyboardInterrupt
                with Progress([plan.windows.span_s]) as progress:
                    result = run_cell(plan, folder, progress.say, progress.watch, self._beside)
                self._ask(result.records)
            finally:
                self._put_back(found, shifted)
        return result

    def _put_back(self, found: Mapping[Path, bytes | None], shifted: Mapping[str, Mapping[str, float]]) -> None:
        """The files in any case; that the gateway does not take them is told with what was seen."""
        try:
            rollback.put_back(found, shifted, self.place)
        except _FAILURES as error:
            self.not_put_back = f"what was found is not in force again: {error}"

    def _begin(self) -> None:
        """The candidate's state, with the baseline's engines up beside its own."""
        needs_restart = rollback.put_in_force(self._files(self.candidate), self.place, self.candidate.routing.pool)
        if needs_restart:
            raise UsageError(
                f"{self.place.file}: {', '.join(needs_restart)}: the candidate's needs a restart. Restart first."
            )
        for manifest, which in ((self.candidate, "candidate"), (self.baseline, "baseline")):
            down = rollback.wait_until_up(self.place, manifest.routing.pool, list(manifest.routing.target))
            if down:
                raise UsageError(
                    f"the {which}'s engine {down[0]} is not up at the gateway under the candidate's gateway.yaml. The "
                    "baseline's engines stay in it with the weight 0: only what is kept warm can be gone back to."
                )

    async def _beside(self, seen: Seen) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._remember(seen.flights))
                await asyncio.sleep(max(0.0, seen.started_at + self.before_s - time.perf_counter()))
                await asyncio.to_thread(self._go_back, seen.started_at)
                self._stopped.set()
        finally:
            self._stopped.set()

    def _go_back(self, started_at: float) -> None:
        switch = Switch(asked_ms=_since(started_at))
        try:
            needs_restart = rollback.put_in_force(self._files(self.baseline), self.place, self.baseline.routing.pool)
            problems = [f"{path} is not in force before the gateway's restart" for path in needs_restart]
            self.switch = switch = replace(switch, in_force_ms=_since(started_at), problems=problems)
            seen = rollback.drained(self.place, self.baseline, self._stopped)
            drained_ms = None if seen.left else _since(started_at)
            self.switch = switch = replace(switch, drained_ms=drained_ms, ended=seen.ended, left=seen.left)
            if not self._stopped.is_set():
                held = rollback.held_against(self.baseline, self.place, self.logs)
                found = [f"{each.field} is {each.found}, not {each.stated}" for each in held.differing]
                self.switch, self.untold = replace(switch, problems=[*problems, *found]), held.untold
        except _FAILURES as error:
            self.switch = replace(switch, problems=[*switch.problems, str(error)])

    async def _remember(self, flights: Sequence[Flight]) -> None:
        """The gateway keeps the last few thousand decisions: other traffic would push ours out."""
        while not self._stopped.is_set():
            for flight in flights:
                if flight.ending is not None and flight.request.index not in self.went_to:
                    await asyncio.to_thread(self._note, flight.request.index, flight.answer_id)
            await asyncio.sleep(ASK_EVERY_S)

    def _ask(self, records: Sequence[RequestRecord]) -> None:
        for record in records:
            if record.index not in self.went_to:
                self._note(record.index, record.answer_id)

    def _note(self, index: int, answer_id: str | None) -> None:
        if answer_id is None:
            return
        with suppress(RefusedError, TargetUnreachableError):
            self.went_to[index] = ops.engine_of(self.place, answer_id)

    def _files(self, manifest: Manifest) -> dict[Path, bytes]:
        return gateway_files.of_manifest(manifest.gateway, self.place.file)


def _since(started_at: float) -> float:
    return (time.perf_counter() - started_at) * 1000


def _keep(found: dict[Path, bytes | None], folder: Path) -> None:
    """For whoever has to put it back where this process cannot any more."""
    for number, (path, raw) in enumerate(found.items()):
        if raw is not None:
            copy = folder / f"found-{path.name}"
            # Two policies of different folders may have one name.
            copy = folder / f"found-{number}-{path.name}" if copy.exists() else copy
            copy.write_bytes(raw)
            shutil.copymode(path, copy)
