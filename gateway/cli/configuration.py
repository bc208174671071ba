"""What `serve` and `check` start from: settings, plan and keys that agree with each other.

Owns the options that name the files, and the order of reading. Starts nothing.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gateway import settings as settings_file
from gateway.core.plan import Plan
from gateway.engines import calibration_file
from gateway.identity.keys import KeyEntry, load_keys
from gateway.policy import source
from gateway.settings import Settings
from gateway.strict_yaml import ConfigError, means_a_file, quoting

if TYPE_CHECKING:
    from gateway.counting.model_files import TokenizerUnusable
    from gateway.identity.signing_keys import KeySet


@dataclass(frozen=True, slots=True)
class Configuration:
    """Everything that was read, checked also against each other.

    key_set: of auth.jwt.jwks_file, where there is one. shadow: the policy that is only counted, where there is one.
    """

    path: Path
    settings: Settings
    plan: Plan
    keys: tuple[KeyEntry, ...]
    key_set: KeySet | None
    shadow: Plan | None = None


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config", type=Path, default=Path("gateway.yaml"), metavar="FILE", help="default: gateway.yaml"
    )
    parser.add_argument(
        "--policy", metavar="NAME_OR_FILE", help="use this policy instead of the one that the file names"
    )
    parser.add_argument(
        "--shadow", metavar="NAME_OR_FILE", help="let this policy decide beside it, and only count in what they differ"
    )


def load(options: argparse.Namespace) -> Configuration:
    """Read what `add_options` took; raises ConfigError."""
    path: Path = options.config
    settings = settings_file.load(path)
    plan = _plan(path, "policy", settings.policy, options.policy)
    shadow = None
    if options.shadow is not None or settings.shadow is not None:
        shadow = _plan(path, "shadow", settings.shadow or "", options.shadow)
    anonymous = settings.auth.anonymous
    if anonymous is not None and anonymous.service_class not in plan.classes:
        raise ConfigError(
            str(path),
            "auth.anonymous.service_class",
            f"is {anonymous.service_class}, which the policy {plan.name} does not have",
            f"Use one of {', '.join(sorted(plan.classes))}",
        )
    for engine in settings.engines:
        if isinstance(engine.calibration, Path):
            calibration_file.load(engine.calibration)
    keys_file = settings.auth.keys_file
    keys = () if keys_file is None else load_keys(keys_file, plan.classes)
    return Configuration(path, settings, plan, keys, _key_set(settings), shadow)


def policy_files(options: argparse.Namespace, read: Configuration) -> tuple[Path, ...]:
    """Return the files of the policies, the shadow's too, where they are the user's own."""
    named = (options.policy or read.settings.policy, options.shadow or read.settings.shadow)
    return tuple(Path(each) for each in named if each is not None and means_a_file(each))


def unusable_tokenizer(path: Path, pool: str, error: TokenizerUnusable) -> ConfigError:
    """Name the setting that led to a tokenizer that cannot count. path: of gateway.yaml."""
    return ConfigError(str(path), f"pools.{pool}.tokenizer.path", f"{error.path}: {error.problem}", error.fix)


def _key_set(settings: Settings) -> KeySet | None:
    jwt = settings.auth.jwt
    if jwt is None or jwt.jwks_file is None:
        return None
    from gateway.identity.signing_keys import load_key_set

    return load_key_set(jwt.jwks_file)


def _plan(path: Path, key: str, stated: str, override: str | None) -> Plan:
    if override is not None:
        return source.load(override)
    if not means_a_file(stated) and stated not in source.names():
        raise ConfigError(
            str(path),
            key,
            quoting(stated, "is not a shipped policy"),
            f"Use one of {', '.join(source.names())}, or give the path of a file",
        )
    return source.load(stated)
