"""What a run was of: the machine in words and as a digest, the model's revision in the path that it was loaded from."""

from __future__ import annotations

from typing import Any

import pytest

from bench.engine.gpu import Gpus, NoGpu
from bench.engine.hardware import described, is_this_machine
from bench.engine.watch import revision_in

CPUINFO = "processor\t: 0\nmodel name\t: Some  CPU @ 2GHz\nprocessor\t: 1\nmodel name\t: Some CPU @ 2GHz\n"
MEMINFO = "MemTotal:       24696324 kB\nMemFree:         1000000 kB\n"
NONE = NoGpu("no NVIDIA GPU")


class Nvml:
    """As NVML's binding speaks, of one device."""

    class NVMLError(Exception):
        pass

    def __init__(self, name: str | bytes) -> None:
        self.name = name

    def nvmlDeviceGetName(self, _handle: object) -> str | bytes:  # noqa: N802 - NVML's own
        if not self.name:
            raise self.NVMLError("GPU is lost")
        return self.name

    def nvmlDeviceGetMemoryInfo(self, _handle: object) -> Any:  # noqa: N802
        if self.name == "GB10":
            raise self.NVMLError("Not Supported")
        return type("Memory", (), {"total": 139 * 1024**3, "used": 0})


def said(cpuinfo: str = CPUINFO, meminfo: str = MEMINFO, cores: int | None = 2, gpus: Any = NONE) -> dict[str, Any]:
    return described(cpuinfo, meminfo, cores, gpus, has_driver=False)


def test_hardware_is_said_in_words_and_by_a_digest_that_a_new_kernel_does_not_change() -> None:
    here = said()
    assert here["hardware"] == {"cpu": "Some CPU @ 2GHz", "cores": 2, "memory_gib": 24, "gpus": []}
    assert said(meminfo=MEMINFO.replace("24696324", "24690000"))["hardware_id"] == here["hardware_id"]


@pytest.mark.parametrize(
    "other",
    [
        {"cpuinfo": CPUINFO.replace("2GHz", "3GHz")},
        {"meminfo": MEMINFO.replace("24696324", "49696324")},
        {"cores": 4},
        {"gpus": Gpus(Nvml("H200"), [0])},
        {"gpus": Gpus(Nvml("H200"), [0, 1])},
    ],
)
def test_other_hardware_has_another_digest(other: dict[str, Any]) -> None:
    assert said(**other)["hardware_id"] != said()["hardware_id"]


def test_gpus_are_named_with_their_memory_whatever_the_binding_gives() -> None:
    for name in ("H200", b"H200"):
        assert said(gpus=Gpus(Nvml(name), [0]))["hardware"]["gpus"] == ["H200, 139 GiB"]


def test_a_gpu_of_which_the_driver_does_not_say_all_costs_no_record() -> None:
    assert said(gpus=Gpus(Nvml("GB10"), [0]))["hardware"]["gpus"] == ["GB10"], "it shares the machine's memory"
    lost = said(gpus=Gpus(Nvml(""), [0]))
    assert lost["hardware"]["cores"] == 2 and "hardware_id" not in lost


def test_a_machine_with_a_gpu_that_is_not_seen_has_no_digest() -> None:
    unseen = described(CPUINFO, MEMINFO, 2, NoGpu("nvidia-ml-py is not installed"), has_driver=True)
    assert unseen["hardware"]["cores"] == 2 and "hardware_id" not in unseen
    assert "hardware_id" not in said(meminfo="") and "memory_gib" not in said(meminfo="")["hardware"]


def test_only_loopback_is_this_machine() -> None:
    assert is_this_machine(["http://127.0.0.1:8000/metrics", "http://localhost:1", "http://[::1]:2"])
    assert not is_this_machine(["http://127.0.0.1:8000", "http://engine.example:8000"])


def test_a_revision_is_read_from_a_snapshot_alone() -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    assert revision_in(f"/cache/models--a--b/snapshots/{commit}") == commit
    assert revision_in(f"/cache/models--a--b/snapshots/{commit}/") == commit
    assert revision_in(f"/models/{commit}") is revision_in("org/model") is None
