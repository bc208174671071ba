"""The configuration record of one run: everything that was decided before it. Nothing measured stands in here."""

from __future__ import annotations

import os
import platform
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.engine.samples import GAP_S_TOLERATED

SCHEMA_VERSION = 1


def new_run_id() -> str:
    """Time of start in UTC and a random part: two benches never share one."""
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(4)}"


@dataclass(frozen=True, slots=True)
class RunConfig:
    """What run.json says. Facts that the bench cannot see are absent; `metadata` is where the user states them.

    engine_start: of an engine that the bench started for it.
    """

    run_id: str
    cell_id: str
    repeat: int
    command: Sequence[str]
    target: Mapping[str, Any]
    model: str
    endpoint: str
    load: str
    trace_sha256: str
    trace_origin: Mapping[str, Any]
    corpus_sha256: str
    tokenizer_sha256: str
    warmup_s: float
    observation_s: float
    drain_deadline_s: float
    seeds: Mapping[str, int]
    goodput: Sequence[str]
    lag_tolerance_ms: float
    cache_salted: bool
    engine_cost_per_hour: float | None
    metadata: Mapping[str, str]
    client_processes: int
    engine_start: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self, identity: Mapping[str, Any]) -> dict[str, Any]:
        """identity: what the run was of, as far as that is known."""
        said: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "run_id": self.run_id,
            "cell_id": self.cell_id,
            "repeat": self.repeat,
            "command": list(self.command),
            "target": dict(self.target),
            "model": self.model,
            "endpoint": self.endpoint,
            "load": self.load,
            "output_length": "exact: ignore_eos, min_tokens = max_tokens",
            "trace_sha256": self.trace_sha256,
            "trace_origin": dict(self.trace_origin),
            "corpus_sha256": self.corpus_sha256,
            "tokenizer_sha256": self.tokenizer_sha256,
            "warmup_seconds": self.warmup_s,
            "observation_seconds": self.observation_s,
            "drain_deadline_seconds": self.drain_deadline_s,
            "seeds": dict(self.seeds),
            "tolerances": {"lag_ms": self.lag_tolerance_ms, "engine_gap_s": GAP_S_TOLERATED},
            "goodput": list(self.goodput),
            "cache_salt": "one a run" if self.cache_salted else "none",
            "client": {
                "processes": self.client_processes,
                "cpus": os.cpu_count(),
                "machine": platform.machine(),
                "python": platform.python_version(),
            },
            "metadata": dict(self.metadata),
        }
        if self.engine_cost_per_hour is not None:
            said["engine_cost_per_hour"] = self.engine_cost_per_hour
        if self.engine_start:
            said["engine_start"] = dict(self.engine_start)
        return said | dict(identity)
