"""A whole report from what lies in a folder: validity, tables, pictures. As Markdown, and as one HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape

from bench.analysis.comparison import Load, LoadResult, compare
from bench.analysis.cost import cost
from bench.analysis.measurements import ALL
from bench.analysis.oracle import EngineSteps, OverOracle, over_oracle
from bench.analysis.paired import Difference, differences
from bench.analysis.scores import Scorecard
from bench.records.material import Material, ReportRun
from bench.records.request import Outcome
from bench.report import difference_table, engine_table, oracle_table, scorecard
from bench.report.comparison_table import describe
from bench.report.figures import Figures
from bench.report.page import blocks, document
from bench.tables import NOTHING, table

REASONS_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that was computed, once for both forms."""

    material: Material
    results: Sequence[LoadResult]
    differences: Sequence[Difference]
    card: Scorecard
    oracle: Sequence[tuple[Load, str, str, OverOracle]] = ()

    def markdown(self) -> str:
        parts = [f"# {self.material.title}", self._summary(), *self._verdicts(), self._tables()]
        return "\n\n".join(part for part in parts if part) + "\n"

    def html(self) -> str:
        invalid = " invalid" if self._invalid() or self._missing() else ""
        verdict = "\n".join(blocks(part) for part in self._verdicts())
        parts = [
            f"<h1>{escape(self.material.title)}</h1>",
            f'<div class="verdict{invalid}"><p><strong>{escape(self._summary())}</strong></p>{verdict}</div>',
            *Figures(self.material, self.results).sections(),
            "<h2>Tables</h2>",
            blocks(self._tables()),
        ]
        return document(f"{self.material.title}: bench report", "\n".join(parts))

    def _summary(self) -> str:
        runs, invalid, missing = len(self.material.runs), self._invalid(), self._missing()
        said = (
            f"{runs - invalid} of {runs} runs VALID" if invalid else f"All {runs} runs VALID" if runs > 1 else "VALID"
        )
        if runs == 1 and invalid:
            said = "INVALID"
        if missing:
            said += f"; {missing} of {self.material.planned} planned runs are missing"
        if self.material.repeated:
            said += f"; {self.material.repeated} INVALID runs were repeated"
        if self.material.knee_per_s is not None:
            said += f"; knee at {self.material.knee_per_s:g} requests/s"
        return said

    def _invalid(self) -> int:
        return sum(not run.stored.valid for run in self.material.runs)

    def _missing(self) -> int:
        return max(0, self.material.planned - len(self.material.runs))

    def _verdicts(self) -> list[str]:
        """Why what counts not, before any figure."""
        bad = [run for run in self.material.runs if not run.stored.valid]
        lines = [f"- {run.stored.run['cell_id']}: {'; '.join(run.stored.verdict['reasons'])}" for run in bad]
        if len(lines) > REASONS_SHOWN:
            lines = [*lines[:REASONS_SHOWN], f"- and {len(lines) - REASONS_SHOWN} more"]
        lines += [f"- {arm}: {said}" for arm, said in self.material.about.items()]
        notes = sorted({note for run in self.material.runs for note in run.stored.verdict["notes"]})
        lines += [f"- note: {note}" for note in notes[:REASONS_SHOWN]]
        return ["\n".join(lines)] if lines else []

    def _tables(self) -> str:
        first = self.material.arms[0]
        parts = [
            scorecard.describe(self.card),
            describe(self.results),
            oracle_table.describe(self.oracle),
            self._engines(),
            difference_table.describe(self.differences, first),
            self._costs(),
        ]
        return "\n\n".join(part for part in parts if part)

    def _engines(self) -> str:
        found = [
            (
                result.load,
                arm,
                [run.stored.measurements["engine"] for run in runs if "engine" in run.stored.measurements],
            )
            for result in self.results
            for arm in self.material.arms
            if (runs := _counted(self.material, result, arm))
        ]
        return engine_table.describe(found)

    def _costs(self) -> str:
        rows = []
        for result in self.results:
            for arm in result.arms:
                per_hour = self.material.prices.get(arm.arm)
                if per_hour is None:
                    continue
                everything = arm.classes[ALL]
                found = cost(everything, per_hour)
                prices = (per_hour, found.per_accepted_response, found.per_response_in_time)
                answered = str(everything.outcomes[Outcome.COMPLETED])
                shown = (NOTHING if price is None else f"{price:.4g}" for price in prices)
                rows.append([result.load.label, result.load.mix, arm.arm, answered, *shown])
        if not rows:
            return ""
        head = ("load", "mix", "arm", "completed", "engines an hour", "cost of an accepted response", "of one in time")
        said = "All of the window is paid for, and the answers that ended in it alone divide it."
        return f"### Cost\n\n{said}\n\n{table(head, rows)}"


def report(material: Material, steps: EngineSteps | None = None) -> Report:
    """steps: of the engine, from its calibration; without them there is nothing about the step oracle."""
    runs = [run.as_arm_run() for run in material.runs]
    results = compare(runs, material.arms, material.limits)
    return Report(
        material,
        results,
        differences(runs, material.arms, material.limits, again=material.again),
        scorecard.of(material),
        [] if steps is None else _over_oracle(material, results, steps),
    )


def _over_oracle(
    material: Material, results: Sequence[LoadResult], steps: EngineSteps
) -> list[tuple[Load, str, str, OverOracle]]:
    found: list[tuple[Load, str, str, OverOracle]] = []
    for result in results:
        for name in material.class_names:
            for arm in material.arms:
                own = replace(steps, chunk_tokens=material.chunk_tokens.get(arm, steps.step_tokens))
                records = [run.stored.records for run in _counted(material, result, arm)]
                over = over_oracle(records, name, own)
                if over is not None:
                    found.append((result.load, name, arm, over))
    return found


def _counted(material: Material, result: LoadResult, arm: str) -> list[ReportRun]:
    """The arm's runs of the traces that count; none where it takes no part."""
    if arm in result.arms_left_out:
        return []
    return [run for run in material.runs if (run.load, run.arm) == (result.load, arm) and run.trace in result.traces]
