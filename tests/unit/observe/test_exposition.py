"""What is written is what Prometheus reads."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics_families
from prometheus_client.parser import text_string_to_metric_families

from gateway.observe.exposition import Count, Distribution, Family, Scraped, page


def samples(*families):
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page(families).decode())
        for sample in family.samples
    }


def test_a_counter_is_written_under_its_whole_name_and_shown_from_its_first_use():
    family = Family(Count, "things_total", "Things.", ("kind",))
    assert samples(family) == {}
    family.at("a")
    family.at("b").inc(3)
    assert samples(family) == {("things_total", ("kind", "a")): 0, ("things_total", ("kind", "b")): 3}


@given(st.lists(st.sampled_from([-1.0, 0.0, 0.5, 1.0, 1.5, 2.0, 9.0])))
def test_a_bucket_counts_what_is_at_most_its_bound(values):
    family = Family(Distribution, "spent", "Seconds.", (), (0.5, 1, 2))
    for value in values:
        family.at().observe(value)
        assert samples(family)["spent_count",] > 0
    family.at()
    read = samples(family)
    for end, bound in {"0.5": 0.5, "1.0": 1, "2.0": 2, "+Inf": math.inf}.items():
        assert read["spent_bucket", ("le", end)] == sum(value <= bound for value in values)
    assert read["spent_sum",] == sum(values)
    assert read["spent_count",] == len(values)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\x85\u2028\u2029\x1c\x1d\x1e\x0b\x0c")))
def test_any_label_value_is_read_back_as_it_was(value):
    counter = Family(Count, "things_total", "Things.", ("kind",))
    counter.at(value).inc()
    spread = Family(Distribution, "spent", "Seconds.", ("kind",), (1,))
    spread.at(value).observe(0.5)
    gauge = Scraped("level", "Level.", ("kind",))
    gauge.add((value,), 2)
    read = samples(counter, spread, gauge)
    assert read["things_total", ("kind", value)] == read["spent_count", ("kind", value)] == 1
    assert read["level", ("kind", value)] == 2


def test_a_scraped_family_writes_whole_numbers_fractions_truths_and_infinity():
    gauge = Scraped("level", "Level.", ("of",))
    for number, value in enumerate((3, 0.25, True, math.inf)):
        gauge.add((str(number),), value)
    assert list(samples(gauge).values()) == [3, 0.25, 1, math.inf]


def open_metrics(*families):
    """Return what the strict reader of OpenMetrics finds: value and exemplar by sample."""
    text = page(families, open_metrics=True).decode() + "# EOF\n"
    read = list(open_metrics_families(text))
    assert [family.type for family in read if family.type == "unknown"] == []
    return {
        (sample.name, *sorted(sample.labels.items())): (sample.value, sample.exemplar)
        for family in read
        for sample in family.samples
    }


def families_of_every_kind():
    counter, spread = Family(Count, "things_total", "Things.", ("kind",)), Family(Distribution, "spent", "S.", (), (1,))
    counter.at('a\\b"c\nd').inc(3)
    for value in (0.5, 1.0, 7.25):
        spread.at().observe(value)
    level = Scraped("level", "Level.", ("of",))
    level.add(("x",), math.inf)
    restarts = Scraped("restarts_total", "Restarts.", (), kind="counter")
    restarts.add((), 2)
    return counter, spread, level, restarts


def test_openmetrics_has_the_same_samples_under_the_same_names():
    families = families_of_every_kind()
    assert {name: value for name, (value, _) in open_metrics(*families).items()} == samples(*families)


def test_an_exemplar_is_its_buckets_last_and_the_plain_text_has_none():
    spread = Family(Distribution, "spent", "Seconds.", ("kind",), (1, 2))
    spread.at("a").observe(0.5, "0a", 1_000.25)
    spread.at("a").observe(0.75, "0b", 1_001.5)
    spread.at("a").observe(9.0, "0c", 1_002.0)
    spread.at("a").observe(0.25)
    untraced = Family(Distribution, "spent", "Seconds.", ("kind",), (1, 2))
    for value in (0.5, 0.75, 9.0, 0.25):
        untraced.at("a").observe(value)
    assert page([spread]) == page([untraced])
    named = {
        dict(labels)["le"]: (exemplar.labels["trace_id"], exemplar.value, float(exemplar.timestamp))
        for (_, *labels), (_, exemplar) in open_metrics(spread).items()
        if exemplar is not None
    }
    assert named == {"1.0": ("0b", 0.75, 1_001.5), "+Inf": ("0c", 9.0, 1_002.0)}


def test_kind_and_help_are_said():
    lines = page([Scraped("level", "How high.", (), kind="gauge")]).decode().splitlines()
    assert lines == ["# HELP level How high.", "# TYPE level gauge"]
