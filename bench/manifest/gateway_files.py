"""The files that a gateway is configured by: gateway.yaml and the policy that it names, as they lie on disk.

Owns reading them for a manifest and putting them back as they were. Asks no gateway.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bench.errors import UsageError
from bench.manifest.schema import Gateway

_DEFAULT_POLICY = "short-first"


@dataclass(frozen=True, slots=True)
class Configured:
    """What stands in a gateway.yaml. policy_file: None where it names a shipped policy."""

    path: Path
    text: str
    settings: Mapping[str, Any]
    policy_file: Path | None

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    def engines(self, pool: str) -> dict[str, Mapping[str, Any]]:
        return {str(each["name"]): each for each in self.settings["engines"] if each.get("pool") == pool}

    def weights(self, pool: str) -> dict[str, float]:
        return {name: float(each.get("weight", 1)) for name, each in self.engines(pool).items()}

    def ops_url(self) -> str | None:
        """None where the file leaves the port to chance."""
        ops = self.settings.get("ops") or {}
        host, port = str(ops.get("host", "127.0.0.1")), int(ops.get("port", 9090))
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
        return None if port == 0 else f"http://{host}:{port}"


def read(path: Path) -> Configured:
    """Raises UsageError where there is no gateway.yaml with engines and pools."""
    try:
        text = path.read_bytes().decode()
        settings = yaml.safe_load(text)
        engines = [(str(each["name"]), str(each["url"])) for each in settings["engines"]]
        pools = dict(settings["pools"])
    except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path}: no gateway.yaml with engines and pools ({error}). Correct the path.") from error
    if not engines or not pools:
        raise UsageError(f"{path}: it has no engines. Give the gateway.yaml that the gateway reads.")
    policy = Path(str(settings.get("policy", _DEFAULT_POLICY)))
    is_file = policy.suffix in {".yaml", ".yml"} or policy.name != str(policy)
    return Configured(path, text, settings, (path.parent / policy).absolute() if is_file else None)


def as_found(paths: list[Path]) -> dict[Path, bytes | None]:
    """The bytes of each; None where it is not there."""
    return {path: path.read_bytes() if path.exists() else None for path in paths}


def of_manifest(gateway: Gateway, path: Path) -> dict[Path, bytes]:
    """The files that a manifest puts back, the policy first: gateway.yaml is what makes it count."""
    files: dict[Path, bytes] = {}
    if gateway.policy.file is not None and gateway.policy.text is not None:
        files[Path(gateway.policy.file)] = gateway.policy.text.encode()
    return files | {path: gateway.config.encode()}


def put(files: Mapping[Path, bytes | None]) -> None:
    """Each as a whole: a gateway that looks meanwhile never meets half a file. Raises UsageError.

    What was not there is left as it is: it is nobody's any more.
    """
    for stated, raw in files.items():
        path = stated.resolve()  # a link stays one
        if raw is None or (path.exists() and path.read_bytes() == raw):
            continue
        try:
            with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as part:
                part.write(raw)
            if path.exists():
                shutil.copymode(path, part.name)
            else:
                Path(part.name).chmod(0o644)
            Path(part.name).replace(path)
        except OSError as error:
            raise UsageError(
                f"{path}: cannot be written ({error.strerror}). Run this where the gateway's files are kept, as a user "
                "that may write them."
            ) from error
