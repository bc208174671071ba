"""The way back: a manifest's files in their place, in force, and what the withdrawn engines still have at its end.

Owns the order of the steps, and that each can be undone until the last one: the end of streams that are late.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import yaml

from bench.errors import UsageError
from bench.manifest import differences, gateway_files, heard, ops
from bench.manifest.differences import Difference
from bench.manifest.ops import Place
from bench.manifest.schema import Manifest

POLL_S = 0.1
UP_S_MAX = 30.0
ENDED_S_MAX = 10.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Drained:
    """What became of the streams of engines that got nothing new any more. ended: by the gateway, at the deadline.

    left: still there after all; took_s: until none was.
    """

    ended: int
    left: int
    took_s: float


def put_in_force(files: Mapping[Path, bytes], place: Place, pool: str) -> tuple[str, ...]:
    """Write and reload; the key paths that need a restart. Raises RefusedError where the gateway does not take it.

    What was there before is put back then. Raises TargetUnreachableError in the same way.
    """
    before = gateway_files.as_found(list(files))
    try:
        gateway_files.put(files)
        needs_restart = ops.reload(place)
        ops.weights_of_the_file(place, pool)
    except BaseException:
        gateway_files.put(before)
        raise
    return needs_restart


def put_back(before: Mapping[Path, bytes | None], shifted: Mapping[str, Mapping[str, float]], place: Place) -> None:
    """As it was found. shifted: by pool, the weights that were not the file's. Raises as `put_in_force` does."""
    gateway_files.put(before)
    ops.reload(place)
    for pool, weights in shifted.items():
        ops.shift(place, pool, weights)


def wait_until_up(place: Place, pool: str, engines: list[str], s_max: float = UP_S_MAX) -> list[str]:
    """Those that are not up in time: an engine that is new to a gateway is asked first."""
    give_up_at = time.monotonic() + s_max
    while True:
        found = ops.pools(place).get(pool, {}).get("engines", {})
        down = [name for name in engines if not found.get(name, {}).get("up")]
        # One that the configuration does not name will not come.
        if not down or not found.keys() >= set(down) or time.monotonic() >= give_up_at:
            return down
        time.sleep(POLL_S)


def drained(place: Place, manifest: Manifest, stopped: Event) -> Drained:
    """Wait for the requests of engines that the manifest gives none, and end what is left at its deadline.

    stopped: nobody waits any more, and nothing is ended.
    """
    began = time.monotonic()
    serving = _serving(manifest)
    deadline = began + manifest.drain_deadline_s
    while (left := _left(place, serving)) and time.monotonic() < deadline and not stopped.is_set():
        stopped.wait(POLL_S)
    ended = 0
    for pool in set() if stopped.is_set() else {pool for pool, _ in left}:
        ended += ops.end(place, pool, sorted(name for of, name in left if of == pool))
    give_up_at = time.monotonic() + ENDED_S_MAX
    while (left := _left(place, serving)) and time.monotonic() < give_up_at and not stopped.is_set():
        time.sleep(POLL_S)
    return Drained(ended, sum(left.values()), time.monotonic() - began)


@dataclass(frozen=True, slots=True)
class HeldAgainst:
    """What runs otherwise than a manifest says, and what of it nothing that runs tells. file_is_here: it was read."""

    differing: Sequence[Difference]
    untold: Sequence[str]
    file_is_here: bool


def held_against(manifest: Manifest, place: Place, logs: Mapping[str, str]) -> HeldAgainst:
    """logs: of engines, by name, as far as they are to be had."""
    keys = gateway_files.keys_of(manifest.gateway.config)
    engines = {
        name: heard.engine(engine.url, manifest.health_probe, logs.get(name), keys.get(name))
        for name, engine in manifest.engines.items()
    }
    gateway = heard.gateway(place.ops_url, manifest.routing.pool, place.token)
    file_sha256 = gateway_files.read(place.file).sha256 if place.file.is_file() else None
    found = differences.live(manifest, engines, gateway, file_sha256)
    return HeldAgainst(found, differences.untold(manifest, engines), file_sha256 is not None)


def perform(manifest: Manifest, place: Place, logs: Mapping[str, str], say: Say) -> bool:
    """Put the manifest's state back, step by step; whether all of it is in force. Raises what keeps it from it."""
    say("1/6 the baseline's engines answer")
    keys = gateway_files.keys_of(manifest.gateway.config)
    for name, engine in manifest.engines.items():
        found = heard.engine(engine.url, manifest.health_probe, key=keys.get(name))
        if found.problem is not None:
            raise UsageError(f"{name}: {found.problem}. Nothing was changed: start it first, with the manifest's args.")
    files = gateway_files.of_manifest(manifest.gateway, place.file)
    changed = _changed(manifest, place)
    say("2/6 what is there now is kept; to undo what follows, copy it back and POST /api/reload:")
    for copy in _kept(files):
        say(f"    {copy}")
    say(f"3/6 {', '.join(map(str, files))} as the manifest has them; the gateway reloads")
    for line in changed:
        say(f"    {line}")
    needs_restart = put_in_force(files, place, manifest.routing.pool)
    for path in needs_restart:
        say(f"    {path}: is not in force before the gateway's restart")
    say(f"4/6 new requests go to {', '.join(manifest.routing.target)}, once the gateway finds them up")
    if down := wait_until_up(place, manifest.routing.pool, list(manifest.routing.target)):
        say(f"    {', '.join(down)}: not up at the gateway. Nothing is ended: what other engines still have may finish")
        return False
    say(f"5/6 other engines may finish what they have for {manifest.drain_deadline_s:g} s")
    seen = drained(place, manifest, Event())
    say(f"    idle after {seen.took_s:.1f} s; {seen.ended} requests were ended at the deadline, {seen.left} are left")
    say("6/6 what runs is held against the manifest")
    held = held_against(manifest, place, logs)
    for each in held.differing:
        say(f"    {each.field}: {differences.shown(each.stated)} stated, {differences.shown(each.found)} found")
    if held.untold:
        say(f"    nothing that runs tells: {', '.join(held.untold)}")
    return not (seen.left or held.differing or needs_restart)


def _changed(manifest: Manifest, place: Place) -> list[str]:
    """Of all of gateway.yaml: what was changed since, by whomever, goes back too, and whoever rolls back is to know."""
    try:
        now = gateway_files.read(place.file).settings
    except UsageError as error:  # a file that was broken is what a rollback is for
        return [f"all of it: what is there now is no gateway.yaml ({error})"]
    found = differences.of_settings(now, yaml.safe_load(manifest.gateway.config))
    return [
        f"{each.field}: {differences.shown(each.found)} until now, {differences.shown(each.stated)} again"
        for each in found
    ]


def _kept(files: Mapping[Path, bytes]) -> list[Path]:
    """Copies of what lies there now, beside it. Raises UsageError."""
    word = f"before-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    return [gateway_files.kept_beside(path, word) for path in files if path.exists()]


def _serving(manifest: Manifest) -> set[tuple[str, str]]:
    """The engines that get requests under the manifest, by pool and name."""
    said: Any = yaml.safe_load(manifest.gateway.config)
    return {(each["pool"], each["name"]) for each in said["engines"] if each.get("weight", 1) > 0}


def _left(place: Place, serving: set[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """How many requests each engine has that is withdrawn. Another pool's may be taken in by a shift of that pool."""
    pools = ops.pools(place)
    taken_in = {(pool, name) for pool, weights in ops.shifted(pools).items() for name, each in weights.items() if each}
    return {each: number for each, number in ops.running(pools).items() if number and each not in serving | taken_in}
