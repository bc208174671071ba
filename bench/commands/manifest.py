"""`gateway bench manifest`: write down what serves, hold it against what runs, say what changes, put it back."""

from __future__ import annotations

import argparse
import difflib
import time
from collections.abc import Callable, Sequence
from enum import IntEnum
from pathlib import Path

from bench.commands import manifest_rollback
from bench.errors import TargetUnreachableError, UsageError
from bench.manifest import differences, drafting, gateway_files, heard, rollback, sealed
from bench.manifest.differences import Difference, shown
from bench.manifest.draft import Draft
from bench.manifest.drafting import Seen
from bench.manifest.gateway_files import Configured
from bench.manifest.ops import RefusedError
from bench.manifest.schema import HealthProbe, Manifest
from bench.manifest.sealed import ChangedError
from bench.progress import say
from bench.strict_yaml import read
from bench.tables import table

HELP = "what serves, written down so that it can be put back; and the way back, rehearsed"
EXAMPLE = """examples:
  gateway bench manifest create draft.yaml --out manifests
  gateway bench manifest create candidate-draft.yaml --baseline manifests/chat-0a1b2c3d4e5f.yaml --out manifests
  gateway bench manifest verify manifests/chat-0a1b2c3d4e5f.yaml --live
  gateway bench manifest diff manifests/chat-0a1b2c3d4e5f.yaml manifests/chat-next-6f7a8b9c0d1e.yaml
  gateway bench manifest rollback manifests/chat-0a1b2c3d4e5f.yaml --rehearse --candidate manifests/chat-next-….yaml \\
      --base-url http://127.0.0.1:8080 --tokenizer ./tokenizer --credential short=KEY long=KEY_BATCH
  gateway bench manifest rollback manifests/chat-0a1b2c3d4e5f.yaml

exit codes: 0 as it should be, 1 a rollback did not hold or nothing answers, 2 usage, or something is missing,
4 a rehearsal whose client was late, 5 the file is not what its hash says, 6 what runs differs from it"""


class ManifestExit(IntEnum):
    """Beside those of every command."""

    CHANGED = 5
    DIFFERS = 6


_TEXTS = ("gateway.config", "gateway.policy.text")
_USUAL_PROBE = HealthProbe(path="/health", within_s=5.0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    acts = parser.add_subparsers(dest="act", required=True, metavar="ACT")
    create = acts.add_parser("create", help="from a draft and what runs; nothing may be unknown")
    create.add_argument("draft", type=Path, help="YAML: what no engine and no gateway tells")
    create.add_argument("--baseline", type=Path, metavar="MANIFEST", help="this is a change to it, a candidate")
    create.add_argument("--out", type=Path, default=Path(), metavar="DIR", help="where it is kept (default: here)")
    verify = acts.add_parser("verify", help="the file against its hash, and with --live against what runs")
    verify.add_argument("manifest", type=Path)
    verify.add_argument("--live", action="store_true", help="ask its engines and its gateway too")
    _add_gateway(verify)
    diff = acts.add_parser("diff", help="what a candidate changes, and a rollback has to restore")
    diff.add_argument("baseline", type=Path)
    diff.add_argument("candidate", type=Path)
    back = acts.add_parser("rollback", help="put a baseline back; with --rehearse: try it under load, and undo it")
    back.add_argument("manifest", type=Path, help="of the baseline")
    _add_gateway(back)
    manifest_rollback.add_arguments(back)


def execute(args: argparse.Namespace, command: Sequence[str]) -> int:
    """Raises UsageError and TargetUnreachableError; prints what was found."""
    acts: dict[str, Callable[[], int]] = {
        "create": lambda: _create(args),
        "verify": lambda: _verify(args),
        "diff": lambda: _diff(args),
        "rollback": lambda: manifest_rollback.execute(args, command),
    }
    try:
        return acts[args.act]()
    except ChangedError as error:
        say(f"gateway bench manifest: {error}")
        return ManifestExit.CHANGED
    except RefusedError as error:
        raise TargetUnreachableError(f"the gateway refuses: {error}") from error


def _add_gateway(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ops-url", metavar="URL", help="the gateway's ops port (default: as the manifest says)")
    parser.add_argument("--gateway-config", type=Path, metavar="FILE", help="its gateway.yaml (default: as it says)")
    parser.add_argument("--engine-log", nargs="+", default=[], metavar="ENGINE=FILE", help="what no page tells")
    parser.add_argument("--ops-token-env", metavar="ENV", help="variable with the token of the ops port")


def _create(args: argparse.Namespace) -> int:
    baseline = None if args.baseline is None else sealed.load(args.baseline)
    draft = read(args.draft, Draft)
    configured = gateway_files.read(args.draft.parent / draft.gateway_config)
    pool = drafting.pool_of(draft, configured, baseline)
    seen = _seen(args.draft.parent, draft, configured, pool, baseline)
    made_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    fields = drafting.assembled(draft, seen, pool, baseline, made_at)
    raw = sealed.sealed(fields)
    path = sealed.write(args.out, raw, fields["name"])
    print(f"{path}\nsha256 {sealed.sha256_in(raw)}")
    for source in dict.fromkeys(fields["sources"].values()):
        named = ", ".join(name for name, each in fields["sources"].items() if each == source)
        say(f"{'as the draft states' if source == 'stated' else f'from {source}'}: {named}")
    return 0


def _seen(folder: Path, draft: Draft, configured: Configured, pool: str, baseline: Manifest | None) -> Seen:
    """What runs now. Raises UsageError."""
    ops_url = draft.ops_url or configured.ops_url()
    if ops_url is None:
        raise UsageError(f"ops_url: {configured.path} leaves the port open. State the one that the gateway has.")
    probe = draft.health_probe or (None if baseline is None else baseline.health_probe) or _USUAL_PROBE
    stated = configured.engines(pool)
    logs = {name: heard.log(folder / path) for name, path in draft.engine_logs.items()}
    keys = gateway_files.keys_of(configured.text)
    engines = {
        name: heard.engine(str(stated[name]["url"]).rstrip("/"), probe, logs.get(name), keys.get(name))
        for name in drafting.target_of(draft, configured, pool, baseline)
    }
    policy = configured.policy_file
    text = policy.read_bytes().decode() if policy is not None and policy.is_file() else None
    return Seen(configured, ops_url, heard.gateway(ops_url, pool), engines, text)


def _verify(args: argparse.Namespace) -> int:
    manifest = sealed.load(args.manifest)
    print(f"{args.manifest}: as it was written, sha256 {manifest.sha256}")
    if not args.live:
        return 0
    place = manifest_rollback.place_of(args, manifest)
    held = rollback.held_against(manifest, place, manifest_rollback.logs_of(args, manifest))
    if not held.file_is_here:
        say(f"not looked at: {place.file} is not here (--gateway-config)")
    if held.untold:
        say(f"nothing that runs tells: {', '.join(held.untold)} (--engine-log ENGINE=FILE)")
    print(_table(held.differing, "the manifest says", "there is") if held.differing else "what runs is as it says")
    return ManifestExit.DIFFERS if held.differing else 0


def _diff(args: argparse.Namespace) -> int:
    baseline, candidate = sealed.load(args.baseline), sealed.load(args.candidate)
    if candidate.baseline_sha256 != baseline.sha256:
        named = candidate.baseline_sha256 or "none"
        raise UsageError(f"{args.candidate}: is a change to another baseline ({named}) than {baseline.sha256}.")
    found = differences.between(baseline, candidate)
    if not found:
        print("The candidate changes nothing.")
        return 0
    print(f"{len(found)} fields differ; a rollback restores the first column of values.\n")
    print(_table([each for each in found if each.field not in _TEXTS], baseline.name, candidate.name))
    for field, old, new in zip(_TEXTS, _texts(baseline), _texts(candidate), strict=True):
        if old != new:
            lines = difflib.unified_diff(new, old, f"{field} of {candidate.name}", f"of {baseline.name}", lineterm="")
            print("\n" + "\n".join(lines))
    return 0


def _texts(manifest: Manifest) -> list[list[str]]:
    """In the order of _TEXTS, by lines."""
    return [manifest.gateway.config.splitlines(), (manifest.gateway.policy.text or "").splitlines()]


def _table(found: Sequence[Difference], first: str, second: str) -> str:
    return table(("field", first, second), [[each.field, shown(each.stated), shown(each.found)] for each in found])
