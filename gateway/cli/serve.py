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
examples:
  gateway serve --config gateway.yaml --policy short-first
  gateway serve --config gateway.yaml --shadow mine.yaml      what would mine do? see `gateway shadow report`

A changed configuration, policy or keys file is taken up while it serves; SIGHUP and POST /api/reload on the ops port
do so at once. A faulty one is refused, and the last good one stays in force.

SIGTERM ends it after a drain (see `drain` in the configuration): exit status 0 when every request ended by itself,
1 when some were cut; 2 where the configuration or a port of it cannot be used. Before it listens it ends
at once, with 0.
"""


def register(commands: Commands) -> None:
    parser = commands.add_parser(
        "serve", help="run the proxy", epilog=_EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    configuration.add_options(parser)
    parser.set_defaults(run=_serve)


def _serve(options: argparse.Namespace) -> int:
    import uvloop

    from gateway.server.app import serve
    from gateway.server.counters import PoolTokenizerUnusable
    from gateway.server.reload import Configured

    def read() -> Configured:
        found = configuration.load(options)
        files = (found.path, *configuration.policy_files(options, found))
        return Configured(found.path, found.settings, found.plan, files, found.shadow)

    configured = read()
    try:
        return uvloop.run(serve(configured, read))
    except PoolTokenizerUnusable as error:
        raise configuration.unusable_tokenizer(configured.path, error.pool, error.cause) from error
