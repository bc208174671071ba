"""How fast the engine was when it was measured, as a factor on all its costs.

Owns two sources: requests that had the engine to themselves around a run (`bench.engine.speed_probe`), and a closed
loop that saturated it (`gateway bench capacity`), which also has what the API server and the client take from steps.
Each is held against what the model says of the same requests. Reads records, sends nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.analysis.capacity import estimate
from bench.engine.speed_probe import OUTPUT_TOKENS, PROMPT_TOKENS, typical_s
from bench.errors import UsageError
from bench.order import Block, cell_id
from bench.records import stored
from bench.records.request import Outcome, Phase, RequestRecord
from bench.simulation.direct import DirectCallers
from bench.simulation.engine_room import START, EngineRoom
from bench.simulation.posts import Answer, Caller
from bench.simulation.profiles import Profile
from bench.simulation.quick_engine import QuickEngine
from bench.simulation.steps import EngineFlags


def slower(profile: Profile, factor: float) -> Profile:
    """Return the profile with every cost so many times as high."""
    costs = profile.step_time
    within_s = costs.per_token_chunk_s
    step_time = replace(
        costs,
        base_s=costs.base_s * factor,
        per_token_s=costs.per_token_s * factor,
        per_token_context_s=costs.per_token_context_s * factor,
        per_sequence_s=costs.per_sequence_s * factor,
        per_token_chunk_s=None if within_s is None else within_s * factor,
    )
    return replace(profile, step_time=step_time, request_s=profile.request_s * factor)


def probed(profile: Profile, said: Mapping[str, Any]) -> float | None:
    """Return measured over predicted, of the probes before and after; None: there were none.

    said: `engine_speed` of a record.
    """
    probes = [probe for when in ("before", "after") for probe in said.get(when, ())]
    taken_s = [each for probe in probes if (each := typical_s(probe)) is not None]
    return fmean(taken_s) / _lone_s(profile) if taken_s else None


def _lone_s(profile: Profile) -> float:
    steps, further = profile.step_time, range(OUTPUT_TOKENS - 1)
    decode_s = sum(steps.base_s + steps.chunk_s(1, PROMPT_TOKENS + number) for number in further)
    return profile.request_s + steps.prefill_s(PROMPT_TOKENS, profile.max_num_batched_tokens) + decode_s


# ── saturated ──


@dataclass(frozen=True, slots=True)
class Saturated:
    """What `gateway bench capacity` measured. requests: class, prompt and output tokens, as they were sent."""

    requests_per_s: float
    concurrency: int
    warmup_s: float
    window_s: float
    requests: Sequence[tuple[str, int, int]]
    engine_speed: Mapping[str, Any]


def read_saturated(folder: Path) -> Saturated:
    """Raises UsageError where the folder is none of `gateway bench capacity`."""
    try:
        said = stored.read_json(folder / "capacity.json")
        sent = stored.read_requests(folder)
        return Saturated(
            float(said["capacity"]["requests_per_s"]),
            int(said["concurrency"]),
            float(said["warmup_s"]),
            float(said["capacity"]["window_seconds"]),
            [(each.class_name, each.prompt_tokens_planned, each.output_tokens_planned) for each in sent],
            said.get("engine_speed", {}),
        )
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"--capacity: {folder} is no record of this version's `gateway bench capacity` ({error}). Measure again."
        ) from error


class _ClosedLoop:
    """Whoever has an answer sends the next request, until `stop_at`."""

    def __init__(self, room: EngineRoom, more: Sequence[Caller], stop_at: float) -> None:
        self._room = room
        self._callers = DirectCallers(room, answered=self._send_next)
        self._more = iter(more)
        self._stop_at = stop_at
        self.sent_at: list[float] = []
        self.answers = self._callers.answers

    def expect(self, callers: Sequence[Caller]) -> None:
        self.sent_at += [self._room.now] * len(callers)
        self._callers.expect(callers)

    def _send_next(self) -> None:
        caller = next(self._more, None)
        if caller is not None and self._room.now < self._stop_at:
            self.expect([caller])


def saturated(profile: Profile, flags: EngineFlags, measured: Saturated) -> float:
    """Return how many times as high costs have to be for the model to carry what the engine did."""
    engine = QuickEngine(flags, profile.step_time)
    room = EngineRoom({"a": engine}, batches_in_flight=flags.batches_in_flight, network_s=profile.request_s / 2)
    callers = [Caller(0.0, prompt, output, name) for name, prompt, output in measured.requests]
    # More than were sent, should the model be the faster one.
    callers += callers * 3
    stop_s = measured.warmup_s + measured.window_s
    loop = _ClosedLoop(room, callers[measured.concurrency :], room.now + stop_s)
    loop.expect(callers[: measured.concurrency])
    room.run()
    records = [_record(number, *sent) for number, sent in enumerate(zip(loop.answers, loop.sent_at, strict=True))]
    carried = estimate(records, from_ms=measured.warmup_s * 1000, to_ms=stop_s * 1000).requests_per_s
    if not carried or not measured.requests_per_s:
        raise UsageError("--capacity: nothing was carried there. Measure again.")
    return carried / measured.requests_per_s


def _record(number: int, answer: Answer, sent_at: float) -> RequestRecord:
    caller, ended_at = answer.caller, answer.ended_at
    assert ended_at is not None, "a closed loop ends"
    return RequestRecord(
        index=number,
        request_id=f"simulated-{number}",
        class_name=caller.service_class,
        phase=Phase.WINDOW,
        outcome=Outcome.COMPLETED,
        planned_ms=0.0,
        prompt_tokens_planned=caller.prompt_tokens,
        output_tokens_planned=caller.output_tokens,
        dispatched_ms=(sent_at - START) * 1000,
        ended_ms=(ended_at - START) * 1000,
    )


# ── both ──


@dataclass(frozen=True, slots=True)
class Speeds:
    """How many times as high costs were in each measured run. always: in all of them; by_cell: beside that."""

    always: float
    by_cell: Mapping[str, float]

    @classmethod
    def of(cls, profile: Profile, flags: EngineFlags, capacity: Path | None, measured: Path | None) -> Speeds:
        """Read them. flags: of the engine that was saturated; measured: a comparison.json, its runs beside it.

        What a saturated engine took longer than the model says counts where its probes were as fast as those of the
        run: where runs have probes, it must have them too, or slow minutes would count twice. Raises UsageError.
        """
        by_cell: dict[str, float] = {}
        for folder in [] if measured is None else stored.runs_in(measured.parent):
            probes = stored.read_json(folder / "measurements.json").get("engine_speed", {})
            if (factor := probed(profile, probes)) is not None:
                by_cell[stored.read_json(folder / "run.json")["cell_id"]] = factor
        if capacity is None:
            return cls(1.0, by_cell)
        found = read_saturated(capacity)
        minutes = probed(profile, found.engine_speed)
        if minutes is None and by_cell:
            raise UsageError(
                f"--capacity: {capacity} does not say how fast the engine was in its minutes, as the runs do. "
                "Measure again: gateway bench capacity --engine-url URL."
            )
        return cls(saturated(profile, flags, found) / (minutes or 1.0), by_cell)

    def slower(self, arm: str, block: Block) -> float:
        return self.always * self.by_cell.get(cell_id(block, arm), 1.0)
