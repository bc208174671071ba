"""`gateway keys new`: a fresh key, shown once, and the entry that lets it in.

Owns the printing. Writes a file only where it is told to with --append.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.identity.keys import new_key
from gateway.identity.keys_file import append, as_yaml
from gateway.policy import source
from gateway.strict_yaml import NAME_RULE, is_name

if TYPE_CHECKING:
    from gateway.cli.commands import Commands

_EXAMPLE = """\
examples:
  gateway keys new --service-class interactive --tenant acme --append keys.yaml
  gateway keys new --service-class interactive --tenant acme

The first adds the entry to keys.yaml, and makes the file where there is none. Without --append, paste what follows
`entry:` into keys.yaml as one item of the list `keys`. Give the key to the caller.
"""


def register(commands: Commands) -> None:
    parser = commands.add_parser(
        "keys", help="make API keys", epilog=_EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    new = actions.add_parser(
        "new",
        help="print a fresh key once, and the hashed entry to paste",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    new.add_argument("--service-class", required=True, type=_name, metavar="C", help="a class of the policy")
    new.add_argument("--tenant", required=True, type=_name, metavar="T", help="who the key is for")
    new.add_argument("--append", type=Path, metavar="FILE", help="add the entry to this keys.yaml instead")
    new.set_defaults(run=_new)


def _name(text: str) -> str:
    if not is_name(text):
        raise argparse.ArgumentTypeError(f"is not a valid name. {NAME_RULE}")
    return text


def _new(options: argparse.Namespace) -> int:
    key, entry = new_key(options.service_class, options.tenant)
    if options.append is not None:
        append(options.append, entry)
    print("# The key is shown this once and stored nowhere; the entry has its hash alone.")
    print(f"key: {key}")
    if options.append is None:
        print(f"entry: {as_yaml(entry)}")
    else:
        sys.stderr.write(f"note: the entry {entry.id} is in {options.append}.\n")
    _note_class(options.service_class)
    return 0


def _note_class(name: str) -> None:
    shipped = {each for policy in source.names() for each in source.load(policy).classes}
    if name not in shipped:
        sys.stderr.write(
            f"note: no shipped policy has the class {name} (they have {', '.join(sorted(shipped))}): "
            "yours must have it.\n"
        )
