"""Reads an engine's /metrics and the GPU's memory again and again, in a process of its own.

Owns its timer and the lines that it writes; times are of the monotonic clock, which all processes of a machine share.
It has nothing to do with the load: neither its reading nor its parsing holds up a request. Ends with its parent.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import sys
import time
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from bench.children import child
from bench.direct import direct
from bench.engine import gpu
from bench.engine.gpu import Gpus, NoGpu
from bench.engine.metrics import parse, wanted

PERIOD_S = 1.0
READ_S_MAX = 5.0
BYTES_MAX = 16 * 1024 * 1024


@contextmanager
def sampled(metrics_url: str | None) -> Iterator[Path | None]:
    """The file that lines are added to until the end of the context; None without an engine to read."""
    if metrics_url is None:
        yield None
        return
    with TemporaryDirectory(prefix="gateway-bench-") as folder:
        path = Path(folder) / "engine.jsonl"
        with child([sys.executable, "-m", "bench.engine.sampling", metrics_url, str(path), str(os.getpid())]):
            yield path


def read_lines(path: Path | None) -> list[dict[str, Any]]:
    """What was written so far; a last line that is only half there is left out."""
    if path is None or not path.is_file():
        return []
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def sample(metrics_url: str, gpus: Gpus | NoGpu) -> dict[str, Any]:
    """One line: when, and what the engine said or why it did not; the GPU's memory where it is this machine's."""
    at_s = time.perf_counter()
    line: dict[str, Any] = {"at_s": at_s}
    try:
        with direct.open(metrics_url, timeout=READ_S_MAX) as answer:
            body = answer.read(BYTES_MAX)
            if answer.length:  # what counters are in the rest would look as if they had vanished
                raise http.client.IncompleteRead(body)
        reading = parse(wanted(body.decode("utf-8", errors="replace")))
        line |= reading.to_json() if reading.gauges else {"unreadable": "no_engine_metrics"}
        if reading.started_at is not None:
            line["started_at"] = reading.started_at
    except urllib.error.HTTPError as error:
        line["unreadable"] = f"http_{error.code}"
    except TimeoutError:
        line["unreadable"] = "timeout"
    except (urllib.error.URLError, OSError):
        line["unreadable"] = "no_connection"
    except http.client.HTTPException:  # cut in the middle, or no HTTP at all
        line["unreadable"] = "no_answer"
    except ValueError:
        line["unreadable"] = "not_prometheus_text"
    if isinstance(gpus, NoGpu):
        line["gpu_absent"] = gpus.reason
    elif (used := gpus.used_bytes()) is not None:
        line["gpu_memory_bytes"] = used
    return line


def gpus_behind(metrics_url: str) -> Gpus | NoGpu:
    """NVML sees this machine alone."""
    host = urlsplit(metrics_url).hostname or ""
    if host == "localhost" or host.startswith("127.") or host == "::1":
        return gpu.find()
    return NoGpu("the engine is on another machine")


def main(metrics_url: str, path: Path, parent: int) -> None:
    """parent: the process that started this one, which may have ended before this is read."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    gpus = gpus_behind(metrics_url)
    following_s = time.perf_counter()
    with path.open("a", encoding="utf-8") as file:
        while os.getppid() == parent:
            print(json.dumps(sample(metrics_url, gpus)), file=file, flush=True)
            # From the plan, not from the last reading: a slow one shortens the pause after it.
            following_s = max(following_s + PERIOD_S, time.perf_counter())
            time.sleep(max(0.0, following_s - time.perf_counter()))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
