"""A request's head and body, taken in within bounds.

Owns the order: size first, then whoever asks is judged elsewhere, and only then is the body called for and read. What
is over a bound is refused before it is held.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from aiohttp import HttpVersion11, web
from aiohttp.web_protocol import RequestPayloadError

from gateway.core.types import Reason, Refusal
from gateway.server.bodies import Gathered, HeldBody
from gateway.server.downstream import ClientGone, Downstream
from gateway.server.inflating import ENCODINGS, MalformedEncoding, inflater
from gateway.server.refusing import Refusing

LARGEST_BODIES_HELD_MAX = 16
WAIT_HEADER = "x-gateway-wait-ms"
RETRY_HEADER = "x-stainless-retry-count"
FOREIGN_VERSION = web.RequestKey("foreign_version", bool)  # set where a request speaks neither HTTP/1.0 nor 1.1
_WAIT_DIGITS_MAX = 9


@dataclass(frozen=True, slots=True)
class IntakeBounds:
    """From settings.limits."""

    body_bytes_max: int
    inflated_bytes_max: int
    header_bytes_max: int
    body_read_s: float

    @property
    def held_bytes_max(self) -> int:
        """Bytes of bodies held by all requests together; one inflated body always fits."""
        return max(LARGEST_BODIES_HELD_MAX * self.body_bytes_max, self.inflated_bytes_max)


def judge_head(request: web.BaseRequest, bounds: IntakeBounds) -> None:
    """Refuse by the head alone, before anybody is asked who they are. Raises Refusing."""
    if FOREIGN_VERSION in request:
        message = "HTTP/1.1 and HTTP/1.0 are spoken here."
        raise _refusing(Reason.BAD_REQUEST, message, "unsupported_http_version", None, None)
    header_bytes = sum(len(name) + len(value) + 4 for name, value in request.raw_headers)
    if header_bytes > bounds.header_bytes_max:
        message = f"The headers are over {bounds.header_bytes_max} bytes."
        raise _refusing(Reason.BAD_REQUEST, message, "headers_too_large", bounds.header_bytes_max, header_bytes)
    _judge_transfer_encoding(request)
    stated = request.content_length
    if stated is not None and stated > bounds.body_bytes_max:
        raise _too_large(bounds.body_bytes_max, stated)


def _judge_transfer_encoding(request: web.BaseRequest) -> None:
    """Take no coding but chunked: the parser takes any list that ends with it, and decodes that one alone."""
    codings = request.headers.getall("Transfer-Encoding", [])
    if not codings:
        return
    if request.version < HttpVersion11:
        message = "HTTP/1.0 has no Transfer-Encoding: where the body ends cannot be told."
        raise _refusing(Reason.BAD_REQUEST, message, "malformed_http", None, None)
    if ",".join(codings).strip().lower() != "chunked":
        message = "Of transfer codings only chunked is known here; name others in Content-Encoding."
        raise _refusing(Reason.BAD_REQUEST, message, "unsupported_transfer_encoding", None, None)


def wait_s_wish(request: web.BaseRequest) -> float | None:
    """Return the caller's own wait limit in seconds, or None. Raises Refusing."""
    values = request.headers.getall(WAIT_HEADER, [])
    if not values:
        return None
    text = values[0].strip()
    if len(values) > 1 or not (text.isascii() and text.isdigit()) or len(text) > _WAIT_DIGITS_MAX:
        message = f"{WAIT_HEADER} has to be one whole number of milliseconds."
        raise Refusing(Refusal(Reason.BAD_REQUEST, message, code="invalid_header", param=WAIT_HEADER))
    return int(text) / 1000


def says_retry(request: web.BaseRequest) -> bool:
    """Tell whether the caller's SDK says that this is not its first try."""
    return request.headers.get(RETRY_HEADER, "0").strip() not in {"", "0"}


async def read_body(request: web.BaseRequest, client: Downstream, bounds: IntakeBounds, held: HeldBody) -> bytes:
    """Call for the body where the client waits to be asked, and read it, inflated. Raises Refusing and ClientGone.

    held: charged with every byte before it is kept.
    """
    encoding = ", ".join(request.headers.getall("Content-Encoding", ["identity"])).strip().lower()
    if encoding != "identity" and encoding not in ENCODINGS:
        message = "This content encoding is not accepted; send gzip, deflate, zstd, or the body as it is."
        code = "unsupported_content_encoding"
        raise Refusing(Refusal(Reason.BAD_REQUEST, message, code=code, param="content-encoding"))
    if request.headers.get("Expect", "").lower() == "100-continue" and request.version >= HttpVersion11:
        client.send_continue()
    # Most bodies have come with their heads, and are waited for by nobody.
    limit = None if request.content.is_eof() else asyncio.timeout(bounds.body_read_s)
    try:
        if limit is None:
            return await _read(request, encoding, bounds, held)
        async with limit:
            return await _read(request, encoding, bounds, held)
    except TimeoutError:
        if limit is None or not limit.expired():
            raise
        message = f"The body did not arrive within {bounds.body_read_s:g} s."
        raise _refusing(Reason.BAD_REQUEST, message, "body_timeout", bounds.body_read_s, None) from None
    except (RequestPayloadError, web.PayloadAccessError):
        raise _refusing(Reason.BAD_REQUEST, "The body's framing is wrong.", "malformed_body", None, None) from None
    except MalformedEncoding:
        message = f"The body is not what its content encoding, {encoding}, says."
        raise _refusing(Reason.BAD_REQUEST, message, "malformed_body", None, None) from None
    except ConnectionError as error:
        raise ClientGone from error


async def _read(request: web.BaseRequest, encoding: str, bounds: IntakeBounds, held: HeldBody) -> bytes:
    decoder = None if encoding == "identity" else inflater(encoding)
    kept = Gathered()
    sent_bytes = 0
    while piece := await request.content.readany():
        sent_bytes += len(piece)
        if sent_bytes > bounds.body_bytes_max:
            raise _too_large(bounds.body_bytes_max, sent_bytes)
        if decoder is None:
            held.grow(len(piece))
            kept.add(piece)
        else:
            await _keep(decoder.feed(piece), kept, bounds.inflated_bytes_max, held)
    if decoder is not None:
        await _keep(decoder.finish(), kept, bounds.inflated_bytes_max, held)
    return kept.whole()


async def _keep(chunks: Iterator[bytes], kept: Gathered, bytes_max: int, held: HeldBody) -> None:
    """Keep what is inflated, up to the bound; others have their turn between two chunks."""
    for chunk in chunks:
        inflated_bytes = held.bytes_held + len(chunk)
        if inflated_bytes > bytes_max:
            raise _too_large(bytes_max, inflated_bytes, "Inflated, the body")
        held.grow(len(chunk))
        kept.add(chunk)
        await asyncio.sleep(0)


def _too_large(bytes_max: int, size: int, what: str = "The body") -> Refusing:
    message = f"{what} is over {bytes_max} bytes."
    return _refusing(Reason.BODY_TOO_LARGE, message, None, bytes_max, size)


def _refusing(reason: Reason, message: str, code: str | None, limit: float | None, observed: float | None) -> Refusing:
    return Refusing(Refusal(reason, message, code=code, limit=limit, observed=observed), closes=True)
