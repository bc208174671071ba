"""`gateway serve`: run the proxy until it is told to end.

Owns the choice of the event loop. The server is imported only when it runs: other commands start without it.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gateway.cli import configuration

if TYPE_CHECKING:
    from gateway.cli.commands import Commands

_EXAMPLE = """\
example:
  gateway serve --config gateway.yaml --policy short-first

SIGTERM ends it after a drain (see `drain` in the configuration): exit status 0 when every request ended by itself,
1 when some were cut.
"""


def register(commands: Commands) -> None:
    parser = commands.add_parser(
        "serve", help="run the proxy", epilog=_EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    configuration.add_options(parser)
    parser.set_defaults(run=_serve)


def _serve(options: argparse.Namespace) -> int:
    read = configuration.load(options)
    import uvloop

    from gateway.server.app import serve
    from gateway.server.counters import PoolTokenizerUnusable

    try:
        return uvloop.run(serve(read.settings, read.plan))
    except PoolTokenizerUnusable as error:
        raise configuration.unusable_tokenizer(read.path, error.pool, error.cause) from error
