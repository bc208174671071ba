"""What the proxy itself costs: CPU for a request and for a chunk, beside a bare aiohttp proxy that does nothing else.

`python tests/benchmark/proxy_cost.py` from the repository's root. Both stand before the same stub, are measured in turns,
and the ratio is what counts: the microseconds are the machine's. The bare proxy knows no keys, queues, metrics or log.
"""

# ruff: noqa: T201 - a script that prints

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import uvloop
from aiohttp import web

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from bench.own_processes import free_ports  # noqa: E402

PATH = "/v1/chat/completions"
HOP_BY_HOP = {"host", "connection", "transfer-encoding", "content-length"}
BODY = json.dumps(
    {"model": "stub", "stream": True, "max_tokens": 400, "messages": [{"role": "user", "content": "word " * 400}]}
).encode()
END = b"0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Case:
    """requests: on each of the connections, one after the other. chunks: of each answer, over stream_s seconds."""

    name: str
    connections: int
    requests: int
    chunks: int
    stream_s: float


CASES = (Case("request", 32, 60, 1, 0.0), Case("chunk", 50, 1, 400, 4.0))


async def bare_proxy(port: int, upstream: str) -> None:
    """Pass on whatever comes."""
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(), auto_decompress=False
    ) as session:

        async def pass_on(request: web.BaseRequest) -> web.StreamResponse:
            headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP}
            body = await request.read()
            async with session.request(request.method, upstream + request.path, data=body, headers=headers) as reply:
                response = web.StreamResponse(status=reply.status, headers={"Content-Type": reply.content_type})
                await response.prepare(request)
                async for chunk in reply.content.iter_any():
                    await response.write(chunk)
                await response.write_eof()
                return response

        runner = web.ServerRunner(web.Server(pass_on, handler_cancellation=True, access_log=None))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        await asyncio.Event().wait()


def configuration(folder: Path, port: int, ops_port: int, upstream: str) -> Path:
    path = folder / "gateway.yaml"
    value = {
        "listen": {"host": "127.0.0.1", "port": port},
        "ops": {"port": ops_port},
        "policy": "passthrough",
        "auth": {"anonymous": {"service_class": "interactive", "tenant": "benchmark"}},
        "engines": [{"name": "a", "url": upstream, "pool": "p", "scheduling": "fcfs", "calibration": "off"}],
        "pools": {"p": {"models": ["stub"], "tokenizer": {"kind": "estimate"}}},
        "drain": {"settle_s": 0, "deadline_s": 1},
    }
    path.write_text(json.dumps(value))
    return path


async def load(port: int, case: Case) -> None:
    """Ask as often as the case says. Raises where an answer is not whole."""
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n"

    async def ask_in_turn() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(case.requests):
            writer.write(head.encode() + BODY)
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200"), answer
            await reader.readuntil(END)
        writer.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(case.connections):
            group.create_task(ask_in_turn())


def cpu_us(process: subprocess.Popen[bytes]) -> float:
    """CPU that all of its threads have had."""
    stats = Path(f"/proc/{process.pid}/task").glob("*/schedstat")
    return sum(int(stat.read_text().split()[0]) for stat in stats) / 1000


@contextmanager
def proxies(case: Case) -> Iterator[dict[str, tuple[int, subprocess.Popen[bytes]]]]:
    """Start the stub and, before it, both proxies."""
    stub, bare, ours, ops = free_ports(4)
    upstream = f"http://127.0.0.1:{stub}"
    with tempfile.TemporaryDirectory() as folder:
        commands = {
            "stub": ["tests/benchmark/client_pace.py", "--stub", str(stub), str(case.stream_s), str(case.chunks)],
            "bare": ["tests/benchmark/proxy_cost.py", "--bare", str(bare), upstream],
            "ours": ["-m", "gateway", "serve", "--config", str(configuration(Path(folder), ours, ops, upstream))],
        }
        started = {
            name: subprocess.Popen([sys.executable, *command], cwd=ROOT, stdout=subprocess.DEVNULL)
            for name, command in commands.items()
        }
        try:
            yield {"bare": (bare, started["bare"]), "ours": (ours, started["ours"])}
        finally:
            for process in started.values():
                process.terminate()
            for process in started.values():
                process.wait()


def until_it_answers(port: int) -> None:
    warm = Case("warm", 4, 5, 1, 0.0)
    for _ in range(200):
        try:
            uvloop.run(load(port, warm))
        except (ExceptionGroup, OSError):
            time.sleep(0.1)
        else:
            return
    raise SystemExit("a proxy did not come up")


def measured(case: Case, rounds: int) -> dict[str, float]:
    """CPU per request, or per chunk, in microseconds: the median of the rounds."""
    with proxies(case) as both:
        for port, _ in both.values():
            until_it_answers(port)
        found: dict[str, list[float]] = {name: [] for name in both}
        for _ in range(rounds):
            for name, (port, process) in both.items():
                before = cpu_us(process)
                uvloop.run(load(port, case))
                found[name].append((cpu_us(process) - before) / (case.connections * case.requests * case.chunks))
    return {name: statistics.median(values) for name, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bare", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.bare is not None:
        uvloop.run(bare_proxy(int(args.bare[0]), args.bare[1]))
        return
    for case in CASES:
        found = measured(case, args.rounds)
        ratio = found["ours"] / found["bare"]
        print(
            f"CPU per {case.name}: ours {found['ours']:.0f} µs, bare aiohttp {found['bare']:.0f} µs, ratio {ratio:.2f}"
        )


if __name__ == "__main__":
    main()
