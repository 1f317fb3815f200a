"""MIG devices are listed seldom: anew when an event told of a change, somebody forgets them, or after a while."""

from __future__ import annotations

from typing import Any

import pynvml
import pytest

from kgpu.hw.nvidia.codes import GPU_IS_LOST, NOT_FOUND, NOT_SUPPORTED
from kgpu.hw.nvidia.fallbacks import Calls, Nvml, NvmlError
from kgpu.hw.nvidia.slices import KEPT_S, KEPT_WITH_EVENTS_S, GpuSlices
from tests.hw.nvidia.stub import StubLibrary, target

UUID = "GPU-00000000"


class Gpu:
    """A stub with one slice; ``lists`` says how often it was listed."""

    def __init__(self) -> None:
        self.now = 100.0
        self.stub = StubLibrary()
        self.stub.answer("nvmlDeviceGetMaxMigDeviceCount", 0, 1)
        self.code, self.gi = 0, 7
        self.stub.functions["nvmlDeviceGetMigDeviceHandleByIndex"] = lambda *_: self.code
        self.stub.functions["nvmlDeviceGetGpuInstanceId"] = self._instance
        self.stub.answer("nvmlDeviceGetComputeInstanceId", 0, 0)
        nvml = Nvml(self.stub, pynvml)
        self.slices = GpuSlices(nvml, Calls(nvml), lambda: self.now)

    def _instance(self, _mig: object, out: Any) -> int:
        target(out).value = self.gi
        return 0

    def read(self) -> list[tuple[int, int, int]]:
        return [ids for _, *ids in self.slices.of(None, UUID)]  # type: ignore[misc]

    @property
    def lists(self) -> int:
        return self.stub.calls.count("nvmlDeviceGetMaxMigDeviceCount")


def test_they_are_kept_for_a_while_and_longer_where_events_tell_of_changes() -> None:
    gpu = Gpu()
    assert gpu.read() == gpu.read() == [[0, 7, 0]]
    gpu.now += KEPT_S - 0.1
    gpu.read()
    assert gpu.lists == 1
    gpu.now += 0.2
    gpu.read()
    assert gpu.lists == 2
    gpu.slices.with_events.add(UUID)
    gpu.now += KEPT_WITH_EVENTS_S - 0.1
    gpu.read()
    assert gpu.lists == 2
    gpu.now += 0.2
    gpu.read()
    assert gpu.lists == 3


def test_news_and_doubts_list_them_at_once() -> None:
    gpu = Gpu()
    gpu.slices.with_events.add(UUID)
    gpu.read()
    gpu.gi = 9
    gpu.slices.changes += 1
    assert gpu.read() == [[0, 9, 0]]
    gpu.code = NOT_FOUND
    assert gpu.read() == [[0, 9, 0]]
    gpu.slices.forget(UUID)
    assert gpu.read() == []


def test_what_ends_a_listing_is_told_and_a_lost_gpu_is_raised() -> None:
    gpu = Gpu()
    gpu.code = 999
    found, trouble = gpu.slices.now(None, UUID)
    assert (found, trouble.code if trouble else None) == ([], 999)
    gpu.code = 0
    assert gpu.read() == [[0, 7, 0]], "a list that was cut short is not kept"
    gpu.code = GPU_IS_LOST
    with pytest.raises(NvmlError):
        gpu.slices.now(None, UUID)


def test_a_count_that_fails_is_asked_for_again_and_one_that_is_not_known_is_none() -> None:
    failing = Gpu()
    failing.stub.answer("nvmlDeviceGetMaxMigDeviceCount", 999, 0)
    assert failing.read() == failing.read() == []
    assert failing.lists == 2
    without = Gpu()
    without.stub.answer("nvmlDeviceGetMaxMigDeviceCount", NOT_SUPPORTED, 0)
    assert without.read() == without.read() == []
    assert without.lists == 1
