"""What happened in the last minutes: the same as the counters say, cut by time, and no more than a bounded past."""

from __future__ import annotations

import json
import tracemalloc
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.types import Outcome, Reason
from gateway.observe.exchange import Labels
from gateway.observe.history import BUCKET_S, BUCKETS, History

START = 1_764_500_000.0
LINES = [Labels("interactive", "short", "chat"), Labels("batch", "long", "chat")]


class Watched:
    """A history under a clock that a test moves."""

    def __init__(self):
        self.now = START
        self.history = History(lambda: self.now)

    def told(self, since=0.0):
        writing = self.history.written(since)
        while True:  # it only lets a loop go on now and then
            try:
                writing.send(None)
            except StopIteration as done:
                return json.loads(done.value)

    def values(self, kind, since=0.0):
        return {tuple(each.values())[:-1]: dict(each["values"]) for each in self.told(since)[kind]}


HAPPENINGS = st.one_of(
    st.tuples(st.just("pass"), st.sampled_from([0.4, 4.6, 5.0, 61.0, 450.0, 1200.0])),
    st.tuples(st.sampled_from(["interactive", "batch", "none"]), st.sampled_from([*Outcome, *Reason])),
    st.tuples(st.sampled_from(LINES), st.integers(1, 50_000).map(lambda hundredths: hundredths / 100)),
)


@settings(deadline=None, max_examples=40)
@given(st.lists(HAPPENINGS, max_size=60), st.integers(0, BUCKETS + 2))
def test_every_bucket_holds_what_happened_in_it_and_what_is_older_is_gone(happenings, buckets_back):
    watched, seen = Watched(), {"outcomes": Counter(), "refusals": Counter(), "oldest_age_s": Counter()}
    for who, what in happenings:
        at = BUCKET_S * int(watched.now // BUCKET_S)
        if who == "pass":
            watched.now += what
        elif isinstance(what, Outcome):
            watched.history.ended(who, what)
            seen["outcomes"][who, what.value, at] += 1
        elif isinstance(what, Reason):
            watched.history.refused(who, what)
            seen["refusals"][who, what.value, at] += 1
        else:
            watched.history.waited(who, what)
            seen["oldest_age_s"][*who, at] = max(what, seen["oldest_age_s"][*who, at])
    last = BUCKET_S * int(watched.now // BUCKET_S)
    since = last - BUCKET_S * buckets_back
    first = max(since, last - BUCKET_S * (BUCKETS - 1))
    for kind, happened in seen.items():
        shown = {
            (*key, at): value for key, values in watched.values(kind, since).items() for at, value in values.items()
        }
        assert shown == {key: pytest.approx(value, abs=0.006) for key, value in happened.items() if key[-1] >= first}


def test_a_place_that_comes_round_again_holds_nothing_of_its_last_time():
    watched = Watched()
    for _ in range(2):
        watched.history.ended("batch", Outcome.COMPLETED)
        watched.history.waited(LINES[1], 3.0)
        watched.now += BUCKET_S * BUCKETS
        watched.history.ended("batch", Outcome.COMPLETED)
        watched.history.waited(LINES[1], 2.0)
    at = BUCKET_S * int(watched.now // BUCKET_S)
    assert watched.values("outcomes")["batch", "completed"] == {at: 1}
    assert watched.values("oldest_age_s")[LINES[1]] == {at: 2.0}


def test_a_ring_is_of_one_size_however_much_happens_and_there_are_no_more_than_labels():
    watched = Watched()
    watched.history.ended("class-0", Outcome.COMPLETED)
    tracemalloc.start()
    for _ in range(2 * BUCKETS):
        watched.now += BUCKET_S
        for _ in range(3):
            watched.history.ended("class-0", Outcome.COMPLETED)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 1_000
    tracemalloc.start()
    for number in range(50):
        for what in Outcome:
            watched.history.ended(f"class-{number}", what)
        for what in Reason:
            watched.history.refused(f"class-{number}", what)
        for length in ("short", "long"):
            watched.history.waited(Labels(f"class-{number}", length, "chat"), 1.0)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert watched.history.rings == 50 * (len(Outcome) + len(Reason) + 2)
    assert size < 6_000_000


def test_what_has_been_silent_for_as_long_as_anything_is_kept_is_let_go():
    watched = Watched()
    watched.history.ended("gone", Outcome.COMPLETED)
    watched.now += BUCKET_S * (BUCKETS - 1)
    watched.history.forget()
    assert ("gone", "completed") in watched.values("outcomes")
    watched.now += BUCKET_S
    watched.history.ended("here", Outcome.COMPLETED)
    watched.history.forget()
    assert watched.history.rings == 1


def test_what_waits_on_is_looked_at_just_before_a_bucket_ends():
    watched = Watched()
    for passed_s, look_at_s in ((0.0, 4.9), (2.5, 4.9), (4.8, 4.9), (4.95, 9.9)):
        watched.now = START + passed_s
        assert passed_s + watched.history.next_look_in_s() == pytest.approx(look_at_s, abs=1e-6)
