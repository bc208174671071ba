"""`gateway keys new`: a fresh key, shown once, and the entry that lets it in.

Owns the printing. Writes no file: whoever runs it decides where the entry goes.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from gateway.identity.keys import new_key
from gateway.strict_yaml import NAME_RULE, is_name

if TYPE_CHECKING:
    from gateway.cli.commands import Commands

_EXAMPLE = """\
example:
  gateway keys new --service-class interactive --tenant acme

Paste what follows `entry:` into keys.yaml as one item of the list `keys`, and give the key to the caller.
"""


def register(commands: Commands) -> None:
    parser = commands.add_parser("keys", help="make API keys")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    new = actions.add_parser(
        "new",
        help="print a fresh key once, and the hashed entry to paste",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    new.add_argument("--service-class", required=True, type=_name, metavar="C", help="a class of the policy")
    new.add_argument("--tenant", required=True, type=_name, metavar="T", help="who the key is for")
    new.set_defaults(run=_print_new)


def _name(text: str) -> str:
    if not is_name(text):
        raise argparse.ArgumentTypeError(f"is not a valid name. {NAME_RULE}")
    return text


def _print_new(options: argparse.Namespace) -> int:
    key, entry = new_key(options.service_class, options.tenant)
    members = entry.model_dump(exclude_none=True)
    # Quoted throughout: a tenant such as 007 must stay text.
    shown = ", ".join(f"{name}: {json.dumps(value)}" for name, value in members.items())
    print("# The key is shown this once and stored nowhere; keys.yaml holds the entry alone.")
    print(f"key: {key}")
    print(f"entry: {{{shown}}}")
    return 0
