"""Stage 1: whether the runs are of one thing, all there, and each one's own verdict VALID. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

from bench.decision import todo
from bench.decision.evidence import Evidence, Run
from bench.decision.rules import EMBEDDED, NEEDED, SAME_EVERYWHERE, SAME_IN_ARM, SAME_IN_TRACE, identity
from bench.decision.words import NOT_ANEW, Anew, Finding, Stage, Standing

_SHOWN = 3


def validity(evidence: Evidence) -> list[Finding]:
    runs = [run for run in evidence.runs if run.load in evidence.agreed]
    return [
        _complete(evidence),
        _limited(evidence),
        _same("one thing", runs, SAME_EVERYWHERE, lambda _: "all runs"),
        _same("same arrivals", runs, SAME_IN_TRACE, lambda run: f"{run.load.label}, {run.load.mix}, {run.trace}"),
        _same("arms as they were", runs, SAME_IN_ARM, lambda run: run.arm),
        *(_known(name, how, runs) for name, how in NEEDED.items()),
        _real(runs),
        _read(runs),
    ]


def _complete(evidence: Evidence) -> Finding:
    """Client lag and scrape gaps are in each run's own verdict: what was beyond them is INVALID, and is missing."""
    gaps = [gap for gap in evidence.gaps if gap.cell[1] in evidence.agreed]
    if not gaps:
        ids = tuple(run.run_id for run in evidence.runs if run.load in evidence.agreed)
        return _finding(
            "every planned run", Standing.HOLDS, f"{len(ids)} runs, all VALID: lag and scrape gaps too", ids
        )
    invalid = [f"{_named(gap.cell)}: INVALID: {gap.why}" for gap in gaps if gap.why is not None]
    missing = [f"{_named(gap.cell)}: not run" for gap in gaps if gap.why is None]
    arms = sorted({gap.cell[0] for gap in gaps} - {evidence.baseline})
    ways = list(todo.finish(gaps))
    ways += [f"or, where it cannot run at all: … --without {' '.join(arms)}"] if arms else []
    ids = tuple(gap.run_id for gap in gaps if gap.run_id is not None)
    return _finding("every planned run", Standing.UNKNOWN, _list([*invalid, *missing]), ids, ways)


def _named(cell: tuple[str, object, str]) -> str:
    arm, load, trace = cell
    return f"{arm}, {getattr(load, 'label', load)}, {getattr(load, 'mix', '')}, {trace}"


def _limited(evidence: Evidence) -> Finding:
    """A class that nothing limits could pay for the gain of another."""
    free = [
        name
        for name in evidence.class_names
        if not any(limit.metric == "ttft_ms" for limit in evidence.limits.get(name, ()))
    ]
    if not evidence.class_names or free:
        ways = [f"… --goodput {' '.join(f'{name}:ttft:MS' for name in free)} and what else is agreed"] if free else []
        says = f"no limit of the first token for {', '.join(free)}" if free else "no request in any window"
        return _finding("limits of every class", Standing.UNKNOWN, says, (), ways)
    words = [
        f"{name} {limit.metric.removesuffix('_ms')} {limit.at_most_ms:g} ms"
        for name in evidence.class_names
        for limit in evidence.limits[name]
    ]
    open_ = [
        f"{name} {word}"
        for name in evidence.class_names
        for word, metric in (("stall", "longest_stall_ms"), ("e2e", "e2e_ms"))
        if not any(limit.metric == metric for limit in evidence.limits[name])
    ]
    without = f"; nothing limits {', '.join(open_)}" if open_ else ""
    return _finding("limits of every class", Standing.HOLDS, ", ".join(words) + without)


def _same(rule: str, runs: Sequence[Run], names: Sequence[str], group_of: Callable[[Run], str]) -> Finding:
    differing: list[str] = []
    ids: list[str] = []
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(group_of(run), []).append(run)
    for where, own in groups.items():
        for name in names:
            by_value: dict[str, list[str]] = {}
            for run in own:
                value = identity(run.stored.run, name)
                by_value.setdefault("not stated" if value is None else json.dumps(value, sort_keys=True), []).append(
                    run.run_id
                )
            if len(by_value) > 1:
                differing.append(f"{name} of {where}: {_list(sorted(by_value))}")
                ids += [each[0] for each in by_value.values()]
    says = _list(differing) if differing else f"equal: {', '.join(names)}, where they are stated"
    ways = ["decide by records of one thing alone: name fewer folders, or measure anew"] if differing else []
    return _finding(rule, Standing.FAILS if differing else Standing.HOLDS, says, tuple(sorted(set(ids))), ways)


def _known(name: str, how: str, runs: Sequence[Run]) -> Finding:
    without = [run.run_id for run in runs if identity(run.stored.run, name) is None]
    if not without:
        values = sorted({str(identity(run.stored.run, name)) for run in runs})
        return _finding(name, Standing.HOLDS, ", ".join(values) or "no run")
    says = f"{len(without)} runs do not say their {name}: {how}"
    wanted = Anew(facts=(f"{name}=NAME",)) if "metadata" in how else NOT_ANEW
    return replace(_finding(name, Standing.UNKNOWN, says, tuple(without)), anew=wanted)


def _real(runs: Sequence[Run]) -> Finding:
    """What a model of an engine does shows what to measure, and no engine."""
    emulated = [run.run_id for run in runs if EMBEDDED in str(identity(run.stored.run, "engine_version"))]
    if not emulated:
        return _finding("a real engine", Standing.HOLDS, "no run was of the embedded engine, by its version")
    ways = ["measure your engine in its place: the same command with its URL"]
    says = f"{len(emulated)} runs were of the embedded engine, which has no model"
    return _finding("a real engine", Standing.UNKNOWN, says, tuple(emulated), ways)


def _read(runs: Sequence[Run]) -> Finding:
    """A restart, or others' work, shows in the engine's own figures alone."""
    without = [run.run_id for run in runs if "engine" not in run.stored.measurements]
    if without:
        says = f"the engine of {len(without)} runs was not read: a restart, or what others sent, would not show"
        return _finding("engine read", Standing.UNKNOWN, says, tuple(without), ("… --engine-url, engine_metrics_url",))
    gaps_s = [run.stored.measurements["engine"].get("during", {}).get("gap_s_max") for run in runs]
    known = [float(gap) for gap in gaps_s if gap is not None]
    longest = f", the longest gap {max(known):.1f} s" if known else ""
    return _finding("engine read", Standing.HOLDS, f"before and after {len(runs)} runs{longest}")


def _finding(rule: str, standing: Standing, says: str, runs: tuple[str, ...] = (), ways: Sequence[str] = ()) -> Finding:
    return Finding(Stage.VALIDITY, rule, standing, says, runs=runs, todo=tuple(ways))


def _list(words: Sequence[str]) -> str:
    more = f"; and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
    return "; ".join(words[:_SHOWN]) + more
