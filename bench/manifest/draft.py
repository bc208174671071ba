"""A draft: what its author states of a manifest, and how each thing that is to stand in one is found out.

Owns the keys of draft.yaml. Reads nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from bench.manifest.schema import Abort, Capacity, Digest, HealthProbe, Name, Positive, Url, Words
from bench.secret_names import is_secret

_LOG = "engine_logs names the engine's log, or args states it as it was started"
# The arguments that decide how an engine schedules and how fast it is, and how each is found out.
ARGUMENTS: Mapping[str, str] = {
    "max_num_batched_tokens": _LOG,
    "max_num_seqs": _LOG,
    "long_prefill_token_threshold": _LOG,
    "scheduling_policy": _LOG,
    "max_model_len": "the engine's /v1/models, or args",
    "dtype": _LOG,
    "quantization": _LOG,
    "kv_cache_dtype": "the engine's /metrics (vllm:cache_config_info), or args",
    "block_size": "the engine's /metrics (vllm:cache_config_info), or args",
    "gpu_memory_utilization": "the engine's /metrics (vllm:cache_config_info), or args",
    "tensor_parallel_size": _LOG,
    "enforce_eager": _LOG,
}
HOW: Mapping[str, str] = {
    "name": "a word for it, as chat-2026-01",
    "owner": "who is called when it has to be put back",
    "deployment_revision": "the commit or chart version of the deployment: `git rev-parse HEAD`, `helm list`",
    "image_digest": "`docker inspect --format '{{index .RepoDigests 0}}' IMAGE`, or imageID in the pod's status",
    "model_revision": "the commit of the weights: the engine's `--revision`, or the hub's page of the model",
    "tokenizer_revision": "the commit of the tokenizer, or `tokenizer_sha256` of a run.json as sha256:…",
    "speculation": "`none`, or the engine's --speculative-config as it is",
    "prefix_caching": "true or false: --enable-prefix-caching of the engine, or its /metrics",
    "health_probe": "{path: /health, within_s: 5}, as the orchestrator probes",
    "capacity": "{requests_per_s, evidence}: `gateway bench capacity` measures it",
    "drain_deadline_s": "how long streams may go on once their engine gets nothing new",
    "abort": "{error_share_max, refused_share_max, ttft_p95_ms_max: {short: 500}}: when a canary is taken back",
    "pool": "which pool of gateway.yaml this is about",
}


class Draft(BaseModel):
    """What a user states; paths are from its folder. What is read, or stands in the baseline, may be left out."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Annotated[int, Field(ge=1, le=1)]
    gateway_config: Path
    name: Name | None = None
    owner: Words | None = None
    deployment_revision: Words | None = None
    image_digest: Digest | None = None
    model: Words | None = None
    model_revision: Words | None = None
    tokenizer_revision: Words | None = None
    speculation: Words | None = None
    prefix_caching: bool | None = None
    environment: dict[str, str] | None = None
    pool: Name | None = None
    target: list[Name] = []
    args: dict[str, JsonValue] = {}
    engine_logs: dict[Name, Path] = {}
    ops_url: Url | None = None
    health_probe: HealthProbe | None = None
    capacity: Capacity | None = None
    drain_deadline_s: Positive | None = None
    abort: Abort | None = None

    @model_validator(mode="after")
    def _no_secret(self) -> Self:
        if shown := [name for name in (*self.args, *(self.environment or {})) if is_secret(name)]:
            raise ValueError(f"{shown[0]}: a manifest is no place for a secret. Leave it out")
        return self
