"""`gateway bench`, `gateway emulate` and `gateway demo`: hand their arguments to the bench.

Owns the message where the bench is not installed. Knows none of their options.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.cli.commands import Commands

# Each module has `main(arguments)`, which returns the exit status.
_MODULES = {
    "bench": ("bench.cli", "measure engines and policies under load"),
    "emulate": ("bench.simulation.emulator.command", "the embedded engine: a vLLM-compatible emulator"),
    "demo": ("bench.demo.command", "embedded engine, gateway and mixed load: policy against baseline in a minute"),
}
NAMES = tuple(_MODULES)


def register(commands: Commands) -> None:
    """List the commands; their arguments never reach this parser."""
    for name, (_, help_text) in _MODULES.items():
        commands.add_parser(name, help=help_text, add_help=False)


def run(name: str, arguments: Sequence[str]) -> int:
    """The command's own exit status; 2 where the bench is not installed."""
    module, _ = _MODULES[name]
    try:
        main = import_module(module).main
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.startswith("gateway"):
            raise
        print(
            f"error: gateway {name} needs the module {missing.name}. "
            "Install it with: pip install 'vllm-admission-gateway[bench]'.",
            file=sys.stderr,
        )
        return 2
    status: int = main(arguments)
    return status
