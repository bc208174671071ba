"""The comparison of docs/policies-compared.md: five policies on the real engine, two mixes, three loads, three repeats.

`nice -n -5 python -m tests.benchmark.policies_compared --out FOLDER` from the repository's root, on a machine that does
nothing else. Starts an engine for each set of flags, measures the capacity of each mix and the step times first, then
runs `gateway bench policies` and `gateway bench report`. Started again with the same FOLDER it goes on where it was
stopped, and repeats runs that were INVALID. `--emulated` rehearses it on the embedded engine.
"""

# ruff: noqa: T201 - a script that prints

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from bench.children import child
from bench.local_gateway import base_of_engine
from bench.own_processes import HOST, running
from bench.simulation.emulator.vocabulary import FOLDER as EMULATED_TOKENIZER
from deploy.engine import home
from deploy.engine.flags import EngineFlags

STEP_TOKENS, SEQUENCES = 2048, 128
MIXES, LOADS, REPEATS = ("80/20", "50/50"), (0.7, 0.95, 1.3), 3
LENGTHS = ("--short-tokens", "128", "--long-tokens", "3072", "--output-tokens", "16")
GOODPUT = ("short:ttft:500", "long:ttft:5000")
LAG_TOLERANCE_MS = 150


@dataclass(frozen=True, slots=True)
class EngineOf:
    """An engine and the policies that are measured on it."""

    name: str
    scheduling: str
    threshold: int
    policies: tuple[str, ...]

    def flags(self) -> list[str]:
        prefix_caching = ("--enable-prefix-caching", "--enable-prompt-tokens-details")
        words = EngineFlags(self.scheduling, self.threshold, STEP_TOKENS, SEQUENCES).argv()
        return [*(word for word in words if not word.endswith("prefix-caching")), *prefix_caching]


# As each policy's file asks for it; prefix caching is on for all, and cold: every run has a cache_salt of its own.
ENGINES = (
    EngineOf("stock", "fcfs", 0, ("passthrough", "sliced", "bounded-fifo")),
    EngineOf("priority", "priority", 0, ("engine-priority",)),
    EngineOf("threshold", "priority", 640, ("short-first",)),
)
POLICIES = ("passthrough", "engine-priority", "short-first", "sliced", "bounded-fifo")


@dataclass(frozen=True, slots=True)
class Served:
    model: str
    tokenizer: Path
    urls: Mapping[str, str]


def gateway(*words: str, out: Path | None = None) -> int:
    """`gateway WORDS…`; what it prints goes to `out` too where that is given. Returns its exit code."""
    print(f"\n$ gateway {' '.join(words)}", flush=True)
    piped = None if out is None else subprocess.PIPE
    with child([sys.executable, "-m", "gateway", *words], stdout=piped, text=True) as process:
        said, _ = process.communicate()
    if out is not None:
        print(said, flush=True)
        out.write_text(said, encoding="utf-8")
    return int(process.returncode)


@contextmanager
def real_engines(first_port: int) -> Iterator[Served]:
    def start(numbered: tuple[int, EngineOf]) -> str:
        number, engine = numbered
        words = ["start", "--name", f"bench-{engine.name}", "--port", str(first_port + number), *engine.flags()]
        subprocess.run([sys.executable, "-m", "deploy.engine", *words], check=True)
        return f"http://{HOST}:{first_port + number}"

    try:
        with ThreadPoolExecutor() as pool:
            urls = list(pool.map(start, enumerate(ENGINES)))
        yield Served("tiny", home.find().model, {each.name: url for each, url in zip(ENGINES, urls, strict=True)})
    finally:
        for engine in ENGINES:
            subprocess.run(
                [sys.executable, "-m", "deploy.engine", "stop", "--name", f"bench-{engine.name}"], check=True
            )


@contextmanager
def emulated_engines(folder: Path, first_port: int) -> Iterator[Served]:
    urls: dict[str, str] = {}
    with ExitStack() as stack:
        for number, engine in enumerate(ENGINES):
            urls[engine.name] = f"http://{HOST}:{first_port + number}"
            words = ["emulate", "--profile", "cpu", "--port", str(first_port + number), *engine.flags()]
            stack.enter_context(running(words, folder / f"{engine.name}.log", urls[engine.name] + "/health"))
        yield Served("emulated", EMULATED_TOKENIZER, urls)


def capacity_per_s(folder: Path, served: Served, mix: str, seconds: str) -> float:
    """Of the stock engine in a closed loop; measured once for each folder."""
    kept = folder / f"capacity-{mix.replace('/', '-')}.json"
    if not kept.is_file():
        words = ["--base-url", served.urls["stock"], "--model", served.model, "--tokenizer", str(served.tokenizer)]
        words += ["--mix", mix, *LENGTHS, "--warmup", "5", "--duration", seconds]
        with TemporaryDirectory() as scratch:
            if gateway("bench", "capacity", *words, "--result-dir", scratch) != 0:
                sys.exit("no capacity: see above")
            (found,) = Path(scratch).glob("*/capacity.json")
            kept.write_bytes(found.read_bytes())
    return float(json.loads(kept.read_text(encoding="utf-8"))["capacity"]["requests_per_s"])


def calibration(folder: Path, served: Served, seconds: str) -> Path:
    path = folder / "calibration.yaml"
    words = ["--engine-url", served.urls["stock"], "--max-num-batched-tokens", str(STEP_TOKENS)]
    if not path.is_file() and gateway("bench", "calibrate", *words, "--duration", seconds, "--out", str(path)) != 0:
        sys.exit("no calibration: see above")
    return path


def configurations(folder: Path, served: Served, fitted: Path) -> list[str]:
    """A gateway.yaml for each engine; returns POLICY=FILE words."""
    words: list[str] = []
    for engine in ENGINES:
        limits = {"max_num_batched_tokens": STEP_TOKENS, "max_num_seqs": SEQUENCES}
        options = {
            "scheduling": engine.scheduling,
            "calibration": str(fitted.absolute()),
            "limits": {**limits, "long_prefill_token_threshold": engine.threshold},
        }
        file = folder / f"{engine.name}.yaml"
        base = base_of_engine(served.urls[engine.name], served.model, served.tokenizer, options)
        file.write_text(yaml.safe_dump(base, sort_keys=False), encoding="utf-8")
        words += [f"{policy}={file}" for policy in engine.policies]
    return words


def compared(folder: Path, served: Served, args: argparse.Namespace) -> tuple[int, Path]:
    begun = sorted(folder.glob("policies-*/plan.json"))
    if begun:
        code = gateway(
            "bench", "policies", "--resume", str(begun[-1].parent), "--retry-invalid", out=folder / "table.md"
        )
        return code, begun[-1].parent
    fitted = calibration(folder, served, args.calibrate_s)
    capacities = [f"{mix}={capacity_per_s(folder, served, mix, args.capacity_s):.3f}" for mix in MIXES]
    words = [*POLICIES, "--gateway-config", *configurations(folder, served, fitted), "--model", served.model]
    words += ["--tokenizer", str(served.tokenizer), "--capacity", *capacities, "--mixes", *MIXES, *LENGTHS]
    words += [
        "--loads",
        *(str(each) for each in args.loads),
        "--seeds",
        *(str(each + 1) for each in range(args.repeats)),
    ]
    words += ["--duration", str(args.duration), "--num-prompts-min", str(args.num_prompts_min), "--warmup", "2"]
    words += ["--drain-deadline", "60", "--lag-tolerance-ms", str(LAG_TOLERANCE_MS), "--goodput", *GOODPUT]
    words += ["--result-dir", str(folder)]
    code = gateway("bench", "policies", *words, out=folder / "table.md")
    return code, max(folder.glob("policies-*/plan.json")).parent


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The comparison of docs/policies-compared.md.")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FOLDER", help="records, report and what it goes on from"
    )
    parser.add_argument("--emulated", action="store_true", help="rehearse on the embedded engine")
    parser.add_argument(
        "--port", type=int, default=8720, metavar="P", help="of the first of three engines (default 8720)"
    )
    parser.add_argument("--duration", type=float, default=12.0, metavar="S", help="at least (default 12)")
    parser.add_argument("--num-prompts-min", type=int, default=60, metavar="N", help="at least (default 60)")
    parser.add_argument(
        "--repeats", type=int, default=REPEATS, metavar="N", help=f"traces of each load (default {REPEATS})"
    )
    parser.add_argument("--loads", type=float, nargs="+", default=LOADS, metavar="X", help="shares of the capacity")
    parser.add_argument("--capacity-s", default="25", metavar="S", help="of each mix (default 25)")
    parser.add_argument("--calibrate-s", default="50", metavar="S", help="(default 50)")
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with emulated_engines(args.out, args.port) if args.emulated else real_engines(args.port) as served:
        print(f"engines are up after {time.monotonic() - began:.0f} s", flush=True)
        code, records = compared(args.out, served, args)
    report = gateway("bench", "report", str(records), "--out", str(args.out / "report"), out=args.out / "report.log")
    print(f"\n{time.monotonic() - began:.0f} s in all; report: {args.out / 'report' / 'report.html'}")
    return code or report


if __name__ == "__main__":
    sys.exit(main())
