"""What running engines and a gateway say of themselves, and of an engine what stands in its log.

Owns which page tells what. Asks with GET alone, and judges nothing: what is not told is not there.
"""

from __future__ import annotations

import ast
import http.client
import urllib.error
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.direct import direct, page, page_object
from bench.engine import start_log
from bench.engine.metrics import parse
from bench.engine.watch import revision_in
from bench.errors import UsageError
from bench.manifest.schema import Argument, HealthProbe
from bench.secret_names import is_secret

# Of the engine's line of configuration, by the argument that decides it.
_CONFIG_WORDS = {
    "dtype": "dtype",
    "kv_cache_dtype": "kv_cache_dtype",
    "tensor_parallel_size": "tensor_parallel_size",
    "pipeline_parallel_size": "pipeline_parallel_size",
    "data_parallel_size": "data_parallel_size",
    "quantization": "quantization",
    "enforce_eager": "enforce_eager",
    "speculative_config": "speculative_config",
    "max_model_len": "max_seq_len",
    "seed": "seed",
}
_CACHE_LABELS = ("block_size", "enable_prefix_caching", "gpu_memory_utilization", "prefix_caching_hash_algo")
_SCHEDULER_WORDS = {
    "max_num_batched_tokens": "max_num_batched_tokens",
    "max_num_seqs": "max_num_seqs",
    "long_prefill_token_threshold": "long_prefill_token_threshold",
    "enable_chunked_prefill": "enable_chunked_prefill",
    "async_scheduling": "async_scheduling",
    "scheduling_policy": "policy",
}


@dataclass(frozen=True, slots=True)
class HeardEngine:
    """args: in force, and who says so. problem: why it is not well; None: it is.

    log_was_read: what it was started with was seen.
    """

    problem: str | None
    version: str | None = None
    models: tuple[str, ...] = ()
    model_revision: str | None = None
    args: Mapping[str, Argument] = field(default_factory=dict)
    log_was_read: bool = False

    def leaves_out(self, argument: Argument) -> bool:
        """Whether an argument that nothing tells any more is at its default: a log had it, which has no defaults."""
        return self.log_was_read and argument.source == "log"


@dataclass(frozen=True, slots=True)
class HeardGateway:
    """engines: of the pool, by name, as /api/state has them; None: no such pool. problem: it does not say."""

    problem: str | None
    version: str | None = None
    policy: Mapping[str, str] = field(default_factory=dict)
    shifted: bool = False
    engines: Mapping[str, Mapping[str, Any]] | None = None


def engine(url: str, probe: HealthProbe, log_text: str | None = None, key: str | None = None) -> HeardEngine:
    """log_text: of this engine's own log, where that is to be had. key: that its pages want."""
    problem = _unwell(url, probe)
    version = page_object(f"{url}/version", key).get("version")
    listed = page_object(f"{url}/v1/models", key).get("data") or []
    cards = [each for each in listed if isinstance(each, dict) and "id" in each]
    # Later ones go before earlier ones: an engine that runs knows better than what it was started with.
    args = {} if log_text is None else of_log(log_text)
    args |= of_server_info(page_object(f"{url}/server_info?config_format=json", key))
    args |= of_metrics(page(f"{url}/metrics", key) or "")
    if cards and isinstance(context := cards[0].get("max_model_len"), int):
        args["max_model_len"] = _argument(context, "models")
    return HeardEngine(
        problem=problem,
        version=version if isinstance(version, str) else None,
        models=tuple(str(each["id"]) for each in cards),
        model_revision=next((found for each in cards if (found := revision_in(str(each.get("root"))))), None),
        args=args,
        log_was_read=log_text is not None and start_log.arguments(log_text) is not None,
    )


def gateway(ops_url: str, pool: str, token: str | None = None) -> HeardGateway:
    state = page_object(f"{ops_url}/api/state?promises=off", token)
    if not isinstance(state.get("policy"), dict) or not isinstance(state.get("pools"), dict):
        return HeardGateway(f"{ops_url} does not answer as the ops port of a gateway")
    of_pool = state["pools"].get(pool)
    return HeardGateway(
        problem=None if of_pool is not None else f"the gateway has no pool {pool}",
        version=str(state.get("version")),
        policy={key: str(state["policy"].get(key)) for key in ("name", "sha256")},
        shifted=bool(of_pool and of_pool.get("shifted")),
        engines=None if of_pool is None else of_pool["engines"],
    )


def log(path: Path) -> str:
    """Its lines of the last start. Raises UsageError."""
    try:
        return start_log.last_start(path)
    except OSError as error:
        raise UsageError(f"{path}: the engine's log cannot be read ({error.strerror}). Correct the path.") from error


def of_log(text: str) -> dict[str, Argument]:
    """The arguments that an engine's log tells of its last start."""
    words = {name: start_log.config_word(text, word) for name, word in _CONFIG_WORDS.items()}
    found = {name: _argument(_literal(word), "log") for name, word in words.items() if word is not None}
    if (asked := start_log.arguments(text)) is not None:
        said = {**start_log.ABSENT_MEANS, **asked}  # some secrets as they are
        found |= {name: _argument(value, "log") for name, value in said.items() if not is_secret(name)}
    return found


def of_server_info(said: Mapping[str, Any]) -> dict[str, Argument]:
    """Of an engine in its development mode."""
    config = said.get("vllm_config")
    scheduler = config.get("scheduler_config") if isinstance(config, dict) else None
    if not isinstance(scheduler, dict):
        return {}
    return {
        name: _argument(scheduler[word], "server_info") for name, word in _SCHEDULER_WORDS.items() if word in scheduler
    }


def of_metrics(text: str) -> dict[str, Argument]:
    try:
        labels = parse(text).cache_config
    except ValueError:
        return {}
    found = {name: _argument(_literal(labels[name]), "metrics") for name in _CACHE_LABELS if name in labels}
    if "cache_dtype" in labels:
        found["kv_cache_dtype"] = _argument(_literal(labels["cache_dtype"]), "metrics")
    return found


def _argument(value: Any, source: str) -> Argument:
    return Argument.model_validate({"value": value, "from": source})


def _literal(text: str) -> Any:
    """A word of vLLM's as a value: True, 16, 0.92, None, else the word itself."""
    plain = text.strip("'\"")
    try:
        value = ast.literal_eval(plain)
    except (ValueError, SyntaxError):
        return plain
    return value if value is None or isinstance(value, bool | int | float | str) else plain


def _unwell(url: str, probe: HealthProbe) -> str | None:
    address = f"{url}{probe.path}"
    try:
        with direct.open(address, timeout=probe.within_s):
            return None
    except urllib.error.HTTPError as error:
        return f"{address} answers {error.code}"
    except TimeoutError:
        return f"{address} does not answer within {probe.within_s:g} s"
    except (OSError, http.client.HTTPException) as error:
        return f"{address} does not answer ({getattr(error, 'reason', None) or error})"
