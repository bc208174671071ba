"""A diagnosis as Markdown: one line a group, then each finding with its evidence."""

from __future__ import annotations

from collections.abc import Sequence

from bench.diagnosis.advice import ADVICE
from bench.diagnosis.findings import Diagnosis, Finding, GroupDiagnosis
from bench.tables import NOTHING, milliseconds, table

_HEAD = (
    "load", "mix", "arm", "runs", "good", "first token ms", "client", "gateway", "way", "engine queue",
    "likely constraint",
)  # fmt: skip
GOOD_ENOUGH = 0.95
_PARTS = ("ttft_ms", "client_ms", "gateway_ms", "way_ms", "engine_queue_ms")
_NOTE = (
    "First token: the mean, and of it what was spent at the client (sent late), in the gateway's queue, on the way "
    "(sent, and in no queue yet; up to a step of it is the age of the engine's numbers) and in the engine's queue; "
    "the rest is prefill. Queues by Little's law, from the readings."
)


def describe(title: str, found: Diagnosis) -> str:
    parts = [f"# {title}: diagnosis"]
    if found.groups:
        parts += [table(_HEAD, [_row(group) for group in found.groups]), _NOTE]
    parts += [part for group in found.groups for part in _group(group)]
    if found.left_out:
        lines = [f"- {run}: {'; '.join(reasons)}" for run, reasons in found.left_out.items()]
        parts += ["## INVALID runs, of which nothing is said", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def _row(group: GroupDiagnosis) -> list[str]:
    times = [milliseconds(group.parts_ms.get(name)) for name in _PARTS]
    good = NOTHING if group.good_share is None else f"{group.good_share:.0%}"
    sure = f" ({group.findings[0].certainty.name.lower()})" if group.findings else ""
    return [group.load, group.mix, group.arm, str(len(group.runs)), good, *times, f"{group.answer}{sure}"]


def _group(group: GroupDiagnosis) -> list[str]:
    head = f"## {group.arm} at {group.load}, {group.mix}"
    said = [head, *(_finding(number, each) for number, each in enumerate(group.findings, start=1))]
    if not group.findings:
        said.append(f"{group.answer[0].upper()}{group.answer[1:]} (runs {', '.join(group.runs)}).{_yet(group)}")
    if group.not_judged:
        said.append(_lines("Not judged:", group.not_judged))
    return said


def _yet(group: GroupDiagnosis) -> str:
    if group.good_share is None or group.good_share >= GOOD_ENOUGH:
        return ""
    return (
        f" Yet only {group.good_share:.0%} of a class were within their limits: the load itself, a limit that is "
        "tighter than a prompt of its own takes, or what is not judged."
    )


def _finding(number: int, found: Finding) -> str:
    advice = ADVICE[found.constraint]
    lines = [each.says for each in found.evidence]
    lines += [f"against it: {each.says}" for each in found.against]
    lines += [f"missing: {each}" for each in found.missing]
    lines += [
        f"runs: {', '.join(found.runs)} ({len(found.runs)} of {found.judged} that could be judged)",
        f"would relieve it: {advice.relief}",
        f"try: {found.command}",
        f"would not help: {advice.no_help}",
    ]
    return _lines(f"### {number}. {advice.title}: {found.certainty.name.lower()}", lines)


def _lines(head: str, lines: Sequence[str]) -> str:
    return "\n\n".join([head, "\n".join(f"- {line}" for line in lines)])
