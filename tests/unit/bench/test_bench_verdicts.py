"""Whether a run may be used: what voids it, what is only noted, and what a reader is told to do."""

import pytest
from bench_kit import a_record, ended, measured_of

from bench.analysis.validity import judge, warm_cache
from bench.records.request import Outcome, Phase


def verdict_of(records, *, interrupted: bool = False, **changes):
    return judge(measured_of(records, **changes), lag_tolerance_ms=50.0, interrupted=interrupted)


def test_a_clean_run_is_valid_also_with_refusals_and_unfinished_requests() -> None:
    assert verdict_of([a_record(), ended(Outcome.REFUSED), ended(Outcome.UNFINISHED)]).valid


@pytest.mark.parametrize(
    ("records", "changes", "said"),
    [
        ([a_record(dispatched_ms=1050.1)], {}, "sent 50.1 ms late"),
        ([a_record()], {"loop_lags_s": [0.0] * 500 + [0.06]}, "late by more than 50 ms for 1.2% of the time"),
        ([a_record()], {"interrupted": True}, "interrupted"),
        ([a_record(phase=Phase.WARMUP)], {}, "no request was planned inside"),
        ([a_record(prompt_tokens=511)], {}, "1 prompts did not have the asked length"),
        ([a_record(output_tokens=3)], {}, "1 outputs did not have the asked length"),
        ([ended(Outcome.UNSENT)], {}, "1 requests were never sent"),
    ],
)
def test_a_run_that_is_not_what_was_asked_for_is_invalid(records, changes: dict, said: str) -> None:
    verdict = verdict_of(records, **changes)
    assert not verdict.valid
    assert any(said in reason for reason in verdict.reasons)


@pytest.mark.parametrize(
    ("status", "fix"),
    [(400, "--long-tokens"), (401, "--credential ENV"), (403, "--credential ENV"), (404, "--model")],
)
@pytest.mark.parametrize("phase", list(Phase))
def test_a_run_with_requests_that_were_turned_away_is_invalid_and_says_how_to_mend_it(
    status: int, fix: str, phase: Phase
) -> None:
    (reason,) = verdict_of([a_record(), ended(Outcome.REFUSED, status=status, phase=phase)]).reasons
    assert reason.startswith(f"1 requests were answered {status}: ")
    assert fix in reason


@pytest.mark.parametrize("status", [429, 503, 504])
def test_a_run_in_which_nothing_completed_is_invalid(status: int) -> None:
    (reason,) = verdict_of([ended(Outcome.REFUSED, status=status)]).reasons
    assert reason.startswith("no request completed")


def test_lag_at_the_tolerance_is_allowed() -> None:
    assert verdict_of([a_record(dispatched_ms=1050.0)]).valid


def test_one_hiccup_in_a_long_run_is_noted_and_voids_nothing() -> None:
    verdict = verdict_of([a_record()], loop_lags_s=[0.001] * 10_000 + [0.5])
    assert verdict.valid
    assert "once 500 ms late" in verdict.notes[0]


def test_a_server_without_usage_is_noted_and_valid() -> None:
    verdict = verdict_of([a_record(prompt_tokens=None, output_tokens=None)])
    assert verdict.valid
    assert "unverified" in verdict.notes[0]


def test_the_unknown_lengths_of_answers_alone_are_noted_too() -> None:
    assert "1 completed requests came without usage" in verdict_of([a_record(output_tokens=None)]).notes[0]


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("connect_failed", "nobody listened at the target when 2 requests came"),
        ("client_out_of_sockets", "the client had no socket for 2 requests: raise `ulimit -n`"),
        ("engine_unreachable", "the engine could not be reached for 2 requests"),
        ("no_engine", "the gateway had no engine for 2 requests"),
    ],
)
def test_a_run_of_which_somebody_was_not_there_is_invalid_whatever_else_completed(reason: str, said: str) -> None:
    absent = [ended(Outcome.FAILED, reason=reason, phase=phase, status=None) for phase in Phase]
    (found,) = verdict_of([a_record() for _ in range(20)] + absent).reasons
    assert found.startswith(said)


@pytest.mark.parametrize("reason", ["connection_lost", "stream_cut", "engine_broken", "http_500", "finish_abort"])
def test_what_a_server_under_load_may_do_voids_nothing(reason: str) -> None:
    assert verdict_of([a_record(), ended(Outcome.FAILED, reason=reason)]).valid


def test_prompts_that_are_all_different_and_were_cached_are_noted() -> None:
    assert warm_cache(None, None) == warm_cache(0.02, None) == []
    assert warm_cache(None, 0.5)[0].startswith("50% of all prompt tokens were in the engine's prefix cache")
    assert measured_of([a_record(cached_tokens=128), a_record(cached_tokens=0)]).cached_share == 0.125
    assert measured_of([a_record(cached_tokens=128), a_record()]).cached_share is None
