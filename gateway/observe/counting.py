"""How each pool's prompts are counted, computed at the moment of a scrape.

Owns the families of the count's own room: what counts, how much of it is under way, whether it was given up for the
engine's. Labels come from the configuration and from the tokenizer's files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


@dataclass(frozen=True, slots=True)
class CountingReading:
    """One pool's counter. method: local, engine or estimate, now. library and sha256: of local files, else empty.

    jobs and job_bytes: under way or waiting for their turn. refused: for want of room or time.
    """

    method: str
    library: str = ""
    sha256: str = ""
    jobs: int = 0
    job_bytes: int = 0
    refused: int = 0
    has_drifted: bool = False


class CountingGauges:
    """A prometheus_client collector. readings: by pool; cheap and never waiting."""

    def __init__(self, readings: Callable[[], Mapping[str, CountingReading]]) -> None:
        self._readings = readings

    def describe(self) -> list[Metric]:
        """Say nothing of the names in advance: a collector that is asked would have to be scraped before it can."""
        return []

    def collect(self) -> Iterator[Metric]:
        labels = ("pool", "method", "library", "sha256")
        info = GaugeMetricFamily("gateway_tokenizer_info", "What counts a pool's prompts.", labels=labels)
        jobs = GaugeMetricFamily("gateway_counting_requests", "Being counted or waiting for it.", labels=("pool",))
        size = GaugeMetricFamily("gateway_counting_bytes", "Body bytes of these.", labels=("pool",))
        refused = CounterMetricFamily(
            "gateway_counting_refused", "Not counted for want of room or time.", labels=("pool",)
        )
        drifted = GaugeMetricFamily(
            "gateway_token_count_drifted", "1 where local files gave way to the engine's count.", labels=("pool",)
        )
        for pool, reading in self._readings().items():
            info.add_metric((pool, reading.method, reading.library, reading.sha256), 1)
            jobs.add_metric((pool,), reading.jobs)
            size.add_metric((pool,), reading.job_bytes)
            refused.add_metric((pool,), reading.refused)
            drifted.add_metric((pool,), reading.has_drifted)
        yield from (info, jobs, size, refused, drifted)
