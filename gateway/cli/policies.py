"""`gateway policies`: the shipped policies, and the schema of policy files.

Owns the printing.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gateway.cli.table import table
from gateway.policy import source

if TYPE_CHECKING:
    from gateway.cli.commands import Commands

_EXAMPLE = """\
examples:
  gateway policies                                   list the shipped policies
  gateway policies show short-first > mine.yaml      start a policy of your own
  gateway policies schema > policy.schema.json       for editors that check YAML
"""


def register(commands: Commands) -> None:
    parser = commands.add_parser(
        "policies",
        help="list and print the shipped policies",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_list)
    actions = parser.add_subparsers(metavar="ACTION")
    actions.add_parser("list", help="names, and what each is for").set_defaults(run=_list)
    show = actions.add_parser("show", help="print one policy")
    show.add_argument("name", metavar="NAME")
    show.set_defaults(run=_show)
    actions.add_parser("schema", help="print the JSON Schema of policy files").set_defaults(run=_schema)


def _list(_: argparse.Namespace) -> int:
    print(table(["policy", "what it is for"], [[name, source.summary(name)] for name in source.names()]))
    return 0


def _show(options: argparse.Namespace) -> int:
    print(source.text(options.name), end="")
    return 0


def _schema(_: argparse.Namespace) -> int:
    print(source.json_schema(), end="")
    return 0
