"""Whether an engine gets requests: judged from what happens to real ones, without a clock and without I/O.

A refused connection counts at once. Silence counts when it comes `SILENT_MAX` times in a row with nothing answered in
between, because one slow answer is no dead engine. An engine's own 429 or 503 is an answer. What brings an engine
back is a question of the right depth: one that went silent must generate again, not only serve /v1/models.
"""

from __future__ import annotations

from enum import StrEnum

SILENT_MAX = 3


class State(StrEnum):
    """NEW: never answered. UP: gets requests. REFUSING, SILENT: down, and why. CLOSED: it does not take our key."""

    NEW = "new"
    UP = "up"
    REFUSING = "refusing"
    SILENT = "silent"
    CLOSED = "closed"


class Health:
    """One engine's state."""

    def __init__(self) -> None:
        self.state = State.NEW
        self._silent_in_a_row = 0

    @property
    def is_up(self) -> bool:
        return self.state is State.UP

    def answered(self) -> None:
        """A byte came back for a real request."""
        self._silent_in_a_row = 0

    def refused(self) -> None:
        """A connection was refused, for a real request or a question of the gateway's own."""
        if self.state is not State.NEW:
            self.state = State.REFUSING

    def silent(self) -> None:
        """A real request got no first byte within its limit."""
        self._silent_in_a_row += 1
        if self.is_up and self._silent_in_a_row >= SILENT_MAX:
            self.state = State.SILENT

    def key_refused(self) -> None:
        self.state = State.CLOSED

    def recovered(self) -> None:
        """The engine has answered the question that its state asked for."""
        self.state = State.UP
        self._silent_in_a_row = 0
