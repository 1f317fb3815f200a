"""Telemetry through a stand-in library: what is absent, what fails alone, sums, sizes, GPM between two readings."""

from __future__ import annotations

import ctypes
import json
import math
import struct

import msgspec
import pynvml
import pytest

from kgpu.exporter.rows import ROWS
from kgpu.hw.nvidia import facts, gpm, telemetry_rows
from kgpu.hw.nvidia.codes import GPU_IS_LOST, NOT_SUPPORTED
from kgpu.hw.nvidia.fallbacks import CALLS, Calls, Nvml, NvmlError
from kgpu.hw.nvidia.gpu_processes import processes
from kgpu.hw.nvidia.slices import GpuSlices
from kgpu.hw.nvidia.telemetry import FIELD, Telemetry
from kgpu.hw.nvidia.wire import Readings
from kgpu.hw.port import Reading
from tests.hw.nvidia.stub import StubLibrary, healthy_gpu

UUID = "GPU-00000000"
# Not the driver's telemetry: the inventory's, the events', the CPU's; and a call that takes 20 ms.
ELSEWHERE = {
    "cpu_ratio", "cpu_temperature_c", "cpu_power_w", "last_xid", "pcie_tx_kb_per_s", "pcie_rx_kb_per_s",
    "driver_version", "nvml_version", "name", "brand", "index", "serial", "uuid", "minor", "pci_bus_id",
    "compute_capability", "fabric_cluster", "mig_mode", "memory_total_mib", "memory_free_mib", "memory_used_mib",
    "memory_reserved_mib", "memory_used_ratio", "cc_mode", "vgpu_licensed", "memory_unrepairable",
}  # fmt: skip


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Gpu:
    """One GPU behind a stub, read as the parent sees it."""

    def __init__(self, stub: StubLibrary) -> None:
        self.stub = stub
        self.clock = Clock()
        nvml = Nvml(stub, pynvml)
        calls = Calls(nvml)
        self.telemetry = Telemetry(nvml, calls, GpuSlices(nvml, calls, self.clock), self.clock)
        self.handle = nvml.call("handle", 0)

    def read(self) -> tuple[Reading, ...]:
        raw = self.telemetry.readings(self.handle, UUID)
        return facts.readings(msgspec.json.decode(msgspec.json.encode(raw), type=Readings))


def fields(answers: dict[tuple[int, int], tuple[int, int, int]], code: int = 0):
    """nvmlDeviceGetFieldValues: (field, scope) -> (value type, return code, 8 bytes); others are not supported."""

    def function(_handle, count, array) -> int:
        for place in range(count):
            number, scope, *_ = FIELD.unpack_from(array, place * FIELD.size)
            kind, said, raw = answers.get((number, scope), (1, NOT_SUPPORTED, 0))
            FIELD.pack_into(array, place * FIELD.size, number, scope, 0, 0, kind, said, raw)
        return code

    return function


def test_field_values_have_the_drivers_layout() -> None:
    assert FIELD.size == ctypes.sizeof(pynvml.c_nvmlFieldValue_t)
    assert gpm.METRIC.size == ctypes.sizeof(pynvml.c_nvmlGpmMetric_t)
    assert gpm.GpmMetricsGet.metrics.offset == pynvml.c_nvmlGpmMetricsGet_t.metrics.offset == gpm.HEADER
    assert ctypes.sizeof(gpm.GpmMetricsGet) >= ctypes.sizeof(pynvml.c_nvmlGpmMetricsGet_t)


def test_every_reading_that_metrics_are_made_of_is_read() -> None:
    rows = (*telemetry_rows.FAST, *telemetry_rows.SLOW)
    read = {key for _, _, keys in rows for key, _, _ in keys}
    read |= {row[0] for row in (*telemetry_rows.FIELDS, *telemetry_rows.LINK_FIELDS)}
    read |= {key.format(link) for key, _ in telemetry_rows.GPU_LINK_FIELDS for link in range(18)}
    read |= set(telemetry_rows.GPM_KEYS.values())
    assert {source.reading for field in ROWS for source in field.sources} <= read | ELSEWHERE


def test_rows_ask_calls_that_exist() -> None:
    rows = (*telemetry_rows.FAST, *telemetry_rows.SLOW)
    assert {name for name, _, _ in rows} | {name for _, name, _, _ in telemetry_rows.INSTEAD} <= set(CALLS)


def test_a_reading_that_fails_takes_no_other_along() -> None:
    stub = healthy_gpu()
    stub.answer("nvmlDeviceGetPowerUsage", 10)
    stub.answer("nvmlDeviceGetTemperature", 0, 40)
    stub.answer("nvmlDeviceGetFanSpeed", NOT_SUPPORTED)
    stub.answer("nvmlDeviceGetUtilizationRates", 999)
    stub.functions["nvmlDeviceGetFieldValues"] = fields({(82, 0): (1, 4, 0), (94, 0): (1, 0, 7)})
    (reading,) = Gpu(stub).read()
    assert reading.failures == {
        "power_w": "timeout",
        "utilization_percent": "unknown",
        "memory_utilization_percent": "unknown",
        "memory_temperature_c": "no-permission",
    }
    assert (reading.values["temperature_c"], reading.values["pcie_replays"]) == (40, 7)
    assert not {"fan_percent", *reading.failures} & set(reading.values)


@pytest.mark.parametrize("symbol", ["nvmlDeviceGetTemperature", "nvmlDeviceGetFieldValues", "nvmlDeviceGetEccMode"])
def test_lost_gpu_is_no_failed_reading(symbol: str) -> None:
    stub = healthy_gpu()
    stub.answer(symbol, GPU_IS_LOST)
    with pytest.raises(NvmlError, match=f"reason {GPU_IS_LOST}"):
        Gpu(stub).read()


@pytest.mark.parametrize(
    ("kind", "raw", "value"),
    [(1, 7, 7), (3, 1 << 60, 1 << 60), (5, 0xFFFFFFFF, -1), (4, (1 << 64) - 5, -5), (0, 0x3FF8000000000000, 1.5)],
)
def test_field_values_of_every_type(kind: int, raw: int, value: float) -> None:
    stub = healthy_gpu()
    stub.functions["nvmlDeviceGetFieldValues"] = fields({(82, 0): (kind, 0, raw)})
    assert Gpu(stub).read()[0].values["memory_temperature_c"] == value


def test_half_of_a_sum_is_no_sum() -> None:
    every = 0xFFFFFFFF
    stub = healthy_gpu()
    stub.functions["nvmlDeviceGetFieldValues"] = fields({(138, every): (3, 0, 5), (139, every): (3, 0, 6)})
    assert Gpu(stub).read()[0].values["nvlink_data_kib"] == 11
    stub.functions["nvmlDeviceGetFieldValues"] = fields({(138, every): (3, 0, 5), (139, every): (3, 999, 0)})
    (reading,) = Gpu(stub).read()
    assert "nvlink_data_kib" not in reading.values
    assert reading.failures["nvlink_data_kib"] == "unknown"


def test_absent_fields_are_asked_again_only_now_and_then() -> None:
    stub = healthy_gpu()
    answers = {(94, 0): (1, 0, 1)}
    asked: list[int] = []
    answer = fields(answers)

    def function(handle, count, array) -> int:
        asked.append(count)
        return answer(handle, count, array)

    stub.functions["nvmlDeviceGetFieldValues"] = function
    gpu = Gpu(stub)
    gpu.read()
    first, asked[:] = sum(asked), []
    gpu.read()
    assert first > sum(asked) == 1
    answers[82, 0] = (1, 0, 50)
    gpu.clock.now += 61
    assert gpu.read()[0].values["memory_temperature_c"] == 50


def test_old_drivers_calls_stand_in_for_fields() -> None:
    stub = healthy_gpu()
    stub.answer("nvmlDeviceGetTotalEnergyConsumption", 0, 1234)
    stub.answer("nvmlDeviceGetPcieReplayCounter", 0, 3)
    stub.answer("nvmlDeviceGetTotalEccErrors", 0, 9)
    values = Gpu(stub).read()[0].values
    assert (values["energy_mj"], values["pcie_replays"]) == (1234, 3)
    assert values["ecc_uncorrected_aggregate"] == 9


def test_links_are_counted_and_those_that_are_down_named() -> None:
    stub = healthy_gpu()

    def state(_handle, link, out) -> int:
        out._obj.value = int(link not in (1, 4))
        return 0 if link < 6 else NOT_SUPPORTED

    stub.functions["nvmlDeviceGetNvLinkState"] = state
    answers = {(201, link): (3, 0, 10 + link) for link in range(6)}
    answers |= {(138, 3): (3, 0, 1), (139, 3): (3, 0, 2)}
    stub.functions["nvmlDeviceGetFieldValues"] = fields(answers)
    whole, *links = Gpu(stub).read()
    assert (whole.values["nvlink_links"], whole.values["nvlink_active"]) == (6, 4)
    assert whole.values["nvlink_down"] == "1 4"
    assert whole.values["nvlink_3_data_kib"] == 3
    assert [(one.link, one.values) for one in links] == [(n, {"nvlink_tx_packets": 10 + n}) for n in range(6)]


def test_a_driver_without_v2_of_memory_has_no_reserved_part() -> None:
    stub = healthy_gpu()
    stub.answer("nvmlDeviceGetMemoryInfo", 0, {"total": 100 << 20, "used": 30 << 20, "free": 70 << 20})
    values = Gpu(stub).read()[0].values
    assert (values["memory_total_mib"], values["memory_used_mib"], values["memory_free_mib"]) == (100, 30, 70)
    assert not {"memory_reserved_mib", "memory_used_ratio"} & set(values)


def test_only_what_is_wanted_is_asked() -> None:
    stub = healthy_gpu()
    stub.answer("nvmlDeviceGetTemperature", 0, 40)
    stub.answer("nvmlDeviceGetPowerUsage", 0, 70_000)
    stub.answer("nvmlDeviceGetVbiosVersion", 0, "96.00")
    stub.answer("nvmlDeviceGetNvLinkState", 0, 1)
    stub.functions["nvmlDeviceGetFieldValues"] = fields({(82, 0): (1, 0, 50), (94, 0): (1, 0, 3)})
    gpu = Gpu(stub)
    gpu.telemetry.want(["temperature_c", "pcie_replays"])
    stub.calls.clear()
    assert gpu.read()[0].values == {"temperature_c": 40, "pcie_replays": 3}
    assert set(stub.calls) == {"nvmlDeviceGetMigMode", "nvmlDeviceGetTemperature"}
    gpu.telemetry.want(["vbios_version", "memory_temperature_c"])
    assert gpu.read()[0].values == {"vbios_version": "96.00", "memory_temperature_c": 50}
    gpu.telemetry.want(None)
    assert {"temperature_c", "power_w", "nvlink_active"} <= set(gpu.read()[0].values)


# --- GPM ---


class GpmLibrary:
    """GPM over a counter of samples: metric 1 is their distance; 3 is no number; the others are not there."""

    def __init__(self, stub: StubLibrary) -> None:
        self.taken: dict[int, int] = {}
        self.count = 0
        self.freed = 0
        for name in ("SampleAlloc", "SampleFree", "SampleGet", "MigSampleGet", "MetricsGet", "QueryDeviceSupport"):
            stub.functions[f"nvmlGpm{name}"] = getattr(self, name)

    def QueryDeviceSupport(self, _handle, out) -> int:
        out._obj.isSupportedDevice = 1
        return 0

    def SampleAlloc(self, out) -> int:
        self.count += 1
        ctypes.cast(out, ctypes.POINTER(ctypes.c_void_p))[0] = self.count
        return 0

    def SampleFree(self, _sample) -> int:
        self.freed += 1
        return 0

    def SampleGet(self, _handle, sample) -> int:
        self.count += 1
        self.taken[ctypes.cast(sample, ctypes.c_void_p).value or 0] = self.count
        return 0

    def MigSampleGet(self, handle, _gi, sample) -> int:
        return self.SampleGet(handle, sample)

    def MetricsGet(self, out) -> int:
        request = out._obj
        view = memoryview(request).cast("B")
        for place in range(request.numMetrics):
            at = gpm.HEADER + gpm.METRIC.size * place
            number, _, _ = gpm.METRIC.unpack_from(view, at)
            value = {1: float(self.taken[request.sample2] - self.taken[request.sample1]), 3: float("nan")}
            code = 0 if number in value else NOT_SUPPORTED
            gpm.METRIC.pack_into(view, at, number, code, value.get(number, 0.0))
        return 0


def test_gpm_is_the_average_since_the_last_reading_and_never_waits() -> None:
    stub = healthy_gpu()
    library = GpmLibrary(stub)
    gpu = Gpu(stub)
    assert not [key for key in gpu.read()[0].values if key.startswith("gpm_")]
    gpu.clock.now += 1
    library.count += 7
    values = gpu.read()[0].values
    assert {key: value for key, value in values.items() if key.startswith("gpm_")} == {"gpm_1": 8.0}
    library.count += 5
    gpu.clock.now += 0.01
    assert gpu.read()[0].values["gpm_1"] == 8.0, "too soon for another sample"
    gpu.clock.now += 1
    assert gpu.read()[0].values["gpm_1"] == 6.0


@pytest.mark.parametrize(("code", "asked"), [(10, 2), (999, 2), (NOT_SUPPORTED, 1), (0, 1)])
def test_gpm_support_that_could_not_be_asked_is_asked_again_after_a_pause(code, asked) -> None:
    stub = healthy_gpu()
    library = GpmLibrary(stub)
    codes: list[int] = []

    def support(handle, out) -> int:
        codes.append(code if not codes else library.QueryDeviceSupport(handle, out))
        return codes[-1]

    stub.functions["nvmlGpmQueryDeviceSupport"] = support
    gpu = Gpu(stub)
    for _ in range(3):
        gpu.read()
        gpu.clock.now += 1
    assert len(codes) == 1
    gpu.clock.now += gpm.AGAIN_S
    gpu.read()
    gpu.clock.now += 1
    found = any(key.startswith("gpm_") for key in gpu.read()[0].values)
    assert (len(codes), found) == (asked, asked == 2)


def test_gpm_samples_of_instances_that_went_are_freed() -> None:
    stub = healthy_gpu()
    library = GpmLibrary(stub)
    reader = gpm.Gpm(Nvml(stub, pynvml), Clock())
    reader.read(None, UUID, 7, {})
    reader.read(None, UUID, 8, {})
    reader.forget_others(UUID, {8})
    assert library.freed == 2


# --- processes ---


def listing(*rows: tuple[int, int]):
    def function(_handle, count, array) -> int:
        room, count._obj.value = count._obj.value, len(rows)
        if room < len(rows):
            return 7
        for place, (pid, used) in enumerate(rows):
            array[place].pid, array[place].usedGpuMemory = pid, used
        return 0

    return function


def test_processes_are_told_once_with_their_shares() -> None:
    stub = healthy_gpu()
    stub.functions["nvmlDeviceGetComputeRunningProcesses_v3"] = listing((10, 5 << 20), (11, (1 << 64) - 1))
    stub.functions["nvmlDeviceGetMPSComputeRunningProcesses_v2"] = listing((11, (1 << 64) - 1))
    stub.functions["nvmlDeviceGetGraphicsRunningProcesses_v3"] = listing((10, 5 << 20), (12, 1 << 20))

    def utilization(_handle, array, count, _since) -> int:
        count._obj.value = 2
        for place, (stamp, share) in enumerate(((2, 30), (1, 90))):
            array[place].pid, array[place].timeStamp, array[place].smUtil = 10, stamp, share
        return 0

    stub.functions["nvmlDeviceGetProcessUtilization"] = utilization
    assert sorted(processes(Nvml(stub, pynvml), None, None)) == [
        [10, "compute", 5, None, None, 30, 0, 0, 0],
        [11, "mps", None, None, None, 0, 0, 0, 0],
        [12, "graphics", 1, None, None, 0, 0, 0, 0],
    ]


def test_many_processes_and_unmeasured_shares() -> None:
    stub = healthy_gpu()
    stub.functions["nvmlDeviceGetComputeRunningProcesses_v3"] = listing(*((pid, 0) for pid in range(1, 101)))
    stub.answer("nvmlDeviceGetProcessUtilization", NOT_SUPPORTED)
    rows = processes(Nvml(stub, pynvml), None, None)
    assert [row[0] for row in rows] == list(range(1, 101))
    assert all(row[5:] == [None] * 4 for row in rows)


def test_lists_that_can_not_be_had_are_empty() -> None:
    stub = healthy_gpu()
    stub.answer("nvmlDeviceGetComputeRunningProcesses_v3", 4)
    assert processes(Nvml(stub, pynvml), None, [(None, 0, 3, 0)]) == []


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_none_costs_its_own_reading(number: float) -> None:
    """Sent on, it would be no JSON, and the parent would end the child because of it."""
    stub = healthy_gpu()
    (raw,) = struct.unpack("=Q", struct.pack("=d", number))
    stub.functions["nvmlDeviceGetFieldValues"] = fields({(82, 0): (0, 0, raw), (94, 0): (1, 0, 7)})
    gpu = Gpu(stub)
    (reading,) = gpu.read()
    assert "memory_temperature_c" not in reading.values
    assert reading.failures["memory_temperature_c"] == telemetry_rows.NO_NUMBER
    assert json.loads(json.dumps(gpu.telemetry.readings(gpu.handle, UUID), allow_nan=False))
