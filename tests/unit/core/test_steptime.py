"""The step model and its fit."""

from __future__ import annotations

import random
from math import ceil

import pytest

from gateway.core.admission import Admission
from gateway.core.steptime import PrefillSample, StepFit, StepModel
from gateway.testing.builders import a_plan, an_engine

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


PROBED = (256, 512, 1024, 2048, 4096, 8192)
STEP = 2048


def samples(model=CPU, lengths=PROBED):
    return [PrefillSample(tokens, ceil(tokens / STEP), model.prefill_s(tokens, STEP)) for tokens in lengths]


def probed(model=CPU, lengths=PROBED):
    fit = StepFit()
    fit.calibrate(samples(model, lengths))
    return fit


def pass_by(fit, lengths, count, *, model=CPU, slower=1.0, noise=0.05, seed=1):
    """Prefills of `lengths` that take `slower` times what the model says, `noise` more or less."""
    draw = random.Random(seed)
    for _ in range(count):
        tokens = draw.choice(lengths)
        seconds = model.prefill_s(tokens, STEP) * slower * draw.uniform(1 - noise, 1 + noise)
        fit.observe(prompt_tokens=tokens, steps=ceil(tokens / STEP), seconds=seconds)


def ratio(fit, tokens, slower=1.0):
    return fit.model.prefill_s(tokens, STEP) / (slower * CPU.prefill_s(tokens, STEP))


def test_a_few_probes_are_enough_for_every_length():
    fit = probed()
    assert fit.model.fitted
    for tokens in (64, 512, 3000, 12_000, 30_000):
        assert ratio(fit, tokens) == pytest.approx(1.0, abs=0.02)


def test_one_or_two_probes_move_the_model_and_do_not_make_it_fitted():
    fit = probed(lengths=(256, 512))
    assert not fit.model.fitted
    assert ratio(fit, 512) == pytest.approx(1.0, abs=0.02)


def test_no_probes_change_nothing():
    fit = StepFit(CPU)
    fit.calibrate([PrefillSample(0, 0, 1.0), PrefillSample(64, 1, 0.0)])
    assert fit.model.prefill_s(3000, STEP) == pytest.approx(CPU.prefill_s(3000, STEP))
    assert not fit.model.fitted


def test_probes_after_a_restart_count_and_what_passed_before_does_not():
    fit = probed()
    pass_by(fit, PROBED, 100)
    faster = StepModel(base_s=0.002, per_token_s=1 / 60_000, per_token_context_s=20e-9)
    fit.calibrate(samples(faster))
    for tokens in (512, 3000, 12_000):
        assert fit.model.prefill_s(tokens, STEP) == pytest.approx(faster.prefill_s(tokens, STEP), rel=0.03)


@pytest.mark.parametrize("model", [CPU, StepModel(base_s=0.008, per_token_s=1 / 120_000, per_token_context_s=2e-11)])
@pytest.mark.parametrize("seed", range(5))
def test_what_noisy_traffic_of_one_length_leaves_open_the_probes_decide(model, seed):
    fit = probed(model)
    pass_by(fit, (480, 500, 520, 540), 600, model=model, noise=0.2, seed=seed)
    for tokens in (512, 3000, 8192):
        assert fit.model.prefill_s(tokens, STEP) == pytest.approx(model.prefill_s(tokens, STEP), rel=0.3)


def test_a_slow_drift_is_followed():
    fit = probed()
    for step in range(300):
        pass_by(fit, (100, 512, 8192), 1, slower=1 + step / 300, seed=step)
    pass_by(fit, (100, 512, 8192), 100, slower=2)
    for tokens in (512, 8192):
        assert ratio(fit, tokens, slower=2) == pytest.approx(1.0, abs=0.15)


def test_an_engine_that_is_four_times_slower_at_once_is_followed_too():
    fit = probed()
    pass_by(fit, (100, 512, 8192), 400, slower=4)
    for tokens in (512, 8192):
        assert ratio(fit, tokens, slower=4) == pytest.approx(1.0, abs=0.2)


def test_a_burst_of_loaded_prefills_does_not_spoil_what_was_learned():
    fit = probed()
    pass_by(fit, (512, 8192), 30)
    pass_by(fit, (512,), 20, slower=2.5)
    assert ratio(fit, 512) < 1.3
    assert ratio(fit, 8192) == pytest.approx(1.0, abs=0.05)
    pass_by(fit, (512,), 40)
    assert ratio(fit, 512) == pytest.approx(1.0, abs=0.1)


def test_a_coefficient_that_the_probes_would_make_negative_leaves_the_fit_to_the_others():
    flat = [PrefillSample(tokens, ceil(tokens / STEP), 0.01 + tokens**0.9 / 30_000) for tokens in PROBED]
    fit = StepFit()
    fit.calibrate(flat)
    assert fit.model.per_token_context_s == 0.0
    for sample in flat:
        assert fit.model.prefill_s(sample.prompt_tokens, STEP) == pytest.approx(sample.seconds, rel=0.2)


def test_an_absurdly_fast_engine_keeps_every_term_at_its_floor_or_above():
    fit = StepFit()
    for _ in range(10):
        fit.observe(prompt_tokens=10_000, steps=5, seconds=1e-9)
    assert fit.model.base_s >= 1e-5 and fit.model.per_token_s >= 1e-8 and fit.model.per_token_context_s >= 0.0


def test_admission_starts_an_engines_model_from_probes_and_shows_all_models():
    admission = Admission(a_plan(), [an_engine("a"), an_engine("b")])
    admission.calibrated("a", samples())
    models = admission.step_models()
    assert models["a"].fitted and models["a"].prefill_s(3000, STEP) == pytest.approx(
        CPU.prefill_s(3000, STEP), rel=0.02
    )
    assert models["b"] == StepModel()


def noisy_probes(noise, count=40, seed=7):
    draw = random.Random(seed)
    return [
        PrefillSample(tokens, ceil(tokens / STEP), CPU.prefill_s(tokens, STEP) * (1 + draw.gauss(0, noise)))
        for tokens in PROBED * (count // len(PROBED))
    ]


@pytest.mark.parametrize("noise", [0.0, 0.03, 0.1])
def test_the_spread_is_the_noise_of_the_prefills_that_the_model_was_fitted_to(noise):
    fit = StepFit()
    fit.calibrate(noisy_probes(noise))
    assert fit.model.spread == pytest.approx(noise, rel=0.3, abs=0.005)


def test_at_worst_few_prefills_take_longer():
    fit = StepFit()
    fit.calibrate(noisy_probes(0.05))
    later = noisy_probes(0.05, count=600, seed=8)
    over = sum(each.seconds > fit.model.at_worst().prefill_s(each.prompt_tokens, STEP) for each in later)
    assert 0 < over < 0.08 * len(later)


def test_as_many_probes_as_the_model_has_terms_prove_no_spread():
    assert probed(lengths=PROBED[:3]).model.spread is None
    assert StepModel().at_worst() == StepModel()


def test_the_spread_follows_what_passes():
    fit = probed()
    before = fit.model.spread
    pass_by(fit, PROBED, 60, noise=0.2)
    assert before < 0.01
    assert fit.model.spread > 0.08
    pass_by(fit, PROBED, 300, noise=0.01)
    assert fit.model.spread < 0.03
