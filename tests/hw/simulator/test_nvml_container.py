"""What a container sees: only the GPUs and slices whose device nodes are there, looked at again at each init."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pynvml
import pytest

from tests.hw.simulator.nvml_process import Nvml

RootMaker = Callable[..., Path]


def cap(gpu: int, gi: int, ci: int | None = None) -> str:
    return f"nvidia-caps/nvidia-cap{3 + gpu * 135 + gi * 9 + (0 if ci is None else ci + 1)}"


def container(root: Path, place: Path, *nodes: str) -> Path:
    """The state of `root` seen from a place with these device nodes only; returns the state's path."""
    (place / "dev" / "nvidia-caps").mkdir(parents=True)
    for node in nodes:
        (place / "dev" / node).touch()
    os.link(root / "state", place / "state")
    return place / "state"


@pytest.fixture
def root(sim_root: RootMaker) -> Path:
    return sim_root("hgx-h100", gpus=4)


def test_only_gpus_with_nodes_are_enumerated(root: Path, tmp_path: Path) -> None:
    state = container(root, tmp_path / "c", "nvidiactl", "nvidia1", "nvidia3")
    with Nvml(root) as host, Nvml(root, state=state) as inside:
        uuids = host("[nvmlDeviceGetUUID(nvmlDeviceGetHandleByIndex(i)) for i in range(4)]")
        assert inside("nvmlDeviceGetCount()") == 2
        assert inside("[nvmlDeviceGetUUID(nvmlDeviceGetHandleByIndex(i)) for i in range(2)]") == [uuids[1], uuids[3]]
        assert inside("[nvmlDeviceGetMinorNumber(nvmlDeviceGetHandleByIndex(i)) for i in range(2)]") == [1, 3]
        assert inside("nvmlDeviceGetIndex(nvmlDeviceGetHandleByIndex(1))") == 1
        assert inside.code("nvmlDeviceGetHandleByIndex(2)") == pynvml.NVML_ERROR_INVALID_ARGUMENT
        assert inside.code(f"nvmlDeviceGetHandleByUUID({uuids[0]!r})") == pynvml.NVML_ERROR_NOT_FOUND
        bus = host("nvmlDeviceGetPciInfo(nvmlDeviceGetHandleByIndex(0)).busId")
        assert inside.code(f"nvmlDeviceGetHandleByPciBusId({bus!r})") == pynvml.NVML_ERROR_NOT_FOUND


def test_nodes_are_looked_at_again_at_init(root: Path, tmp_path: Path) -> None:
    state = container(root, tmp_path / "c", "nvidiactl", "nvidia0")
    with Nvml(root, state=state) as inside:
        assert inside("nvmlDeviceGetCount()") == 1
        (state.parent / "dev" / "nvidia2").touch()
        assert inside("nvmlDeviceGetCount()") == 1
        inside.run("nvmlShutdown(); nvmlInit()")
        assert inside("nvmlDeviceGetCount()") == 2


def test_without_the_control_node_there_is_no_driver(root: Path, tmp_path: Path) -> None:
    state = container(root, tmp_path / "c", "nvidia0")
    with Nvml(root, init=False, state=state) as inside:
        assert inside.code("nvmlInit()") == pynvml.NVML_ERROR_DRIVER_NOT_LOADED


def test_without_gpu_nodes_there_are_no_gpus(root: Path, tmp_path: Path) -> None:
    state = container(root, tmp_path / "c", "nvidiactl")
    with Nvml(root, state=state) as inside:
        assert inside("nvmlDeviceGetCount()") == 0


def test_only_slices_with_both_their_nodes_are_enumerated(root: Path, tmp_path: Path) -> None:
    with Nvml(root) as host:
        host.run("h = nvmlDeviceGetHandleByIndex(2); nvmlDeviceSetMigMode(h, 1)")
        host.run("for _ in range(3): nvmlGpuInstanceCreateComputeInstance(nvmlDeviceCreateGpuInstance(h, 19), 0)")
        migs = host(
            "[[nvmlDeviceGetGpuInstanceId(m), nvmlDeviceGetUUID(m)] for m in "
            "[nvmlDeviceGetMigDeviceHandleByIndex(h, k) for k in range(3)]]"
        )
        (first, _), (second, uuid), (third, hidden) = migs
        nodes = ["nvidiactl", "nvidia2", cap(2, second), cap(2, second, 0), cap(2, first), cap(2, third, 0)]
        with Nvml(root, state=container(root, tmp_path / "c", *nodes)) as inside:
            inside.run("h = nvmlDeviceGetHandleByIndex(0); m = nvmlDeviceGetMigDeviceHandleByIndex(h, 0)")
            assert inside("nvmlDeviceGetUUID(m)") == uuid
            assert inside("nvmlDeviceGetIndex(m)") == 0
            assert inside.code("nvmlDeviceGetMigDeviceHandleByIndex(h, 1)") == pynvml.NVML_ERROR_NOT_FOUND
            assert inside.code(f"nvmlDeviceGetHandleByUUID({hidden!r})") == pynvml.NVML_ERROR_NOT_FOUND
            assert inside("nvmlDeviceGetName(h)").startswith("NVIDIA H100"), "the parent is there too"


def test_events_of_hidden_gpus_stay_hidden(root: Path, tmp_path: Path) -> None:
    from kgpu.hw.simulator.state import DriverState

    state = container(root, tmp_path / "c", "nvidiactl", "nvidia1")
    with Nvml(root, state=state) as inside, DriverState.open(state) as opened:
        inside.run("s = nvmlEventSetCreate(); h = nvmlDeviceGetHandleByIndex(0); nvmlDeviceRegisterEvents(h, 8, s)")
        opened.inject_xid(0, 79)
        opened.inject_xid(1, 31)
        assert inside("nvmlEventSetWait_v2(s, 20000).eventData") == 31
        assert inside.code("nvmlEventSetWait_v2(s, 0)") == pynvml.NVML_ERROR_TIMEOUT
