"""Single members of a body, read as the engine reads them where both surely agree, else refused.

Owns the strict types: the engine also takes "5", true or 5.5 where an integer is meant, in ways that differ between
its versions; what the gateway judges must be what the engine does, so those are refused. Members that the gateway does
not judge are not read here and pass as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.core.types import Reason, Refusal
from gateway.wire.json_flaws import INT64_MAX

# The engine would obey these: its order and its placement are the gateway's to decide, and its ids too.
CONTROL_MEMBERS = frozenset({"priority", "request_id", "data_parallel_rank", "session_id"})
# Meant for the engine's own operator: tensors, cache transfers, code, how much of a medium is decoded. Refused unless
# the configuration allows them.
OPERATOR_MEMBERS = (
    "kv_transfer_params",
    "ec_transfer_params",
    "logits_processors",
    "prompt_embeds",
    "mm_processor_kwargs",
    "media_io_kwargs",
)


class BadRequest(Exception):  # noqa: N818  the request is bad, not the gateway
    """The request is refused for what it says."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


def bad(
    code: str, message: str, param: str, *, limit: float | None = None, observed: float | None = None
) -> BadRequest:
    """A BadRequest about one member."""
    return BadRequest(Refusal(Reason.BAD_REQUEST, message, code=code, param=param, limit=limit, observed=observed))


def read_bool(members: Mapping[str, Any], name: str, *, default: bool = False) -> bool:
    """A truth value; absent and null are the default."""
    value = members.get(name)
    if value is None:
        return default
    if type(value) is not bool:
        raise bad("invalid_type", f"{name} has to be true or false.", name)
    return value


def read_int(members: Mapping[str, Any], name: str, *, minimum: int) -> int | None:
    """A whole number of at least `minimum`, also written as 5.0; None: absent or null."""
    value = members.get(name)
    if value is None:
        return None
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int:
        raise bad("invalid_type", f"{name} has to be an integer.", name)
    if value < minimum:
        message = f"{name} has to be at least {minimum}."
        raise bad("integer_below_min_value", message, name, limit=minimum, observed=value)
    if value > INT64_MAX:  # written as a fraction: the parser has bounded the others
        raise bad("integer_out_of_range", f"{name} is outside the range of a 64-bit integer.", name, limit=INT64_MAX)
    return value


def read_str(members: Mapping[str, Any], name: str) -> str | None:
    """A string; None: absent or null."""
    value = members.get(name)
    if value is not None and type(value) is not str:
        raise bad("invalid_type", f"{name} has to be a string.", name)
    return value


def read_list(members: Mapping[str, Any], name: str) -> list[Any] | None:
    """An array; None: absent or null."""
    value = members.get(name)
    if value is not None and type(value) is not list:
        raise bad("invalid_type", f"{name} has to be an array.", name)
    return value


def read_object(members: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """An object; None: absent or null."""
    value = members.get(name)
    if value is not None and type(value) is not dict:
        raise bad("invalid_type", f"{name} has to be an object.", name)
    return value


def missing(name: str) -> BadRequest:
    """The member is required and is not there."""
    return bad("missing_required_parameter", f"{name} is required.", name)


def unsupported(name: str) -> BadRequest:
    """The member is known, and not a caller's to send."""
    return bad("unsupported_parameter", f"{name} is not accepted here.", name)
