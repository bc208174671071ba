"""Stage 4: the way back: a manifest of the baseline that nobody changed, and a rollback to it that was rehearsed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.decision.evidence import Evidence
from bench.decision.rules import identity
from bench.decision.words import Finding, Stage, Standing
from bench.manifest import sealed
from bench.manifest.schema import Manifest
from bench.manifest.sealed import ChangedError
from bench.records import stored
from bench.records.store import ROLLBACK_FILE

_CREATE = "gateway bench manifest create DRAFT.yaml --out manifests"
_REHEARSE = "gateway bench manifest rollback BASELINE.yaml --rehearse --candidate CANDIDATE.yaml …"
# What the cells of a sweep differ in, where everything else is one.
_SETTINGS = ("max_num_batched_tokens", "max_num_seqs", "long_prefill_token_threshold", "scheduling_policy")


@dataclass(frozen=True, slots=True)
class Recovery:
    """changed: why files that were given as manifests are none. rehearsals: as they lie on disk."""

    manifests: tuple[Manifest, ...] = ()
    changed: tuple[str, ...] = ()
    rehearsals: tuple[Mapping[str, Any], ...] = ()

    @property
    def baselines(self) -> list[Manifest]:
        return [each for each in self.manifests if each.baseline_sha256 is None]


def read(paths: Sequence[Path]) -> Recovery:
    """Manifests, and rehearsals: rollback.json, or the folder that it is in. Raises UsageError."""
    manifests: list[Manifest] = []
    changed: list[str] = []
    rehearsals: list[Mapping[str, Any]] = []
    for path in sorted({each.resolve() for each in paths}):
        file = path / ROLLBACK_FILE if path.is_dir() else path
        if file.suffix == ".json":
            rehearsals.append(stored.read_json(file))
            continue
        try:
            manifests.append(sealed.load(file))
        except ChangedError as error:
            changed.append(str(error))
    return Recovery(tuple(manifests), tuple(changed), tuple(rehearsals))


def recovery(evidence: Evidence, arm: str, found: Recovery) -> list[Finding]:
    own = [each for each in found.baselines if not _differing(evidence, evidence.baseline, each)[1]]
    return [_verifies(arm, found), _of_baseline(evidence, arm, found, own), _rehearsed(evidence, arm, found, own)]


def _verifies(arm: str, found: Recovery) -> Finding:
    if found.changed:
        return _finding("manifest", Standing.FAILS, "; ".join(found.changed), arm, _CREATE)
    if not found.baselines:
        return _finding("manifest", Standing.UNKNOWN, "no manifest of the baseline to go back to", arm, _CREATE)
    names = ", ".join(f"{each.name} {each.sha256[:12]}" for each in found.manifests)
    return _finding("manifest", Standing.HOLDS, f"as written: {names}", arm)


def _of_baseline(evidence: Evidence, arm: str, found: Recovery, own: Sequence[Manifest]) -> Finding:
    """What it would bring back is what was measured as the baseline. own: manifests of which nothing says otherwise."""
    rule = "manifest is the baseline's"
    if not found.baselines:
        return _finding(rule, Standing.UNKNOWN, "there is none", arm)
    compared, other = _differing(evidence, evidence.baseline, (own or found.baselines)[-1])
    if other:
        says = f"another {', '.join(other)} than {evidence.baseline} was measured with"
        return _finding(rule, Standing.FAILS, says, arm)
    if not compared:
        way = "… --metadata image_digest=… model_revision=…"
        return _finding(rule, Standing.UNKNOWN, "the records name nothing to hold against it", arm, way)
    return _finding(rule, Standing.HOLDS, f"the {', '.join(compared)} that {evidence.baseline} was measured with", arm)


def _rehearsed(evidence: Evidence, arm: str, found: Recovery, own: Sequence[Manifest]) -> Finding:
    """The last one counts, and it was one with what is to be rolled out."""
    baselines = {each.sha256 for each in own}
    held = sorted((each for each in found.rehearsals if each.get("manifest_sha256") in baselines), key=_rehearsed_at)
    if not held:
        says = "rehearsed for other manifests alone" if found.rehearsals else "no rollback was rehearsed"
        return _finding("rehearsal", Standing.UNKNOWN, says, arm, _REHEARSE)
    last = held[-1]
    if last.get("held") is not True:
        why = "; ".join(map(str, last.get("failures", ()))) or "it does not say why"
        return _finding("rehearsal", Standing.FAILS, f"{_rehearsed_at(last)} did not hold: {why}", arm, _REHEARSE)
    candidate = next((each for each in found.manifests if each.sha256 == last.get("candidate_sha256")), None)
    if candidate is None:
        says = "held, with a candidate whose manifest is not here"
        return _finding("rehearsal", Standing.UNKNOWN, says, arm, "… --manifest BASELINE CANDIDATE rollback.json")
    compared, other = _differing(evidence, arm, candidate)
    if not compared:
        return _finding("rehearsal", Standing.UNKNOWN, f"held, and nothing says that {candidate.name} is {arm}", arm)
    if other:
        says = f"held, with a candidate of another {', '.join(other)} than {arm} was measured with"
        return _finding("rehearsal", Standing.FAILS, says, arm, _REHEARSE)
    return _finding("rehearsal", Standing.HOLDS, f"{_rehearsed_at(last)} held, with {candidate.name}", arm)


def _differing(evidence: Evidence, arm: str, manifest: Manifest) -> tuple[list[str], list[str]]:
    """What of a manifest can be held against an arm's runs, and what of that is another."""
    in_file = {
        "policy_sha256": {manifest.gateway.policy.sha256},
        "image_digest": {manifest.image_digest},
        "model_revision": {manifest.model.revision},
    }
    engines = manifest.engines.values()
    in_file |= {name: {str(each.args[name].value) for each in engines if name in each.args} for name in _SETTINGS}
    runs = [run.stored.run for run in evidence.runs if run.arm == arm]
    measured = {name: {str(value) for run in runs if (value := _said(run, name)) is not None} for name in in_file}
    compared = [name for name in in_file if measured[name] and in_file[name]]
    return compared, [name for name in compared if measured[name] != in_file[name]]


def _said(run: Mapping[str, Any], name: str) -> Any:
    return (identity(run, "effective_args") or {}).get(name) if name in _SETTINGS else identity(run, name)


def _rehearsed_at(said: Mapping[str, Any]) -> str:
    return str(said.get("rehearsed_at"))


def _finding(rule: str, standing: Standing, says: str, arm: str, *ways: str) -> Finding:
    return Finding(Stage.RECOVERY, rule, standing, says, arm, todo=ways)
