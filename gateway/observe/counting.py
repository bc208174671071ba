"""How each pool's prompts are counted, computed at the moment of a scrape.

Owns the families of the count's own room: what counts, how much of it is under way, whether it was given up for the
engine's. Labels come from the configuration and from the tokenizer's files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gateway.observe.exposition import Scraped


@dataclass(frozen=True, slots=True)
class CountingReading:
    """One pool's counter. method: local, engine or estimate, now. encoder and sha256: of local files, else empty.

    jobs and job_bytes: under way or waiting for their turn. refused: for want of room or time.
    """

    method: str
    encoder: str = ""
    sha256: str = ""
    jobs: int = 0
    job_bytes: int = 0
    refused: int = 0
    has_drifted: bool = False


def counting_families(readings: Mapping[str, CountingReading]) -> Iterator[Scraped]:
    """Write what each pool's counter is and does. readings: by pool."""
    labels = ("pool", "method", "library", "sha256")
    info = Scraped("gateway_tokenizer_info", "What counts a pool's prompts.", labels)
    jobs = Scraped("gateway_counting_requests", "Being counted or waiting for it.", ("pool",))
    size = Scraped("gateway_counting_bytes", "Body bytes of these.", ("pool",))
    refused = Scraped(
        "gateway_counting_refused_total", "Not counted for want of room or time.", ("pool",), kind="counter"
    )
    drifted = Scraped("gateway_token_count_drifted", "1 where local files gave way to the engine's count.", ("pool",))
    for pool, reading in readings.items():
        info.add((pool, reading.method, reading.encoder, reading.sha256), 1)
        jobs.add((pool,), reading.jobs)
        size.add((pool,), reading.job_bytes)
        refused.add((pool,), reading.refused)
        drifted.add((pool,), reading.has_drifted)
    yield from (info, jobs, size, refused, drifted)
