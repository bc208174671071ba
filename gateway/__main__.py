"""The console script: one parser, one place where errors become messages and exit statuses.

Owns the exit status: 0 done, 1 failed, 2 usage or configuration error; and how a start ends that is told to. Knows no
command's options. Imports the commands when it runs, which takes a second or so.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence

_EXAMPLE = """\
examples:
  gateway demo
  gateway keys new --service-class interactive --tenant acme --append keys.yaml
  gateway check --config gateway.yaml --engines
  gateway serve --config gateway.yaml
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (without the program's name) and return its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if argv is None and arguments[:1] == ["serve"]:
        _have_the_start_ended()
    from gateway.strict_yaml import ConfigError

    try:
        status = _run(arguments)
        sys.stdout.flush()
    except ConfigError as error:
        sys.stderr.writelines(f"error: {line}\n" for line in error.lines())
        return 2
    except BrokenPipeError:
        # Whoever read the output has left; nothing more may be written, not even by the interpreter's own flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status


def _have_the_start_ended() -> None:
    """End at once, and clean, where told to before the server takes these signals: nothing is there to be cut.

    As a container's first process it would not hear them at all: for that one they have no action of their own.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: os._exit(0))


def _run(arguments: list[str]) -> int:
    from gateway.cli import bench

    if arguments and arguments[0] in bench.NAMES:
        return bench.run(arguments[0], arguments[1:])
    try:
        parser = _parser()
        if not arguments:
            parser.print_help(sys.stderr)
            return 2
        options = parser.parse_args(arguments)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0
    status: int = options.run(options)
    return status


def _parser() -> argparse.ArgumentParser:
    from gateway.cli import bench, check, explain, keys, policies, serve, shadow, status
    from gateway.observe.release import CORE_IS_COMPILED, RELEASE

    parser = argparse.ArgumentParser(
        prog="gateway",
        description="Admission control in front of vLLM.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    core = "compiled core" if CORE_IS_COMPILED else "core in plain Python"
    parser.add_argument("--version", action="version", version=f"gateway {RELEASE} ({core})")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (serve, check, status, explain, shadow, keys, policies, bench):
        command.register(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
