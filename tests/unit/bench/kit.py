"""What the bench's tests share: a small tokenizer, builders of records, and a server that answers as a script says.

The server speaks HTTP on a raw socket, so that a script can cut a stream, split bytes anywhere or say nothing at all.
"""

from __future__ import annotations

import asyncio
import json
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from bench.analysis.classes import Window
from bench.analysis.limits import parse_limits
from bench.analysis.measurements import Measurements, put_together
from bench.analysis.validity import judge
from bench.corpus.words import WORDS
from bench.load.bodies import PreparedRequest
from bench.load.flight import Flight
from bench.records.request import Outcome, Phase, RequestRecord
from bench.records.store import RunFolder
from bench.records.vllm_flat import flat
from bench.trace.arrivals import Arrival

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] | trim }}\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def a_tokenizer(folder: Path, *, template: str | None = TEMPLATE) -> Path:
    """A byte-level BPE of 400 tokens with a chat template, in the Hugging Face layout."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "<|user|>", "<|assistant|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([" ".join(WORDS)], trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {"bos_token": {"content": "<s>"}, "eos_token": "</s>"}
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def seeded(seed: int) -> random.Random:
    return random.Random(seed)


def a_record(**changes: Any) -> RequestRecord:
    """A completed short request inside the window: sent at 1,000 ms, first token after 200 ms, 4 tokens, ended at 2,000."""
    values: dict[str, Any] = {
        "index": 0,
        "request_id": "r-0",
        "class_name": "short",
        "phase": Phase.WINDOW,
        "outcome": Outcome.COMPLETED,
        "planned_ms": 1000.0,
        "prompt_tokens_planned": 512,
        "output_tokens_planned": 4,
        "status": 200,
        "dispatched_ms": 1000.0,
        "first_token_ms": 1200.0,
        "last_token_ms": 1500.0,
        "ended_ms": 2000.0,
        "prompt_tokens": 512,
        "output_tokens": 4,
        "finish_reason": "length",
        "chunk_gaps_ms": (100.0, 100.0, 100.0),
        "longest_stall_ms": 100.0,
    }
    return RequestRecord(**(values | changes))


def ended(outcome: Outcome, **changes: Any) -> RequestRecord:
    """A request that ended without a token."""
    unanswered = {
        "status": 429,
        "first_token_ms": None,
        "last_token_ms": None,
        "chunk_gaps_ms": (),
        "longest_stall_ms": None,
    }
    return a_record(outcome=outcome, **(unanswered | changes))


def measured_of(records: list[RequestRecord], **changes: Any) -> Measurements:
    usual = {
        "window": Window(0.0, 10.0),
        "limits": {},
        "loop_lags_s": [0.001],
        "loop_period_s": 0.01,
        "lag_tolerance_ms": 50.0,
    }
    return put_together(records, **(usual | changes))


def a_stored_run(
    folder: Path, cell_id: str, records: list[RequestRecord], *, window_s: float = 10.0, goodput: tuple[str, ...] = ()
) -> Path:
    """A whole run on disk, as `run_cell` leaves one; returns its folder."""
    measured = measured_of(records, window=Window(0.0, window_s), limits=parse_limits(goodput, "goodput"))
    kept = RunFolder(folder, f"{len(list(folder.glob('run-*'))):03}".join(("run-", "")))
    run = {
        "run_id": kept.path.name,
        "cell_id": cell_id,
        "goodput": list(goodput),
        "warmup_seconds": 0.0,
        "target": {"name": "target"},
        "trace_origin": {"mix": {"short": 80, "long": 20}},
        "endpoint": "chat",
        "metadata": {},
    }
    kept.write_json("run.json", run)
    kept.write_requests(records)
    kept.write_json("measurements.json", measured.to_json())
    kept.write_json("verdict.json", judge(measured, lag_tolerance_ms=50, interrupted=False).to_json())
    kept.write_json("vllm_bench.json", flat(records, measured, model="m", tokenizer="t", run=run))
    return kept.path


def a_flight(*, index: int = 0, planned_at: float = 0.0, cancel_after_s: float | None = None, **body: Any) -> Flight:
    request = PreparedRequest(
        index=index,
        request_id=f"run-{index}",
        arrival=Arrival(0.0, "short", 32, 4, cancel_after_s),
        phase=Phase.WINDOW,
        headers={"X-Request-Id": f"run-{index}"},
        body=json.dumps({"model": "m", "stream": True, **body}).encode(),
    )
    return Flight(request, planned_at=planned_at)


def chat_chunk(text: str | None = None, *, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    said = delta if text is None else {"content": text, **delta}
    return {"choices": [{"index": 0, "delta": said, "finish_reason": finish}]}


def usage_event(prompt_tokens: int, output_tokens: int) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": output_tokens}}


@dataclass
class Asked:
    """One request as the server saw it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Reply:
    """How a script answers: each call writes bytes at once."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    chunked: bool = False

    async def whole(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        await self._head(
            status, {"Content-Type": "application/json", "Content-Length": str(len(body)), **(headers or {})}
        )
        await self._write(body)

    async def begin(self, headers: Mapping[str, str] | None = None) -> None:
        self.chunked = True
        await self._head(200, {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked", **(headers or {})})

    async def event(self, value: Any) -> None:
        await self.raw(b"data: " + json.dumps(value).encode() + b"\n\n")

    async def raw(self, data: bytes) -> None:
        await self._write(b"%x\r\n%s\r\n" % (len(data), data))

    async def end(self, *, done: bool = True) -> None:
        if done:
            await self.raw(b"data: [DONE]\n\n")
        await self._write(b"0\r\n\r\n")

    async def answer(self, prompt_tokens: int, texts: list[str], headers: Mapping[str, str] | None = None) -> None:
        """A whole chat answer, as vLLM streams it with a running count."""
        await self.begin(headers)
        await self.event(chat_chunk("", role="assistant"))
        for text in texts[:-1]:
            await self.event(chat_chunk(text))
        await self.event(chat_chunk(texts[-1], finish="length"))
        await self.event(usage_event(prompt_tokens, len(texts)))
        await self.end()

    def cut(self) -> None:
        self.writer.transport.abort()

    async def client_left(self) -> None:
        """Return when the client has closed its side."""
        while await self.reader.read(1024):
            pass

    async def _head(self, status: int, headers: Mapping[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} Said", *(f"{name}: {value}" for name, value in headers.items())]
        await self._write("\r\n".join(lines).encode() + b"\r\n\r\n")

    async def _write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()


Script = Callable[[Asked, Reply], Awaitable[None]]


@dataclass
class ScriptedServer:
    """Keeps what it was asked; POSTs go to the script, GETs to `pages`. sampled: by a process beside the bench."""

    script: Script
    pages: dict[str, bytes] = field(default_factory=lambda: {"/v1/models": b'{"data": []}'})
    asked: list[Asked] = field(default_factory=list)
    url: str = ""
    sampled: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (asked := await _read(reader)) is not None:
                reply = Reply(reader, writer)
                if asked.method == "GET":
                    if "urllib" in asked.headers.get("user-agent", ""):
                        self.sampled.set()
                    page = self.pages.get(asked.path)
                    await reply.whole(404 if page is None else 200, page or b"")
                    continue
                self.asked.append(asked)
                await self.script(asked, reply)
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()


async def _read(reader: asyncio.StreamReader) -> Asked | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.strip().split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Asked(method, path, headers, body)


@asynccontextmanager
async def scripted(
    script: Script, *, tls: ssl.SSLContext | None = None, **options: Any
) -> AsyncIterator[ScriptedServer]:
    """A server on a free port, and gone at the end with all its connections."""
    scripted_server = ScriptedServer(script, **options)
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await scripted_server.serve(reader, writer)
        finally:
            tasks.discard(task)

    server = await asyncio.start_server(connected, "127.0.0.1", 0, limit=2**20, ssl=tls)
    host, port = server.sockets[0].getsockname()
    scripted_server.url = f"{'http' if tls is None else 'https'}://{host}:{port}"
    try:
        yield scripted_server
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
