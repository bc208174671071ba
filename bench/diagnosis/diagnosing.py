"""The diagnosis of a record: each arm at each load, over its VALID runs. Pure; the record was read by others.

`diagnose` is what other rooms call: with the material of a report, or of one run alone.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from bench.diagnosis import pairs
from bench.diagnosis.facts import NOTHING_KNOWN, EngineFacts, of_run
from bench.diagnosis.figures import PARTS, figures
from bench.diagnosis.findings import Diagnosis, Finding, GroupDiagnosis
from bench.diagnosis.judging import judged, not_judged
from bench.diagnosis.pairs import Seen
from bench.records.material import Material, ReportRun
from bench.records.stored import StoredRun

NO_GATEWAYS: Mapping[str, Any] = {}


def diagnose(
    material: Material,
    *,
    known: EngineFacts = NOTHING_KNOWN,
    gateways: Mapping[str, Mapping[str, Any]] = NO_GATEWAYS,
    policies: Mapping[str, str] = NO_GATEWAYS,
) -> Diagnosis:
    """known: what the user says of the engine, where it does not itself. gateways, policies: by arm, where the bench
    configured them.
    """
    valid = [run for run in material.runs if run.stored.valid]
    seen = {
        run.stored.folder.name: _seen(run.stored, of_run(run.stored, gateways.get(run.arm), known)) for run in valid
    }
    groups = [
        _group([run for run in valid if (run.load, run.arm) == (load, arm)], valid, seen, material.again, policies)
        for load in material.loads
        for arm in material.arms
        if any((run.load, run.arm) == (load, arm) for run in valid)
    ]
    left_out = {
        run.stored.folder.name: list(run.stored.verdict["reasons"]) for run in material.runs if not run.stored.valid
    }
    return Diagnosis(groups, left_out)


def _seen(run: StoredRun, facts: EngineFacts) -> Seen:
    return Seen(run, figures(run, facts))


def _group(
    own: Sequence[ReportRun],
    valid: Sequence[ReportRun],
    seen: Mapping[str, Seen],
    again: Sequence[str],
    policies: Mapping[str, str],
) -> GroupDiagnosis:
    first = own[0]
    by_run = {run.stored.folder.name: seen[run.stored.folder.name].figures for run in own}
    words = _words(first, policies)
    found: list[Finding] = judged(by_run, words)
    others = {
        arm: {run.trace: seen[run.stored.folder.name] for run in valid if (run.load, run.arm) == (first.load, arm)}
        for arm in dict.fromkeys(run.arm for run in valid)
        if arm != first.arm and arm not in again
    }
    open_one = pairs.too_open({run.trace: seen[run.stored.folder.name] for run in own}, others, words)
    if open_one is not None:
        found = sorted([*found, open_one], key=lambda each: each.weight, reverse=True)
    goods = [each["good_share"] for each in by_run.values() if "good_share" in each]
    return GroupDiagnosis(
        arm=first.arm,
        load=first.load.label,
        mix=first.load.mix,
        runs=list(by_run),
        readings=min(int(each["readings"]) for each in by_run.values()),
        findings=found,
        not_judged=not_judged(by_run),
        parts_ms=_parts([dict(each) for each in by_run.values()]),
        good_share=min(goods) if goods else None,
    )


def _parts(each: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Where the mean time to first token was spent, over the runs; only what is known of all of them."""
    names = [name for name in ("ttft_ms", *PARTS) if all(name in figures for figures in each)]
    return {name: fmean(figures[name] for figures in each) for name in names}


def _words(run: ReportRun, policies: Mapping[str, str]) -> dict[str, str]:
    """What commands name, as the run's own record has it; else the word for what the user has to put there."""
    target = run.stored.run.get("target") or {}
    urls = target.get("engine_metrics_urls") or []
    return {
        "policy": shlex.quote(policies.get(run.arm, "POLICY")),
        "base_url": str(target.get("base_url", "URL")),
        "engine_url": str(urls[0]).removesuffix("/metrics") if urls else "URL",
        "model": str(run.stored.run.get("model", "MODEL")),
        "tokenizer": "DIR",
    }
