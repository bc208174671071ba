"""Which objectives count as met, missed, or undecided."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.core.plan import Slo
from gateway.core.types import LengthClass, Outcome
from gateway.observe.exchange import Exchange
from gateway.observe.objectives import judged
from gateway.testing.builders import a_class, a_plan, an_assignment

ALL = Slo(ttft_ms=500, stall_ms=1000, e2e_ms=20_000)


def ended(outcome, *, ended_at=5.0, first_token_at=None, stall_s=None, stream=True, slo=ALL):
    plan = a_plan(replace(a_class(), slo=dict.fromkeys(LengthClass, slo)))
    assignment = an_assignment(plan, stream=stream)
    return Exchange(
        "r",
        "/v1/completions",
        0.0,
        assignment=assignment,
        outcome=outcome,
        ended_at=ended_at,
        first_token_at=first_token_at,
        longest_stall_s=stall_s,
    )


@pytest.mark.parametrize(
    ("exchange", "verdicts"),
    [
        (ended(Outcome.COMPLETED, first_token_at=0.5, stall_s=1.0), {"ttft": True, "stall": True, "e2e": True}),
        (ended(Outcome.COMPLETED, first_token_at=0.6, stall_s=1.1), {"ttft": False, "stall": False, "e2e": True}),
        (ended(Outcome.COMPLETED, first_token_at=0.1, ended_at=21), {"ttft": True, "stall": True, "e2e": False}),
        (ended(Outcome.COMPLETED, first_token_at=0.1, slo=Slo()), {}),
        (ended(Outcome.COMPLETED, stream=False, first_token_at=4.0), {"e2e": True}),
        (ended(Outcome.COMPLETED), {}),
        (ended(Outcome.EXPIRED), {"ttft": False, "stall": False, "e2e": False}),
        (ended(Outcome.REFUSED, stream=False), {"e2e": False}),
        (ended(Outcome.ENGINE_ERROR, first_token_at=0.1), {"ttft": False, "stall": False, "e2e": False}),
        (ended(Outcome.CLIENT_GONE, ended_at=0.4), {}),
        (ended(Outcome.CLIENT_GONE, ended_at=0.6), {"ttft": False}),
        (ended(Outcome.CLIENT_GONE, first_token_at=0.4), {"ttft": True}),
        (
            ended(Outcome.CLIENT_GONE, first_token_at=0.4, stall_s=2.0, ended_at=30),
            {"ttft": True, "stall": False, "e2e": False},
        ),
        (Exchange("r", "/v1/completions", 0.0, outcome=Outcome.REFUSED, ended_at=1.0), {}),
    ],
)
def test_what_is_decided_at_the_end_is_counted_and_nothing_else(exchange, verdicts):
    assert {objective.value: met for objective, met in judged(exchange)} == verdicts
