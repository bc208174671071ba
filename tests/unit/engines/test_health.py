"""When an engine is taken out of service, and what brings it back."""

from __future__ import annotations

from gateway.engines.health import SILENT_MAX, Health, State


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
