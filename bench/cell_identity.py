"""What a run was of: policy, image, model, tokenizer, hardware, version. Read where it can be read, else as stated.

Owns which of the two comes first. What nobody says has no key. Sends nothing.
"""

from __future__ import annotations

from typing import Any

from bench.cell import CellPlan, Seen
from bench.engine import around, hardware

# What nothing that is served tells: the user states it with --metadata, under these names.
STATED = ("image_digest", "model_revision", "tokenizer_revision", "hardware_id")


def identity(plan: CellPlan, seen: Seen) -> dict[str, Any]:
    """The identity fields of run.json."""
    said: dict[str, Any] = {name: plan.metadata[name] for name in STATED if name in plan.metadata}
    said.setdefault("tokenizer_revision", f"sha256:{plan.tokenizer.sha256}")
    # Of the engines where they are known: a gateway here may have its engines elsewhere. Loopback may be a forwarded
    # port: whoever states the hardware knows better.
    urls = plan.target.metrics_urls.values() or [plan.target.base_url]
    if "hardware_id" not in said and hardware.is_this_machine(urls):
        said |= hardware.of_this_machine()
    read = {
        "policy_sha256": next(iter(policies(seen)), None),
        "model_revision": around.model_revision(seen.engines),
        "engine_version": around.version(seen.engines) or plan.engine_start.get("engine_version"),
        "effective_args": _effective_args(plan, seen) or None,
    }
    return said | {name: value for name, value in read.items() if value is not None}


def _effective_args(plan: CellPlan, seen: Seen) -> dict[str, Any]:
    """What the engines say at any time, and what one that was started for the run says beside it."""
    return {**around.effective_args(seen.engines), **plan.engine_start.get("effective", {})}


def policies(seen: Seen) -> set[str]:
    """The hashes of all that were in force; several where one took another's place during the run."""
    return {digest for digest in seen.policies if digest is not None}
