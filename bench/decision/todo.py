"""What to run next, as commands: from what a record says that it was made with. Runs nothing."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.analysis.comparison import Load
from bench.decision.evidence import Evidence, Gap, Record
from bench.decision.words import NOT_ANEW, Anew
from bench.options import LONG, SHORT

# Those that say their load by options; the others say it in a file.
_BY_OPTIONS = ("policies", "ladder", "run")
Options = Mapping[str, Sequence[str] | None]  # None: leave it out


def finish(gaps: Sequence[Gap]) -> tuple[str, ...]:
    """The records go on: what is not there is run, what is INVALID once more."""
    commands = []
    for record in dict.fromkeys(gap.record for gap in gaps):
        again = " --retry-invalid" if any(gap.record == record and gap.why is not None for gap in gaps) else ""
        if record.kind == "run":
            commands.append(shlex.join(record.command))
        else:
            commands.append(f"gateway bench {record.kind} --resume {shlex.quote(str(record.folder))}{again}")
    return tuple(commands)


def anew(evidence: Evidence, wanted: Anew) -> tuple[str, ...]:
    """One command for all of it: more traces beside those that are there, or all again where facts were not stated."""
    if wanted == NOT_ANEW:
        return ()
    seeds = sorted(
        {int(run.stored.run["seeds"]["trace"]) for run in evidence.runs if "trace" in run.stored.run["seeds"]}
    )
    arms = [evidence.baseline, *evidence.candidates]
    there = min((len(evidence.of(arm, load)) for arm in arms for load in evidence.agreed), default=0)
    if wanted.facts:
        options: dict[str, Sequence[str]] = {"metadata": list(wanted.facts)}
        number, first = max(wanted.runs, there), 1
    else:
        options, number, first = {}, max(1, wanted.runs - there), max(seeds, default=0) + 1
    options |= {"seeds": [str(first + each) for each in range(number)], "repeats": ["1"]}
    return _changed(evidence, options)


def alone(evidence: Evidence, load: Load, class_name: str, rate_per_s: float) -> tuple[str, ...]:
    """One class by itself, as often as it comes in the mix."""
    said = f"{float(f'{rate_per_s:.4g}'):g}"
    mix = {SHORT: "100/0", LONG: "0/100"}.get(class_name)
    if mix is None or load.mix.count("/") != 1:
        return (f"replay a trace of {class_name} alone at {said} requests/s: {_changed(evidence, {})[0]}",)
    return _changed(evidence, {"mixes": [mix], "rates": [said], "loads": None, "capacity": None})


def beyond(evidence: Evidence, load: Load) -> tuple[str, ...]:
    """A third more than the agreed load."""
    said = f"{float(f'{load.rate_per_s * 1.3:.4g}'):g}"
    return _changed(evidence, {"mixes": [load.mix], "rates": [said], "loads": None, "capacity": None})


def drilled(arm: str, drills: Sequence[str] = ()) -> tuple[str, ...]:
    named = "".join(f" {each}" for each in drills)
    return (f"gateway bench faults{named} --policy {shlex.quote(arm)}",)


def more_arms(evidence: Evidence) -> tuple[str, ...]:
    """Something to choose from."""
    record = _main(evidence)
    if record.kind == "policies":
        return (
            shlex.join(
                ["gateway", "bench", "policies", evidence.baseline, "short-first", "sliced", *record.command[4:]]
            ),
        )
    return ("gateway bench policies passthrough short-first sliced …", "gateway bench sweep sweep.yaml")


def _main(evidence: Evidence) -> Record:
    return max(evidence.records, key=lambda record: (record.kind != "run", len(record.arms), record.folder.name))


def _changed(evidence: Evidence, options: Options) -> tuple[str, ...]:
    """The command that made the largest record, with these options; of a file it says what to write there."""
    record = _main(evidence)
    command = list(record.command) or ["gateway", "bench", record.kind, "SCENARIO.yaml"]
    if record.kind == "run":
        return tuple(_one_run(command, options, seed) for seed in options.get("seeds") or ["1"])
    if record.kind in _BY_OPTIONS:
        return (shlex.join(_with(command, options)),)
    keys = {"rates": "rates_per_s", "capacity": "capacity_per_s"}
    lines = [
        f"{keys.get(name, name)}: {_yaml(name, value)}" if value is not None else f"no {keys.get(name, name)}"
        for name, value in options.items()
    ]
    file = Path(command[3]).name if len(command) > 3 and not command[3].startswith("-") else "the scenario"
    return (f"{shlex.join(command)}" + (f"   # in {file}: {', '.join(lines)}" if lines else ""),)


def _yaml(name: str, value: Sequence[str]) -> str:
    if name == "metadata":
        return "{" + ", ".join(each.replace("=", ": ", 1) for each in value) + "}"
    return value[0] if name == "repeats" else "[" + ", ".join(value) + "]"


def _one_run(command: Sequence[str], options: Options, seed: str) -> str:
    own: dict[str, Sequence[str] | None] = {"seed": [seed]}
    if (mixes := options.get("mixes")) is not None:
        own["mix"] = list(mixes)
    if (rates := options.get("rates")) is not None:
        own["request-rate"] = list(rates)
    if (metadata := options.get("metadata")) is not None:
        own["metadata"] = list(metadata)
    return shlex.join(_with(command, own))


def _with(command: Sequence[str], options: Options) -> list[str]:
    """Each option with all of its words in the place of what was said of it before."""
    kept: list[str] = []
    skipping = False
    for word in command:
        name, equals, _ = word.removeprefix("--").partition("=")
        if word.startswith("--"):
            skipping = name in options
        if not skipping:
            kept.append(word)
        elif equals:
            skipping = False
    return kept + [word for name, values in options.items() if values is not None for word in (f"--{name}", *values)]
