"""The bench as a user starts it, in its own process, against a server that answers as the test says."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from bench.corpus import tokenizer
from bench.corpus.tokenizer import PromptForm

ROOT = Path(__file__).parents[3]
KEYS = {"KEY_SHORT": "gw-short-0123456789", "KEY_LONG": "gw-long-0123456789"}
# The machine that runs the tests may be busy: only the test about lag judges it.
PATIENT = ["--lag-tolerance-ms", "60000"]
SCENARIO = """
version: 1
name: two
model: tiny
tokenizer: {folder}
arms:
  - {{name: first, base_url: "{first}", credentials: {{short: KEY_SHORT, long: KEY_LONG}}, engine_metrics_url: "{first}"}}
  - {{name: second, base_url: "{second}"}}
lengths: {{short: {{prompt_tokens: 40, output_tokens: 4}}, long: {{prompt_tokens: 80, output_tokens: 4}}}}
capacity_per_s: 40
loads: [0.5, 1.0]
num_prompts: 10
seeds: [1, 2]
goodput: ["short:ttft:60000", "long:ttft:60000"]
lag_tolerance_ms: 60000
drain_deadline_s: 20
"""


class Model:
    """Answers every chat with the asked number of tokens and the count that the tokenizer gives."""

    def __init__(self, folder: Path) -> None:
        self._count = tokenizer.load(folder).count_for(PromptForm.CHAT)

    def prompt_tokens(self, asked: Any) -> int:
        return self._count(asked.json["messages"][0]["content"])

    async def __call__(self, asked: Any, reply: Any) -> None:
        texts = ["a"] * asked.json["max_tokens"]
        await reply.answer(self.prompt_tokens(asked), texts, {"x-gateway-queue-ms": "5"})

    def is_long(self, asked: Any) -> bool:
        return self.prompt_tokens(asked) > 60


def contents(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


async def started(*words: str, **environment: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "bench",
        *words,
        cwd=ROOT,
        env={**os.environ, **KEYS, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        # A suite that runs in the background may have inherited an ignored interrupt.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


async def bench(*words: str, **environment: str) -> tuple[int, str, str]:
    process = await started(*words, **environment)
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


def run_words(url: str, folder: Path, results: Path, **changes: Any) -> list[str]:
    options = {
        "base-url": url,
        "model": "tiny",
        "tokenizer": folder,
        "request-rate": 40,
        "num-prompts": 20,
        "short-tokens": 40,
        "long-tokens": 80,
        "output-tokens": 4,
        "drain-deadline": 20,
        "result-dir": results,
    } | {name.replace("_", "-"): value for name, value in changes.items()}
    return [
        "run",
        *(str(word) for name, value in options.items() if value is not None for word in (f"--{name}", value)),
    ]


class Records:
    """The one run that a result folder holds."""

    def __init__(self, results: Path) -> None:
        (self.path,) = results.iterdir()
        self.rows = [json.loads(line) for line in (self.path / "requests.jsonl").read_text().splitlines()]

    def json(self, name: str) -> Any:
        return json.loads((self.path / f"{name}.json").read_text())

    def outcomes(self, class_name: str) -> set[str]:
        return {row["outcome"] for row in self.rows if row["class"] == class_name}


def metrics(*, started_at: float, prompt_tokens: int = 0) -> bytes:
    lines = [
        f"process_start_time_seconds {started_at}",
        "vllm:num_requests_running 0",
        "vllm:num_requests_waiting 0",
        f"vllm:prompt_tokens_total {prompt_tokens}",
    ]
    return ("\n".join(lines) + "\n").encode()


async def compared(folder: Path, tmp_path: Path, first: Any, second: Any) -> tuple[int, str, str]:
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(SCENARIO.format(folder=folder, first=first.url, second=second.url))
    return await bench("compare", str(scenario), "--result-dir", str(tmp_path / "runs"))


class Folder:
    """The records of a comparison."""

    def __init__(self, results: Path) -> None:
        (self.path,) = results.iterdir()

    @property
    def comparison(self) -> Any:
        return json.loads((self.path / "comparison.json").read_text())

    def runs(self) -> dict[str, str]:
        """Cell id of each whole run by its id."""
        whole = [each for each in contents(self.path) if (each / "vllm_bench.json").exists()]
        return {each.name: json.loads((each / "run.json").read_text())["cell_id"] for each in whole}
