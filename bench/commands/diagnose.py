"""`gateway bench diagnose`: the likely constraint, from a record's runs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import campaign_plan
from bench.argument_types import whole
from bench.diagnosis.diagnosing import diagnose
from bench.diagnosis.facts import EngineFacts
from bench.errors import UsageError
from bench.exits import Exit
from bench.progress import say
from bench.records import stored
from bench.records.material import Material, read
from bench.report.diagnosis_table import describe

HELP = "name what held the requests of a record up, with the evidence"
EXAMPLE = """examples:
  gateway bench diagnose runs/policies-20260101T000000Z-0a1b2c3d
  gateway bench diagnose runs/20260101T000000Z-0a1b2c3d --max-num-seqs 16

Of each arm at each load, over its VALID runs: the likely constraint, how sure, the figures it rests on, what would
relieve it, the command that tries that, and what would not help. Several may hold; the strongest comes first. It needs
runs whose engine was read (--engine-url). Writes diagnosis.json and diagnosis.md beside the records, or where --out
says.

exit codes: 0 said, whatever it is; 2 usage; 4 no run of the record is VALID, and nothing is said of it"""
FILE = "diagnosis.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="of a run, a comparison or a ladder")
    parser.add_argument(
        "--max-num-seqs", type=whole, metavar="N", help="of all engines together, where they do not say it"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the two files go (default: there)")


def execute(args: argparse.Namespace, _command: Sequence[str]) -> int:
    """Raises UsageError."""
    material = read(args.folder)
    made_of = _gateways(material)
    found = diagnose(
        material,
        known=EngineFacts(max_num_seqs=args.max_num_seqs),
        gateways=made_of.get("bases", {}),
        policies=made_of.get("policies", {}),
    )
    said = describe(material.title, found)
    folder = args.out or args.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / FILE).write_text(json.dumps(found.to_json(), indent=2, allow_nan=False) + "\n", encoding="utf-8")
        (folder / "diagnosis.md").write_text(said, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--out: {folder} cannot be written ({error.strerror}). Choose another.") from error
    print(said, end="")
    say(f"\n{folder / FILE}")
    return Exit.VALID if found.groups else Exit.INVALID


def _gateways(material: Material) -> Mapping[str, Mapping[str, Any]]:
    """`campaign_plan.Gateways` as it lies there; empty where another command than `policies` wrote the record."""
    file = material.folder / campaign_plan.FILE
    said = stored.read_json(file) if file.is_file() else {}
    return said.get("gateway") or {}
