"""Faults that the emulator commits on command: what, when, and for how long.

Owns the small language of `--fault` and which fault is due. Commits none itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from bench.errors import UsageError

_FORM = re.compile(r"(?P<kind>[a-z-]+)(?:@(?P<at>\d+(?:\.\d+)?)(?P<unit>s|req))?(?:\+(?P<for>\d+(?:\.\d+)?)s)?")


class FaultKind(StrEnum):
    """DIE: the engine ends, as vLLM does when EngineCore dies. HANG: steps stop, everything else answers.

    SLOW_START: nobody listens at first. IN_BAND_ERROR: the next stream breaks with an error inside its 200.
    STALE_METRICS: /metrics stands still. RESTART: all is cut, and a fresh engine listens on the same port.
    """

    DIE = "die"
    HANG = "hang"
    SLOW_START = "slow-start"
    IN_BAND_ERROR = "in-band-error"
    STALE_METRICS = "stale-metrics"
    RESTART = "restart"


_LASTS_S = {FaultKind.SLOW_START: 20.0, FaultKind.RESTART: 5.0}
_NEVER_LASTS = (FaultKind.DIE, FaultKind.IN_BAND_ERROR)


@dataclass(frozen=True, slots=True)
class Fault:
    """after_s: seconds from the start; after_requests: when so many generations were asked for. One of both.

    lasts_s: how long; None for ever.
    """

    kind: FaultKind
    after_s: float | None
    after_requests: int | None
    lasts_s: float | None


HELP = (
    "KIND[@WHEN][+DURATION]: die, hang, slow-start, in-band-error, stale-metrics or restart; WHEN as 20s or 50req "
    "(default at once), DURATION as 5s: hang@20s+5s, die@50req, slow-start+30s. May be given several times"
)


def parse(text: str) -> Fault:
    """Read one fault. Raises UsageError."""
    form = _FORM.fullmatch(text)
    kinds = [str(kind) for kind in FaultKind]
    if form is None or form["kind"] not in kinds:
        raise UsageError(f"--fault: {text!r} is no fault. Give KIND[@WHEN][+DURATION], KIND one of {', '.join(kinds)}.")
    kind, at, lasts = FaultKind(form["kind"]), form["at"], form["for"]
    if kind is FaultKind.SLOW_START and at is not None:
        raise UsageError("--fault: slow-start has no time: it is the start. Give slow-start+30s.")
    if kind in _NEVER_LASTS and lasts is not None:
        raise UsageError(f"--fault: {kind} has no duration. Give {kind}@20s or {kind}@50req.")
    if form["unit"] == "req":
        if "." in at:
            raise UsageError(f"--fault: {at} requests are no whole number.")
        return Fault(kind, None, int(at), _lasts(kind, lasts))
    return Fault(kind, float(at or 0), None, _lasts(kind, lasts))


def _lasts(kind: FaultKind, text: str | None) -> float | None:
    return _LASTS_S.get(kind) if text is None else float(text)


class FaultPlan:
    """Which faults are still to come; each comes once."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self._left = [fault for fault in faults if fault.kind is not FaultKind.SLOW_START]
        self.slow_start_s = max(
            (fault.lasts_s or 0 for fault in faults if fault.kind is FaultKind.SLOW_START), default=0
        )
        self.requests = 0

    @property
    def timed(self) -> list[Fault]:
        """Return those that come at a time, the next one first."""
        return sorted((each for each in self._left if each.after_s is not None), key=lambda each: each.after_s or 0)

    def asked(self) -> list[Fault]:
        """Count a generation that was asked for, and take out the faults that it sets off."""
        self.requests += 1
        return self._take(
            [each for each in self._left if each.after_requests is not None and each.after_requests <= self.requests]
        )

    def due(self, elapsed_s: float) -> list[Fault]:
        """Take out the faults whose time has come."""
        return self._take([each for each in self._left if each.after_s is not None and each.after_s <= elapsed_s])

    def _take(self, faults: list[Fault]) -> list[Fault]:
        self._left = [each for each in self._left if each not in faults]
        return faults
