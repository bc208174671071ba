"""How many times faster than real time a simulation is on one core, what of it is admission's, and what runs are worth.

`python -m tests.benchmark.simulation_speed [--rate 20] [--seconds 120]` from the repository's root. One engine of the
profile `h200`, nine short prompts to a long one, with the prefix cache and without: by itself (`direct`), and behind
policies. CPU seconds, the least of a few runs. Admission's share is what the same calls take once more, without an
engine. The last ratio is of two ways in one run and says the same on a busy machine; the others are this machine's.
"""

# ruff: noqa: T201 - a script that prints

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from time import process_time
from typing import Any

from bench.simulated import SimulatedEngine
from bench.simulation.direct import DirectCallers
from bench.simulation.engine_room import EngineRoom
from bench.simulation.play import Judge
from bench.simulation.posts import Caller
from bench.simulation.profiles import PROFILES
from bench.simulation.quick_engine import QuickEngine
from bench.simulation.setup import Setup, flags_of, plan_of
from bench.simulation.virtual_engine import VirtualEngine
from bench.simulation.virtual_pool import VirtualPool
from bench.trace import random_arrivals
from bench.trace.intensity import Intensity
from bench.trace.mix import ClassLoad
from gateway.core.admission import Admission
from gateway.observe.release import CORE_IS_COMPILED

TENANTS = 20
OUTPUTS = (1, 32, 128)
POLICIES = ("direct", "passthrough", "short-first", "sliced")
RUNS = 5
CALLS = ("offer", "first_token", "finish", "accepted", "slice_ended", "tick", "next_tick_at", "observe")


def setup_of(policy: str, *, prefix_caching: bool) -> Setup:
    profile, classes = PROFILES["h200"], {"short": "interactive", "long": "batch"}
    flags = flags_of(SimulatedEngine(enable_prefix_caching=prefix_caching), profile)
    return Setup(policy, plan_of(policy, Path()), flags, profile, 1, 1, False, classes, {}, TENANTS)


def callers_of(rate_per_s: float, seconds: float, output_tokens: int, classes: dict[str, str]) -> list[Caller]:
    mix = [ClassLoad("short", 9, 512, output_tokens), ClassLoad("long", 1, 8192, output_tokens)]
    trace = random_arrivals.for_duration(rate=Intensity(rate_per_s), span_s=seconds, mix=mix, seed=1)
    return [
        Caller(arrival.at_s, arrival.prompt_tokens, output_tokens, classes[arrival.class_name], f"t{number % TENANTS}")
        for number, arrival in enumerate(trace.arrivals)
    ]


def pool_of(setup: Setup, room: EngineRoom) -> VirtualPool:
    assert setup.plan is not None
    pool = VirtualPool(setup.plan, room, [setup.spec("a")], Judge(), tells_cached=setup.flags.prefix_caching)
    pool.admission.calibrated("a", setup.probes())
    return pool


def spent(engine: type[VirtualEngine], setup: Setup, callers: Sequence[Caller], told: list[Any] | None = None) -> float:
    """Return the CPU seconds of one run. told: gets every call of Admission, but of a compiled one."""
    flags, profile = setup.flags, setup.profile
    began = process_time()
    engines = {"a": engine(flags, profile.step_time)}
    room = EngineRoom(engines, batches_in_flight=flags.batches_in_flight, network_s=profile.request_s / 2)
    sender = DirectCallers(room) if setup.plan is None else pool_of(setup, room)
    if told is not None and not CORE_IS_COMPILED and isinstance(sender, VirtualPool):
        _listen(sender.admission, told)
    sender.expect(callers)
    room.run()
    return process_time() - began


def _listen(admission: Admission, told: list[Any]) -> None:
    """Note each call, its tickets by their numbers, as they are to another Admission."""
    for name in CALLS:
        call = getattr(admission, name)

        def noted(*args: Any, _name: str = name, _call: Any = call, **ways: Any) -> Any:
            told.append((_name, getattr(args[0], "id", None) if args else None, args, ways))
            return _call(*args, **ways)

        setattr(admission, name, noted)


def admission_s(setup: Setup, told: Sequence[Any]) -> float:
    """Return the CPU seconds of the same calls of a fresh Admission."""
    if setup.plan is None:
        return 0.0
    admission = Admission(setup.plan, [setup.spec("a")])
    admission.calibrated("a", setup.probes())
    calls = [(getattr(admission, name), number, args, ways) for name, number, args, ways in told]
    offer, tickets = admission.offer, {}
    began = process_time()
    for call, number, args, ways in calls:
        if call == offer:
            ticket, _ = offer(*args)
            tickets[ticket.id] = ticket
        elif number is None:
            call(*args, **ways)
        else:
            call(tickets[number], *args[1:], **ways)
    return process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=20.0)
    parser.add_argument("--seconds", type=float, default=120.0)
    asked = parser.parse_args()
    for prefix_caching in (False, True):
        print(f"{asked.rate:g} requests/s, prefix caching {'on' if prefix_caching else 'off'}")
        for output_tokens in OUTPUTS:
            for policy in POLICIES:
                setup = setup_of(policy, prefix_caching=prefix_caching)
                callers = callers_of(asked.rate, asked.seconds, output_tokens, setup.service_classes)
                told: list[Any] = []
                spent(QuickEngine, setup, callers, told)
                fast_s = min(spent(QuickEngine, setup, callers) for _ in range(RUNS))
                slow_s = min(spent(VirtualEngine, setup, callers) for _ in range(1 if prefix_caching else 2))
                each_us = 1e6 / len(callers)
                core_s = min(admission_s(setup, told) for _ in range(RUNS))
                share = "" if CORE_IS_COMPILED else f", of which admission {core_s * each_us:3.0f}"
                print(
                    f"{policy:>12}, {output_tokens:>3} output tokens: {asked.seconds / fast_s:6.0f} times real time, "
                    f"{fast_s * each_us:4.0f} us a request{share}; "
                    f"step by step {slow_s / fast_s:.1f} times as long",
                    flush=True,
                )


if __name__ == "__main__":
    main()
