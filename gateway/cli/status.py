"""`gateway status`: the lines and engines of a running gateway, as tables.

Owns the asking and the printing. What is shown is `/api/state` of the ops port.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from gateway.cli import ops_client
from gateway.cli.table import Cell, table

if TYPE_CHECKING:
    from gateway.cli.commands import Commands

EVERY_S = 2.0
_CLEAR = "\x1b[H\x1b[2J"
_EXAMPLE = """\
examples:
  gateway status
  gateway status --url http://127.0.0.1:9090 --watch
"""


def register(commands: Commands) -> None:
    parser = commands.add_parser(
        "status",
        help="show the lines and engines of a running gateway",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    ops_client.add_url(parser)
    parser.add_argument("--watch", action="store_true", help="show it anew until interrupted")
    parser.set_defaults(run=_status)


def _status(options: argparse.Namespace) -> int:
    return ops_client.asking(options.url, lambda: _show(options.url, watch=options.watch))


def _show(url: str, *, watch: bool) -> int:
    try:
        shown = _shown(url)
        while watch:
            print(_CLEAR + shown, flush=True)
            time.sleep(EVERY_S)
            shown = _shown(url)
    except KeyboardInterrupt:
        return 0
    print(shown)
    return 0


def _shown(url: str) -> str:
    return render(ops_client.state(url, promises=False))


def render(state: dict[str, Any]) -> str:
    """Write `/api/state` as text."""
    ready = "ready" if state["ready"] else "not ready"
    head = f"policy {state['policy']['name']}, {state['stage']}, {ready}, {state['serving']} requests open"
    pools = state["pools"].items()
    lines = [
        [
            line["service_class"],
            line["length_class"],
            pool,
            line["requests"],
            line["prompt_tokens"],
            round(line["oldest_age_s"], 1),
            line["wait_s_max"],
        ]
        for pool, each in pools
        for line in each["lines"]
    ]
    engines = [_engine(name, pool, engine) for pool, each in pools for name, engine in each["engines"].items()]
    ends = [[kind[:-1], name, count] for kind, counts in state["totals"].items() for name, count in counts.items()]
    return "\n\n".join(
        [
            head + _shadow(state["shadow"]),
            table(["class", "length", "pool", "waiting", "tokens", "oldest s", "limit s"], lines),
            table(
                ["engine", "pool", "state", "weight", "running", "long prefills", "short tokens", "slots", "KV tokens"],
                engines,
            ),
            *_dividing(state),
            table(["ended by", "how", "count"], ends),
        ]
    )


def _shadow(shadow: dict[str, Any] | None) -> str:
    if shadow is None:
        return ""
    if shadow["failed"]:
        return "\nshadow policy failed and is off (see the log)"
    compared = sum(line["compared"] for line in shadow["lines"])
    differ = sum(line[kind] for line in shadow["lines"] for kind in line if kind.startswith("would_"))
    return f"\nshadow {shadow['policy']['name']}: {differ} of {compared} requests otherwise (gateway shadow report)"


def _dividing(state: dict[str, Any]) -> list[str]:
    """Return the long prompts that are under way in parts, and which engines get them whole, where a policy says so."""
    engines = [
        (name, engine["dividing"])
        for pool in state["pools"].values()
        for name, engine in pool["engines"].items()
        if engine["dividing"] is not None
    ]
    if not engines:
        return []
    prompts = [
        [
            name,
            prompt["service_class"],
            prompt["prompt_tokens"],
            prompt["done_tokens"],
            f"{prompt['part']} of {prompt['parts']}",
            None if prompt["held_for_s"] is None else round(prompt["held_for_s"], 1),
            prompt["recalls"],
        ]
        for name, dividing in engines
        for prompt in dividing["prompts"]
    ]
    shown = [table(["engine", "long prompts", "since s", "tried again in s"], [_how(*each) for each in engines])]
    if prompts:
        shown.append(table(["engine", "class", "tokens", "computed", "part", "held s", "recalls"], prompts))
    return shown


def _how(name: str, dividing: dict[str, Any]) -> list[Cell]:
    why = dividing["whole_because"]
    times = (dividing["whole_for_s"], dividing["tries_again_in_s"])
    how = dividing["mode"] if why is None else f"whole: {why}"
    return [name, how, *(None if seconds is None else round(seconds) for seconds in times)]


def _engine(name: str, pool: str, engine: dict[str, Any]) -> list[Cell]:
    used, caps = engine["used"], engine["budgets"]
    return [
        name,
        pool,
        engine["state"] if engine["weight"] else f"{engine['state']}, drained",
        engine["weight"],
        sum(each["requests"] for each in used["running"]),
        _of(used["long_prefills"], caps.get("long_prefills")),
        _of(used["prefill_tokens"]["short"], caps.get("short_prefill_tokens")),
        _of(used["slots"], caps.get("slots")),
        _of(used["kv_reserved_tokens"], caps.get("kv_tokens")),
    ]


def _of(used: int, cap: int | None) -> str:
    return str(used) if cap is None else f"{used} of {cap}"
