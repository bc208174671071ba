"""gateway.yaml from disk, checked against the environment and the files that it names.

Owns `load`. Opens none of the named files.
"""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path

from gateway.settings.model import Engine, LocalTokenizer, Settings
from gateway.strict_yaml import ConfigError, means_a_file, read


def load(path: Path) -> Settings:
    """The file, checked, also against the environment and the files it names; raises ConfigError."""
    settings = read(path, Settings)
    file = str(path)
    for index, engine in enumerate(settings.engines):
        _check_engine_key(file, f"engines[{index}].api_key_env", engine)
        if isinstance(engine.calibration, Path):
            _check_exists(
                file,
                f"engines[{index}].calibration",
                engine.calibration,
                "Write it with `gateway bench calibrate`, or use probe or off",
            )
    if settings.auth.keys_file is not None:
        _check_exists(file, "auth.keys_file", settings.auth.keys_file, "Create it with `gateway keys new --append`")
    if settings.ops.token_file is not None:
        _check_exists(file, "ops.token_file", settings.ops.token_file, "Write a long random word there")
    if settings.auth.jwt is not None and settings.auth.jwt.jwks_file is not None:
        _check_exists(file, "auth.jwt.jwks_file", settings.auth.jwt.jwks_file, "Copy the issuer's key set there")
    for name, pool in settings.pools.items():
        if isinstance(pool.tokenizer, LocalTokenizer):
            where = f"pools.{name}.tokenizer.path"
            _check_exists(file, where, pool.tokenizer.path, "Copy the model's tokenizer there")
    if settings.tracing and not _has_tracing():
        raise ConfigError(
            file,
            "tracing",
            "wants OpenTelemetry, which is not installed",
            "Install it with `pip install 'vllm-admission-gateway[tracing]'`, or remove this line",
        )
    own = {key: value for key in ("policy", "shadow") if (value := getattr(settings, key)) and means_a_file(value)}
    for key, value in own.items():
        own[key] = str((path.parent / value).absolute())
        _check_exists(file, key, Path(own[key]), "Create it")
    return settings.model_copy(update=own)


def _has_tracing() -> bool:
    """Tell whether the extra `tracing` is installed: all of it, since its parts come by other ways too."""
    try:
        return all(find_spec(name) for name in ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http"))
    except ModuleNotFoundError:
        return False


def _check_engine_key(file: str, key_path: str, engine: Engine) -> None:
    if engine.api_key_env is None:
        return
    key = os.environ.get(engine.api_key_env, "")
    if not key:
        raise ConfigError(
            file,
            key_path,
            "names an environment variable that is not set",
            "Set it to the engine's key, or remove this line",
        )
    if not re.fullmatch(r"[!-~]+", key):
        raise ConfigError(
            file,
            key_path,
            "names a variable whose value has a space, a line break or another character no key has",
            "Set it to the key alone",
        )


def _check_exists(file: str, key_path: str, path: Path, fix: str) -> None:
    try:
        exists = path.exists()
    except PermissionError:
        exists = False
    if not exists:
        raise ConfigError(file, key_path, f"{path} does not exist", f"{fix}, or correct the path")
