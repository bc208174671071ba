"""Whether a run may be used: VALID, or INVALID and why. Pure; tolerances are fixed before the run.

A verdict says nothing of how good the target is. A run with refusals or unfinished requests can be perfectly valid,
while an answer that says the request itself is wrong shows that something else was measured than was asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.analysis.measurements import Measurements
from bench.records.request import NO_SOCKET, NOBODY_LISTENS, Outcome

# A token is stamped late only while the event loop is late: under one per cent of the time no quantile up to p99 moves
# by it, and one hiccup of the machine does not void an hour.
LOOP_LATE_SHARE_MAX = 0.01

CACHED_SHARE_NOTED = 0.1  # more than the template that all prompts begin with

# In a scenario the options are keys: credentials, model, lengths.
_TURNED_AWAY = {
    400: "it does not take such requests: mend --long-tokens, --short-tokens, --output-tokens or --model",
    401: "it wants a key that it knows: name the variable that holds one with --credential ENV",
    403: "the key is not allowed this: name the variable of another with --credential ENV, or mend --model",
    404: "it does not know the model or the route: mend --model, --base-url or --endpoint",
}


_ABSENT = {
    NO_SOCKET: "the client had no socket for {}: raise `ulimit -n` or net.ipv4.ip_local_port_range, or send fewer",
    NOBODY_LISTENS: "nobody listened at the target when {} came: it was not there for the whole run",
    "engine_unreachable": "the engine could not be reached for {}: it was not there for the whole run",
    "no_engine": "the gateway had no engine for {}: none was there for the whole run",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """`reasons` make the run INVALID; `notes` are for the reader and change nothing."""

    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    interrupted: bool = False

    @property
    def valid(self) -> bool:
        return not self.reasons

    def to_json(self) -> dict[str, Any]:
        said = {
            "verdict": "VALID" if self.valid else "INVALID",
            "reasons": list(self.reasons),
            "notes": list(self.notes),
        }
        return {**said, "interrupted": True} if self.interrupted else said


def judge(
    measured: Measurements,
    *,
    lag_tolerance_ms: float,
    interrupted: bool,
    engine_reasons: Sequence[str] = (),
    engine_notes: Sequence[str] = (),
) -> Verdict:
    """`engine_reasons` are the engine's part: not idle at the start, restarted during the run."""
    reasons = list(engine_reasons)
    if interrupted:
        reasons.append("interrupted before its end")
    elif unsent := measured.classes["all"].outcomes[Outcome.UNSENT]:
        reasons.append(f"{unsent} requests were never sent")
    if measured.classes["all"].offered == 0:
        reasons.append("no request was planned inside the measurement window")
    reasons += [_ABSENT[name].format(f"{number} requests") for name, number in sorted(measured.absences.items())]
    reasons += _turned_away(measured, interrupted=interrupted)
    lag_reasons, lag_notes = _client(measured, lag_tolerance_ms)
    length_reasons, length_notes = _lengths(measured)
    notes = [*engine_notes, *lag_notes, *length_notes]
    if measured.malformed_events:
        notes.append(f"{measured.malformed_events} stream events could not be read")
    return Verdict((*reasons, *lag_reasons, *length_reasons), tuple(notes), interrupted)


def warm_cache(*shares: float | None) -> list[str]:
    """A note where prompts that are all different were found in a prefix cache: less was computed than was sent.

    shares: of all prompt tokens, those found there, as the answers and the engines say.
    """
    found = max((share for share in shares if share is not None), default=0.0)
    if found < CACHED_SHARE_NOTED:
        return []
    why = "it was warm, or long prompts were computed in parts"
    return [
        f"{found:.0%} of all prompt tokens were in the engine's prefix cache, though no two prompts are alike: {why}"
    ]


def _turned_away(measured: Measurements, *, interrupted: bool) -> list[str]:
    reasons = [
        f"{number} requests were answered {status}: {_TURNED_AWAY[status]}"
        for status, number in sorted(measured.turned_away.items())
    ]
    everything = measured.classes["all"]
    if reasons or interrupted or not everything.offered or everything.outcomes[Outcome.COMPLETED]:
        return reasons
    return ["no request completed: see above how they ended; a lower rate or a longer drain deadline may help"]


def _client(measured: Measurements, tolerance_ms: float) -> tuple[list[str], list[str]]:
    reasons: list[str] = []
    notes: list[str] = []
    lag, loop_lag, share = measured.dispatch_lag_ms_max, measured.loop_lag_ms_max, measured.loop_late_share
    if lag is not None and lag > tolerance_ms:
        reasons.append(f"client lag: a request was sent {lag:.1f} ms late, tolerance {tolerance_ms:g} ms")
    if share > LOOP_LATE_SHARE_MAX:
        reasons.append(
            f"client lag: the event loop was late by more than {tolerance_ms:g} ms for {share:.1%} of the time, "
            f"at most {LOOP_LATE_SHARE_MAX:.0%} may be"
        )
    elif loop_lag is not None and loop_lag > tolerance_ms:
        notes.append(f"the event loop was once {loop_lag:.0f} ms late: single token times may be off by that")
    return reasons, notes


def _lengths(measured: Measurements) -> tuple[list[str], list[str]]:
    prompts, outputs = measured.prompt_lengths, measured.output_lengths
    reasons: list[str] = []
    if prompts.differ:
        reasons.append(f"{prompts.differ} prompts did not have the asked length: the tokenizer is not the server's")
    if outputs.differ:
        reasons.append(f"{outputs.differ} outputs did not have the asked length: the server did not honour ignore_eos")
    unknown = max(prompts.unknown, outputs.unknown)
    if not unknown:
        return reasons, []
    return reasons, [f"{unknown} completed requests came without usage: their lengths are unverified, tokens/s unknown"]
