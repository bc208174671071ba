"""`python -m deploy.engine`: install, build, start, stop and show the real engine.

Parses and calls. Answers go to standard output, progress to standard error. Exit 0 done, 1 failed, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from deploy.engine import home as homes
from deploy.engine import install, launch, running
from deploy.engine.flags import EngineFlags
from deploy.engine.home import EngineError


def main(argv: list[str] | None = None) -> int:
    asked, flags = _parse(sys.argv[1:] if argv is None else argv)
    home = homes.find()
    try:
        match asked.command:
            case "install":
                install.ensure(home)
                print(home.root)
            case "model":
                install.build_model(home, asked.folder.resolve())
            case "start":
                install.ensure(home)
                engine = launch.start(asked.name, asked.port, EngineFlags.parse(flags), home=home)
                print(engine.base_url)
            case "stop":
                names = [engine.name for engine in running.noted(home)] if asked.all else [asked.name]
                stopped = [name for name in names if launch.stop(name, home=home)]
                print(f"stopped: {', '.join(stopped) or 'none was running'}")
            case _:
                _print_status(home)
    except EngineError as error:
        print(f"engine: {error}", file=sys.stderr)
        return 1
    return 0


def _parse(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        prog="python -m deploy.engine",
        description="A real vLLM on CPU with a tiny model, in a folder outside the repository (ENGINE_HOME).",
        epilog="example: python -m deploy.engine start --name fcfs --port 8001 "
        "--scheduling-policy fcfs --long-prefill-token-threshold 0",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("install", help="install vLLM and build the tiny model, where that is not done")
    model = commands.add_parser("model", help="build the tiny model into a new folder")
    model.add_argument("folder", type=Path)
    start = commands.add_parser("start", help="install where needed and start; further flags are vLLM's own")
    stop = commands.add_parser("stop", help="end an engine that was started by this")
    for command in (start, stop):
        command.add_argument("--name", default=launch.DEFAULT_NAME)
    start.add_argument("--port", type=int, default=launch.DEFAULT_PORT)
    stop.add_argument("--all", action="store_true", help="every engine that was started by this")
    commands.add_parser("status", help="show the engines that were started by this")
    asked, rest = parser.parse_known_args(argv)
    if rest and asked.command != "start":
        parser.error(f"unknown: {' '.join(rest)}")
    return asked, rest


def _print_status(home: homes.Home) -> None:
    print(f"home: {home.root} ({'installed' if install.installed(home) else 'not installed'})")
    for engine in running.noted(home):
        print(
            f"{engine.name}: {'up' if engine.alive else 'gone'} pid {engine.pid} {engine.base_url} {engine.effective}"
        )


if __name__ == "__main__":
    sys.exit(main())
