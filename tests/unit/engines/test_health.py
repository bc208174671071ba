"""When an engine is taken out of service, and what brings it back."""

from __future__ import annotations

from gateway.engines.health import FAILED_MAX, SILENT_MAX, Health, State


def up():
    health = Health()
    health.recovered()
    return health


def test_an_engine_gets_nothing_before_it_has_answered():
    assert not Health().is_up
    assert up().is_up


def test_one_refused_connection_is_enough():
    health = up()
    health.refused()
    assert health.state is State.REFUSING


def test_an_engine_that_never_answered_stays_new_when_it_refuses():
    health = Health()
    health.refused()
    assert health.state is State.NEW


def test_silence_counts_only_in_a_row():
    health = up()
    for _ in range(SILENT_MAX - 1):
        health.silent()
    health.answered()
    for _ in range(SILENT_MAX - 1):
        health.silent()
    assert health.is_up
    health.silent()
    assert health.state is State.SILENT


def test_what_recovered_starts_to_count_anew():
    health = up()
    for _ in range(SILENT_MAX):
        health.silent()
    health.recovered()
    health.silent()
    assert health.is_up


def test_errors_in_place_of_a_token_raise_a_suspicion_in_a_row_whatever_else_is_answered():
    health = up()
    for _ in range(FAILED_MAX - 1):
        health.failed()
    health.generated()
    for _ in range(FAILED_MAX - 1):
        health.failed()
        health.answered()
    assert not health.is_suspected
    health.failed()
    assert health.is_suspected
    assert health.is_up, "a caller may be the cause"


def test_a_suspected_engine_that_does_not_generate_either_is_out_of_service_until_it_does():
    health = up()
    for _ in range(FAILED_MAX):
        health.failed()
    health.convicted()
    assert health.state is State.FAILING
    assert health.must_generate


def test_an_engine_that_recovered_from_errors_starts_to_count_anew():
    health = up()
    for _ in range(FAILED_MAX):
        health.failed()
    health.convicted()
    health.recovered()
    health.failed()
    assert not health.is_suspected


def test_a_leaving_engine_is_out_of_service_until_it_generates():
    health = up()
    health.leaving()
    assert (health.state, health.is_up, health.must_generate) == (State.LEAVING, False, True)
    health.recovered()
    assert health.is_up


def test_an_engine_that_is_out_of_service_already_does_not_leave():
    health = up()
    health.refused()
    health.leaving()
    assert health.state is State.REFUSING
