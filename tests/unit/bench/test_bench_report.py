"""Tables: Markdown that lines up, and a dash where nothing was measured."""

import math

import pytest
from bench_kit import a_record

from bench.analysis.classes import Window
from bench.analysis.comparison import ArmRun, Load, compare
from bench.analysis.limits import parse_limits
from bench.analysis.measurements import put_together
from bench.analysis.validity import Verdict
from bench.records.request import Outcome
from bench.report import comparison_table, run_table
from bench.tables import milliseconds, rate, ratio, share, table

LIMITS = parse_limits(["short:ttft:500"], "--goodput")
WINDOW = Window(0.0, 10.0)


def test_a_table_is_markdown_with_columns_of_one_width() -> None:
    assert table(("name", "n"), [("a", "1"), ("long name", "1000")]).splitlines() == [
        "| name      |    n |",
        "|-----------|-----:|",
        "| a         |    1 |",
        "| long name | 1000 |",
    ]


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (milliseconds(None), "–"),
        (milliseconds(math.inf), "inf"),
        (milliseconds(9.96), "10.0"),
        (milliseconds(1234.4), "1234"),
        (rate(None), "–"),
        (rate(0.1234), "0.123"),
        (rate(12345.6), "12346"),
        (ratio(0.0821), "0.082"),
        (ratio(1.3), "1.30"),
        (share(None, 5), "–"),
        (share(3, 5), "3/5"),
    ],
)
def test_figures_have_the_digits_that_mean_something(said: str, text: str) -> None:
    assert said == text


def test_a_run_says_what_was_refused_why_and_whether_it_counts() -> None:
    refused = a_record(outcome=Outcome.REFUSED, reason="queue_full", status=429, first_token_ms=None)
    measured = put_together(
        [a_record(), refused, a_record(outcome=Outcome.UNSENT, dispatched_ms=None)],
        window=WINDOW,
        limits=LIMITS,
        loop_lags_s=[0.001],
        loop_period_s=0.01,
        lag_tolerance_ms=50.0,
    )
    said = run_table.describe(measured, Verdict(("too late",), ("a note",)))
    assert "refused: queue_full: 1" in said
    assert "never sent: 1" in said
    assert "note: a note" in said
    assert said.endswith("INVALID: too late")


def runs(valid: bool) -> list[ArmRun]:
    load = Load("load 0.95", 2.1, "80/20")
    slow, fast = [a_record(first_token_ms=3000.0)], [a_record(first_token_ms=1500.0, outcome=Outcome.FAILED)]
    return [ArmRun(load, "seed 1", "fcfs", True, WINDOW, slow), ArmRun(load, "seed 1", "gateway", valid, WINDOW, fast)]


def test_a_comparison_shows_every_arm_with_its_ratio_and_its_losses() -> None:
    said = comparison_table.describe(compare(runs(valid=True), ["fcfs", "gateway"], LIMITS))
    assert "### load 0.95: 2.1 requests/s, 80/20 short/long by count" in said
    row = next(line for line in said.splitlines() if line.startswith("| gateway | short"))
    assert [cell.strip() for cell in row.split("|")][3:11] == [
        "1",
        "0",
        "1 failed",
        "0/1",
        "500",
        "500",
        "500",
        "0.250",
    ]


def test_a_comparison_without_a_usable_trace_shows_no_figure() -> None:
    said = comparison_table.describe(compare(runs(valid=False), ["fcfs", "gateway"], LIMITS))
    assert "Left out for all arms" in said
    assert "|" not in said
