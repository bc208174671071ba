import re
from dataclasses import replace

from gateway.cli.guarantee_tables import notes, section
from gateway.core.guarantee import Guarantee, Wait, guarantee
from gateway.core.steptime import StepModel
from gateway.core.types import EngineLimits, LengthClass
from gateway.policy import source

LIMITS = EngineLimits(max_num_batched_tokens=2048, long_prefill_token_threshold=640, max_num_seqs=128)
PLAN = source.load("short-first")


def promised(model: StepModel) -> Guarantee:
    bounds = guarantee(PLAN, LIMITS, model, context_tokens=8192, tenants=dict.fromkeys(PLAN.classes, 1))
    assert bounds is not None
    return bounds


def test_the_spread_of_the_fit_is_said_and_what_follows_from_it() -> None:
    fitted = StepModel(fitted=True, spread=0.04)
    assert "prefills stray 4 % from it, and steps count as 8 % longer" in section("a", promised(fitted))
    assert "of a spread that is not known" in section("a", promised(replace(fitted, spread=None)))
    assert "default step model, not measured here" in section("a", promised(StepModel()))


def test_a_bound_above_the_tightest_objective_is_explained() -> None:
    on_a_cpu = StepModel(0.003, 1 / 27_800, 54e-9, fitted=True)
    (said,) = (note for note in notes(promised(on_a_cpu), PLAN) if "objective" in note)
    assert "objective of interactive (500 ms)" in said
    assert "no forecast" in said


def test_a_bound_within_the_objective_needs_no_word() -> None:
    assert not [note for note in notes(promised(StepModel()), PLAN) if "objective" in note]


def test_the_policys_own_words_on_safe_lines_are_the_printed_figures() -> None:
    said = re.search(r"interactive (\d+) requests, standard (\d+), batch (\d+)", source.text("short-first"))
    assert said is not None
    longs = [each.free for each in promised(StepModel()).flows if each.length_class is LengthClass.LONG]
    assert [str(wait.safe_requests) for wait in longs if isinstance(wait, Wait)] == list(said.groups())
