"""`gateway explain`: what was decided on one request, and why, in words for whoever was woken by a pager.

Owns the words. The facts are `/api/explain/ID` of the ops port.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from gateway.cli import ops_client

if TYPE_CHECKING:
    from gateway.cli.commands import Commands

_EXAMPLE = """\
examples:
  gateway explain req-0123456789abcdef          the id is x-request-id of an answer, and in the log
  gateway explain req-0123456789abcdef --json   the same as JSON
"""
_COUNTED = {
    "local": "by the pool's own tokenizer",
    "engine": "by the engine",
    "estimate": "from its bytes, roughly",
}
_LACKS = {
    "long_prefills": "long prompts in prefill",
    "short_prefill_tokens": "short prompts' tokens in prefill",
    "slots": "sequences",
    "short_slots": "sequences open to short prompts",
    "long_slots": "sequences open to long prompts",
    "kv_tokens": "KV-cache tokens",
    "short_kv_tokens": "KV-cache tokens open to short prompts",
    "long_kv_tokens": "KV-cache tokens open to long prompts",
}
_OUTCOMES = {
    "completed": "It was answered in full",
    "refused": "It was refused",
    "expired": "Its wait deadline passed in line",
    "client_gone": "Its caller left",
    "engine_error": "Its engine failed",
    "timed_out": "Its engine said nothing in time",
}


def register(commands: Commands) -> None:
    parser = commands.add_parser(
        "explain",
        help="say what was decided on one request, and why",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("request_id", metavar="REQUEST_ID", help="x-request-id of the answer")
    ops_client.add_url(parser)
    parser.add_argument("--json", action="store_true", help="print the facts")
    parser.set_defaults(run=_explain)


def _explain(options: argparse.Namespace) -> int:
    return ops_client.asking(options.url, lambda: _ask(options))


def _ask(options: argparse.Namespace) -> int:
    status, said = ops_client.get(options.url, f"/api/explain/{quote(options.request_id, safe='')}")
    if status != 200:
        sys.stderr.write(f"error: {said['error']['message']} {said['error']['fix']}\n")
        return 1
    print(json.dumps(said, indent=2) if options.json else "\n".join(render(said)))
    return 0


def render(said: Mapping[str, Any]) -> Iterator[str]:
    """Write `/api/explain` as text, line by line."""
    yield f"{said['request_id']}  {said['route'] or 'a route that is not there'}"
    if not said["takes_engine_time"]:
        yield from _aside(said)
        return
    yield from _who(said)
    if said["line"] is not None:
        yield from _line("When it arrived", said["line"], is_in_it=said["waited_s"] != 0)
    if said["line_at_end"] is not None:
        yield from _line("When its wait ended", said["line_at_end"], is_in_it=False)
    yield from _wait(said)
    yield from _end(said)


def _aside(said: Mapping[str, Any]) -> Iterator[str]:
    """Say why there is so little: nothing was weighed."""
    known = said["service_class"] != "none"
    who = f"Class {said['service_class']}." if known else "Whose it was did not matter, or was not known."
    if said["route"] is not None:
        yield "Requests of this route take no engine time: this one was not counted and waited in no line."
    yield f"{who} " + (
        "The gateway answered it by itself."
        if said["engine"] is None
        else f"It was passed on to engine {said['engine']}."
    )
    status = "It got no answer" if said["status"] is None else f"It was answered with status {said['status']}"
    yield f"{status}, {said['took_s']:.3f} s after it arrived."
    yield from _refusal(said["refusal"])


def _who(said: Mapping[str, Any]) -> Iterator[str]:
    count, judged = said["count"], said["judged"]
    if count["prompt_tokens"] is not None:
        told = count["engine_prompt_tokens"]
        engines = "" if told is None else f"; the engine counted {told}"
        counted = _COUNTED.get(count["method"], count["method"])
        yield f"Its prompt was counted {counted}: {count['prompt_tokens']} tokens{engines}."
    if judged is None:
        yield f"Class {said['service_class']}. It was decided before admission saw it."
        return
    yield (
        f"Class {said['service_class']}, {said['length_class']} (short: up to {judged['short_prompt_tokens_max']} "
        f"tokens), pool {said['pool']}, policy {judged['policy']}."
    )
    yield (
        f"It needs {judged['sequences']} of the engine's sequences and {judged['kv_tokens']} KV-cache tokens "
        f"(up to {judged['output_tokens_max']} output tokens each), and may wait {judged['wait_s_max']:g} s."
    )


def _line(when: str, line: Mapping[str, Any], *, is_in_it: bool) -> Iterator[str]:
    others, rivals = (max(0, line[key] - is_in_it) for key in ("in_line", "in_lane"))
    yield f"{when}, {others} others of its class and length waited, {rivals} for the same budgets."
    for engine in line["engines"]:
        yield f"  engine {engine['engine']}: {_lacking(engine)}"


def _lacking(engine: Mapping[str, Any]) -> str:
    if not engine["takes_work"]:
        return "took no requests (down, pausing, or drained)"
    if not engine["lacks"]:
        return "had room for it"
    lacks = (
        f"{_LACKS[name]} ({budget['used']} of {budget['cap']} in use)"
        for name in engine["lacks"]
        if (budget := engine["budgets"].get(name)) is not None
    )
    return f"no room: {', '.join(lacks) or 'a pause between two long prompts'}"


def _wait(said: Mapping[str, Any]) -> Iterator[str]:
    waited_s = said["waited_s"]
    if said["phase"] == "waiting":
        yield f"It has waited {waited_s:.3f} s and still does."
    elif said["engine"] is not None:
        went = "It went at once" if not waited_s else f"It waited {waited_s:.3f} s and went"
        often = "once" if said["requeues"] == 1 else f"{said['requeues']} times"
        again = f", after the engine had sent it back {often}" if said["requeues"] else ""
        yield f"{went} to engine {said['engine']}{again}."
    if said["engine_ttft_s"] is not None:
        yield f"Its first token came {said['engine_ttft_s']:.3f} s after that, {said['ttft_s']:.3f} s after it arrived."


def _end(said: Mapping[str, Any]) -> Iterator[str]:
    if said["outcome"] is None:
        yield f"It is {said['phase']}, {said['took_s']:.3f} s after it arrived."
        return
    status = "" if said["status"] is None else f" (status {said['status']})"
    yield f"{_OUTCOMES[said['outcome']]}{status}, {said['took_s']:.3f} s after it arrived."
    yield from _refusal(said["refusal"])


def _refusal(refusal: Mapping[str, Any] | None) -> Iterator[str]:
    if refusal is None:
        return
    numbers = "" if refusal["limit"] is None else f" Limit {refusal['limit']:g}, observed {refusal['observed'] or 0:g}."
    words = f"{refusal['message']} " if refusal["message"] else ""
    retry = "" if refusal["retry_after_s"] is None else f" Told to try again after {refusal['retry_after_s']:.0f} s."
    yield f"Reason {refusal['reason']}. {words}{numbers.strip()}{retry}".rstrip()
