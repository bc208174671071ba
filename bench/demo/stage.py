"""What the demonstration is made of: an embedded engine, a gateway for each arm, keys, and the scenario for both.

Owns the files in its folder and the processes that it starts: none outlives it. Measures nothing.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bench.errors import UsageError
from bench.own_processes import HOST, free_ports
from bench.own_processes import running as running_process
from bench.simulation.emulator.vocabulary import FOLDER

MODEL = "emulated"
BASELINE = "passthrough"
KEY_NAMES = {"short": "KEY", "long": "KEY_BATCH"}
_SERVICE_CLASSES = {"short": "interactive", "long": "batch"}
LIMITS = {"max_num_batched_tokens": 2048, "long_prefill_token_threshold": 640, "max_num_seqs": 128}


@dataclass(frozen=True, slots=True)
class Load:
    """rate_per_s: requests of both classes; seconds: of each arm."""

    rate_per_s: float
    seconds: float
    seed: int


@dataclass(frozen=True, slots=True)
class Stage:
    """What is to be started, and where its files lie. arms: policies, the baseline first, and their ports."""

    folder: Path
    profile: str
    engine_port: int
    arms: Mapping[str, int]
    keys: Mapping[str, str]

    @property
    def scenario(self) -> Path:
        return self.folder / "scenario.yaml"

    @property
    def engine_url(self) -> str:
        return f"http://{HOST}:{self.engine_port}"

    def engine_command(self) -> list[str]:
        limits = [word for name, value in LIMITS.items() for word in (f"--{name.replace('_', '-')}", str(value))]
        policy = ["--scheduling-policy", "priority", "--enable-prompt-tokens-details"]
        return ["emulate", "--port", str(self.engine_port), "--profile", self.profile, *policy, *limits]

    def gateway_command(self, arm: str) -> list[str]:
        return ["serve", "--config", str(self.configuration(arm))]

    def configuration(self, arm: str) -> Path:
        return self.folder / f"{arm}.yaml"


def prepared(folder: Path, policy: str, profile: str, load: Load) -> Stage:
    """Write the files of a stage with free ports and fresh keys. Raises UsageError where the folder cannot be."""
    ports = free_ports(5)
    stage = Stage(
        folder=folder,
        profile=profile,
        engine_port=ports[0],
        arms=dict(zip((BASELINE, policy), ports[1:3], strict=True)),
        keys={name: f"gw-{secrets.token_urlsafe(32)}" for name in KEY_NAMES.values()},
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / "keys.yaml", {"keys": [_entry(name, stage.keys[key]) for name, key in KEY_NAMES.items()]})
        for (arm, port), ops_port in zip(stage.arms.items(), ports[3:], strict=True):
            _write(stage.configuration(arm), _gateway(stage, arm, port, ops_port))
        _write(stage.scenario, _scenario(stage, load))
    except OSError as error:
        raise UsageError(f"--out: {folder} cannot be written ({error.strerror}). Give another.") from error
    return stage


@contextmanager
def running(stage: Stage) -> Iterator[None]:
    """Start the engine and both gateways, and end them. Raises TargetUnreachableError where one does not come up."""
    with ExitStack() as stack:
        stack.enter_context(
            running_process(stage.engine_command(), stage.folder / "engine.log", stage.engine_url + "/health")
        )
        for arm in stage.arms:
            ops = yaml.safe_load(stage.configuration(arm).read_text(encoding="utf-8"))["ops"]["port"]
            ready = f"http://{HOST}:{ops}/readyz"
            stack.enter_context(running_process(stage.gateway_command(arm), stage.folder / f"{arm}.log", ready))
        yield


def to_repeat(stage: Stage) -> list[str]:
    """Return the lines that do the same by hand, each for a terminal of its own but the last ones."""
    gateway = shlex.quote(str(Path(sys.executable).with_name("gateway")))
    lines = [f"{gateway} {shlex.join(stage.engine_command())}"]
    lines += [f"{gateway} {shlex.join(stage.gateway_command(arm))}" for arm in stage.arms]
    lines += [f"export {name}={key}" for name, key in stage.keys.items()]
    return [*lines, f"{gateway} bench compare {shlex.quote(str(stage.scenario))}"]


def _gateway(stage: Stage, arm: str, port: int, ops_port: int) -> dict[str, Any]:
    engine = {
        "name": "a",
        "url": stage.engine_url,
        "pool": "demo",
        "scheduling": "priority",
        "calibration": "off",  # it learns from what passes: no request beside the load's
        "limits": LIMITS,
    }
    return {
        "listen": {"host": HOST, "port": port},
        "ops": {"host": HOST, "port": ops_port},
        "policy": arm,
        "auth": {"keys_file": "keys.yaml"},
        "engines": [engine],
        "pools": {"demo": {"models": [MODEL], "tokenizer": {"kind": "local", "path": str(FOLDER)}}},
        "drain": {"settle_s": 0, "deadline_s": 5},
    }


def _scenario(stage: Stage, load: Load) -> dict[str, Any]:
    arms = [
        {
            "name": arm,
            "base_url": f"http://{HOST}:{port}",
            "engine_metrics_url": stage.engine_url,
            "credentials": dict(KEY_NAMES),
        }
        for arm, port in stage.arms.items()
    ]
    return {
        "version": 1,
        "name": "demo",
        "model": MODEL,
        "tokenizer": str(FOLDER),
        "arms": arms,
        "lengths": {
            "short": {"prompt_tokens": 512, "output_tokens": 32},
            "long": {"prompt_tokens": 8192, "output_tokens": 32},
        },
        "rates_per_s": [load.rate_per_s],
        "duration_s": load.seconds,
        "seeds": [load.seed],
        "goodput": ["short:ttft:500", "long:ttft:20000"],
        "lag_tolerance_ms": 250,
        "drain_deadline_s": 30,
        "metadata": {"engine": f"the embedded engine, profile {stage.profile}: a model, not a measurement of one"},
    }


def _entry(class_name: str, key: str) -> dict[str, str]:
    return {
        "id": f"demo-{class_name}",
        "sha256": hashlib.sha256(key.encode()).hexdigest(),
        "service_class": _SERVICE_CLASSES[class_name],
        "tenant": "demo",
    }


def _write(path: Path, value: Mapping[str, Any]) -> None:
    # JSON's values are YAML's too: dumped by way of it, no object is written as a reference to another.
    text = yaml.safe_dump(json.loads(json.dumps(value)), sort_keys=False)
    path.write_text(text, encoding="utf-8")
