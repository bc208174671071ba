"""Whether the bench's client keeps time: dispatches a second, and its lag with hundreds of streams open, on loopback.

`python tests/benchmark/client_pace.py` from the repository's root. A stub in a process of its own answers at once, so
that all that is measured is the client: its lag by its own clock, when the requests came to the stub, and the time to a
first token that nobody had to compute. A bare timer beside it, with the same plan, shows what the machine itself adds.
"""

# ruff: noqa: T201 - a script that prints

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import uvloop

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench.analysis.quantiles import quantile
from bench.direct import direct
from bench.load.bodies import PreparedRequest
from bench.load.flight import Flight
from bench.load.processes import ClientProcesses
from bench.load.tally import Tally
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

    def planned_s(self) -> list[float]:
        return [index / self.rate_per_s for index in range(round(self.rate_per_s * self.seconds))]


LEAD_IN_S = 3.0
CASES = (Case("2000 requests/s", 2000, 5, 0.0, 1), Case("200 requests/s, 500 open streams", 200, 10, 2.5, 20))


class Stub(asyncio.Protocol):
    """Answers every POST with a stream that takes stream_s, every GET with its models."""

    stream_s = 0.0
    tokens = 1
    arrived: ClassVar[list[float]] = []

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
            page = json.dumps(self.arrived).encode() if head.startswith(b"GET /arrivals") else MODELS
            body = b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(page), page)
            self._transport.write(b"HTTP/1.1 200 OK\r\n" + body)
            return
        self.arrived.append(time.perf_counter())
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
    gc.disable()  # the stub is not what is measured
    Stub.stream_s, Stub.tokens = stream_s, tokens
    server = await asyncio.get_running_loop().create_server(Stub, "127.0.0.1", port, backlog=4096)
    print("serving", flush=True)
    await server.serve_forever()


@dataclass(frozen=True, slots=True)
class Pace:
    """What was sent in a second, and in ms how late by the client's own clock and at the stub, and to the first token."""

    sent_per_s: float
    lags: list[float]
    arrival_lags: list[float]
    ttfts: list[float]
    completed: int


async def paced(url: str, case: Case, processes: int, started_at: float) -> Pace:
    """Sent by the client as `gateway bench run` starts it, in so many processes."""
    clock = time.perf_counter
    body = json.dumps({"model": "stub", "prompt": "word " * 64, "max_tokens": case.tokens, "stream": True}).encode()
    flights: list[Flight] = []
    for index, at_s in enumerate(case.planned_s()):
        arrival = Arrival(at_s, "short", 64, case.tokens)
        flights.append(Flight(PreparedRequest(index, f"r-{index}", arrival, Phase.WINDOW, {}, body), started_at + at_s))
    tally = Tally(flights, case.seconds, clock)
    async with ClientProcesses(flights, processes, url, "/v1/completions", tally) as client:
        await client.warm()
        await client.run(started_at, started_at + case.seconds + 60)
    records = [flight.record(started_at) for flight in flights]
    lags = sorted(record.lag_ms for record in records if record.lag_ms is not None)
    span_s = (max(record.dispatched_ms or 0 for record in records) - (records[0].dispatched_ms or 0)) / 1000
    return Pace(
        sent_per_s=(len(lags) - 1) / span_s,
        lags=lags,
        arrival_lags=arrival_lags(arrivals(url), [started_at + at_s for at_s in case.planned_s()]),
        ttfts=sorted(value for record in records if (value := record.ttft_from_dispatch_ms) is not None),
        completed=sum(record.outcome is Outcome.COMPLETED for record in records),
    )


def arrivals(url: str) -> list[float]:
    """When each request came, by the stub's clock, which is that of all processes here."""
    with direct.open(f"{url}/arrivals") as answer:
        return list(json.load(answer))


def arrival_lags(arrived: Sequence[float], planned: Sequence[float]) -> list[float]:
    """In ms, in order; the last arrivals count, where a tool tried the stub before."""
    late = zip(sorted(arrived)[-len(planned) :], planned, strict=True)
    return sorted((at_s - due_s) * 1000 for at_s, due_s in late)


def bare_timer(case: Case, started_at: float) -> None:
    """The same plan, and nothing to do at its times: how late this machine itself wakes a process."""
    lags: list[float] = []
    for at_s in case.planned_s():
        due = started_at + at_s
        while (left_s := due - time.perf_counter()) > 0:
            time.sleep(left_s)
        lags.append((time.perf_counter() - due) * 1000)
    print(json.dumps(sorted(lags)))


@contextmanager
def stub(case: Case) -> Iterator[str]:
    """Its address, while it runs."""
    (port,) = free_ports(1)
    words = [sys.executable, __file__, "--stub", str(port), str(case.stream_s), str(case.tokens)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def quantiles(ordered: Sequence[float]) -> tuple[float, float, float]:
    return at(ordered, 0.5), at(ordered, 0.99), ordered[-1]


def at(ordered: Sequence[float], q: float) -> float:
    found = quantile(ordered, q)
    assert found is not None
    return found.value


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=1, help="of the client (default 1)")
    parser.add_argument("--stub", nargs=3, metavar=("PORT", "STREAM_S", "TOKENS"), help=argparse.SUPPRESS)
    parser.add_argument("--bare-timer", nargs=2, metavar=("CASE", "STARTED_AT"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.stub:
        uvloop.run(serve(int(args.stub[0]), float(args.stub[1]), int(args.stub[2])))
        return 0
    if args.bare_timer:
        bare_timer(CASES[int(args.bare_timer[0])], float(args.bare_timer[1]))
        return 0
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, nice {os.nice(0)}; times in ms")
    print(f"{'':>34} {'p50':>8} {'p99':>8} {'max':>8}")
    for number, case in enumerate(CASES):
        with stub(case) as url:
            started_at = time.perf_counter() + LEAD_IN_S
            words = [sys.executable, __file__, "--bare-timer", str(number), str(started_at)]
            with subprocess.Popen(words, stdout=subprocess.PIPE) as timer:
                ours = uvloop.run(paced(url, case, args.processes, started_at))
                floor = json.loads(timer.communicate()[0])
        assert ours.completed == len(case.planned_s()), f"only {ours.completed} completed"
        print(f"{case.name}: {ours.sent_per_s:.1f} sent/s")
        told = {"client": ours.lags, "at the stub": ours.arrival_lags, "bare timer": floor, "TTFT": ours.ttfts}
        for name, ordered in told.items():
            print(f"{name:>34} " + " ".join(f"{value:8.2f}" for value in quantiles(ordered)), flush=True)
        ratio = at(ours.lags, 0.99) / at(floor, 0.99)
        print(f"{'p99 of the client ÷ bare timer':>34} {ratio:17.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
