"""The scorecard says what requests.jsonl says, over VALID runs alone, and never makes a refusing server look good."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from comparison_kit import Facts, Planned, a_comparison, a_scenario, completed, prompt, refused

from bench.analysis.scores import COST_GAIN_MIN, Scorecard, worth_no_change
from bench.cli import main
from bench.decision.terms import Terms
from bench.records.material import read
from bench.records.request import Outcome, RequestRecord
from bench.report import scorecard

PER_HOUR = 3.6


def drawn(rng: random.Random) -> Callable[[Planned], RequestRecord]:
    """Some are slow, some refused, some left by their client, some unanswered at the end."""

    def answer(planned: Planned) -> RequestRecord:
        slowness = 1.0 if planned.cell.arm.name == "first" else 0.6
        ttft_ms = rng.lognormvariate(5.6, 0.4) * slowness * (12 if planned.class_name == "long" else 1)
        drawn = rng.random()
        if drawn < 0.03:
            return refused(planned)
        if drawn < 0.05:
            unanswered = {"ended_ms": None, "first_token_ms": None, "last_token_ms": None}
            return completed(planned, ttft_ms=ttft_ms, outcome=Outcome.UNFINISHED, **unanswered)
        end = Outcome.CANCELLED if drawn < 0.1 else Outcome.COMPLETED
        return completed(planned, ttft_ms=ttft_ms, outcome=end, gateway_queue_ms=round(ttft_ms / 3))

    return answer


def card_of(folder: Path) -> Scorecard:
    return scorecard.of(read(folder))


def rows_of(folder: Path, arm: str, class_name: str) -> list[list[dict[str, Any]]]:
    """The requests of each run of an arm, as they lie on disk, but for those that their client left."""
    order = json.loads((folder / "comparison.json").read_text())["order"]
    runs = []
    for cell in sorted(order, key=lambda each: each["run_id"]):
        if cell["arm"] == arm:
            lines = (folder / cell["run_id"] / "requests.jsonl").read_text().splitlines()
            rows = [json.loads(line) for line in lines]
            runs.append([row for row in rows if row["class"] == class_name and row["outcome"] != "cancelled"])
    return runs


def p95(values: list[float]) -> float:
    return sorted(values)[math.ceil(0.95 * len(values)) - 1]


@pytest.mark.parametrize("arm", ["first", "second"])
@pytest.mark.parametrize("class_name", ["short", "long"])
def test_every_figure_is_that_of_the_requests(tmp_path: Path, arm: str, class_name: str) -> None:
    scenario = a_scenario(engine_cost_per_hour=PER_HOUR)
    folder = a_comparison(tmp_path, scenario, drawn(random.Random(7)), facts=lambda _: Facts(preemptions=2.0))
    card = card_of(folder)
    (load,) = card.loads()
    score, runs = card.of(load, arm)[class_name], rows_of(folder, arm, class_name)
    every = [row for rows in runs for row in rows]
    limits = {"short": {"ttft_ms": 500, "e2e_ms": 4000}, "long": {"ttft_ms": 9000}}[class_name]
    good = lambda row: row["outcome"] == "completed" and all(row[name] <= most for name, most in limits.items())  # noqa: E731
    assert score.requests == len(every)
    assert score.runs == tuple(sorted(each["run_id"] for each in read_order(folder) if each["arm"] == arm))
    for metric, name in (("ttft_ms", "ttft_ms_p95"), ("e2e_ms", "e2e_ms_p95")):
        spread = getattr(score, name)
        assert spread.value == pytest.approx(p95([row.get(metric, math.inf) for row in every]))
        single = [p95([row.get(metric, math.inf) for row in rows]) for rows in runs]
        assert (spread.low, spread.high) == pytest.approx((min(single), max(single)))
    assert score.queue_ms_p95 is not None
    assert score.queue_ms_p95.value == p95([row["gateway_queue_ms"] for row in every if "gateway_queue_ms" in row])
    assert score.error_share == sum(row["outcome"] != "completed" for row in every) / len(every)
    assert score.refused_share == sum(row["outcome"] == "refused" for row in every) / len(every)
    assert score.in_time is not None and score.in_time.value == sum(map(good, every)) / len(every)
    assert score.in_time.low == min(sum(map(good, rows)) / len(rows) for rows in runs)
    everything = card.of(load, arm)["all"]
    assert everything.preemptions == 6.0 and score.preemptions is None
    assert everything.cost == pytest.approx(PER_HOUR / 3600 / everything.completed_per_s) and score.cost is None


def read_order(folder: Path) -> list[dict[str, Any]]:
    order: list[dict[str, Any]] = json.loads((folder / "comparison.json").read_text())["order"]
    return order


def test_who_refuses_what_would_be_late_is_not_fast(tmp_path: Path) -> None:
    answer = lambda each: refused(each) if each.number % 10 == 0 else prompt(each)  # noqa: E731
    card = card_of(a_comparison(tmp_path, a_scenario(), answer))
    score = card.of(card.loads()[0], "first")["short"]
    assert score.ttft_ms_p95 is not None and math.isinf(score.ttft_ms_p95.value)
    assert card.choice(card.loads()[0]) is None
    assert json.loads(json.dumps(card.to_json(), allow_nan=False))["rows"][0]["ttft_ms_p95"]["value"] == "inf"


def test_the_choice_is_the_cheapest_answer_of_those_that_meet_every_limit(tmp_path: Path) -> None:
    def answer(planned: Planned) -> RequestRecord:
        if planned.cell.arm.name == "fast-for-one" and planned.class_name == "long":
            return completed(planned, ttft_ms=9500.0)
        if planned.cell.arm.name == "slow" and planned.class_name == "long" and planned.number % 2:
            return completed(planned, ttft_ms=3000.0, decode_ms=300_000.0)
        return prompt(planned)

    arms = [{"name": name} for name in ("slow", "good", "fast-for-one", "slow-again")]
    arms[3]["again"] = True  # type: ignore[assignment]
    card = card_of(a_comparison(tmp_path, a_scenario(arms=arms), answer))
    (load,) = card.loads()
    assert card.meeting(load) == ["slow", "good"] and card.choice(load) == "good"


@pytest.mark.parametrize(
    ("prices", "choice", "by"),
    [
        ({"first": 4.0, "second": 8.0}, "first", "the lowest cost of an answer"),
        ({"*": 4.0, "second": 8.0}, "first", "the lowest cost of an answer"),
        (4.0, "second", "the lowest cost of an answer"),
        ({"second": 1.0}, "second", "the least engine time for an answer"),  # money beside engine seconds says nothing
        (None, "second", "the least engine time for an answer"),
    ],
)
def test_an_arm_with_more_engines_is_as_dear_as_they_are(tmp_path: Path, prices: Any, choice: str, by: str) -> None:
    """second ends more answers inside the window, on engines that may cost twice as much."""

    def answer(planned: Planned) -> RequestRecord:
        is_long_after = planned.cell.arm.name == "first" and planned.class_name == "long"
        return completed(planned, ttft_ms=3000.0, decode_ms=300_000.0) if is_long_after else prompt(planned)

    scenario = a_scenario(engine_cost_per_hour=prices, goodput=["short:ttft:500", "long:ttft:9000"])
    card = card_of(a_comparison(tmp_path, scenario, answer))
    (load,) = card.loads()
    assert card.meeting(load) == ["first", "second"] and card.choice(load) == choice
    assert f"{choice}: {by}" in scorecard.describe(card)


def test_a_price_of_an_arm_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match=r"engine_cost_per_hour names thrid, which is no arm: first, second"):
        a_scenario(engine_cost_per_hour={"*": 4.0, "thrid": 8.0})


def test_who_saves_too_little_is_not_worth_a_change() -> None:
    assert worth_no_change({"first": 1.0, "second": 0.951, "third": 1.1}) == ["first", "second"]
    assert worth_no_change({"first": 1.0, "second": 0.949}) == ["second"]
    assert worth_no_change({"first": math.inf, "second": math.inf}) == ["first", "second"]
    assert worth_no_change({}) == []
    assert Terms().cost_gain_min == COST_GAIN_MIN, "one figure for all"


def test_one_slow_repeat_is_enough_to_fail_where_it_can_show_it(tmp_path: Path) -> None:
    def answer(planned: Planned) -> RequestRecord:
        slow = planned.cell.block.seed == 2 and planned.class_name == "short" and planned.number % 16 == 0
        return completed(planned, ttft_ms=900.0) if slow else prompt(planned)

    card = card_of(a_comparison(tmp_path, a_scenario(), answer))
    score = card.of(card.loads()[0], "first")["short"]
    assert score.in_time is not None and score.in_time.low < 0.95 < score.in_time.value
    assert score.meets(0.95) is False


def test_a_run_that_is_invalid_takes_no_part_and_hides_no_other(tmp_path: Path) -> None:
    """Not even the runs of other arms on its trace."""

    def answer(planned: Planned) -> RequestRecord:
        if planned.cell.block.seed == 3 and planned.cell.arm.name == "second":
            return completed(planned, ttft_ms=12_000.0)
        return prompt(planned)

    late = lambda cell: Facts(late_ms=400.0 if (cell.block.seed, cell.arm.name) == (3, "first") else 0.0)  # noqa: E731
    card = card_of(a_comparison(tmp_path, a_scenario(), answer, facts=late))
    (load,) = card.loads()
    assert {arm: len(card.of(load, arm)["all"].runs) for arm in ("first", "second")} == {"first": 2, "second": 3}
    assert {arm: card.of(load, arm)["long"].meets(0.95) for arm in ("first", "second")} == {
        "first": True,
        "second": False,
    }


@pytest.mark.parametrize("lacks", [1, 2])
def test_an_arm_of_which_a_planned_run_is_not_valid_is_no_choice_and_it_is_said(tmp_path: Path, lacks: int) -> None:
    """However good the others are: what the INVALID one would have shown is not known."""
    late = lambda cell: Facts(late_ms=400.0 if cell.arm.name == "first" and cell.block.seed <= lacks else 0.0)  # noqa: E731
    card = card_of(a_comparison(tmp_path, a_scenario(), prompt, facts=late))
    (load,) = card.loads()
    assert card.meeting(load) == ["second"] and card.choice(load) == "second"
    assert f"fewer VALID runs than the 3 planned: first {3 - lacks}\n" in scorecard.describe(card)
    assert card.to_json()["runs_planned_of_each"] == 3


def test_a_choice_over_one_run_of_each_says_that_it_shows_no_spread(tmp_path: Path) -> None:
    once, often = a_scenario(seeds=[1]), a_scenario(seeds=[1], repeats=2)
    said = [scorecard.describe(card_of(a_comparison(tmp_path, each, prompt))) for each in (once, often)]
    assert ["one run of each shows no spread" in each for each in said] == [True, False]


def test_an_arm_without_a_valid_run_is_named_and_no_choice(tmp_path: Path) -> None:
    late = lambda cell: Facts(late_ms=400.0 if cell.arm.name == "second" else 0.0)  # noqa: E731
    folder = a_comparison(tmp_path, a_scenario(), prompt, facts=late)
    card = card_of(folder)
    assert [arm for _, arm in card.unmeasured] == ["second"]
    assert "no VALID run: second" in scorecard.describe(card)


def test_a_class_without_limits_leaves_no_choice(tmp_path: Path) -> None:
    card = card_of(a_comparison(tmp_path, a_scenario(goodput=["short:ttft:500"]), prompt))
    assert card.choice(card.loads()[0]) is None
    assert "no choice: nothing limits long" in scorecard.describe(card)


def test_a_handful_of_requests_leaves_no_choice(tmp_path: Path) -> None:
    card = card_of(a_comparison(tmp_path, a_scenario(num_prompts=30), prompt))
    assert card.choice(card.loads()[0]) is None
    assert "no choice: fewer than 20 requests of long show no such share" in scorecard.describe(card)


def test_the_report_has_the_scorecard_as_table_page_and_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = a_comparison(tmp_path, a_scenario(), prompt)
    assert main(["report", str(folder)]) == 0
    assert "### Scorecard: 2 requests/s, 80/20" in capsys.readouterr().out
    assert "<h3>Scorecard: 2 requests/s, 80/20</h3>" in (folder / "report.html").read_text()
    kept = json.loads((folder / "scorecard.json").read_text())
    assert kept == card_of(folder).to_json() and len(kept["rows"]) == 6


def test_what_was_not_measured_is_absent(tmp_path: Path) -> None:
    folder = a_comparison(tmp_path, a_scenario(goodput=[]), prompt, facts=lambda _: Facts(preemptions=None))
    row = card_of(folder).to_json()["rows"][2]
    assert row["class"] == "all"
    assert not {"queue_ms_p95", "in_time", "preemptions", "cost_per_accepted_response"} & set(row)
    card = card_of(folder)
    assert replace(card, scores=()).to_json()["choices"] == [] and scorecard.describe(replace(card, scores=())) == ""
