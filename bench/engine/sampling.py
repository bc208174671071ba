"""Reads the engines' /metrics and the GPU's memory and use again and again, in a process of its own.

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
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.children import child
from bench.direct import direct
from bench.engine import gpu
from bench.engine.gpu import Gpus, NoGpu
from bench.engine.hardware import is_this_machine
from bench.engine.metrics import NO_ENGINE_METRICS, Reading, Unreadable, as_one, parse, wanted

PERIOD_S = 1.0
READ_S_MAX = 5.0
BYTES_MAX = 16 * 1024 * 1024


@contextmanager
def sampled(metrics_urls: Mapping[str, str]) -> Iterator[Path | None]:
    """The file that lines are added to until the end of the context; None without an engine to read.

    metrics_urls: by engine.
    """
    if not metrics_urls:
        yield None
        return
    with TemporaryDirectory(prefix="gateway-bench-") as folder:
        path = Path(folder) / "engine.jsonl"
        words = [json.dumps(dict(metrics_urls)), str(path), str(os.getpid())]
        with child([sys.executable, "-m", "bench.engine.sampling", *words]):
            yield path


def read_lines(path: Path | None) -> list[dict[str, Any]]:
    """What was written so far; a last line that is only half there is left out."""
    if path is None or not path.is_file():
        return []
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def sample(metrics_urls: Mapping[str, str], gpus: Gpus | NoGpu) -> dict[str, Any]:
    """One line: when, and what the engines said as one and each; memory and use of the GPUs of this machine."""
    at_s = time.perf_counter()
    # All at once: one that is slow to answer makes the others' readings no older.
    with ThreadPoolExecutor(len(metrics_urls)) as pool:
        readings = dict(zip(metrics_urls, pool.map(read, metrics_urls.values()), strict=True))
    line: dict[str, Any] = {"at_s": at_s}
    if len(readings) == 1:
        line |= _said(next(iter(readings.values())))
    else:
        line |= {**_said(as_one(readings)), "engines": {name: _said(each) for name, each in readings.items()}}
    if isinstance(gpus, NoGpu):
        line["gpu_absent"] = gpus.reason
        return line
    said = {"gpu_memory_bytes": gpus.used_bytes(), "gpu_busy_share": gpus.busy_share()}
    return line | {name: value for name, value in said.items() if value is not None}


def read(metrics_url: str) -> Reading | Unreadable:
    """What one engine says now, or why it does not."""
    try:
        with direct.open(metrics_url, timeout=READ_S_MAX) as answer:
            body = answer.read(BYTES_MAX)
            if answer.length:  # what counters are in the rest would look as if they had vanished
                raise http.client.IncompleteRead(body)
        reading = parse(wanted(body.decode("utf-8", errors="replace")))
    except urllib.error.HTTPError as error:
        return Unreadable(f"http_{error.code}")
    except TimeoutError:
        return Unreadable("timeout")
    except (urllib.error.URLError, OSError):
        return Unreadable("no_connection")
    except http.client.HTTPException:  # cut in the middle, or no HTTP at all
        return Unreadable("no_answer")
    except ValueError:
        return Unreadable("not_prometheus_text")
    return reading if reading.gauges else NO_ENGINE_METRICS


def _said(reading: Reading | Unreadable) -> dict[str, Any]:
    if isinstance(reading, Unreadable):
        return {"unreadable": reading.reason}
    started = {} if reading.started_at is None else {"started_at": reading.started_at}
    return {**reading.to_json(), **started}


def gpus_behind(metrics_urls: Iterable[str]) -> Gpus | NoGpu:
    """NVML sees this machine alone."""
    return gpu.find() if is_this_machine(metrics_urls) else NoGpu("the engine is on another machine")


def main(metrics_urls: Mapping[str, str], path: Path, parent: int) -> None:
    """parent: the process that started this one, which may have ended before this is read."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    gpus = gpus_behind(metrics_urls.values())
    following_s = time.perf_counter()
    with path.open("a", encoding="utf-8") as file:
        while os.getppid() == parent:
            print(json.dumps(sample(metrics_urls, gpus)), file=file, flush=True)
            # From the plan, not from the last reading: a slow one shortens the pause after it.
            following_s = max(following_s + PERIOD_S, time.perf_counter())
            time.sleep(max(0.0, following_s - time.perf_counter()))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
