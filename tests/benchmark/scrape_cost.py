"""What one scrape costs the loop, with 20 classes and 20 engines and with one of each.

`python tests/benchmark/scrape_cost.py` from the repository's root. Every series that can be is in use. "changed": all
of them since the last scrape, the dearest case there is; "steady": none; "traced": all, in OpenMetrics, with an exemplar
in every bucket that may have one. Medians of several scrapes, in CPU time.
"""

# ruff: noqa: T201 - a script that prints

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import process_time

sys.path.insert(0, str(Path(__file__).parents[2]))

from gateway.core.admission import Admission
from gateway.core.types import LengthClass, Outcome, Reason, WaitOutcome
from gateway.observe.gauges import EngineReading, GaugeSources
from gateway.observe.metrics import Observer
from gateway.testing.builders import a_class, a_plan, an_engine

ROUNDS = 15
SCRAPE_MS_MAX = 20.0
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
WAITS_S = (0.0, 0.003, 0.007, 0.02, 0.04, 0.07, 0.2, 0.4, 0.7, 1.5, 2.5, 4, 7, 15, 25, 45, 90, 200, 500)
A_READING = EngineReading("pool", True, 3, 2, 0.5, 7, 0, 0.5, True)


def an_observer(classes: int, engines: int) -> tuple[Observer, Callable[[], None]]:
    """Return an observer, and what makes every series of every family change."""
    plan = a_plan(*(a_class(f"class-{number}", rank=number) for number in range(classes)))
    names = [f"engine-{number}" for number in range(engines)]
    admission = Admission(plan, [an_engine(name) for name in names])
    observer = Observer(lambda: 1.0, lambda _: None)
    readings = dict.fromkeys(names, A_READING)
    observer.scrape_from(GaugeSources(lambda: plan, lambda: {"pool": admission.snapshot()}, lambda: readings))
    families = observer.families

    def change() -> None:
        for name, length in itertools.product(plan.classes, LengthClass):
            labels = (name, length.value, "pool")
            for counted in (families.offered, families.prompt_tokens, families.output_tokens):
                counted.at(*labels).inc()
            for outcome in Outcome:
                families.requests.at(*labels, outcome.value).inc()
            for reason in Reason:
                families.refusals.at(*labels, reason.value).inc()
            for wait_outcome in WaitOutcome:
                families.queue_wait.at(*labels, wait_outcome.value).observe(0.2)
            for spread in (families.ttft, families.request_s, families.gap, families.stall):
                spread.at(*labels).observe(0.2)
            for engine in names:
                families.engine_ttft.at(*labels, engine).observe(0.2)

    return observer, change


def trace(observer: Observer) -> None:
    """Give every bucket of the families with exemplars its own."""
    for family in (observer.families.queue_wait, observer.families.ttft):
        for _, series in family.series():
            for value in WAITS_S:
                series.observe(value, TRACE_ID, 1.0)


def cost_ms(observer: Observer, before: Callable[[], None], *, open_metrics: bool = False) -> float:
    spent = []
    for _ in range(ROUNDS):
        before()
        began = process_time()
        observer.exposition(open_metrics=open_metrics)
        spent.append(process_time() - began)
    return 1000 * median(spent)


def main() -> int:
    """Print the table; exit status 1 where the large scrape takes longer than it may."""
    print(f"{'classes x engines':>18} {'lines':>7} {'changed ms':>11} {'steady ms':>10} {'traced ms':>10}")
    changed: dict[int, float] = {}
    traced: dict[int, float] = {}
    for size in (1, 20):
        observer, change = an_observer(size, size)
        changed[size] = cost_ms(observer, change)
        steady = cost_ms(observer, lambda: None)
        trace(observer)
        traced[size] = cost_ms(observer, change, open_metrics=True)
        lines = observer.exposition().count(b"\n")
        print(f"{size:>12} x {size:<3} {lines:>7} {changed[size]:>11.2f} {steady:>10.2f} {traced[size]:>10.2f}")
    print(f"ratio to one of each: {changed[20] / changed[1]:.1f}; at most {SCRAPE_MS_MAX:g} ms")
    return 0 if max(changed[20], traced[20]) <= SCRAPE_MS_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
