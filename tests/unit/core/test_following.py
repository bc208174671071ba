"""An admission that sends nothing predicts by the step times that another one learns."""

from __future__ import annotations

from gateway.core.admission import Admission
from gateway.core.steptime import PrefillSample
from gateway.core.types import Outcome
from gateway.testing.builders import a_plan, an_assignment, an_engine

NOW = 1_000.0


def test_who_follows_predicts_by_what_the_other_learned_and_learns_nothing():
    plan = a_plan()
    one, other = (Admission(plan, [an_engine(name) for name in names]) for names in ("ab", "bc"))
    other.fleet.follow(one.fleet)
    before = one.step_models()["b"]
    samples = [PrefillSample(tokens, 1, 3.0) for tokens in (100, 300, 600)]
    other.calibrated("b", samples)
    for turn in range(10):
        ticket, _ = other.offer(an_assignment(plan), NOW + 10 * turn)
        other.first_token(ticket, NOW + 10 * turn + 5)
        other.finish(ticket, Outcome.COMPLETED, NOW + 10 * turn + 6)
    assert other.step_models()["b"] == before
    one.calibrated("b", samples)
    assert one.step_models()["b"] != before
    assert other.step_models()["b"] == one.step_models()["b"]
