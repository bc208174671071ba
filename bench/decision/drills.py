"""Stage 3: what `gateway bench faults` left, as evidence for one arm. Reads faults.json and the runs' own records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.decision import todo
from bench.decision.evidence import Evidence
from bench.decision.rules import identity
from bench.decision.terms import Terms
from bench.decision.words import Finding, Stage, Standing
from bench.errors import UsageError
from bench.records import stored
from bench.records.store import DRILLS_FILE


@dataclass(frozen=True, slots=True)
class Drilled:
    """One drill as it was held. policy: its name; policy_sha256: what its gateway said; None: it did not."""

    drill: str
    passed: bool
    client_late: bool
    run_id: str
    policy: str
    policy_sha256: str | None
    failed_checks: tuple[str, ...]


def read(folders: Sequence[Path]) -> list[Drilled]:
    """Raises UsageError where a folder has no drills."""
    found = []
    for folder in sorted({each.resolve() for each in folders}):
        said = stored.read_json(folder / DRILLS_FILE)
        try:
            found += [_drilled(folder, str(said["policy"]), each) for each in said["drills"]]
        except (KeyError, TypeError) as error:
            raise UsageError(f"{folder / DRILLS_FILE}: not of this version of the bench ({error}).") from error
    return sorted(found, key=lambda each: each.run_id)


def _drilled(folder: Path, policy: str, each: Mapping[str, Any]) -> Drilled:
    file = folder / str(each["run_id"]) / "run.json"
    run = stored.read_json(file) if file.is_file() else {}
    return Drilled(
        drill=str(each["drill"]),
        passed=bool(each["passed"]),
        client_late=bool(each["client_late"]),
        run_id=str(each["run_id"]),
        policy=Path(policy).stem if policy.endswith((".yaml", ".yml")) else policy,
        policy_sha256=run.get("policy_sha256"),
        failed_checks=tuple(f"{check['check']} ({check['seen']})" for check in each["checks"] if not check["passed"]),
    )


def faults(evidence: Evidence, arm: str, held: Sequence[Drilled], terms: Terms) -> list[Finding]:
    """One finding a drill that is wanted; whatever else was drilled and failed is one too."""
    own = [each for each in held if is_of(each, evidence, arm)]
    names = [*terms.drills, *sorted({each.drill for each in own} - set(terms.drills))]
    policy = arm if is_policy(evidence, arm) else "POLICY"
    if not own:
        other = sorted({each.policy for each in held})
        says = f"drills were held of {', '.join(other)} alone" if other else "no drill was held"
        return [Finding(Stage.FAULTS, "drills", Standing.UNKNOWN, says, arm, todo=todo.drilled(policy))]
    return [_judged(name, [each for each in own if each.drill == name], arm, policy) for name in names]


def is_of(drilled: Drilled, evidence: Evidence, arm: str) -> bool:
    """By the policy's hash where both sides know it, else by its name; where arms are no policies it is taken as it is,
    unless it is called as another arm.
    """
    hashes = {identity(run.stored.run, "policy_sha256") for run in evidence.runs if run.arm == arm} - {None}
    if drilled.policy_sha256 is not None and hashes:
        return hashes == {drilled.policy_sha256}
    return drilled.policy == arm or not (is_policy(evidence, arm) or drilled.policy in evidence.arms)


def is_policy(evidence: Evidence, arm: str) -> bool:
    """Whether an arm is called as its policy is: those of `gateway bench policies` are."""
    return any(record.kind == "policies" and arm in record.arms for record in evidence.records)


def _judged(name: str, held: Sequence[Drilled], arm: str, policy: str) -> Finding:
    """A drill that failed once has failed, however often it passed."""
    counted = [each for each in held if not each.client_late]
    ids = tuple(each.run_id for each in held)
    failed = [each for each in counted if not each.passed]
    if failed:
        says = f"failed {len(failed)} of {len(counted)}, with {_policies(failed)}: {'; '.join(failed[0].failed_checks)}"
        return Finding(Stage.FAULTS, name, Standing.FAILS, says, arm, runs=ids)
    if counted:
        return Finding(
            Stage.FAULTS,
            name,
            Standing.HOLDS,
            f"passed {len(counted)} of {len(counted)}, with {_policies(counted)}",
            arm,
            runs=ids,
        )
    says = "the client was late" if held else "not held"
    return Finding(Stage.FAULTS, name, Standing.UNKNOWN, says, arm, runs=ids, todo=todo.drilled(policy, [name]))


def _policies(held: Sequence[Drilled]) -> str:
    return ", ".join(sorted({each.policy for each in held}))
