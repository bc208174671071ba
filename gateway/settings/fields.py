"""The kinds of value that gateway.yaml is made of: ports, seconds, counts, addresses, model names.

Owns their bounds. Knows no setting.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from gateway.strict_yaml import problem
from gateway.wire.requests import OPERATOR_MEMBERS

SECONDS_MAX = 86_400.0
BYTES_MAX = 1 << 40
TOKENS_MAX = 1 << 40

Port = Annotated[int, Field(ge=0, le=65_535)]
Seconds = Annotated[float, Field(gt=0, le=SECONDS_MAX)]
SecondsOrZero = Annotated[float, Field(ge=0, le=SECONDS_MAX)]
Bytes = Annotated[int, Field(ge=1, le=BYTES_MAX)]
Count = Annotated[int, Field(ge=1, le=TOKENS_MAX)]


def _auto_is_none(value: Any) -> Any:
    return None if value == "auto" else value


AutoCount = Annotated[
    Count | None,
    BeforeValidator(_auto_is_none),
    WithJsonSchema({"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 1}]}),
]
"""`auto` (None): asked from the engine."""


def _checked_model(name: str) -> str:
    if not re.fullmatch(r"[!-~]{1,256}", name):
        raise problem("is not a valid model name", fix="Use 1 to 256 printable ASCII characters, no spaces")
    return name


ModelName = Annotated[str, AfterValidator(_checked_model)]


# A prompt of tensors has no token count, so nothing could be admitted by it.
ENGINE_FIELDS = tuple(name for name in OPERATOR_MEMBERS if name != "prompt_embeds")


def _checked_engine_field(name: str) -> str:
    if name not in ENGINE_FIELDS:
        raise problem(
            "names a body field that cannot be let through", fix=f"Use names among {', '.join(ENGINE_FIELDS)}"
        )
    return name


EngineField = Annotated[str, AfterValidator(_checked_engine_field)]


def _checked_url(url: str) -> str:
    """Scheme, host and port alone, without the closing slash. The text is not quoted: it may hold a password."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in {"http", "https"} or not parts.hostname or not re.fullmatch(r"[!-~]+", url):
        raise problem("is not an http or https address", fix="Write it like http://127.0.0.1:8000")
    if parts.username is not None or parts.password is not None:
        raise problem("holds a user name or password", fix="Put the engine's key into api_key_env's variable")
    if parts.path not in {"", "/"} or parts.query or parts.fragment:
        raise problem(
            "has a path or a query after the host",
            fix="Give scheme, host and port only; the gateway adds the path of each route",
        )
    return url.rstrip("/")


EngineUrl = Annotated[str, AfterValidator(_checked_url)]


def _checked_keys_url(url: str) -> str:
    """An address whose answer decides who is let in: nobody on the way may change it."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in {"http", "https"} or not parts.hostname or not re.fullmatch(r"[!-~]{1,2048}", url):
        raise problem("is not an https address", fix="Write it like https://issuer.example/.well-known/jwks.json")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise problem("holds a user name, a password or a fragment", fix="Remove it: the set is public")
    if parts.scheme != "https" and not is_loopback(parts.hostname):
        raise problem("is not https", fix="Use https, or http to this machine, or put the set into jwks_file")
    return url


KeysUrl = Annotated[str, AfterValidator(_checked_keys_url)]

ClaimName = Annotated[str, Field(min_length=1, max_length=256)]


def is_loopback(host: str) -> bool:
    """Whether `host` is this machine whatever a name server says."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _refused(value: Any) -> Any:
    if value is not None:
        raise problem("is not supported by this version", fix="Remove it")
    return value


NotSupported = Annotated[Any, AfterValidator(_refused)]
"""A key of the documented configuration that this version would ignore, and therefore refuses."""
