"""Embedded engines for these tests: started as a user starts them, one for each set of flags, ended by their process."""

from __future__ import annotations

import asyncio
import ctypes
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.simulation.emulator.vocabulary import FOLDER
from gateway.testing import raw_client

ROOT = Path(__file__).parents[3]
MODEL = "tiny"
WANTED = (
    "--scheduling-policy",
    "priority",
    "--max-num-batched-tokens",
    "2048",
    "--long-prefill-token-threshold",
    "640",
)
UNTIL_S_MAX = 60.0


@dataclass
class Embedded:
    """A running emulator, with the face of the kit's engines. log: where its stderr goes."""

    process: subprocess.Popen
    port: int
    model: str = MODEL
    tokenizer_path: Path = FOLDER

    @property
    def base_url(self):
        return f"http://127.0.0.1:{self.port}"

    async def ask(self, path, value=None, **members):
        return await raw_client.request(self.port, path, value, **members)

    async def metric(self, name, **labels):
        page = (await self.ask(f"/metrics/?name[]={name}")).body.decode()
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        lines = [line for line in page.splitlines() if line.startswith(name)]
        return sum(float(line.rpartition(" ")[2]) for line in lines if all(each in line for each in wanted))

    async def until_metric(self, name, wanted):
        async with asyncio.timeout(UNTIL_S_MAX):
            while not wanted(await self.metric(name)):  # noqa: ASYNC110 - another process, seen by scraping
                await asyncio.sleep(0.02)

    async def idle(self):
        for name in ("vllm:num_requests_running", "vllm:num_requests_waiting"):
            await self.until_metric(name, lambda value: value == 0)


PR_SET_PDEATHSIG = 1


def end_with_the_tests():
    """In the child: ended with the process that runs the tests, also where that is killed and can end nothing."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def start(*flags):
    """`gateway emulate` on a free port, once it says that it serves."""
    command = [sys.executable, "-m", "gateway", "emulate", "--port", "0", "--served-model-name", MODEL, *flags]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=end_with_the_tests,  # noqa: PLW1509 - no thread of the tests is in the middle of anything
    )
    said = []
    for line in process.stdout:
        said.append(line)
        if found := re.match(rf"serving {MODEL} on http://127.0.0.1:(\d+)", line):
            return Embedded(process, int(found[1]))
    pytest.fail("".join(said))


@pytest.fixture(scope="session")
def emulator():
    """emulator(*flags): an embedded engine with these flags, the same one for the same flags."""
    started = {}

    def of(*flags):
        if flags not in started:
            started[flags] = start(*flags)
        return started[flags]

    yield of
    for embedded in started.values():
        embedded.process.terminate()
        embedded.process.communicate(timeout=30)


@pytest.fixture(scope="session")
def engine(emulator):
    """What the shipped policies want, on the steps of a slow machine: a busy test machine keeps up with it."""
    return emulator(*WANTED, "--profile", "cpu", "--enable-prompt-tokens-details", "--no-enable-prefix-caching")


@pytest.fixture(scope="session")
def stock(emulator):
    """vLLM's own defaults on such a machine."""
    return emulator("--profile", "cpu", "--enable-prompt-tokens-details")
