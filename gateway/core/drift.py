"""What an engine's own numbers say that the ledger cannot know: work that came around the gateway, KV that ran out.

Owns the corrections of one engine's budgets. Slow and one-sided: a budget goes down when several looks agree, comes
back when the engine says so, and stays as it is while the engine says nothing. Never stops an engine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from gateway.core.ledger import Budget
from gateway.core.types import EngineLoad

_SLOTS = (Budget.SLOTS, Budget.SHORT_SLOTS, Budget.LONG_SLOTS)
_KV = (Budget.KV_TOKENS, Budget.SHORT_KV_TOKENS, Budget.LONG_KV_TOKENS)
_LOOKS_AGREEING = 3
_KV_SHARE_MIN = 0.5
_KV_DOWN = 0.9
_KV_UP = 0.02
_KV_UP_EVERY_S = 60.0


class Drift:
    """foreign_sequences: of others, which take slots. kv_share: of the KV cache that is worth planning with.

    has_no_room: of the last look, that once more several on end found requests waiting inside for room. It is said
    once; whether what was done about it was enough, looks after it tell.
    """

    def __init__(self) -> None:
        self.foreign_sequences = 0
        self.kv_share = 1.0
        self.has_no_room = False
        self._beyond: deque[int] = deque(maxlen=_LOOKS_AGREEING)
        self._looks_without_room = 0
        self._preemptions: int | None = None
        self._kv_up_at = 0.0

    def look(self, load: EngineLoad, own_sequences: int, now: float) -> bool:
        """Take in one reading; own_sequences: what the ledger holds. True where a cap changed."""
        before = self.foreign_sequences, self.kv_share
        self._beyond.append(max(0, load.sequences - own_sequences))
        if len(self._beyond) == _LOOKS_AGREEING:
            # The least of them: who is only late in arriving, in starting or in leaving is not there every time.
            self.foreign_sequences = min(self._beyond)
        self._looks_without_room = self._looks_without_room + 1 if load.waiting_for_room else 0
        self.has_no_room = self._looks_without_room == _LOOKS_AGREEING
        if self.has_no_room:
            self._looks_without_room = 0
        if self._preemptions is not None and load.preemptions > self._preemptions:
            self.kv_share = max(_KV_SHARE_MIN, self.kv_share * _KV_DOWN)
            self._kv_up_at = now + _KV_UP_EVERY_S
        elif self.kv_share < 1.0 and now >= self._kv_up_at:
            self.kv_share = min(1.0, self.kv_share + _KV_UP)
            self._kv_up_at = now + _KV_UP_EVERY_S
        self._preemptions = load.preemptions
        return before != (self.foreign_sequences, self.kv_share)

    def corrected(self, caps: Mapping[Budget, int]) -> dict[Budget, int]:
        """Return the caps that are lower than planned; each leaves room for at least one."""
        less = {slots: max(1, caps[slots] - self.foreign_sequences) for slots in _SLOTS if slots in caps}
        return less | {kv: max(1, int(caps[kv] * self.kv_share)) for kv in _KV if kv in caps}
