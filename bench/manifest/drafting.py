"""From a draft, what runs, and a baseline to a manifest without a hole; or to all that is missing, and where it is.

Owns which source goes before which: who runs is asked first, then what the draft states, then the baseline. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench.errors import UsageError
from bench.manifest.draft import ARGUMENTS, HOW, Draft
from bench.manifest.gateway_files import Configured
from bench.manifest.heard import HeardEngine, HeardGateway
from bench.manifest.schema import Argument, Manifest, Strict


@dataclass(frozen=True, slots=True)
class Seen:
    """What was read. engines: those of the target. policy_text: of a policy file of the user's own."""

    configured: Configured
    ops_url: str
    gateway: HeardGateway
    engines: Mapping[str, HeardEngine]
    policy_text: str | None


def pool_of(draft: Draft, configured: Configured, baseline: Manifest | None) -> str:
    """Raises UsageError where the file has several pools and none is named."""
    named = draft.pool or (None if baseline is None else baseline.routing.pool)
    pools = list(configured.settings["pools"])
    if named is None and len(pools) == 1:
        return str(pools[0])
    if named is None or named not in pools:
        raise UsageError(f"pool: {named or 'missing'}: {configured.path} has {', '.join(map(str, pools))}. Name one.")
    return named


def target_of(draft: Draft, configured: Configured, pool: str, baseline: Manifest | None) -> list[str]:
    """The engines that it is about: as stated, else all that get requests, but for the baseline's."""
    weights = configured.weights(pool)
    others = set() if baseline is None else set(baseline.routing.target)
    getting = [name for name, weight in weights.items() if weight > 0]
    chosen = draft.target or [name for name in getting if name not in others] or getting
    if strangers := [name for name in chosen if name not in weights]:
        raise UsageError(f"target: {strangers[0]} is no engine of the pool {pool} in {configured.path}.")
    return chosen


def assembled(draft: Draft, seen: Seen, pool: str, baseline: Manifest | None, made_at: str) -> dict[str, Any]:
    """The fields of a manifest. Raises UsageError naming each one that nobody tells, and how to find it."""
    making = _Making(draft, baseline)
    model = _model(making, seen)
    making.inherits_not(_of_another(seen, model, baseline))
    fields: dict[str, Any] = {
        "version": 1,
        "name": making.stated("name"),
        "made_at": made_at,
        **({} if baseline is None else {"baseline_sha256": baseline.sha256}),
        "owner": making.stated("owner"),
        "deployment_revision": making.stated("deployment_revision"),
        "image_digest": making.stated("image_digest"),
        "model": {
            "name": model,
            "revision": making.read(
                "model_revision", _one(each.model_revision for each in seen.engines.values()), "models"
            ),
            "tokenizer_revision": making.stated("tokenizer_revision"),
        },
        "engines": {name: _engine(making, seen, name, pool) for name in seen.engines},
        "prefix_caching": making.read("prefix_caching", _caches(seen), "metrics"),
        "speculation": _speculation(making, seen),
        "environment": making.environment(),
        "routing": {"pool": pool, "weights": seen.configured.weights(pool), "target": list(seen.engines)},
        "health_probe": making.stated("health_probe"),
        "capacity": making.stated("capacity"),
        "drain_deadline_s": making.stated("drain_deadline_s"),
        "abort": making.stated("abort"),
        "gateway": _gateway(making, seen),
        "sources": making.sources,
    }
    making.complain()
    return fields


class _Making:
    """Keeps where each field came from, and what is missing."""

    def __init__(self, draft: Draft, baseline: Manifest | None) -> None:
        self.draft = draft
        self.baseline = baseline
        self.sources: dict[str, str] = {}
        self._missing: dict[str, str] = {}
        self._not_inherited: dict[str, str] = {"name": "its own"}

    def inherits_not(self, why: Mapping[str, str]) -> None:
        """Fields of which the baseline's is not this one's, and why."""
        self._not_inherited |= why

    def stated(self, name: str) -> Any:
        """What the draft says, else the baseline."""
        value = getattr(self.draft, name)
        if value is not None:
            self.sources[name] = "stated"
            return _plain(value)
        inherited = None if self.baseline is None else _of_baseline(self.baseline, name)
        if inherited is None:
            return self.missing(name, HOW[name])
        if name in self._not_inherited:
            return self.missing(name, f"{self._not_inherited[name]}: {HOW[name]}")
        self.sources[name] = "baseline"
        return _plain(inherited)

    def environment(self) -> dict[str, str]:
        """As stated, else the baseline's; none where neither says any."""
        if self.draft.environment is None:
            return {} if self.baseline is None else dict(self.baseline.environment)
        return dict(self.draft.environment)

    def read(self, name: str, value: Any, source: str) -> Any:
        if value is None:
            return self.stated(name)
        said = getattr(self.draft, name)
        if said is not None and said != value:
            self.missing(name, f"the draft states {said}, and what runs says {value} ({source}). Which one is meant?")
        self.sources[name] = source
        return value

    def missing(self, name: str, how: str) -> Any:
        """Note it, and go on: all that is missing is told at once."""
        self._missing[name] = how
        return None

    def complain(self) -> None:
        """Raises UsageError where something is missing."""
        if self._missing:
            lines = "\n".join(f"  {name}: {how}" for name, how in self._missing.items())
            raise UsageError(f"not everything is known, and a manifest with holes puts nothing back:\n{lines}")


def _model(making: _Making, seen: Seen) -> str | None:
    """The one that is stated, where all engines serve it; else the first of each, where that is the same."""
    stated = making.draft.model
    served = {name: each.models for name, each in seen.engines.items() if each.models}
    if stated is None:
        found: str | None = _one(models[0] for models in served.values())
        return found or making.missing("model", "the engine's /v1/models, or the name that it serves under")
    for name, models in served.items():
        if stated not in models:
            making.missing("model", f"the draft states {stated}, and {name} serves {', '.join(models)}")
    return stated


def _of_another(seen: Seen, model: str | None, baseline: Manifest | None) -> dict[str, str]:
    """What a candidate cannot have of its baseline: the image of another version, the revisions of another model."""
    if baseline is None:
        return {}
    found: dict[str, str] = {}
    versions = {engine.version for engine in baseline.engines.values()}
    if others := sorted({each.version for each in seen.engines.values() if each.version is not None} - versions):
        found["image_digest"] = f"the baseline's is of {', '.join(sorted(versions))}, and not of {', '.join(others)}"
    if model not in (None, baseline.model.name):
        why = f"the baseline's is of {baseline.model.name}, and not of {model}"
        found |= {"model_revision": why, "tokenizer_revision": why}
    return found


def _engine(making: _Making, seen: Seen, name: str, pool: str) -> dict[str, Any]:
    heard = seen.engines[name]
    if heard.problem is not None:
        making.missing(f"engines.{name}", f"{heard.problem}: start it, or leave it out of target")
    stated = {key: {"value": value, "from": "stated"} for key, value in making.draft.args.items()}
    args = stated | {key: each.model_dump(by_alias=True) for key, each in heard.args.items()}
    for key, how in ARGUMENTS.items():
        inherited = _argument_of_baseline(making.baseline, key)
        if key not in args and inherited is not None and not heard.leaves_out(inherited):
            args[key] = {"value": inherited.value, "from": "baseline"}
        if key not in args:
            making.missing(f"engines.{name}.args.{key}", how)
    for key, value in making.draft.args.items():
        if args[key]["value"] != value:
            said = args[key]
            making.missing(f"args.{key}", f"the draft states {value}, and {name} says {said['value']} ({said['from']})")
    return {
        "url": str(seen.configured.engines(pool)[name]["url"]).rstrip("/"),
        "version": heard.version or making.missing(f"engines.{name}.version", "the engine's /version"),
        "args": dict(sorted(args.items())),
    }


def _gateway(making: _Making, seen: Seen) -> dict[str, Any]:
    heard, configured = seen.gateway, seen.configured
    if heard.problem is not None:
        making.missing("gateway", f"{heard.problem}: start it with {configured.path}, or correct ops_url")
    if heard.shifted:
        making.missing("gateway.weights", "they are shifted: roll back by POST /api/route, or write them into the file")
    policy: dict[str, Any] = dict(heard.policy)
    if configured.policy_file is not None:
        if hashlib.sha256((seen.policy_text or "").encode()).hexdigest() != policy.get("sha256"):
            making.missing("gateway.policy", f"{configured.policy_file} is not what is in force: reload, or undo it")
        policy |= {"file": str(configured.policy_file), "text": seen.policy_text}
    elif policy and policy["name"] != (named := configured.policy):
        making.missing("gateway.policy", f"{named} stands in the file, {policy['name']} is in force (serve --policy?)")
    return {
        "version": heard.version,
        "ops_url": seen.ops_url,
        "file": str(configured.path.absolute()),
        "config_sha256": configured.sha256,
        "config": configured.text,
        "policy": policy,
    }


def _speculation(making: _Making, seen: Seen) -> Any:
    stated = making.stated("speculation")
    for name, heard in seen.engines.items():
        told = heard.args.get("speculative_config")
        if stated is not None and told is not None and (told.value is None) is not (stated == "none"):
            making.missing("speculation", f"{name} says {told.value} ({told.source}), and stated is {stated}")
    return stated


def _caches(seen: Seen) -> bool | None:
    said = {
        each.args["enable_prefix_caching"].value
        for each in seen.engines.values()
        if "enable_prefix_caching" in each.args
    }
    value = _one(said)
    return value if isinstance(value, bool) else None


def _of_baseline(baseline: Manifest, name: str) -> Any:
    match name:
        case "model_revision":
            return baseline.model.revision
        case "tokenizer_revision":
            return baseline.model.tokenizer_revision
        case _:
            return getattr(baseline, name)


def _argument_of_baseline(baseline: Manifest | None, name: str) -> Argument | None:
    if baseline is None:
        return None
    found = [engine.args[name] for engine in baseline.engines.values() if name in engine.args]
    return found[0] if found and all(each.value == found[0].value for each in found) else None


def _one(values: Any) -> Any:
    """The one value that all say; None where they differ or say nothing."""
    found = [value for value in values if value is not None]
    return found[0] if found and all(value == found[0] for value in found) else None


def _plain(value: Any) -> Any:
    return value.model_dump(exclude_none=True) if isinstance(value, Strict) else value
