"""Where the engine lives on disk, and which recipe it is made from.

Owns the names of folders and the two things that decide what is installed: the pinned requirements and torch's
version. Creates nothing and runs nothing.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
VLLM_VERSION = "0.32.0"
TORCH = "torch==2.13.0"  # not hashed: its CPU and its CUDA build carry one version, and either serves
REQUIREMENTS = HERE / "requirements.txt"
MODEL_SCRIPT = HERE / "tiny_model.py"
CHAT_TEMPLATE = HERE / "chat_template.jinja"
MODEL_NAME = "tiny"

PYTHON_OLDEST, PYTHON_TOO_NEW = (3, 11), (3, 15)
MACHINES = ("x86_64", "aarch64")


class EngineError(Exception):
    """The engine cannot be installed, started or believed. The message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Home:
    """The folder of one installed engine, and the folder that running engines are noted in."""

    root: Path
    engines: Path

    @property
    def environment(self) -> Path:
        return self.root / "venv"

    @property
    def python(self) -> Path:
        return self.environment / "bin" / "python"

    @property
    def stamp(self) -> Path:
        """Written last by an install: without it, or with another recipe in it, the install is redone."""
        return self.root / "installed.json"

    @property
    def model(self) -> Path:
        """The tiny model's folder, named by what it is built from: a changed script builds a new one."""
        return self.root / f"{MODEL_NAME}-{_digest(MODEL_SCRIPT.read_bytes(), CHAT_TEMPLATE.read_bytes())}"


def find() -> Home:
    """ENGINE_HOME where it is set, else a folder of the user's cache named by the recipe."""
    stated = os.environ.get("ENGINE_HOME", "")
    if stated:
        root = Path(stated).expanduser().resolve()
        return Home(root=root, engines=root / "engines")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vllm-admission-gateway"
    return Home(root=cache / f"engine-{VLLM_VERSION}-{recipe()}", engines=cache / "engines")


def recipe() -> str:
    """A short hash of everything that decides what an install puts on disk."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return _digest(REQUIREMENTS.read_bytes(), TORCH.encode(), python.encode(), platform.machine().encode())


def platform_problem() -> str | None:
    """Why vLLM's CPU build cannot run here, or None."""
    if sys.platform != "linux" or platform.machine() not in MACHINES:
        return (
            f"vLLM's CPU build needs Linux on {' or '.join(MACHINES)}; this is {sys.platform} on {platform.machine()}"
        )
    return None


def python_problem() -> str | None:
    """Why this Python cannot carry vLLM's CPU build, or None."""
    if not PYTHON_OLDEST <= sys.version_info[:2] < PYTHON_TOO_NEW:
        return (
            f"vLLM {VLLM_VERSION} needs Python {PYTHON_OLDEST[0]}.{PYTHON_OLDEST[1]} to "
            f"{PYTHON_TOO_NEW[0]}.{PYTHON_TOO_NEW[1] - 1}; this is {platform.python_version()} ({sys.executable})"
        )
    return None


def _digest(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()[:12]
