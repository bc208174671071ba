"""A refusal on its way to the caller, wherever in the walk it was decided."""

from __future__ import annotations

import random
from dataclasses import replace

from gateway.core.types import Reason, Refusal

RETRY_AFTER_S = (1.0, 3.0)


class Refusing(Exception):  # noqa: N818 - the domain's word
    """The gateway answers instead of an engine. closes: the connection ends with the answer."""

    def __init__(self, refusal: Refusal, *, closes: bool = False) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal
        self.closes = closes


def draining() -> Refusal:
    message = "This gateway is shutting down; try again, another instance will answer."
    return Refusal(Reason.DRAINING, message)


def withdrawn() -> Refusal:
    message = "The engine that served this request is taken out of service; send it again, another one will answer."
    return Refusal(Reason.DRAINING, message)


def spread(refusal: Refusal) -> Refusal:
    """Give a refusal that says no time one in `RETRY_AFTER_S`, so that those who heard it come back apart."""
    if refusal.retry_after_s is not None:
        return refusal
    return replace(refusal, retry_after_s=random.uniform(*RETRY_AFTER_S))  # noqa: S311 - spreads load, guards nothing
