"""`gateway bench`: hands its arguments to the bench harness.

Owns the message where the harness is not installed. Knows none of its options.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.cli.commands import Commands

NAME = "bench"


def register(commands: Commands) -> None:
    """List the command; its arguments never reach this parser."""
    commands.add_parser(NAME, help="measure engines and policies under load", add_help=False)


def run(arguments: Sequence[str]) -> int:
    """The harness's own exit status; 2 where it is not installed."""
    try:
        from bench.cli import main
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.startswith("gateway"):
            raise
        print(
            f"error: gateway bench needs the module {missing.name}. "
            "Install it with: pip install 'vllm-admission-gateway[bench]'.",
            file=sys.stderr,
        )
        return 2
    return main(arguments)
