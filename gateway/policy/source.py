"""Where policies come from: the shipped ones by name, a user's own by path.

Owns reading and naming. The hash is over the file's bytes as they lie on disk.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from importlib import resources
from pathlib import Path

from gateway.core.plan import Plan
from gateway.policy.compile import compile_policy
from gateway.policy.schema import Policy
from gateway.strict_yaml import ConfigError, means_a_file, parse, read_bytes

_ENDING = ".yaml"


def names() -> list[str]:
    """The shipped policies, in alphabetical order."""
    return sorted(
        entry.name.removesuffix(_ENDING)
        for entry in resources.files("policies").iterdir()
        if entry.name.endswith(_ENDING)
    )


def load(name_or_path: str) -> Plan:
    """The policy, compiled; raises ConfigError."""
    return _loaded(name_or_path)[1]


def stated(name_or_path: str) -> Policy:
    """The policy as its file states it, defaults filled in; raises ConfigError, also for what does not compile."""
    return _loaded(name_or_path)[0]


def text(name_or_path: str) -> str:
    """The policy as it is written; raises ConfigError."""
    return _bytes_and_label(name_or_path)[0].decode("utf-8", errors="replace")


def summary(name: str) -> str:
    """The first comment line of a shipped policy: what it is for."""
    return text(name).split("\n", 1)[0].removeprefix("#").strip()


def json_schema() -> str:
    """The JSON Schema of policy files, with a line feed at the end."""
    return json.dumps(Policy.model_json_schema(), indent=2) + "\n"


def _loaded(name_or_path: str) -> tuple[Policy, Plan]:
    raw, file = _bytes_and_label(name_or_path)
    policy = parse(raw, file=file, model=Policy)
    return policy, compile_policy(policy, file=file, sha256=hashlib.sha256(raw).hexdigest())


def _bytes_and_label(name_or_path: str) -> tuple[bytes, str]:
    if means_a_file(name_or_path):
        return read_bytes(Path(name_or_path)), name_or_path
    shipped = names()
    if name_or_path not in shipped:
        near = difflib.get_close_matches(name_or_path, shipped, n=1)
        fix = f"Write {near[0]} if that is meant" if near else f"Use one of {', '.join(shipped)}"
        raise ConfigError(
            f"policy {name_or_path!r}", "", "is not a shipped policy", f"{fix}, or give the path of a file"
        )
    file = f"{name_or_path}{_ENDING}"
    return resources.files("policies").joinpath(file).read_bytes(), f"policies/{file}"
