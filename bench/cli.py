"""The command line of the bench: picks the command, turns its errors into exit codes. Measures nothing itself."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from bench.commands import (
    calibrate,
    capacity,
    compare,
    decide,
    diagnose,
    faults,
    ladder,
    manifest,
    policies,
    report,
    run,
    simulate,
    size,
    sweep,
    trace,
)
from bench.errors import TargetUnreachableError, UsageError
from bench.exits import Exit

_EXAMPLES = """examples:
  gateway bench run --base-url http://127.0.0.1:8080 --model my-model --tokenizer ./tokenizer --request-rate 2 \\
      --duration 60 --credential short=KEY_INTERACTIVE long=KEY_BATCH
  gateway bench compare scenario.yaml
  gateway bench run --help                  its options and exit codes"""
_COMMANDS = {
    "run": run,
    "compare": compare,
    "capacity": capacity,
    "calibrate": calibrate,
    "trace": trace,
    "policies": policies,
    "ladder": ladder,
    "sweep": sweep,
    "faults": faults,
    "manifest": manifest,
    "simulate": simulate,
    "report": report,
    "diagnose": diagnose,
    "decide": decide,
    "size": size,
}


def main(argv: Sequence[str] | None = None) -> int:
    """`argv` without the program's name, default sys.argv; returns the exit code. Prints to stdout and stderr."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        args = _parser().parse_args(words)
    except SystemExit as stop:  # argparse: 0 after --help, 2 after an error it has printed
        return stop.code if isinstance(stop.code, int) else Exit.USAGE
    try:
        code: int = _COMMANDS[args.command].execute(args, ["gateway", "bench", *words])
    except UsageError as error:
        print(f"gateway bench {args.command}: {error}", file=sys.stderr)
        return Exit.USAGE
    except TargetUnreachableError as error:
        print(f"gateway bench {args.command}: {error}", file=sys.stderr)
        return Exit.FAILURE
    except KeyboardInterrupt:
        print(f"gateway bench {args.command}: interrupted", file=sys.stderr)
        return Exit.FAILURE
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gateway bench",
        description="Measure a gateway or an engine under an open-loop load of several classes.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in _COMMANDS.items():
        command = commands.add_parser(
            name,
            help=module.HELP,
            description=module.HELP,
            epilog=module.EXAMPLE,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
    return parser
