"""What is told to a gateway by its ops port: reload, shares as the file says, the end of what an engine still has.

Owns these requests and their answers. Decides nothing.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request

from bench.direct import direct
from bench.errors import TargetUnreachableError

ANSWER_S_MAX = 60.0  # a reload may load a tokenizer


class RefusedError(Exception):
    """The gateway understood, and said no."""


@dataclass(frozen=True, slots=True)
class Place:
    """A gateway: its ops port, and its gateway.yaml on this machine."""

    ops_url: str
    file: Path
    token: str | None = field(default=None, repr=False)


def reload(place: Place) -> tuple[str, ...]:
    """Put in force what the files say; the key paths that need a restart. Raises RefusedError: nothing changed."""
    said = _asked(place, "/api/reload", {})
    return tuple(said["needs_restart"])


def weights_of_the_file(place: Place, pool: str) -> None:
    """Take back what was shifted by hand. Raises RefusedError."""
    _asked(place, "/api/route", {"pool": pool, "rollback": True})


def shift(place: Place, pool: str, weights: Mapping[str, float]) -> None:
    """Give engines other weights than the file's. Raises RefusedError."""
    _asked(place, "/api/route", {"pool": pool, "weights": dict(weights)})


def end(place: Place, pool: str, engines: list[str]) -> int:
    """End what engines without a share still have; how many requests. Raises RefusedError."""
    return int(_asked(place, "/api/route", {"pool": pool, "end": engines})["ended"])


def pools(place: Place) -> Mapping[str, Mapping[str, Any]]:
    """By name, as /api/state has them."""
    found: Mapping[str, Mapping[str, Any]] = _asked(place, "/api/state?promises=off")["pools"]
    return found


def shifted(pools: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """The weights of the pools whose own are not the file's."""
    return {
        pool: {name: engine["weight"] for name, engine in of_pool["engines"].items()}
        for pool, of_pool in pools.items()
        if of_pool["shifted"]
    }


def running(pools: Mapping[str, Mapping[str, Any]]) -> dict[tuple[str, str], int]:
    """How many requests each engine has, by pool and engine."""
    return {
        (pool, name): sum(each["requests"] for each in engine["used"]["running"])
        for pool, of_pool in pools.items()
        for name, engine in of_pool["engines"].items()
    }


def engine_of(place: Place, request_id: str) -> str | None:
    """The engine that a request went to; None where it went to none. Raises RefusedError where nobody remembers."""
    engine = _asked(place, f"/api/explain/{quote(request_id, safe='')}")["engine"]
    return None if engine is None else str(engine)


def _asked(place: Place, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """GET, or POST where there is a body. Raises TargetUnreachableError where no ops port answers."""
    headers = {} if place.token is None else {"Authorization": f"Bearer {place.token}"}
    data = None if body is None else json.dumps(body).encode()
    try:
        with direct.open(Request(f"{place.ops_url}{path}", data, headers), timeout=ANSWER_S_MAX) as answer:  # noqa: S310
            said = json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            raise RefusedError(f"{path}: {_problem(error)}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise TargetUnreachableError(f"{place.ops_url}{path}: {error}. Is it the gateway's ops port?") from error
    if not isinstance(said, dict):
        raise TargetUnreachableError(f"{place.ops_url}{path}: what answers is no gateway's ops port.")
    return said


def _problem(error: urllib.error.HTTPError) -> str:
    """The gateway's own words: what is wrong, and what to do."""
    try:
        said = json.load(error)
    except ValueError:
        return f"HTTP {error.code}"
    if "faults" in said:
        return "; ".join(map(str, said["faults"]))
    words = said.get("error") or {}
    return f"HTTP {error.code}: {words.get('message')} {words.get('fix')}."
