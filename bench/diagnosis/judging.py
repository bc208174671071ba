"""From figures to findings: holds each rule against the runs of a group. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from bench.diagnosis.advice import ADVICE
from bench.diagnosis.figures import Figures
from bench.diagnosis.findings import Certainty, Evidence, Finding, shown
from bench.diagnosis.rules import ABSENT, RULES, Constraint, Rule, Test

ByRun = Mapping[str, Figures]


def judged(by_run: ByRun, words: Mapping[str, str]) -> list[Finding]:
    """The constraints that show in these runs, the strongest first. words: what commands name."""
    best: dict[Constraint, Finding] = {}
    for rule in RULES:
        found = _held_against(rule, by_run, words)
        if found is not None:
            known = best.get(found.constraint)
            if known is None or found.weight > known.weight:
                best[found.constraint] = found
    return sorted(best.values(), key=lambda each: each.weight, reverse=True)


def not_judged(by_run: ByRun) -> list[str]:
    """Constraints of which no rule could be held against any run, with the reason where it is one to mend."""
    said = []
    for constraint in Constraint:
        own = [rule for rule in RULES if rule.constraint is constraint]
        absent = [_first_absent(rule, figures) for rule in own for figures in by_run.values()]
        why = dict.fromkeys(ABSENT[name] for name in absent if name in ABSENT)
        if own and why and all(name is not None for name in absent):
            said.append(f"{constraint}: {'; '.join(why)}")
    return said


def _first_absent(rule: Rule, figures: Figures) -> str | None:
    return next((test.figure for test in rule.needs if test.figure not in figures), None)


def _holds(rule: Rule, figures: Figures) -> bool:
    return all(_is(test, figures) for test in rule.needs) and not any(_is(test, figures) for test in rule.unless)


def _is(test: Test, figures: Figures) -> bool:
    return test.figure in figures and test.holds(figures[test.figure])


def _held_against(rule: Rule, by_run: ByRun, words: Mapping[str, str]) -> Finding | None:
    shows = {run: figures for run, figures in by_run.items() if _holds(rule, figures)}
    if not shows:
        return None
    could = sum(_first_absent(rule, figures) is None for figures in by_run.values())
    evidence, against, missing = [_said(test, shows) for test in rule.needs], [], []
    evidence += [_said(test, shows) for test in rule.about if all(test.figure in each for each in shows.values())]
    doubted = False
    for test in rule.confirms:
        if not all(test.figure in figures for figures in shows.values()):
            missing.append(ABSENT.get(test.figure, f"{test.figure} was not measured"))
            doubted = doubted or test.decisive
        elif all(_is(test, figures) for figures in shows.values()):
            evidence.append(_said(test, shows))
        elif test.lacking:
            missing.append(test.lacking.format(_values(test, shows)))
        else:
            against.append(_said(test, shows))
    return Finding(
        constraint=rule.constraint,
        certainty=_certainty(len(shows), could, doubted=doubted or bool(against), incomplete=bool(missing)),
        strength=min(figures.get(rule.strength, 0.0) for figures in shows.values()),
        evidence=evidence,
        against=against,
        missing=missing,
        runs=list(shows),
        judged=could,
        command=ADVICE[rule.constraint].command.format_map({**words, **_figures_said(shows)}),
    )


def _certainty(shows: int, judged_runs: int, *, doubted: bool, incomplete: bool) -> Certainty:
    """Over the spread of the runs: what shows in the lesser part of them is possible, whatever confirms it."""
    if doubted or 2 * shows < judged_runs:
        return Certainty.POSSIBLE
    return Certainty.LIKELY if incomplete or shows < judged_runs else Certainty.SURE


def _said(test: Test, shows: ByRun) -> Evidence:
    by_run = {run: figures[test.figure] for run, figures in shows.items()}
    return Evidence(test.says.format(_values(test, shows)), test.figure, by_run)


def _values(test: Test, shows: ByRun) -> str:
    return shown(test.show, [figures[test.figure] for figures in shows.values()])


def _figures_said(shows: ByRun) -> dict[str, str]:
    running = max((figures["running_max"] for figures in shows.values() if "running_max" in figures), default=None)
    limit = max((figures["limit_known"] for figures in shows.values() if "limit_known" in figures), default=running)
    return {"limit": _count(limit), "running": _count(running)}


def _count(value: float | None) -> str:
    return "N" if value is None else f"{value:.0f}"
