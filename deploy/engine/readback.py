"""What a started engine says about itself: in its log, in /metrics, in /v1/models.

Owns which of them tells what. vLLM tells its scheduling policy in one log line and nowhere else (unless in its
development mode, which opens dangerous routes), and leaves out of that line what equals its defaults.
"""

from __future__ import annotations

import json
import urllib.request
from typing import Any

from bench.direct import direct
from bench.engine import start_log
from bench.engine.metrics import parse

HTTP_TIMEOUT_S = 10
# max_num_batched_tokens and max_num_seqs are always in the log's line: the kit states them.
_OF_THE_LOG = ("scheduling_policy", "long_prefill_token_threshold", "max_num_batched_tokens", "max_num_seqs")


def effective_flags(log_text: str, metrics_text: str) -> dict[str, Any]:
    """The flags in force, by EngineFlags' names, and `kv_tokens`. A flag that is not told is not in it.

    Raises ValueError where the log has no line of arguments, or the metrics no cache configuration.
    """
    stated = start_log.arguments(log_text)
    if stated is None:
        raise ValueError("the log has no `non-default args` line")
    labels = parse(metrics_text).cache_config
    if not labels:
        raise ValueError("/metrics has no vllm:cache_config_info")
    return {
        **{name: stated.get(name, start_log.ABSENT_MEANS.get(name)) for name in _OF_THE_LOG},
        "enable_prefix_caching": labels["enable_prefix_caching"] == "True",
        "kv_tokens": int(labels["kv_cache_size_tokens"]),
    }


def served_model(base_url: str) -> dict[str, Any]:
    """The first card of /v1/models: `id`, `root`, `max_model_len`. Raises OSError where nobody answers."""
    card: dict[str, Any] = json.loads(fetch(base_url + "/v1/models"))["data"][0]
    return card


def fetch(url: str, timeout_s: float = HTTP_TIMEOUT_S, bearer: str | None = None) -> str:
    """The body of a 200 answer. Raises OSError (URLError, HTTPError, timeouts) otherwise, ValueError for no URL."""
    headers = {} if bearer is None else {"Authorization": f"Bearer {bearer}"}
    with direct.open(urllib.request.Request(url, headers=headers), timeout=timeout_s) as reply:  # noqa: S310 - as given
        body: bytes = reply.read()
    return body.decode()


def healthy(base_url: str) -> bool:
    """Whether /health answers 200 at once. No answer is an answer here: a starting engine refuses connections."""
    try:
        fetch(base_url + "/health", timeout_s=2)
    except OSError:
        return False
    return True
