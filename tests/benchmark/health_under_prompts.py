"""How long `/healthz` takes while a real gateway counts prompts: at rest, under chats of 32 KB, under prompts of 27 MB.

`python tests/benchmark/health_under_prompts.py FOLDER` from the repository's root; the folder holds a model's
tokenizer.json and chat template. The gateway is a process of its own, as `gateway serve` starts it; the engine is a
script that answers at once. The huge prompts are refused for their length, since no context holds them.
"""

# ruff: noqa: T201 - a script that prints

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parents[2]))

from counting_cost import HUGE_BYTES, LARGE_BYTES, prose

from gateway.server.tasks import spawn
from gateway.testing import answers
from gateway.testing.harness import INTERACTIVE_KEY, MODEL, a_chat, settings_text, write_configuration
from gateway.testing.raw_client import RawClient
from gateway.testing.scripted_engine import ScriptedEngine

ROOT = Path(__file__).parents[2]
PROBE_EACH_S = 0.005
SENT_BYTES = 64 * 1024
PHASE_S = 4.0
CONTEXT_TOKENS = 131_072
CHATS_AT_ONCE, CHATS = 4, 200
STALL_MS_MAX = 100.0
CHAT_PATH = "/v1/chat/completions"


@asynccontextmanager
async def a_gateway(folder: Path, model: Path, engine: ScriptedEngine) -> AsyncIterator[tuple[int, int]]:
    """Run `gateway serve`; yield its two ports."""
    tokenizer = {"kind": "local", "path": str(model)}
    pools = {"chat": {"models": [MODEL], "tokenizer": tokenizer}}
    path = write_configuration(folder, settings_text({"a": engine.url}, pools=pools))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "serve", "--config", str(path), "--policy", "passthrough"),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield await _ports(process)
    finally:
        process.terminate()
        process.terminate()
        await process.communicate()


async def _ports(process: asyncio.subprocess.Process) -> tuple[int, int]:
    assert process.stdout is not None
    async for line in process.stdout:
        entry = json.loads(line)
        if entry.get("event") == "listening":
            return entry["port"], entry["ops_port"]
    raise SystemExit("the gateway did not start")


async def ready(ops_port: int) -> None:
    """Wait until the gateway has an engine: on a busy machine its first look at it takes a while."""
    async with RawClient(ops_port) as client:
        while True:
            await client.get("/readyz")
            if (await client.read_answer()).status == 200:
                return
            await asyncio.sleep(PROBE_EACH_S)


async def probed_ms(ops_port: int, load: Callable[[], Coroutine[None, None, None]]) -> list[float]:
    """Return what `/healthz` took, again and again, while the load was on."""
    took = []
    async with RawClient(ops_port) as client:
        under_way = spawn(load(), name="load")
        while not under_way.done():
            began = perf_counter()
            await client.get("/healthz")
            assert (await client.read_answer()).status == 200
            took.append((perf_counter() - began) * 1e3)
            await asyncio.sleep(PROBE_EACH_S)
        await under_way
    return took


async def asked(port: int, bodies: list[bytes], status: int) -> None:
    """Ask them one after the other."""
    async with RawClient(port, key=INTERACTIVE_KEY) as client:
        for body in bodies:
            await client.send(client.head("POST", CHAT_PATH, {"Content-Length": str(len(body))}))
            for at in range(0, len(body), SENT_BYTES):  # sent whole, it would hold up the probes' own loop
                await client.send(body[at : at + SENT_BYTES])
            answer = await client.read_answer()
            assert answer.status == status, answer.body


def chat_of(text: str) -> bytes:
    return json.dumps(a_chat(messages=[{"role": "user", "content": text}], max_tokens=8)).encode()


async def measure(model: Path) -> bool:
    random = Random(32)
    chats = [chat_of(prose(random, LARGE_BYTES)) for _ in range(CHATS)]
    huge = chat_of(prose(random, HUGE_BYTES))

    async def under_chats(port: int) -> None:
        shares = [chats[start::CHATS_AT_ONCE] for start in range(CHATS_AT_ONCE)]
        await asyncio.gather(*(asked(port, share, 200) for share in shares))

    with TemporaryDirectory() as folder:
        async with (
            ScriptedEngine(answers.json_answer({"choices": []}), max_model_len=CONTEXT_TOKENS) as engine,
            a_gateway(Path(folder), model, engine) as (port, ops_port),
        ):
            await ready(ops_port)
            await under_chats(port)
            phases: dict[str, Callable[[], Coroutine[None, None, None]]] = {
                "at rest": lambda: asyncio.sleep(PHASE_S / 2),
                f"{CHATS} chats of 32 KB, {CHATS_AT_ONCE} at once": lambda: under_chats(port),
                "5 prompts of 27 MB, one after the other": lambda: asked(port, [huge] * 5, 400),
            }
            took = {name: await probed_ms(ops_port, load) for name, load in phases.items()}
    for name, spent in took.items():
        print(
            f"  {name:42s} /healthz median {median(spent):6.2f} ms, p99 {quantiles(spent, n=100)[98]:7.2f} ms, "
            f"most {max(spent):7.2f} ms of {len(spent)}"
        )
    return all(max(spent) < STALL_MS_MAX for spent in took.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    return 0 if asyncio.run(measure(parser.parse_args().folder.absolute())) else 1


if __name__ == "__main__":
    raise SystemExit(main())
