"""Whether the bench's client keeps time: dispatches a second, and its lag with hundreds of streams open, on loopback.

`python tests/benchmark/client_pace.py` from the repository's root. A stub in a process of its own answers at once, so
that all that is measured is the client: its lag, and the time to a first token that nobody had to compute.
"""

# ruff: noqa: T201 - a script that prints

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench.analysis.quantiles import quantile
from bench.load.bodies import PreparedRequest
from bench.load.client import StreamingClient
from bench.load.flight import Flight
from bench.load.runner import OpenLoop
from bench.own_processes import free_ports
from bench.records.request import Outcome, Phase
from bench.trace.arrivals import Arrival

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
MODELS = b'{"object": "list", "data": [{"id": "stub", "object": "model", "max_model_len": 32768}]}'


@dataclass(frozen=True, slots=True)
class Case:
    """seconds of arrivals at rate_per_s; each stream lasts stream_s and brings so many tokens."""

    name: str
    rate_per_s: float
    seconds: float
    stream_s: float
    tokens: int


CASES = (Case("dispatches", 2000, 2, 0.0, 1), Case("500 open streams", 200, 10, 2.5, 20))


class Stub(asyncio.Protocol):
    """Answers every POST with a stream that takes stream_s, every GET with its models."""

    stream_s = 0.0
    tokens = 1

    def connection_made(self, transport: asyncio.Transport) -> None:  # uvloop's is no subclass, and has its methods
        self._transport = transport
        self._seen = b""

    def data_received(self, data: bytes) -> None:
        self._seen += data
        while b"\r\n\r\n" in self._seen:
            head, _, rest = self._seen.partition(b"\r\n\r\n")
            length = next(
                (int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
            )
            if len(rest) < length:
                return
            self._seen = rest[length:]
            self._answer(head)

    def _answer(self, head: bytes) -> None:
        if head.startswith(b"GET"):
            body = b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(MODELS), MODELS)
            self._transport.write(b"HTTP/1.1 200 OK\r\n" + body)
            return
        self._transport.write(HEAD + event({"choices": [{"index": 0, "text": "", "finish_reason": None}]}))
        self._token(1)

    def _token(self, number: int) -> None:
        finish = "length" if number == self.tokens else None
        said = event({"choices": [{"index": 0, "text": " a", "finish_reason": finish}]})
        if number < self.tokens:
            self._transport.write(said)
            if self.stream_s:
                asyncio.get_running_loop().call_later(self.stream_s / self.tokens, self._token, number + 1)
            else:
                self._token(number + 1)
            return
        usage = event({"choices": [], "usage": {"prompt_tokens": 64, "completion_tokens": self.tokens}})
        self._transport.write(said + usage + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")


def event(value: object) -> bytes:
    return chunk(b"data: %s\n\n" % json.dumps(value).encode())


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


async def serve(port: int, stream_s: float, tokens: int) -> None:
    Stub.stream_s, Stub.tokens = stream_s, tokens
    server = await asyncio.get_running_loop().create_server(Stub, "127.0.0.1", port, backlog=4096)
    print("serving", flush=True)
    await server.serve_forever()


@dataclass(frozen=True, slots=True)
class Pace:
    """Of the client: what it sent in a second, how late, and what a request took to its first token, in ms."""

    sent_per_s: float
    lag_p50: float
    lag_p99: float
    lag_max: float
    ttft_p50: float
    ttft_p99: float
    completed: int


async def paced(url: str, case: Case) -> Pace:
    clock = time.perf_counter
    count = round(case.rate_per_s * case.seconds)
    body = json.dumps({"model": "stub", "prompt": "word " * 64, "max_tokens": case.tokens, "stream": True}).encode()
    flights = [
        Flight(
            PreparedRequest(index, f"r-{index}", Arrival(0.0, "short", 64, case.tokens), Phase.WINDOW, {}, body),
            planned_at=index / case.rate_per_s,
        )
        for index in range(count)
    ]
    async with StreamingClient(url, "/v1/completions", clock) as client:
        await client.warm(count)
        gc.collect()
        gc.freeze()
        started_at = clock() + 0.2
        for flight in flights:
            flight.planned_at += started_at
        loop = OpenLoop(flights, client.start, clock, lambda _: None)
        client.after_reads(loop.look)
        await loop.run(started_at + case.seconds + 60)
        gc.unfreeze()
    records = [flight.record(started_at) for flight in flights]
    lags = sorted(record.lag_ms for record in records if record.lag_ms is not None)
    first = sorted(value for record in records if (value := record.ttft_from_dispatch_ms) is not None)
    span_s = (max(record.dispatched_ms or 0 for record in records) - (records[0].dispatched_ms or 0)) / 1000
    return Pace(
        sent_per_s=(len(lags) - 1) / span_s,
        lag_p50=at(lags, 0.5),
        lag_p99=at(lags, 0.99),
        lag_max=lags[-1],
        ttft_p50=at(first, 0.5),
        ttft_p99=at(first, 0.99),
        completed=sum(record.outcome is Outcome.COMPLETED for record in records),
    )


def at(ordered: Sequence[float], q: float) -> float:
    found = quantile(ordered, q)
    assert found is not None
    return found.value


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stub", nargs=3, metavar=("PORT", "STREAM_S", "TOKENS"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.stub:
        uvloop.run(serve(int(args.stub[0]), float(args.stub[1]), int(args.stub[2])))
        return 0
    print(f"{'case':>18} {'sent/s':>8} {'lag p50':>8} {'p99':>8} {'max ms':>8} {'TTFT p50':>9} {'p99 ms':>8}")
    for case in CASES:
        (port,) = free_ports(1)
        words = [sys.executable, __file__, "--stub", str(port), str(case.stream_s), str(case.tokens)]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as stub:
            assert stub.stdout is not None
            stub.stdout.readline()
            url = f"http://127.0.0.1:{port}"
            ours = uvloop.run(paced(url, case))
            assert ours.completed == round(case.rate_per_s * case.seconds), f"only {ours.completed} completed"
            figures = (ours.sent_per_s, ours.lag_p50, ours.lag_p99, ours.lag_max, ours.ttft_p50, ours.ttft_p99)
            print(f"{case.name:>18} " + " ".join(f"{value:8.2f}" for value in figures), flush=True)
            stub.terminate()
    return 0


if __name__ == "__main__":
    sys.exit(main())
