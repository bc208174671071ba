"""A gateway of the bench's own: its configuration, its callers, its address.

Owns the files in its folder and who the requests come as. Measures nothing.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from bench.errors import UsageError
from bench.load.target import clean_url
from bench.own_processes import HOST, free_ports, running

KEY_VARIABLE = "GATEWAY_BENCH_KEY_"
KEYS_FILE = "_keys.yaml"  # no arm is called so: the others there have arms' names


@dataclass(frozen=True, slots=True)
class Callers:
    """Who the requests of each class come as. keys: class to its key; service_classes: class to what the key is for."""

    service_classes: Mapping[str, str]
    keys: Mapping[str, str] = field(repr=False)

    def variables(self) -> dict[str, str]:
        """Class name to the environment variable that holds its key."""
        return {name: f"{KEY_VARIABLE}{name.upper().replace('-', '_')}" for name in self.keys}

    def environment(self) -> dict[str, str]:
        return {variable: self.keys[name] for name, variable in self.variables().items()}

    def entries(self) -> list[dict[str, str]]:
        return [
            {
                "id": f"bench-{name}",
                "sha256": hashlib.sha256(key.encode()).hexdigest(),
                "service_class": self.service_classes[name],
                "tenant": f"bench-{name}",
            }
            for name, key in self.keys.items()
        ]


def fresh_callers(service_classes: Mapping[str, str]) -> Callers:
    return Callers(service_classes, {name: f"gw-{secrets.token_urlsafe(32)}" for name in service_classes})


class LocalGateway:
    """One policy at a time, always at the same address."""

    def __init__(self, folder: Path, callers: Callers) -> None:
        self._folder = folder
        self._callers = callers
        self._port, self._ops_port = free_ports(2)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._port}"

    @property
    def ops_url(self) -> str:
        return f"http://{HOST}:{self._ops_port}"

    @contextmanager
    def serving(
        self, name: str, policy: str, base: Mapping[str, Any], *, without_engine: bool = False
    ) -> Iterator[None]:
        """A gateway with that policy, a fresh process each time. Raises TargetUnreachableError where none comes up.

        base: the configuration, but for what the bench says. without_engine: it is up before its engine is.
        """
        config = self._written(name, policy, base)
        ready_url = f"{self.ops_url}/{'healthz' if without_engine else 'readyz'}"
        with running(["serve", "--config", str(config)], config.with_suffix(".log"), ready_url):
            yield

    def _written(self, name: str, policy: str, base: Mapping[str, Any]) -> Path:
        said = {
            **base,
            "listen": {"host": HOST, "port": self._port},
            "ops": {"host": HOST, "port": self._ops_port},
            "policy": policy,
            "auth": {"keys_file": KEYS_FILE},
            "drain": {"settle_s": 0, "deadline_s": 5},
        }
        path = self._folder / f"{name}.yaml"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            _dump(self._folder / KEYS_FILE, {"keys": self._callers.entries()})
            _dump(path, said)
        except OSError as error:
            raise UsageError(f"{path}: cannot be written ({error.strerror}). Choose another --result-dir.") from error
        return path


def base_of_engine(url: str, model: str, tokenizer: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """One engine, one pool."""
    return {
        "engines": [{"name": "engine", "url": url, "pool": "bench", **options}],
        "pools": {"bench": {"models": [model], "tokenizer": {"kind": "local", "path": str(tokenizer)}}},
    }


def base_of_file(path: Path) -> dict[str, Any]:
    """A gateway.yaml's own settings. Raises UsageError where it has no engine, or one without an address.

    What else is wrong with it the gateway says itself. Its paths are from its own folder, and stay so.
    """
    try:
        said: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        engines = said["engines"]
        urls = [str(engine["url"]) for engine in engines]
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        raise UsageError(f"{path}: no gateway.yaml with engines in it ({error}). Give each its url.") from error
    if not urls:
        raise UsageError(f"{path}: engines: none. Give at least one.")
    for number, url in enumerate(urls):
        clean_url(url, f"{path}: engines[{number}].url")
    folder = path.parent.absolute()
    for engine in engines:
        if engine.get("calibration") not in (None, "probe", "off"):
            engine["calibration"] = str(folder / engine["calibration"])
    for pool in said.get("pools", {}).values():
        tokenizer = pool.get("tokenizer") or {}
        if "path" in tokenizer:
            tokenizer["path"] = str(folder / tokenizer["path"])
    return said


def chunk_tokens_max(base: Mapping[str, Any]) -> int | None:
    """What the engines take of one prompt in a step, where their limits say so and all say the same."""
    said = {_chunk_tokens(engine.get("limits") or {}) for engine in base["engines"]}
    return said.pop() if len(said) == 1 else None


def _chunk_tokens(limits: Mapping[str, Any]) -> int | None:
    return limits.get("long_prefill_token_threshold") or limits.get("max_num_batched_tokens")


def engine_said(base: Mapping[str, Any]) -> str:
    """How the configuration says that its engines were started: what else differs between two arms."""
    each = [
        {"scheduling": engine.get("scheduling", "probe"), **(engine.get("limits") or {})} for engine in base["engines"]
    ]
    said = dict.fromkeys(", ".join(f"{name} {value}" for name, value in words.items()) for words in each)
    return f"{'engine' if len(each) == 1 else f'{len(each)} engines'}: {'; '.join(said)}"


def _dump(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(yaml.safe_dump(value, sort_keys=False), encoding="utf-8")
