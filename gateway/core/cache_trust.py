"""Does an engine's prefix cache carry long prompts in parts? Judged by what came of the prompts that were divided.

Owns that judgement for one engine. Where prompts that lost what was computed outnumber those that did not, long prompts
go whole, and one is tried in parts from time to time: nothing that is lost every time is computed twice every time.
"""

from __future__ import annotations

from gateway.core.types import FallbackReason

_LOST_MAX = 3
_TRIED_EVERY_S = 60.0


class CacheTrust:
    """prefix_caching: what the engine says of it. since, tries_at: when trust was lost, and when one is tried again."""

    __slots__ = ("_lost", "_reason", "_since", "_told", "_tries_at", "prefix_caching")

    def __init__(self) -> None:
        self.prefix_caching: bool | None = None
        self._lost = 0
        self._reason: FallbackReason | None = None
        self._told: FallbackReason | None = None
        self._since = self._tries_at = 0.0

    @property
    def why_whole(self) -> FallbackReason | None:
        """Why long prompts go whole; None: they do not."""
        return FallbackReason.NO_PREFIX_CACHING if self.prefix_caching is False else self._reason

    @property
    def since(self) -> float | None:
        """When trust was lost; None: it was not."""
        return None if self._reason is None else self._since

    @property
    def tries_at(self) -> float | None:
        """When one is tried again; None: nothing is to be tried."""
        return None if self._reason is None or self.prefix_caching is False else self._tries_at

    def tries(self, now: float) -> bool:
        """Tell whether a prompt is to be divided now: while the cache is trusted, else one in a while."""
        if self.prefix_caching is False:
            return False
        if self._reason is None:
            return True
        if now < self._tries_at:
            return False
        self._tries_at = now + _TRIED_EVERY_S
        return True

    def kept(self) -> None:
        """A divided prompt was served, and found all along what had been computed of it."""
        self._lost = 0 if self._reason is not None else max(0, self._lost - 1)
        self._reason = None

    def lost(self, reason: FallbackReason, now: float) -> None:
        """A divided prompt went whole after all."""
        self._lost += 1
        if self._lost >= _LOST_MAX:
            if self._reason is None:
                self._since = now
            self._lost, self._reason, self._tries_at = _LOST_MAX, reason, now + _TRIED_EVERY_S

    def takes_change(self) -> bool:
        """Tell whether `why_whole` is another than when this was asked last."""
        is_new = self.why_whole is not self._told
        self._told = self.why_whole
        return is_new
