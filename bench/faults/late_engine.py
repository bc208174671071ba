"""The embedded engine of a drill whose engine comes late: `python -m bench.faults.late_engine OPS_URL FLAG…`.

Ready to serve but for its port, it waits until the gateway at OPS_URL was offered a request, and is `gateway emulate`
from then on: how long its start takes on a busy machine counts for nothing. Ends where that gateway does.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence

from prometheus_client.parser import text_string_to_metric_families

from bench.direct import direct
from bench.simulation.emulator import command

OFFERED = "gateway_offered_total"
_POLL_S = 0.05


def sums(ops_url: str) -> Mapping[str, float]:
    """A gateway's metrics, each over all its labels. Raises OSError where nothing answers."""
    with direct.open(f"{ops_url}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def wait_for_the_first_request(ops_url: str) -> None:
    while not sums(ops_url).get(OFFERED):
        time.sleep(_POLL_S)


def main(argv: Sequence[str]) -> int:
    ops_url, *flags = argv
    wait_for_the_first_request(ops_url)
    return command.main(flags)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
