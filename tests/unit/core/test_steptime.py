"""The step model and its fit."""

from __future__ import annotations

import random
from math import ceil

import pytest

from gateway.core.steptime import StepFit, StepModel

CPU = StepModel(base_s=0.003, per_token_s=1 / 27_800, per_token_context_s=54e-9)


def test_a_prefill_is_the_sum_of_its_steps():
    chunks = [640] * 12 + [512]
    starts = [sum(chunks[:at]) for at in range(len(chunks))]
    steps = sum(CPU.step_s(chunk, start) for chunk, start in zip(chunks, starts, strict=True))
    assert CPU.prefill_s(8192, 640) == pytest.approx(steps)


def fitted(noise, seed=1):
    draw = random.Random(seed)
    fit = StepFit()
    for _ in range(60):
        tokens, chunk = draw.choice([64, 200, 512, 2000, 5000, 8192]), draw.choice([640, 2048])
        seconds = CPU.prefill_s(tokens, chunk) * draw.uniform(1 - noise, 1 + noise)
        fit.observe(prompt_tokens=tokens, steps=ceil(tokens / chunk), seconds=seconds)
    return fit.model


@pytest.mark.parametrize(("noise", "tolerance"), [(0.0, 0.03), (0.1, 0.1)])
@pytest.mark.parametrize("tokens", [100, 512, 2000, 8192])
def test_the_fit_predicts_what_it_has_seen(noise, tolerance, tokens):
    assert fitted(noise).prefill_s(tokens, 640) == pytest.approx(CPU.prefill_s(tokens, 640), rel=tolerance)


def test_the_fit_follows_an_engine_that_gets_slower():
    fit = StepFit(CPU)
    for tokens in [512, 2048, 8192] * 80:
        fit.observe(prompt_tokens=tokens, steps=ceil(tokens / 640), seconds=2 * CPU.prefill_s(tokens, 640))
    assert fit.model.prefill_s(8192, 640) == pytest.approx(2 * CPU.prefill_s(8192, 640), rel=0.05)


def test_a_model_is_called_fitted_only_after_several_prefills():
    fit = StepFit()
    fit.observe(prompt_tokens=512, steps=1, seconds=0.03)
    assert not fit.model.fitted


def test_what_cannot_be_a_prefill_teaches_nothing():
    fit = StepFit()
    fit.observe(prompt_tokens=0, steps=0, seconds=1.0)
    fit.observe(prompt_tokens=10, steps=1, seconds=0.0)
    assert fit.model == StepModel()


def test_no_term_ever_turns_negative():
    fit = StepFit()
    for tokens, seconds in [(8192, 0.1), (512, 0.5), (64, 0.9)] * 10:
        fit.observe(prompt_tokens=tokens, steps=ceil(tokens / 640), seconds=seconds)
    model = fit.model
    assert model.base_s > 0 and model.per_token_s > 0 and model.per_token_context_s >= 0
