"""What a started engine says that it runs with, against what it was asked for. Pure.

Owns where vLLM tells each setting, and which of its words goes before which: what is in force before what was asked.
vLLM 0.32 tells max_num_seqs in one line of its log alone (or in its development mode), and leaves out of that line what
equals the default, which its help has. What nothing tells is not taken for right.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bench.engine import start_log
from bench.sweep.flags import Help, Value, literal

# Read in any case: what else is in force belongs to the record of a start.
WATCHED = (
    "max_num_batched_tokens",
    "max_num_seqs",
    "long_prefill_token_threshold",
    "scheduling_policy",
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "max_model_len",
)
_CHUNKED = re.compile(r"Chunked prefill is enabled with max_num_batched_tokens=(\d+)")
_RANGES = re.compile(r"'compile_ranges_endpoints': \[[\d, ]*?(\d+)\]")
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>[kKmMgGtT])")  # 8k is 8000 and 8K 8192, as vLLM reads them
_ANY = ("auto", -1)  # asked for like this, the engine chooses
_OTHER_NAMES = {"scheduling_policy": "policy"}


@dataclass(frozen=True, slots=True)
class Heard:
    """log: of this start. cache_config: labels of vllm:cache_config_info. context: of /v1/models.

    server_info: of the development mode; empty without it.
    """

    log: str
    cache_config: Mapping[str, str]
    context_tokens: int | None
    server_info: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Effective:
    """Each setting that is known, and who tells it."""

    values: Mapping[str, Value]
    told_by: Mapping[str, str]


def effective(names: Iterable[str], heard: Heard, printed: Help) -> Effective:
    values: dict[str, Value] = {}
    told_by: dict[str, str] = {}
    for name in names:
        found = _told(name, heard, printed)
        if found is not None:
            values[name], told_by[name] = found
    return Effective(values, told_by)


def differences(asked: Mapping[str, Value], found: Effective) -> list[str]:
    """One sentence for each setting that is another than asked, or that nothing tells."""
    said = []
    for name, value in asked.items():
        if name not in found.values:
            said.append(f"{name}: nothing that the engine says tells it, asked was {value}")
        elif not _same(found.values[name], value):
            said.append(f"{name} is {found.values[name]} ({found.told_by[name]}), asked was {value}")
    return said


def has_arguments(log: str) -> bool:
    """Whether this is the log of an engine that has begun: others that answer on its port have not written there."""
    return start_log.arguments(log) is not None


def _told(name: str, heard: Heard, printed: Help) -> tuple[Value, str] | None:
    for config in ("scheduler_config", "cache_config"):
        said = heard.server_info.get(config)
        value = said.get(_OTHER_NAMES.get(name, name)) if isinstance(said, dict) else None
        if isinstance(value, bool | int | float | str):
            return value, "/server_info"
    if name == "max_model_len" and heard.context_tokens is not None:
        return heard.context_tokens, "/v1/models"
    if name == "max_num_batched_tokens":
        for pattern, line in ((_CHUNKED, "log: chunked prefill"), (_RANGES, "log: engine config")):
            if numbers := pattern.findall(heard.log):
                return int(numbers[-1]), line
    if name in heard.cache_config and heard.cache_config[name] != "None":
        return literal(heard.cache_config[name]), "/metrics vllm:cache_config_info"
    if (word := start_log.config_word(heard.log, name)) is not None:
        return literal(word), "log: engine config"
    return _asked_at_the_start(name, heard.log, printed)


def _asked_at_the_start(name: str, log: str, printed: Help) -> tuple[Value, str] | None:
    asked = start_log.arguments(log)
    if asked is None:
        return None
    if (value := asked.get(name)) is not None:
        return _plain(value), "log: non-default args"
    default = printed.default(name)
    return None if default is None else (default, "the help's default: not among the log's non-default args")


def _plain(value: Any) -> Value:
    """As a flag would have it: the one word of a list, and anything larger as JSON."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, str):
        return literal(value)
    return value if isinstance(value, bool | int | float) else json.dumps(value)


def _same(found: Value, asked: Value) -> bool:
    if asked in _ANY:
        return True
    if isinstance(asked, str) and (size := _SIZE.fullmatch(asked)):
        unit = 1000 if size["unit"].islower() else 1024
        asked = int(float(size["number"]) * unit ** (1 + "kmgt".index(size["unit"].lower())))
    if isinstance(found, bool) or isinstance(asked, bool):
        return found is asked
    if isinstance(found, int | float) and isinstance(asked, int | float):
        return float(found) == float(asked)
    return str(found) == str(asked)
