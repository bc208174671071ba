"""A ladder of rates as Markdown, the knee marked."""

from __future__ import annotations

from collections.abc import Sequence

from bench.analysis.knee import Rung, knee
from bench.records.request import Outcome
from bench.tables import milliseconds, rate, share, table


def describe(rungs: Sequence[Rung], share_min: float) -> str:
    if not rungs:
        return "no rate was tried"
    names = [name for name in rungs[0].classes if name != "all"]
    found = knee(rungs, share_min)
    head = ["requests/s", "verdict", "completed/s"]
    for name in names:
        head += [f"{name}: in time", "refused", "TTFT p95 ms", "e2e p95 ms"]
    rows = [_row(rung, names, found, share_min) for rung in sorted(rungs, key=lambda each: each.rate_per_s)]
    if found is None:
        said = f"no knee: the lowest rate does not hold ({share_min:.0%} of each class in time)"
    elif all(rung.holds(share_min) for rung in rungs if rung.valid):
        said = f"the highest rate, {found:g} requests/s, still holds: the knee lies above it"
    else:
        said = f"knee: {found:g} requests/s, the highest rate with {share_min:.0%} of each class in time"
    return f"{table(head, rows)}\n\n{said}"


def _row(rung: Rung, names: Sequence[str], found: float | None, share_min: float) -> list[str]:
    verdict = ("holds" if rung.holds(share_min) else "fails") if rung.valid else "INVALID"
    mark = " ← knee" if rung.rate_per_s == found else ""
    cells = [
        f"{rung.rate_per_s:g}{mark}",
        verdict,
        rate(rung.classes["all"].completed_per_s),
    ]
    for name in names:
        own = rung.classes[name]
        refused = own.outcomes[Outcome.REFUSED] + own.outcomes[Outcome.EXPIRED]
        latencies = (own.samples[metric].value("p95") for metric in ("ttft_ms", "e2e_ms"))
        cells += [share(own.good, own.offered), str(refused), *(milliseconds(value) for value in latencies)]
    return cells
