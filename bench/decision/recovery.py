"""Stage 4: the way back: a manifest of the baseline that nobody changed, and a rollback to it that was rehearsed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bench.decision.evidence import Evidence
from bench.decision.rules import identity
from bench.decision.words import Finding, Stage, Standing
from bench.errors import UsageError
from bench.records import stored

REHEARSAL_FILE = "rollback.json"
_FIRST_LINE = re.compile(rb"sha256: ([0-9a-f]{64})\n")
_CREATE = "gateway bench manifest create …"
_REHEARSE = "gateway bench manifest rollback --rehearse …"


@dataclass(frozen=True, slots=True)
class Manifest:
    """said: the file, where its bytes have the hash that it bears; None: they do not."""

    path: Path
    sha256: str
    said: Mapping[str, Any] | None

    @property
    def is_baseline(self) -> bool:
        return self.said is not None and self.said.get("baseline_sha256") is None


@dataclass(frozen=True, slots=True)
class Recovery:
    manifests: tuple[Manifest, ...] = ()
    rehearsals: tuple[Mapping[str, Any], ...] = ()


def read(paths: Sequence[Path]) -> Recovery:
    """Manifests, and rehearsals: rollback.json, or the folder that it is in. Raises UsageError."""
    manifests, rehearsals = [], []
    for path in sorted({each.resolve() for each in paths}):
        file = path / REHEARSAL_FILE if path.is_dir() else path
        if file.suffix == ".json" and "rehearsed_at" in (said := stored.read_json(file)):
            rehearsals.append(said)
        else:
            manifests.append(_manifest(file))
    return Recovery(tuple(manifests), tuple(rehearsals))


def _manifest(path: Path) -> Manifest:
    try:
        raw = path.read_bytes()
        first = _FIRST_LINE.match(raw)
        if first is None:
            return Manifest(path, "", None)
        sha256 = first[1].decode()
        is_as_written = hashlib.sha256(raw[first.end() :]).hexdigest() == sha256
        said = yaml.safe_load(raw) if is_as_written else None
    except (OSError, yaml.YAMLError) as error:
        raise UsageError(f"{path}: cannot be read as a manifest ({error}).") from error
    return Manifest(path, sha256, said if isinstance(said, dict) else None)


def recovery(evidence: Evidence, arm: str, found: Recovery) -> list[Finding]:
    return [_verifies(arm, found), _of_baseline(evidence, arm, found), _rehearsed(arm, found)]


def _verifies(arm: str, found: Recovery) -> Finding:
    changed = [each.path.name for each in found.manifests if each.said is None]
    if changed:
        return _finding(
            "manifest", Standing.FAILS, f"changed since it was written: {', '.join(changed)}", arm, (_CREATE,)
        )
    if not any(each.is_baseline for each in found.manifests):
        return _finding("manifest", Standing.UNKNOWN, "no manifest of the baseline to go back to", arm, (_CREATE,))
    return _finding(
        "manifest", Standing.HOLDS, f"as written: {', '.join(each.sha256[:12] for each in found.manifests)}", arm
    )


def _of_baseline(evidence: Evidence, arm: str, found: Recovery) -> Finding:
    """What it would bring back is what was measured as the baseline."""
    rule = "manifest is the baseline's"
    first = next((each for each in found.manifests if each.is_baseline), None)
    if first is None or first.said is None:
        return _finding(rule, Standing.UNKNOWN, "there is none", arm)
    policy = first.said.get("gateway", {}).get("policy", {}).get("sha256")
    in_file = {
        "policy_sha256": policy,
        "image_digest": first.said.get("image_digest"),
        "model_revision": first.said.get("model", {}).get("revision"),
    }
    other = []
    compared = []
    for name, value in in_file.items():
        measured = {identity(run.stored.run, name) for run in evidence.runs if run.arm == evidence.baseline} - {None}
        if value is not None and measured:
            compared.append(name)
            other += [name] if measured != {value} else []
    if other:
        return _finding(
            rule, Standing.FAILS, f"another {', '.join(other)} than {evidence.baseline} was measured with", arm
        )
    if not compared:
        says = "the records name no policy, image or revision to hold against it"
        return _finding(rule, Standing.UNKNOWN, says, arm, ("… --metadata image_digest=… model_revision=…",))
    return _finding(rule, Standing.HOLDS, f"the {', '.join(compared)} that {evidence.baseline} was measured with", arm)


def _rehearsed(arm: str, found: Recovery) -> Finding:
    """One that did not hold is not undone by another that did, unless it came later."""
    known = {each.sha256 for each in found.manifests if each.said is not None}
    own = sorted((each for each in found.rehearsals if each.get("manifest_sha256") in known), key=_rehearsed_at)
    if not own:
        says = "rehearsed for other manifests alone" if found.rehearsals else "no rollback was rehearsed"
        return _finding("rehearsal", Standing.UNKNOWN, says, arm, (_REHEARSE,))
    last = own[-1]
    if last.get("held") is True:
        return _finding("rehearsal", Standing.HOLDS, f"held at {last['rehearsed_at']}", arm)
    return _finding("rehearsal", Standing.FAILS, f"did not hold at {last['rehearsed_at']}", arm, (_REHEARSE,))


def _rehearsed_at(said: Mapping[str, Any]) -> str:
    return str(said["rehearsed_at"])


def _finding(rule: str, standing: Standing, says: str, arm: str, ways: tuple[str, ...] = ()) -> Finding:
    return Finding(Stage.RECOVERY, rule, standing, says, arm, todo=ways)
