"""What is simulated: an engine's flags, a policy, how many of each. From the scenario's words to the model's.

Owns the defaults. Nothing is played here.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.errors import UsageError
from bench.simulated import DIRECT, SimulatedEngine
from bench.simulation.profiles import Profile
from bench.simulation.steps import EngineFlags
from gateway.core.plan import Plan
from gateway.core.steptime import PrefillSample
from gateway.core.types import EngineLimits, EngineSpec
from gateway.policy.source import load, names
from gateway.strict_yaml import ConfigError

PROBED_TOKENS = (64, 128, 256, 512, 1024, 2048)


@dataclass(frozen=True, slots=True)
class Setup:
    """One arm, ready to be played. plan None: callers send to the engines themselves.

    engines: of all gateways together; each has its share, or sends to all of them.
    service_classes: of each class of the trace. priority: of each class, sent instead of the policy's. tenants: of each
    class.
    """

    arm: str
    plan: Plan | None
    flags: EngineFlags
    profile: Profile
    engines: int
    gateways: int
    shared_engines: bool
    service_classes: dict[str, str]
    priority: dict[str, int]
    tenants: int

    def to_json(self) -> dict[str, Any]:
        """What a record says of it beside the engine's profile."""
        said: dict[str, Any] = {"policy": DIRECT}
        if self.plan is not None:
            said = {"policy": self.plan.name, "policy_sha256": self.plan.sha256}
        return {**said, "engine": {name: value for name, value in asdict(self.flags).items() if value is not None}}

    @property
    def limits(self) -> EngineLimits:
        """What a gateway would know of such an engine."""
        flags = self.flags
        return EngineLimits(
            max_num_batched_tokens=flags.max_num_batched_tokens,
            long_prefill_token_threshold=flags.long_prefill_token_threshold,
            max_num_seqs=flags.max_num_seqs,
            kv_tokens=(flags.kv_blocks - 1) * flags.block_tokens,
            kv_block_tokens=flags.block_tokens,
            prefix_caching=flags.prefix_caching,
        )

    def spec(self, name: str) -> EngineSpec:
        return EngineSpec(name, self.limits)

    def probes(self) -> list[PrefillSample]:
        """What a gateway would measure of such an engine while it is idle."""
        step_time, step_tokens, samples = self.profile.step_time, self.flags.max_num_batched_tokens, []
        for tokens in PROBED_TOKENS:
            steps = -(-tokens // step_tokens)
            samples.append(PrefillSample(tokens, steps, step_time.prefill_s(tokens, step_tokens)))
        return samples


def flags_of(said: SimulatedEngine, profile: Profile) -> EngineFlags:
    """Return vLLM's flags where they are stated, and the profile's defaults."""
    block_tokens = said.block_size or profile.block_tokens
    is_async = profile.async_scheduling if said.async_scheduling is None else said.async_scheduling
    return EngineFlags(
        max_num_batched_tokens=said.max_num_batched_tokens or profile.max_num_batched_tokens,
        long_prefill_token_threshold=said.long_prefill_token_threshold,
        max_num_seqs=said.max_num_seqs or profile.max_num_seqs,
        max_num_active_seqs=said.max_num_active_seqs,
        kv_blocks=said.num_gpu_blocks_override or profile.kv_tokens // block_tokens,
        block_tokens=block_tokens,
        priority_scheduling=said.scheduling_policy == "priority",
        batches_in_flight=2 if is_async else 1,
        prefix_caching=said.enable_prefix_caching,
        watermark=said.watermark,
    )


def plan_of(policy: str, base: Path) -> Plan | None:
    """Compile a shipped policy by name, or a file, relative to `base`; None: no gateway. Raises UsageError."""
    if policy == DIRECT:
        return None
    try:
        return load(policy if policy in names() else str(base / policy))
    except ConfigError as error:
        raise UsageError(str(error)) from error
