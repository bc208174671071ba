"""The files that a gateway is configured by: gateway.yaml and the policy that it names, as they lie on disk.

Owns reading them for a manifest and putting them back as they were. Asks no gateway.
"""

from __future__ import annotations

import hashlib
import itertools
import os
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

    @property
    def policy(self) -> str:
        """As the file names it."""
        return str(self.settings.get("policy", _DEFAULT_POLICY))

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
    return Configured(path, text, settings, _policy_file(settings, path))


def _policy_file(settings: Mapping[str, Any], path: Path) -> Path | None:
    """Where a gateway looks for the policy that the gateway.yaml at `path` names; None: it is a shipped one."""
    policy = Path(str(settings.get("policy", _DEFAULT_POLICY)))
    is_file = policy.suffix in {".yaml", ".yml"} or policy.name != str(policy)
    return (path.parent / policy).absolute() if is_file else None


def keys_of(config: str) -> dict[str, str]:
    """By engine, the key that its pages want, where gateway.yaml names its variable and that is set here."""
    engines = yaml.safe_load(config)["engines"]
    found = {str(each["name"]): os.environ.get(str(each.get("api_key_env")), "") for each in engines}
    return {name: key for name, key in found.items() if key}


def as_found(paths: list[Path]) -> dict[Path, bytes | None]:
    """The bytes of each; None where it is not there. Raises UsageError."""
    return {path: _read(path) for path in paths}


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}). Run this as a user that may read it.") from error


def of_manifest(gateway: Gateway, path: Path) -> dict[Path, bytes]:
    """The files that a manifest puts back, the policy first: gateway.yaml is what makes it count.

    The policy lies where the gateway.yaml at `path` looks for it, wherever that lay when the manifest was made.
    """
    files: dict[Path, bytes] = {}
    if gateway.policy.file is not None and gateway.policy.text is not None:
        named = _policy_file(yaml.safe_load(gateway.config), path)
        files[named or Path(gateway.policy.file)] = gateway.policy.text.encode()
    return files | {path: gateway.config.encode()}


def kept_beside(path: Path, word: str) -> Path:
    """A copy of a file beside it, under a name with `word` in it that no other file has. Raises UsageError."""
    raw = _read(path) or b""
    for number in itertools.count():
        copy = path.with_name(f"{path.name}.{word}-{number}" if number else f"{path.name}.{word}")
        try:
            with os.fdopen(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(raw)
            shutil.copymode(path, copy)
        except FileExistsError:
            continue
        except OSError as error:
            raise _unwritable(copy, error) from error
        return copy
    raise AssertionError("numbers end nowhere")


def put(files: Mapping[Path, bytes | None]) -> None:
    """Each as a whole: a gateway that looks meanwhile never meets half a file. Raises UsageError.

    What was not there is left as it is: it is nobody's any more.
    """
    for stated, raw in files.items():
        path = stated.resolve()  # a link stays one
        if raw is None or _read(path) == raw:
            continue
        try:
            _replace(path, raw)
        except OSError as error:
            raise _unwritable(path, error) from error


def _replace(path: Path, raw: bytes) -> None:
    """With the owner and mode that the file had: whoever could read it can read it afterwards."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        part = Path(file.name)
        try:
            file.write(raw)
            file.flush()
            if path.exists():
                was, new = path.stat(), part.stat()
                if (was.st_uid, was.st_gid) != (new.st_uid, new.st_gid):
                    os.chown(part, was.st_uid, was.st_gid)
                shutil.copymode(path, part)
            else:
                part.chmod(0o644)
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def _unwritable(path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"{path}: cannot be written ({error.strerror}). Run this where the gateway's files are kept, as a user that "
        "may write them."
    )
