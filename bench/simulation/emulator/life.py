"""One life of the embedded engine: its scheduler, its metrics, and vLLM's own limits on how much it takes in.

Owns what a restart makes anew. Knows no HTTP.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import floor

from bench.simulation.emulator.accounts import Accounts
from bench.simulation.emulator.errors import ApiError, busy, failed
from bench.simulation.emulator.flags import EmulatorSettings
from bench.simulation.emulator.generation import Generation
from bench.simulation.emulator.live_engine import DEAD, LiveEngine
from bench.simulation.virtual_engine import VirtualEngine


class Life:
    """clock: seconds, of whatever beginning. break_next: the next stream is to be broken in its middle."""

    def __init__(self, settings: EmulatorSettings, clock: Callable[[], float], say: Callable[[str], None]) -> None:
        self._settings = settings
        self.clock = clock
        self.started_at = time.time_ns() / 1e9
        self.accounts = Accounts(
            settings.models[0],
            context_tokens=settings.context_tokens,
            cache_config=_cache_config(settings),
            started_at=self.started_at,
        )
        self.engine = LiveEngine(VirtualEngine(settings.engine, settings.profile.step_time), self.accounts, clock, say)
        self.is_dead = False
        self.break_next = False

    def admit(self, sequences: int) -> ApiError | None:
        """Return vLLM's refusal, where one of its own limits is reached; unfinished is running and waiting."""
        if self.is_dead:
            return failed(DEAD)
        settings = self._settings
        requests_max, tokens_max = settings.queued_requests_max, settings.queued_tokens_max
        if requests_max is not None and self.engine.unfinished + sequences > requests_max:
            reason = "max_num_queued_reqs"
        elif tokens_max is not None and self.engine.prefill_tokens >= tokens_max:
            reason = "max_num_queued_tokens"
        else:
            return None
        self.accounts.rejected(reason)
        return busy(reason)

    def submit(self, generation: Generation) -> None:
        self.engine.submit(generation)

    def die(self) -> None:
        """End as EngineCore does: what is in flight fails, and nothing more is computed."""
        self.is_dead = True
        self.engine.fail_all(DEAD)

    def take_break(self) -> bool:
        """Whether this stream is the one to be broken."""
        taken, self.break_next = self.break_next, False
        return taken


def _cache_config(settings: EmulatorSettings) -> dict[str, str]:
    """The labels of vllm:cache_config_info that tell something of an engine without memory."""
    engine = settings.engine
    tokens = engine.kv_blocks * engine.block_tokens
    return {
        "block_size": str(engine.block_tokens),
        "cache_dtype": "auto",
        "enable_prefix_caching": str(engine.prefix_caching),
        "gpu_memory_utilization": "0.92",
        "kv_cache_max_concurrency": str(floor(100 * tokens / settings.context_tokens) / 100),
        "kv_cache_size_tokens": str(tokens),
        "num_cpu_blocks": "None",
        "num_gpu_blocks": str(engine.kv_blocks),
        "num_gpu_blocks_override": str(engine.kv_blocks),
        "prefix_caching_hash_algo": "sha256",
        "sliding_window": "None",
        "swap_space": "None",
    }
