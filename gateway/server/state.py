"""The gateway's state now, as one JSON value: what `/api/state`, the status page and `gateway status` show.

Owns the names of that value's members. Reads snapshots; changes nothing. Holds no tenant, key or request.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from itertools import repeat
from typing import Any

from gateway.core.types import DividingSnapshot, EngineSnapshot, LengthClass
from gateway.engines.target import Target
from gateway.engines.watch import EngineWatch
from gateway.observe.gauges import EngineReading
from gateway.observe.release import RELEASE
from gateway.server.gate import Gate
from gateway.server.promises import Promises
from gateway.server.rooms import Rooms


def reading(watch: EngineWatch, now: float) -> EngineReading:
    """Return what metrics show of an engine."""
    known = watch.known
    return EngineReading(
        pool=watch.target.pool,
        up=watch.health.is_up,
        waiting=known.load.waiting,
        running=known.load.running,
        kv_usage=known.load.kv_usage,
        preemptions=known.load.preemptions,
        restarts=known.restarts,
        age_s=None if known.load_at is None else now - known.load_at,
        priority_effective=watch.priority_effective,
    )


def pools_not_ready(rooms: Rooms) -> list[str]:
    """Return the pools of which no engine answers that takes requests."""
    return [pool.name for pool in rooms.pools if not any(_takes_work(rooms, target) for target in pool.targets)]


def _takes_work(rooms: Rooms, target: Target) -> bool:
    return rooms.watches[target.name].health.is_up and rooms.canary.weight(target.pool, target.name) > 0


def is_ready(rooms: Rooms) -> bool:
    """Whether requests are served for some pool: one that has lost its engines does not take the others along."""
    return rooms.ending.is_serving and len(pools_not_ready(rooms)) < len(list(rooms.pools))


async def written(rooms: Rooms, promises: Promises | None) -> bytes:
    """Write the whole state as JSON, as it is at the instant of the call.

    promises: with what the plan promises of every line on every engine, which is most of the work and of the bytes.
    """
    value = state(rooms)
    if promises is None:
        return json.dumps(value).encode()
    bases = promises.bases()
    await asyncio.sleep(0)
    texts = await promises.texts(bases)
    return "".join(_spliced(value, texts)).encode()


def _spliced(value: dict[str, Any], guarantees: Mapping[str, str]) -> Iterator[str]:
    """Write the state piece by piece, with each engine's promise, which is text already, as its last member."""
    pools = value.pop("pools")
    yield f'{_open(value)}, "pools": {{'
    for pool_comma, (pool_name, pool) in zip(_commas(), pools.items(), strict=False):
        engines = pool.pop("engines")
        yield f'{pool_comma}{json.dumps(pool_name)}: {_open(pool)}, "engines": {{'
        for comma, (name, engine) in zip(_commas(), engines.items(), strict=False):
            yield f'{comma}{json.dumps(name)}: {_open(engine)}, "guarantee": '
            yield guarantees.get(name, "null")
            yield "}"
        yield "}}"
    yield "}}"


def _open(members: Mapping[str, Any]) -> str:
    """Write an object but for its end."""
    return json.dumps(members)[:-1]


def _commas() -> Iterator[str]:
    yield ""
    yield from repeat(", ")


def state(rooms: Rooms) -> dict[str, Any]:
    """Return the state, but for promises. Times are seconds, ages as of now."""
    now = rooms.clock.now()
    return {
        "version": RELEASE,
        "now": now,
        "stage": rooms.ending.stage.value,
        "ready": is_ready(rooms),
        "serving": len(rooms.ending),
        "policy": {"name": rooms.plan.name, "sha256": rooms.plan.sha256},
        "shadow": rooms.shadows.state(now),
        "totals": rooms.observer.totals(),
        "pools": {name: _pool(rooms, name, gate, now) for name, gate in rooms.gates.items()},
    }


def _pool(rooms: Rooms, name: str, gate: Gate, now: float) -> dict[str, Any]:
    snapshot = gate.snapshot()
    return {
        "length_class": next((pool.length_class for pool in rooms.pools if pool.name == name), None),
        "draining": snapshot.draining,
        "shifted": rooms.canary.is_shifted(name),
        "lines": [
            {
                "service_class": service_class,
                "length_class": length.value,
                "requests": line.requests,
                "prompt_tokens": line.prompt_tokens,
                "bytes": line.body_bytes,
                "oldest_age_s": 0.0 if line.oldest_offered_at is None else max(0.0, now - line.oldest_offered_at),
                "wait_s_max": _wait_s_max(rooms, service_class, length),
            }
            for (service_class, length), line in snapshot.lines.items()
        ],
        "engines": {each: _engine(rooms, each, engine, now) for each, engine in snapshot.engines.items()},
    }


def _wait_s_max(rooms: Rooms, service_class: str, length: LengthClass) -> float | None:
    class_plan = rooms.plan.classes.get(service_class)
    return None if class_plan is None else class_plan.wait_s_max[length]


def _engine(rooms: Rooms, name: str, ledger: EngineSnapshot, now: float) -> dict[str, Any]:
    watch = rooms.watches[name]
    said = reading(watch, now)
    return {
        "up": said.up,
        "weight": ledger.weight,
        "state": watch.health.state.value,
        "problem": watch.known.problem,
        "version": watch.known.version,
        "priority_effective": said.priority_effective,
        "budgets": dict(ledger.budgets),
        "used": {
            "long_prefills": ledger.long_prefills,
            "prefill_tokens": {length.value: tokens for length, tokens in ledger.prefill_tokens.items()},
            "slots": ledger.slots,
            "kv_reserved_tokens": ledger.kv_reserved_tokens,
            "running": [
                {"service_class": service_class, "length_class": length.value, "requests": count}
                for (service_class, length), count in ledger.running.items()
            ],
        },
        "says": {
            "running": said.running,
            "waiting": said.waiting,
            "kv_usage": said.kv_usage,
            "preemptions": said.preemptions,
            "age_s": said.age_s,
        },
        "restarts": said.restarts,
        "dividing": None if ledger.dividing is None else _dividing(ledger.dividing, now),
    }


def _dividing(dividing: DividingSnapshot, now: float) -> dict[str, Any]:
    """Return whether long prompts go in parts, and those that are under way."""
    return {
        "mode": dividing.mode,
        "whole_because": None if dividing.reason is None else dividing.reason.value,
        "whole_for_s": _ago(dividing.since, now),
        "tries_again_in_s": None if dividing.tries_at is None else max(0.0, dividing.tries_at - now),
        "prompts": [
            {
                "service_class": course.service_class,
                "prompt_tokens": course.prompt_tokens,
                "done_tokens": course.done_tokens,
                "part": course.part,
                "parts": course.parts,
                "held_for_s": _ago(course.held_since, now),
                "recalls": course.recalls,
            }
            for course in dividing.courses
        ],
    }


def _ago(at: float | None, now: float) -> float | None:
    return None if at is None else max(0.0, now - at)
