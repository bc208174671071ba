"""GPUs of this machine and their memory by NVML, where there is one. Changes nothing there.

nvidia-ml-py (the extra `gpu`) is optional: what cannot be read is absent, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any


@dataclass(frozen=True, slots=True)
class NoGpu:
    """Why nothing is measured."""

    reason: str


@dataclass(slots=True)
class Gpus:
    """All devices of the machine, whoever uses them."""

    _nvml: Any
    _handles: list[Any] = field(default_factory=list)

    def names(self) -> list[str] | None:
        """Each device in the driver's order, with its memory in whole GiB; None where the driver does not say."""
        try:
            return [f"{_text(self._nvml.nvmlDeviceGetName(each))}{self._memory(each)}" for each in self._handles]
        except self._nvml.NVMLError:
            return None

    def _memory(self, handle: Any) -> str:
        """Nothing of a device that shares the machine's memory: its driver tells none."""
        try:
            return f", {round(int(self._nvml.nvmlDeviceGetMemoryInfo(handle).total) / 1024**3)} GiB"
        except self._nvml.NVMLError:
            return ""

    def used_bytes(self) -> int | None:
        """Memory in use now, of all devices together; None where the driver does not say at the moment."""
        try:
            return sum(int(self._nvml.nvmlDeviceGetMemoryInfo(each).used) for each in self._handles)
        except self._nvml.NVMLError:
            return None

    def busy_share(self) -> float | None:
        """Of the driver's last sample period, the share in which the busiest device computed: an engine may use one."""
        try:
            used = [int(self._nvml.nvmlDeviceGetUtilizationRates(each).gpu) for each in self._handles]
        except self._nvml.NVMLError:
            return None
        return max(used) / 100


def find(load: Callable[[str], Any] = import_module) -> Gpus | NoGpu:
    """`load` imports NVML's Python binding."""
    try:
        nvml = load("pynvml")
    except ImportError:
        return NoGpu("nvidia-ml-py is not installed")
    try:
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(number) for number in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError as error:
        return NoGpu(f"NVML: {error}")
    return Gpus(nvml, handles) if handles else NoGpu("no NVIDIA GPU")


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name  # older bindings give bytes
