"""What an engine says, as bytes: SSE streams, JSON answers, errors, and ways of breaking off, as scripts.

Owns the shapes of vLLM's answers that the tests need. A script takes (request, wire) and writes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gateway.testing.scripted_engine import Script, SeenRequest, Wire

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ndate: Thu, 01 Jan 2026 00:00:00 GMT\r\nserver: uvicorn\r\n"
    b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
CHUNKS_END = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"
BUSY = {
    "error": {
        "message": "The engine is currently busy and cannot accept new requests. Please try again later.",
        "type": "Service Unavailable",
        "param": None,
        "code": 503,
    }
}


def chunk(piece: bytes) -> bytes:
    """Frame one piece in chunked transfer coding."""
    return f"{len(piece):x}\r\n".encode() + piece + b"\r\n"


def event(value: Any) -> bytes:
    """Write one SSE data event."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def token(text: str, *, finish_reason: str | None = None) -> bytes:
    """Write one chat completion chunk as vLLM does."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish_reason}
    return event({"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "tiny", "choices": [choice]})


def usage_event(prompt_tokens: int, completion_tokens: int) -> bytes:
    """Write the chunk that `stream_options.include_usage` asks for."""
    return event({"id": "chatcmpl-1", "choices": [], "usage": usage(prompt_tokens, completion_tokens)})


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int | None = None) -> dict[str, Any]:
    """Return what an answer says it took; cached_tokens: where the engine tells them."""
    details = {} if cached_tokens is None else {"prompt_tokens_details": {"cached_tokens": cached_tokens}}
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        **details,
    }


def events_of(*texts: str, tail: Iterable[bytes] = ()) -> list[bytes]:
    """Return the events of a whole stream, `[DONE]` the last."""
    return [*(token(text) for text in texts), token("", finish_reason="stop"), *tail, DONE]


def plain(
    status: int, body: bytes, content_type: str = "text/plain", *, extra: Mapping[str, str] | None = None
) -> Script:
    """Answer with a Content-Length body."""
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        f"content-type: {content_type}",
        f"content-length: {len(body)}",
        *(f"{name}: {value}" for name, value in (extra or {}).items()),
    ]
    return raw(("\r\n".join(lines) + "\r\n\r\n").encode() + body)


def json_answer(value: Any, *, status: int = 200, extra: Mapping[str, str] | None = None) -> Script:
    return plain(status, json.dumps(value).encode(), "application/json", extra=extra)


def completion(
    text: str = "Hello world",
    *,
    prompt_tokens: int = 5,
    completion_tokens: int = 2,
    cached_tokens: int | None = None,
) -> Script:
    """Answer a non-streaming chat completion."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return json_answer(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "model": "tiny",
            "choices": [choice],
            "usage": usage(prompt_tokens, completion_tokens, cached_tokens),
        }
    )


def error(status: int, message: str = "no", kind: str = "BadRequestError") -> Script:
    """Answer as vLLM refuses."""
    return json_answer({"error": {"message": message, "type": kind, "param": None, "code": status}}, status=status)


def busy() -> Script:
    """Answer as vLLM's own admission control does before the stream starts."""
    return json_answer(BUSY, status=503)


def raw(*pieces: bytes, then: Callable[[Wire], object] | None = None) -> Script:
    """Write the pieces as they are, a segment each, then e.g. `Wire.reset` or `Wire.close`."""

    async def script(_request: SeenRequest, wire: Wire) -> None:
        await wire.send(*pieces)
        if then is not None:
            then(wire)

    return script


def streaming(*texts: str, tail: Iterable[bytes] = ()) -> Script:
    """Stream the texts as chat chunks, one chunk each, with vLLM's clean end."""
    return stream_of(*events_of(*texts, tail=tail))


def stream_of(*events: bytes, then: Callable[[Wire], object] | None = None) -> Script:
    """Stream given events, one chunk each; a clean end unless `then` breaks off instead."""
    end = () if then is not None else (CHUNKS_END,)
    return raw(STREAM_HEAD, *(chunk(piece) for piece in events), *end, then=then)


def hanging(*pieces: bytes) -> Script:
    """Write the pieces, then nothing for ever."""

    async def script(_request: SeenRequest, wire: Wire) -> None:
        await wire.send(*pieces)
        await asyncio.Event().wait()

    return script


def held(script: Script, release: asyncio.Event) -> Script:
    """Answer once `release` is set: what the engine computes until then."""

    async def waiting(request: SeenRequest, wire: Wire) -> None:
        await release.wait()
        await script(request, wire)

    return waiting


def until_some_waits(is_some_waiting: Callable[[], bool]) -> Script:
    """Stream until the gateway holds some of it for its client, then end: the answer is over, and its bytes are not."""

    async def script(_request: SeenRequest, wire: Wire) -> None:
        await wire.send(STREAM_HEAD)
        while not is_some_waiting():
            await wire.send(chunk(token("x" * 30_000)))
            await asyncio.sleep(0)
        await wire.send(chunk(DONE) + CHUNKS_END)

    return script


def step_by_step(steps: asyncio.Queue[bytes | None]) -> Script:
    """Write what the test puts into the queue, when it puts it; None ends the script."""

    async def script(_request: SeenRequest, wire: Wire) -> None:
        while (piece := await steps.get()) is not None:
            await wire.send(piece)

    return script


def by_request(choose: Callable[[SeenRequest], Script]) -> Script:
    """Choose the script by looking at the request."""

    def script(request: SeenRequest, wire: Wire) -> Awaitable[None]:
        return choose(request)(request, wire)

    return script


def stream_or_whole(*texts: str, prompt_tokens: int = 5) -> Script:
    """Stream or answer whole, as the request's `stream` says."""
    whole = completion("".join(texts), prompt_tokens=prompt_tokens, completion_tokens=len(texts))
    tail = [usage_event(prompt_tokens, len(texts))]
    return by_request(lambda request: streaming(*texts, tail=tail) if request.json().get("stream") else whole)


def model_card(model: str, max_model_len: int | None) -> dict[str, Any]:
    return {
        "id": model,
        "object": "model",
        "created": 1767225600,
        "owned_by": "vllm",
        "root": f"./{model}",
        "parent": None,
        "max_model_len": max_model_len,
        "permission": [],
    }


def metrics_text(values: Mapping[str, float]) -> bytes:
    """Write the few of vLLM's metric families that the gateway reads."""
    labels = '{engine="0",model_name="tiny"}'
    cache = (
        '{block_size="16",engine="0",kv_cache_size_tokens="65536",num_gpu_blocks="4096",enable_prefix_caching="True"}'
    )
    lines = [
        "# HELP vllm:num_requests_running Number of requests in model execution batches.",
        "# TYPE vllm:num_requests_running gauge",
        f"vllm:num_requests_running{labels} {values['running']}",
        f"vllm:num_requests_waiting{labels} {values['waiting']}",
        f"vllm:kv_cache_usage_perc{labels} {values['kv_usage']}",
        f"vllm:num_preemptions_total{labels} {values.get('preemptions', 0)}",
        f"vllm:cache_config_info{cache} 1.0",
        f"process_start_time_seconds {values['started']}",
    ]
    return ("\n".join(lines) + "\n").encode()


def metrics_of(page: bytes, names: Collection[str]) -> bytes:
    """Keep the samples of these names alone, as `/metrics/?name[]=…` does; `/metrics?name[]=…` keeps all."""
    kept = [line for line in page.decode().splitlines() if _family(line) in names]
    return "".join(f"{line}\n" for line in kept).encode()


def _family(line: str) -> str:
    words = line.split(" ")
    return words[2] if words[0] == "#" else words[0].partition("{")[0]
