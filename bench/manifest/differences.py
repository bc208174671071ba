"""What differs: between a baseline and its candidate, field by field; between a manifest and what runs now. Pure.

Owns what has to be compared, and the sentences about it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bench.manifest.heard import HeardEngine, HeardGateway
from bench.manifest.schema import Engine, Manifest

ABSENT = "(absent)"
DEFAULT = "(the default: its log does not have it)"
# What names a manifest or says where a value came from is no setting of what it describes.
_ABOUT_ITSELF = ("sha256", "made_at", "name", "baseline_sha256", "sources")
_LONG_CHARS = 60


@dataclass(frozen=True, slots=True)
class Difference:
    """One field, with its value in the manifest, and the other one."""

    field: str
    stated: Any
    found: Any

    def to_json(self) -> dict[str, Any]:
        return {"field": self.field, "stated": self.stated, "found": self.found}


def between(baseline: Manifest, candidate: Manifest) -> list[Difference]:
    """Field by field what the candidate changes; `stated` is what a rollback has to restore."""
    return _changed(_flat(_comparable(baseline)), _flat(_comparable(candidate)))


def live(
    manifest: Manifest, engines: Mapping[str, HeardEngine], gateway: HeardGateway, config_sha256: str | None
) -> list[Difference]:
    """What runs otherwise than the manifest says. What does not tell a thing now is not judged: see `untold`.

    config_sha256: of gateway.yaml as it lies there now; None: nobody looked.
    """
    found: list[Difference] = []
    for name, stated in manifest.engines.items():
        found += [
            Difference(f"engines.{name}.{each.field}", each.stated, each.found)
            for each in _of_engine(manifest, stated, engines[name])
        ]
    found += _of_gateway(manifest, gateway)
    if config_sha256 is not None and config_sha256 != manifest.gateway.config_sha256:
        found.append(Difference("gateway.config_sha256", manifest.gateway.config_sha256, config_sha256))
    return found


def untold(manifest: Manifest, engines: Mapping[str, HeardEngine]) -> list[str]:
    """The arguments of the manifest that nothing running tells."""
    return [
        f"engines.{name}.args.{key}"
        for name, engine in manifest.engines.items()
        for key, argument in engine.args.items()
        if engines[name].problem is None and key not in engines[name].args and not engines[name].leaves_out(argument)
    ]


def of_settings(now: Mapping[str, Any], then: Mapping[str, Any]) -> list[Difference]:
    """What it changes, key by key, to have another gateway.yaml in the place of the one of now, which is `found`."""
    return _changed(_flat(_by_name(then)), _flat(_by_name(now)))


def shown(value: Any) -> str:
    """On one line of a table."""
    text = ABSENT if value is ABSENT else str(value)
    first, more, _ = text.partition("\n")
    return f"{first[:_LONG_CHARS]}…" if more or len(first) > _LONG_CHARS else first


def _of_engine(manifest: Manifest, stated: Engine, heard: HeardEngine) -> Iterator[Difference]:
    if heard.problem is not None:
        yield Difference("health", "well", heard.problem)
        return
    if heard.version != stated.version:
        yield Difference("version", stated.version, heard.version or ABSENT)
    if manifest.model.name not in heard.models:
        yield Difference("model", manifest.model.name, ", ".join(heard.models) or ABSENT)
    if heard.model_revision is not None and heard.model_revision != manifest.model.revision:
        yield Difference("model.revision", manifest.model.revision, heard.model_revision)
    for name, argument in heard.args.items():
        if name not in stated.args:
            yield Difference(f"args.{name}", ABSENT, argument.value)
        elif not _same(stated.args[name].value, argument.value):
            yield Difference(f"args.{name}", stated.args[name].value, argument.value)
    for name, argument in stated.args.items():
        if name not in heard.args and heard.leaves_out(argument):
            yield Difference(f"args.{name}", argument.value, DEFAULT)


def _of_gateway(manifest: Manifest, heard: HeardGateway) -> Iterator[Difference]:
    if heard.engines is None:
        yield Difference("gateway", "serving", heard.problem)
        return
    stated = manifest.gateway
    if heard.version != stated.version:
        yield Difference("gateway.version", stated.version, heard.version)
    if heard.policy.get("sha256") != stated.policy.sha256:
        found = f"{heard.policy.get('name')} {heard.policy.get('sha256')}"
        yield Difference("gateway.policy", f"{stated.policy.name} {stated.policy.sha256}", found)
    yield from _of_routing(manifest, heard, heard.engines)


def _of_routing(
    manifest: Manifest, heard: HeardGateway, engines: Mapping[str, Mapping[str, Any]]
) -> Iterator[Difference]:
    """An engine that the manifest does not know may be there: one that left goes once its last request has ended."""
    if heard.shifted:
        yield Difference("gateway.weights", "as gateway.yaml says", "shifted by POST /api/route")
    for name, weight in manifest.routing.weights.items():
        found = engines[name]["weight"] if name in engines else ABSENT
        if found != weight:
            yield Difference(f"gateway.weights.{name}", weight, found)
    for name in manifest.routing.target:
        if name in engines and not engines[name]["up"]:
            yield Difference(f"gateway.engines.{name}", "up", engines[name]["state"])


def _changed(stated: Mapping[str, Any], found: Mapping[str, Any]) -> list[Difference]:
    names = dict.fromkeys([*stated, *found])
    each = [Difference(name, stated.get(name, ABSENT), found.get(name, ABSENT)) for name in names]
    return [one for one in each if not _same(one.stated, one.found)]


def _comparable(manifest: Manifest) -> dict[str, Any]:
    said = manifest.model_dump(by_alias=True, exclude=set(_ABOUT_ITSELF), exclude_none=True)
    for engine in said["engines"].values():
        engine["args"] = {name: argument.get("value") for name, argument in engine["args"].items()}
    if len(said["engines"]) == 1:
        # A canary's engine has a name of its own; it is its settings that are compared.
        said["engine"] = next(iter(said.pop("engines").values()))
    return said


def _by_name(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Its engines by their names: where one stands in the list says nothing."""
    return {**settings, "engines": {str(each["name"]): each for each in settings["engines"]}}


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, each in value.items():
        if isinstance(each, dict) and each:
            flat |= _flat(each, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = each
    return flat


def _same(one: Any, other: Any) -> bool:
    return one == other and isinstance(one, bool) is isinstance(other, bool)
