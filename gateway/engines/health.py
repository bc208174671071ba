"""Whether an engine gets requests: judged from what happens to real ones, without a clock and without I/O.

A refused connection counts at once. Silence counts when it comes `SILENT_MAX` times in a row with nothing answered in
between, because one slow answer is no dead engine. An engine's own 429 or 503 is an answer. A 5xx in place of a first
token, `FAILED_MAX` times in a row with no token generated in between, is a suspicion and no more: a caller can ask for
what the engine fails on. Only an engine that then fails to generate a token for the gateway itself is out of service.
What brings an engine back is a question of the right depth: one that went silent, failed or shut down must generate
again, not only serve /v1/models.
"""

from __future__ import annotations

from enum import StrEnum

SILENT_MAX = 3
FAILED_MAX = 3


class State(StrEnum):
    """NEW: has not answered since it started. UP: gets requests. REFUSING, SILENT, FAILING: down, and why. CLOSED: it
    does not take our key. STRANGE: it lists models, and none of its pool's. LEAVING: it shuts down, ends what it has
    and takes nothing new.
    """

    NEW = "new"
    UP = "up"
    REFUSING = "refusing"
    SILENT = "silent"
    FAILING = "failing"
    CLOSED = "closed"
    STRANGE = "strange"
    LEAVING = "leaving"


class Health:
    """One engine's state."""

    def __init__(self) -> None:
        self.state = State.NEW
        self._silent_in_a_row = 0
        self._failed_in_a_row = 0

    @property
    def is_up(self) -> bool:
        return self.state is State.UP

    @property
    def must_generate(self) -> bool:
        """Whether only a generated token brings the engine back."""
        return self.state in (State.SILENT, State.FAILING, State.LEAVING)

    def answered(self) -> None:
        """A byte came back for a real request."""
        self._silent_in_a_row = 0

    def generated(self) -> None:
        """A real request got its first token."""
        self._silent_in_a_row = self._failed_in_a_row = 0

    def refused(self) -> None:
        """A connection was refused, for a real request or a question of the gateway's own."""
        if self.state is not State.NEW:
            self.state = State.REFUSING

    def silent(self) -> None:
        """A real request got no first byte within its limit."""
        self._silent_in_a_row += 1
        if self.is_up and self._silent_in_a_row >= SILENT_MAX:
            self.state = State.SILENT

    def failed(self) -> None:
        """A real request got an engine error (5xx, but no 503) in place of its first token."""
        self._failed_in_a_row += 1

    @property
    def is_suspected(self) -> bool:
        """Whether the engine fails so often in a row that it has to show that it can generate."""
        return self.is_up and self._failed_in_a_row >= FAILED_MAX

    def convicted(self) -> None:
        """A suspected engine did not generate for the gateway either."""
        self.state = State.FAILING

    def leaving(self) -> None:
        """A real request, or a count, was refused because the engine shuts down."""
        if self.is_up:
            self.state = State.LEAVING

    def restarted(self) -> None:
        """The engine is another process than before: nothing that was known of it holds."""
        self.state = State.NEW

    def key_refused(self) -> None:
        self.state = State.CLOSED

    def serves_others(self) -> None:
        self.state = State.STRANGE

    def recovered(self) -> None:
        """The engine has answered the question that its state asked for."""
        self.state = State.UP
        self._silent_in_a_row = self._failed_in_a_row = 0
