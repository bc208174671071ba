"""`gateway policies`: the shipped policies, and the schema of policy files.

Owns the printing.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gateway.cli.table import table
from gateway.policy import source
from gateway.policy.difference import differences

if TYPE_CHECKING:
    from gateway.cli.commands import Commands

_EXAMPLE = """\
examples:
  gateway policies                                   list the shipped policies
  gateway policies show short-first > mine.yaml      start a policy of your own
  gateway policies diff short-first mine.yaml        what mine changes
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
    _action(actions, "list", "names, and what each is for").set_defaults(run=_list)
    show = _action(actions, "show", "print one policy")
    show.add_argument("name", metavar="NAME")
    show.set_defaults(run=_show)
    diff = _action(actions, "diff", "print in what two policies differ, defaults included")
    diff.add_argument("one", metavar="NAME_OR_FILE")
    diff.add_argument("other", metavar="NAME_OR_FILE")
    diff.set_defaults(run=_diff)
    _action(actions, "schema", "print the JSON Schema of policy files").set_defaults(run=_schema)


def _action(actions: Commands, name: str, does: str) -> argparse.ArgumentParser:
    """All actions show the examples of all: each of them is one line."""
    return actions.add_parser(name, help=does, epilog=_EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter)


def _list(_: argparse.Namespace) -> int:
    print(table(["policy", "what it is for"], [[name, source.summary(name)] for name in source.names()]))
    return 0


def _show(options: argparse.Namespace) -> int:
    print(source.text(options.name), end="")
    return 0


def _diff(options: argparse.Namespace) -> int:
    one, other = source.stated(options.one), source.stated(options.other)
    found = differences(one, other)
    print(table(["key", options.one, options.other], found) if found else "They do not differ.")
    return 0


def _schema(_: argparse.Namespace) -> int:
    print(source.json_schema(), end="")
    return 0
