"""The report says what requests.jsonl says: every figure is computed here once more, in another way, from the rows."""

from __future__ import annotations

import json
import math
import random
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import bench_kit
import pytest

from bench.analysis.ages import oldest_ages_s
from bench.analysis.paired import interval, student
from bench.cli import main
from bench.records.material import read
from bench.records.request import Outcome, Phase, RequestRecord, from_row
from bench.report.whole_report import report

ARMS = ("first", "second", "first-again")
GOODPUT = ("short:ttft:500", "short:e2e:4000", "long:ttft:9000")
LIMITS = {"short": {"ttft_ms": 500, "e2e_ms": 4000}, "long": {"ttft_ms": 9000}}
RATES = (2.0, 4.0)
TRACES = ("seed 1", "seed 2", "seed 3")
WINDOW_S = 50.0
PER_HOUR = 3.6


def some_records(rng: random.Random, slowness: float) -> list[RequestRecord]:
    records = []
    for index in range(120):
        name = "long" if index % 5 == 0 else "short"
        planned = round(index * 400.0, 3)
        ttft = round(rng.lognormvariate(5.5, 0.8) * slowness * (10 if name == "long" else 1), 3)
        values: dict[str, Any] = {
            "index": index,
            "request_id": f"r-{index}",
            "class_name": name,
            "phase": Phase.WARMUP if index < 8 else Phase.WINDOW,
            "planned_ms": planned,
            "dispatched_ms": planned + 0.5,
            "first_token_ms": round(planned + ttft, 3),
            "last_token_ms": round(planned + ttft + 900, 3),
            "ended_ms": round(planned + ttft + 1000 + rng.random() * 900, 3),
            "longest_stall_ms": round(rng.random() * 300, 3),
        }
        drawn = rng.random()
        if drawn < 0.12:
            values |= {"outcome": Outcome.REFUSED, "reason": "queue_full", "status": 429, "chunk_gaps_ms": ()}
            values |= dict.fromkeys(("first_token_ms", "last_token_ms", "longest_stall_ms", "output_tokens"))
        elif drawn < 0.16:
            values |= {"outcome": Outcome.UNFINISHED, "ended_ms": None}
        records.append(bench_kit.a_record(**values))
    return records


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("comparison")
    rng = random.Random("a comparison")
    order = []
    for rate in RATES:
        for trace in TRACES:
            for arm in ARMS:
                cell_id = f"{rate:g} requests/s, 80/20, {trace}, {arm}"
                records = some_records(rng, rate / 2 * (0.7 if arm == "second" else 1.0))
                run = bench_kit.a_stored_run(folder, cell_id, records, window_s=WINDOW_S, goodput=GOODPUT)
                order.append(
                    {"cell_id": cell_id, "run_id": run.name, "arm": arm, "load": f"{rate:g} requests/s",
                     "rate_per_s": rate, "mix": "80/20", "trace": trace, "verdict": "VALID"}
                )  # fmt: skip
    scenario = {
        "name": "made-up",
        "arms": [{"name": arm, "again": arm.endswith("again")} for arm in ARMS],
        "mixes": ["80/20"],
        "rates_per_s": list(RATES),
        "seeds": [1, 2, 3],
        "repeats": 1,
        "goodput": list(GOODPUT),
        "engine_cost_per_hour": PER_HOUR,
    }
    rng.shuffle(order)
    (folder / "comparison.json").write_text(json.dumps({"scenario": scenario, "order": order, "loads": []}))
    return folder


class Rows:
    """requests.jsonl of one arm under one rate, read as a stranger would: JSON lines, nothing of the bench."""

    def __init__(self, folder: Path, rate: float, arm: str, *traces: str) -> None:
        order = json.loads((folder / "comparison.json").read_text())["order"]
        names = [
            cell["run_id"]
            for cell in order
            if (cell["rate_per_s"], cell["arm"]) == (rate, arm) and cell["trace"] in (traces or TRACES)
        ]
        lines = [line for name in names for line in (folder / name / "requests.jsonl").read_text().splitlines()]
        rows = [json.loads(line) for line in lines]
        self.rows = [row for row in rows if row["phase"] == "window"]
        self.answers = [row for row in rows if row["outcome"] == "completed" and row["ended_ms"] < WINDOW_S * 1000]
        self.seconds = WINDOW_S * len(names)

    def of(self, name: str) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["class"] == name]

    def quantile(self, name: str, metric: str, q: float) -> float:
        values = sorted(row[metric] for row in self.of(name) if metric in row)
        smallest = next(value for value in values if sum(other <= value for other in values) >= q * len(values))
        return float(smallest)

    def in_time(self) -> int:
        """Of the answers."""
        return sum(
            all(metric in row and row[metric] <= most for metric, most in LIMITS[row["class"]].items())
            for row in self.answers
        )

    def good(self, name: str) -> int:
        return sum(
            row["outcome"] == "completed"
            and all(metric in row and row[metric] <= most for metric, most in LIMITS[name].items())
            for row in self.of(name)
        )


def tables(markdown: str, heading: str) -> list[dict[str, str]]:
    """The rows of the first table under a heading."""
    part = markdown.split(f"### {heading}", 1)[1]
    lines = [line for line in part.split("\n\n")[2].splitlines() if line.startswith("|")]
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    names = [f"{head[i - 1]} {name}" if name in head[:i] else name for i, name in enumerate(head)]
    return [dict(zip(names, row, strict=True)) for row in rows]


def shown_ms(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def test_every_figure_of_a_class_is_the_one_that_the_rows_give(compared: Path) -> None:
    markdown = report(read(compared)).markdown()
    for rate in RATES:
        rows = tables(markdown, f"{rate:g} requests/s")
        assert [(row["arm"], row["class"]) for row in rows] == [(arm, n) for arm in ARMS for n in ("short", "long")]
        for row in rows:
            name, own = row["class"], Rows(compared, rate, row["arm"])
            ends = [each["outcome"] for each in own.of(name)]
            assert int(row["offered"]) == len(ends)
            assert int(row["completed"]) == ends.count("completed")
            assert f"{ends.count('refused')} refused" in row["other ends"]
            assert row["in time"] == f"{own.good(name)}/{len(ends)}"
            assert row["goodput/s"] == f"{own.good(name) / own.seconds:.3g}"
            assert row["TTFT p50 ms"] == shown_ms(own.quantile(name, "ttft_ms", 0.5))
            assert row["p95"] == shown_ms(own.quantile(name, "ttft_ms", 0.95))
            assert row["p99"] == shown_ms(own.quantile(name, "ttft_ms", 0.99))
            assert row["e2e p50 ms"] == shown_ms(own.quantile(name, "e2e_ms", 0.5))
            base = Rows(compared, rate, "first").quantile(name, "ttft_ms", 0.95)
            ratio = own.quantile(name, "ttft_ms", 0.95) / base
            assert row["p95 ÷ first"].split(" ")[0] == (f"{ratio:.3f}" if ratio < 1 else f"{ratio:.2f}")


def test_paired_differences_are_those_of_the_single_traces(compared: Path) -> None:
    rows = tables(report(read(compared)).markdown(), "Differences to first, trace by trace")
    picked = [row for row in rows if row["metric"] == "TTFT p95"]
    assert len(picked) == len(RATES) * 2 * 2
    for row in picked:
        rate, name = float(row["load"].split(" ")[0]), row["class"]

        def p95(arm: str, trace: str, rate: float = rate, name: str = name) -> float:
            return Rows(compared, rate, arm, trace).quantile(name, "ttft_ms", 0.95)

        each = [p95(row["arm"], trace) - p95("first", trace) for trace in TRACES]
        mean = sum(each) / 3
        half = 4.303 * math.sqrt(sum((value - mean) ** 2 for value in each) / 2) / math.sqrt(3)
        assert float(row["difference"].split(" ")[0]) == pytest.approx(mean, abs=0.51)
        low, high = (float(word) for word in row["95 % interval"].split(" to "))
        assert (low, high) == (pytest.approx(mean - half, abs=0.6), pytest.approx(mean + half, abs=0.6))
        noise = max(abs(p95("first-again", trace) - p95("first", trace)) for trace in TRACES)
        if row["arm"] == "second":
            assert float(row["noise"]) == pytest.approx(noise, abs=0.51)
            assert row["clear"] == ("yes" if (low > 0 or high < 0) and abs(mean) > noise else "no")
        else:
            assert row["noise"] == "–"


def test_an_answer_costs_the_whole_window_divided_by_the_answers_in_it(compared: Path) -> None:
    for row in tables(report(read(compared)).markdown(), "Cost"):
        own = Rows(compared, float(row["load"].split(" ")[0]), row["arm"])
        paid = PER_HOUR / 3600 * own.seconds
        assert float(row["cost of an accepted response"]) == pytest.approx(paid / len(own.answers), rel=1e-3)
        assert float(row["of one in time"]) == pytest.approx(paid / own.in_time(), rel=1e-3)


class Page(HTMLParser):
    """What stands in a page, and whether its tags are closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag not in {"meta", "img"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_the_page_is_one_file_that_loads_nothing_and_says_validity_first(compared: Path, tmp_path: Path) -> None:
    assert main(["report", str(compared), "--out", str(tmp_path)]) == 0
    text = (tmp_path / "report.html").read_text()
    page = Page(text)
    assert page.open == []
    assert not re.search(r"https?://|url\(|@import", text)
    assert not {"script", "link", "iframe"} & {tag for tag, _ in page.tags}
    words = "".join(page.words)
    assert words.index("All 18 runs VALID") < words.index("First token over offered rate") < words.index("Tables")
    charts = [attributes for tag, attributes in page.tags if tag == "svg" and attributes.get("class") == "chart"]
    assert len(charts) == 2 * 3 + 2 * 2 + 2 * 3 + 2 * 2
    assert all(attributes["role"] == "img" and attributes["aria-label"] for attributes in charts)
    assert "prefers-color-scheme: dark" in text
    assert "NaN" not in text and "inf" not in re.sub(r"<title>.*?</title>|inform", "", text)


def test_a_run_that_does_not_count_is_named_first_and_its_trace_left_out(tmp_path: Path) -> None:
    records = some_records(random.Random(1), 1.0)
    late = [bench_kit.a_record(index=0, planned_ms=1000.0, dispatched_ms=1900.0), *records[1:]]
    run = bench_kit.a_stored_run(tmp_path, "run", late, window_s=WINDOW_S, goodput=GOODPUT)
    assert main(["report", str(run)]) == 4
    text = (run / "report.html").read_text()
    assert text.index("INVALID") < text.index("client lag: a request was sent 900.0 ms late") < text.index("Tables")
    assert "Traces: none" in (run / "report.md").read_text()


def test_a_single_run_has_its_own_report(tmp_path: Path) -> None:
    run = bench_kit.a_stored_run(tmp_path, "run", some_records(random.Random(1), 1.0), goodput=GOODPUT)
    assert main(["report", str(run)]) == 0
    assert "What became of the offered requests" in (run / "report.html").read_text()


@pytest.mark.parametrize("made", [[], ["run.json"]])
def test_a_folder_that_is_no_run_is_refused(made: list[str], tmp_path: Path, capsys: Any) -> None:
    for name in made:
        (tmp_path / name).write_text("{}")
    assert main(["report", str(tmp_path)]) == 2
    assert "neither a run nor a comparison" in capsys.readouterr().err


def test_a_record_reads_back_as_it_was_written() -> None:
    for record in some_records(random.Random(3), 1.3):
        assert from_row(json.loads(json.dumps(record.to_row()))) == record


def test_the_oldest_age_is_that_of_the_longest_wait() -> None:
    rng = random.Random("ages")
    records = some_records(rng, 4.0)
    times = [number * 0.7 for number in range(80)]
    for at_s, age in zip(times, oldest_ages_s(records, times), strict=True):
        ends = [each.first_token_ms or each.ended_ms or math.inf for each in records]
        waits = [
            at_s - each.planned_ms / 1000
            for each, end in zip(records, ends, strict=True)
            if each.planned_ms <= at_s * 1000 < end
        ]
        assert age == pytest.approx(max(waits, default=0.0))


def test_an_interval_of_traces_covers_the_true_mean_as_often_as_it_says() -> None:
    rng = random.Random("student")
    covered = 0
    for _ in range(2000):
        found = interval([rng.gauss(5.0, 2.0) for _ in range(3)])
        covered += found.low is not None and found.high is not None and found.low <= 5.0 <= found.high
    assert 0.935 < covered / 2000 < 0.965
    assert interval([4.0]).low is None
    assert student(30) == 2.042
    assert student(200) == pytest.approx(1.972, abs=0.001)


def test_that_none_of_a_few_was_good_bounds_what_could_have_been(tmp_path: Path) -> None:
    refused = {"outcome": Outcome.REFUSED, "reason": "queue_full", "first_token_ms": None, "output_tokens": None}
    order = []
    for rate in RATES:
        cell = {"cell_id": f"{rate:g}", "arm": "first", "load": f"{rate:g} requests/s", "rate_per_s": rate}
        records = [bench_kit.a_record(index=index, **refused) for index in range(10)]
        run = bench_kit.a_stored_run(tmp_path, f"{rate:g}", records, goodput=GOODPUT)
        order.append({**cell, "run_id": run.name, "mix": "80/20", "trace": "seed 1", "verdict": "VALID"})
        (run / "verdict.json").write_text('{"verdict": "VALID", "reasons": [], "notes": []}')
    scenario = {"name": "none", "arms": [{"name": "first"}], "mixes": ["80/20"], "rates_per_s": list(RATES)}
    scenario |= {"seeds": [1], "repeats": 1, "goodput": list(GOODPUT)}
    (tmp_path / "comparison.json").write_text(json.dumps({"scenario": scenario, "order": order, "loads": []}))
    html = report(read(tmp_path)).html()
    found = re.search(r"first, 2/s: (\S+)/s \((\S+) to (\S+)\)", html)
    assert found is not None
    value, low, high = map(float, found.groups())
    # Wilson's bound of 0 of 10, of the one request offered each second.
    assert (value, low) == (0.0, 0.0) and high == pytest.approx(0.278, abs=0.01)
