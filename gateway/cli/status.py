"""`gateway status`: the lines and engines of a running gateway, as tables.

Owns the asking and the printing. What is shown is `/api/state` and `/api/history` of the ops port, as on the page.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from gateway.cli import ops_client
from gateway.cli.recent import Recent
from gateway.cli.table import Cell, table

if TYPE_CHECKING:
    from gateway.cli.commands import Commands

EVERY_S = 2.0
LATE_PART = 0.8
_EVERYBODYS = {
    "slots": ("slots", lambda used: used["slots"]),
    "kv_tokens": ("KV", lambda used: used["kv_reserved_tokens"]),
}
_NEEDS: Mapping[str, Mapping[str, tuple[str, Callable[[Mapping[str, Any]], int]]]] = {
    "short": {"short_prefill_tokens": ("short prefill", lambda used: used["prefill_tokens"]["short"]), **_EVERYBODYS},
    "long": {"long_prefills": ("long prefills", lambda used: used["long_prefills"]), **_EVERYBODYS},
}
_ENGINE_HEADER = (
    *("engine", "pool", "state", "weight", "sent", "long prefills", "short tokens", "slots", "KV tokens"),
    *("it runs", "it queues", "KV used", "heard of s", "priority"),
)
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
    recent = Recent()
    try:
        shown = _shown(url, recent)
        while watch:
            print(_CLEAR + shown, flush=True)
            time.sleep(EVERY_S)
            shown = _shown(url, recent)
    except KeyboardInterrupt:
        return 0
    print(shown)
    return 0


def _shown(url: str, recent: Recent) -> str:
    recent.ask(url)
    return render(ops_client.state(url, promises=False), recent)


def render(state: dict[str, Any], recent: Recent) -> str:
    """Write `/api/state` as text, the worst first, with the course of the last minutes."""
    pools = state["pools"].items()
    lines = [(pool, line, each["engines"].values()) for pool, each in pools for line in each["lines"]]
    engines = [(name, pool, engine) for pool, each in pools for name, engine in each["engines"].items()]
    lines.sort(key=lambda each: (-_part(each[1]), -each[1]["requests"]))
    engines.sort(key=lambda each: (each[2]["up"], each[2]["problem"] is None, each[2]["weight"] > 0))
    return "\n\n".join(
        [
            _head(state) + _shadow(state["shadow"]),
            table(
                [
                    "class",
                    "length",
                    "pool",
                    "waiting",
                    "tokens",
                    "oldest s",
                    "limit s",
                    "last 15 min",
                    "full",
                    "running",
                ],
                [_line(*each, recent) for each in lines],
            ),
            table(
                _ENGINE_HEADER,
                [_engine(*each) for each in engines],
            ),
            *_dividing(state),
            table(
                ["ended by", "how", "count", "last 15 min", "course"],
                [
                    [kind[:-1], name, count, recent.total(kind, name), recent.course(kind, name)]
                    for kind, counts in state["totals"].items()
                    for name, count in counts.items()
                ],
            ),
        ]
    )


def _head(state: dict[str, Any]) -> str:
    """Say what is in force, and in short what is wrong."""
    pools = state["pools"].values()
    late = sum(_part(line) > LATE_PART for pool in pools for line in pool["lines"])
    down = sum(not engine["up"] for pool in pools for engine in pool["engines"].values())
    ready = "ready" if state["ready"] else "not ready"
    return (
        f"policy {state['policy']['name']}, {state['stage']}, {ready}, {state['serving']} requests open\n"
        f"lines over {LATE_PART:g} of their limit: {late}; engines down: {down}"
    )


def _part(line: Mapping[str, Any]) -> float:
    """Return how much of its limit a line's oldest has waited."""
    return line["oldest_age_s"] / line["wait_s_max"] if line["wait_s_max"] else float(line["oldest_age_s"] > 0)


def _line(pool: str, line: Mapping[str, Any], engines: Collection[Mapping[str, Any]], recent: Recent) -> list[Cell]:
    service_class, length = line["service_class"], line["length_class"]
    running = sum(
        one["requests"]
        for engine in engines
        for one in engine["used"]["running"]
        if (one["service_class"], one["length_class"]) == (service_class, length)
    )
    return [
        service_class,
        length,
        pool,
        line["requests"],
        line["prompt_tokens"],
        round(line["oldest_age_s"], 1),
        line["wait_s_max"],
        recent.course("oldest_age_s", service_class, length, pool, top=line["wait_s_max"]),
        _full(length, engines) if line["requests"] else "",
        running,
    ]


def _full(length: str, engines: Collection[Mapping[str, Any]]) -> str:
    """Say which budgets that a line needs have nothing left, and on how many engines that take requests."""
    there = [engine for engine in engines if engine["up"] and engine["weight"] > 0]
    if not there:
        return "no engine"
    words = []
    for budget, (word, used) in _NEEDS[length].items():
        full = sum(
            budget in engine["budgets"] and used(engine["used"]) >= engine["budgets"][budget] for engine in there
        )
        if full:
            words.append(word if full == len(there) else f"{word} on {full} of {len(there)}")
    return ", ".join(words) or "no budget"


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
    used, caps, says = engine["used"], engine["budgets"], engine["says"]
    state = engine["state"] if engine["problem"] is None else f"{engine['state']}: {engine['problem']}"
    return [
        name,
        pool,
        state if engine["weight"] else f"{state}, drained",
        engine["weight"],
        sum(each["requests"] for each in used["running"]),
        _of(used["long_prefills"], caps.get("long_prefills")),
        _of(used["prefill_tokens"]["short"], caps.get("short_prefill_tokens")),
        _of(used["slots"], caps.get("slots")),
        _of(used["kv_reserved_tokens"], caps.get("kv_tokens")),
        says["running"],
        says["waiting"],
        None if says["kv_usage"] is None else f"{says['kv_usage']:.0%}",
        None if says["age_s"] is None else round(says["age_s"], 1),
        "effective" if engine["priority_effective"] else "not used",
    ]


def _of(used: int, cap: int | None) -> str:
    return str(used) if cap is None else f"{used} of {cap}"
