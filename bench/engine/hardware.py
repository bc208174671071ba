"""What this machine is: processor, cores, memory, GPUs by NVML; in words, and as one short digest of them.

The digest is the same after a restart and after a new kernel. It is absent where something that decides speed cannot
be seen: two machines that differ in that alone would look like one. Changes nothing here.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.engine import gpu
from bench.engine.gpu import Gpus, NoGpu

_DIGEST_CHARS = 16
_NVIDIA = Path("/proc/driver/nvidia/version")


def is_this_machine(urls: Iterable[str]) -> bool:
    """Whether all of these servers are on this machine: of another one nothing can be seen from here."""
    hosts = [urlsplit(url).hostname or "" for url in urls]
    return all(host in ("localhost", "::1") or host.startswith("127.") for host in hosts)


def described(cpuinfo: str, meminfo: str, cores: int | None, gpus: Gpus | NoGpu, *, has_driver: bool) -> dict[str, Any]:
    """`hardware` in words, and `hardware_id` where all of it is known. cpuinfo, meminfo: what Linux says in /proc.

    has_driver: NVIDIA's driver runs, so that no GPU by NVML means one that is not seen.
    """
    words: dict[str, Any] = {
        "cpu": _first(cpuinfo, "model name") or platform.machine(),
        "cores": cores,
        # In whole GiB: what a kernel keeps for itself changes from one to the next.
        "memory_gib": None if (kib := _first(meminfo, "MemTotal")) is None else round(int(kib.split()[0]) / 1024**2),
        "gpus": gpus.names() if isinstance(gpus, Gpus) else [],
    }
    unseen = (isinstance(gpus, NoGpu) and has_driver) or any(value is None for value in words.values())
    known = {name: value for name, value in words.items() if value is not None}
    if unseen:
        return {"hardware": known}
    digest = hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()
    return {"hardware": known, "hardware_id": digest[:_DIGEST_CHARS]}


def of_this_machine() -> dict[str, Any]:
    return described(
        _said("/proc/cpuinfo"), _said("/proc/meminfo"), os.cpu_count(), gpu.find(), has_driver=_NVIDIA.exists()
    )


def _said(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _first(text: str, name: str) -> str | None:
    """The first value of this name in lines `name : value`."""
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon and key.strip() == name:
            return " ".join(value.split())
    return None
