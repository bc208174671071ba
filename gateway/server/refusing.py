"""A refusal on its way to the caller, wherever in the walk it was decided."""

from __future__ import annotations

from gateway.core.types import Reason, Refusal


class Refusing(Exception):  # noqa: N818 - the domain's word
    """The gateway answers instead of an engine. closes: the connection ends with the answer."""

    def __init__(self, refusal: Refusal, *, closes: bool = False) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal
        self.closes = closes


def draining() -> Refusal:
    message = "This gateway is shutting down; try again, another instance will answer."
    return Refusal(Reason.DRAINING, message, retry_after_s=1.0)
