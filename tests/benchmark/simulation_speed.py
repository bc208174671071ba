"""How many times faster than real time a simulation is on one core, and what taking alike steps as one is worth.

`python -m tests.benchmark.simulation_speed [--rate 20] [--seconds 120]` from the repository's root. One engine of the
profile `h200`, nine short prompts to a long one; CPU seconds, the policies and the ways in turn. The second ratio is
of two ways in one run and says the same on a busy machine; the first is this machine's.
"""

# ruff: noqa: T201 - a script that prints

from __future__ import annotations

import argparse
from pathlib import Path
from time import process_time

from bench.simulated import SimulatedEngine
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

TENANTS = 20
OUTPUTS = (1, 32, 128)


def spent(engine: type[VirtualEngine], policy: str, rate_per_s: float, seconds: float, output_tokens: int) -> float:
    """Return the CPU seconds of one run."""
    mix = [ClassLoad("short", 9, 512, output_tokens), ClassLoad("long", 1, 8192, output_tokens)]
    trace = random_arrivals.for_duration(rate=Intensity(rate_per_s), span_s=seconds, mix=mix, seed=1)
    profile = PROFILES["h200"]
    flags = flags_of(SimulatedEngine(enable_prefix_caching=False), profile)
    classes = {"short": "interactive", "long": "batch"}
    setup = Setup(policy, plan_of(policy, Path()), flags, profile, 1, 1, False, classes, {}, TENANTS)
    callers = [
        Caller(arrival.at_s, arrival.prompt_tokens, output_tokens, classes[arrival.class_name], f"t{number % TENANTS}")
        for number, arrival in enumerate(trace.arrivals)
    ]
    began = process_time()
    room = EngineRoom(
        {"a": engine(flags, profile.step_time)},
        batches_in_flight=flags.batches_in_flight,
        network_s=profile.request_s / 2,
    )
    pool = VirtualPool(setup.plan, room, [setup.spec("a")], Judge())
    pool.admission.calibrated("a", setup.probes())
    pool.run(callers)
    return process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=20.0)
    parser.add_argument("--seconds", type=float, default=120.0)
    asked = parser.parse_args()
    for output_tokens in OUTPUTS:
        for policy in ("passthrough", "short-first"):
            ways = (QuickEngine, VirtualEngine)
            fast, slow = (
                min(spent(way, policy, asked.rate, asked.seconds, output_tokens) for _ in range(3)) for way in ways
            )
            print(
                f"{policy:>12}, {output_tokens:>3} output tokens, {asked.rate:g} requests/s: "
                f"{asked.seconds / fast:6.0f} times real time, {slow / fast:.1f} times step by step"
            )


if __name__ == "__main__":
    main()
