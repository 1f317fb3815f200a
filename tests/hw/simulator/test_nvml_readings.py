"""Readings through the C ABI: what the state says, what load moves, and what a model does not have."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest

from kgpu.hw.simulator import schema
from kgpu.hw.simulator.state import DriverState
from tests.hw.simulator.nvml_process import Nvml

RootMaker = Callable[..., Path]
UNSUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED
INVALID = pynvml.NVML_ERROR_INVALID_ARGUMENT


@pytest.fixture
def root(sim_root: RootMaker) -> Path:
    return sim_root("hgx-h100", gpus=4)


@pytest.fixture
def state(root: Path) -> Iterator[DriverState]:
    with DriverState.open(root / "state") as opened:
        yield opened


@pytest.fixture
def n(root: Path) -> Iterator[Nvml]:
    with Nvml(root) as process:
        process.run("h = nvmlDeviceGetHandleByIndex(0)")
        yield process


def until(check: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, "the condition never came"
        time.sleep(0.05)


def test_identity_agrees_with_the_state(n: Nvml, state: DriverState) -> None:
    gpu = state.gpu(0)
    assert n("nvmlDeviceGetName(h)") == gpu.name.decode()
    assert n("nvmlDeviceGetUUID(h)") == gpu.uuid.decode()
    assert n("nvmlDeviceGetSerial(h)") == gpu.serial.decode()
    assert n("nvmlDeviceGetCudaComputeCapability(h)") == [9, 0]
    assert n("nvmlDeviceGetArchitecture(h)") == pynvml.NVML_DEVICE_ARCH_HOPPER
    pci = n("(lambda p: [p.busId, p.busIdLegacy, p.domain, p.bus, p.device, p.pciDeviceId])(nvmlDeviceGetPciInfo(h))")
    text = f"{gpu.pci.domain:08X}:{gpu.pci.bus:02X}:{gpu.pci.device:02X}.0"
    assert pci == [text, text[4:], gpu.pci.domain, gpu.pci.bus, gpu.pci.device, gpu.pci.device_id]
    for spelling in (text, text.lower(), text[4:]):
        assert n(f"nvmlDeviceGetUUID(nvmlDeviceGetHandleByPciBusId({spelling!r}))") == gpu.uuid.decode()
    for bad in ("", "x", "0000:zz:00.0", text + "x"):
        assert n.code(f"nvmlDeviceGetHandleByPciBusId({bad!r})") == INVALID


def test_memory_adds_up_in_both_versions(n: Nvml, state: DriverState) -> None:
    with state.locked():
        state.gpu(0).mem_used_base = 5 << 30
    v1 = n("(lambda m: [m.total, m.free, m.used])(nvmlDeviceGetMemoryInfo(h))")
    v2 = n("(lambda m: [m.total, m.free, m.used, m.reserved])(nvmlDeviceGetMemoryInfo(h, version=nvmlMemory_v2))")
    assert v1[0] == v1[1] + v1[2] == v2[0] == v2[1] + v2[2] + v2[3]
    assert v2[2] == 5 << 30
    assert v1[2] == v2[2] + v2[3]


def test_load_moves_power_temperature_clocks_and_energy(n: Nvml, state: DriverState) -> None:
    idle = n("[nvmlDeviceGetPowerUsage(h), nvmlDeviceGetTemperature(h, 0), nvmlDeviceGetClockInfo(h, 1)]")
    assert n("nvmlDeviceGetUtilizationRates(h).gpu") == 0
    assert n("nvmlDeviceGetCurrentClocksEventReasons(h)") & 1, "idle"
    state.set_load(0, 100)
    assert n("nvmlDeviceGetUtilizationRates(h).gpu") == 100
    assert not n("nvmlDeviceGetCurrentClocksEventReasons(h)") & 1
    until(lambda: n("nvmlDeviceGetPowerUsage(h)") > 4 * idle[0])
    until(lambda: n("nvmlDeviceGetTemperature(h, 0)") > idle[1] + 20)
    assert n("nvmlDeviceGetClockInfo(h, 1)") > idle[2]
    assert n("nvmlDeviceGetPowerUsage(h)") <= n("nvmlDeviceGetEnforcedPowerLimit(h)")
    energy = n("nvmlDeviceGetTotalEnergyConsumption(h)")
    until(lambda: n("nvmlDeviceGetTotalEnergyConsumption(h)") > energy)
    state.set_load(0, 0)
    assert n("nvmlDeviceGetUtilizationRates(h).gpu") == 0
    until(lambda: n("nvmlDeviceGetPowerUsage(h)") < 2 * idle[0])


def test_a_hot_gpu_slows_down(n: Nvml, state: DriverState) -> None:
    state.set_load(0, 100)
    full = n("nvmlDeviceGetClockInfo(h, 1)")
    state.set_fault(0, temp_offset=70)
    assert n("nvmlDeviceGetTemperature(h, 0)") >= n("nvmlDeviceGetTemperatureThreshold(h, 1)")
    assert n("nvmlDeviceGetCurrentClocksEventReasons(h)") & 0x60
    assert n("nvmlDeviceGetClockInfo(h, 1)") < full
    assert n("nvmlDeviceGetMarginTemperature(h)") <= 0


def test_every_process_reads_the_same_value(root: Path, n: Nvml) -> None:
    with Nvml(root) as other:
        other.run("h = nvmlDeviceGetHandleByIndex(0)")
        for _ in range(20):  # the jitter changes once a second, so one try may straddle the change
            if n("nvmlDeviceGetPowerUsage(h)") == other("nvmlDeviceGetPowerUsage(h)"):
                return
    raise AssertionError("two processes never read the same power")


def test_ecc_counters_by_place_and_in_total(n: Nvml, state: DriverState) -> None:
    with state.locked():
        state.gpu(0).ecc_volatile[2] = 3
        state.gpu(0).ecc_volatile[7 + 2] = 1
        state.gpu(0).ecc_aggregate[7 + 1] = 9
    assert n("nvmlDeviceGetTotalEccErrors(h, 0, 0)") == 3
    assert n("nvmlDeviceGetTotalEccErrors(h, 1, 0)") == 1
    assert n("nvmlDeviceGetTotalEccErrors(h, 1, 1)") == 9
    assert n("nvmlDeviceGetMemoryErrorCounter(h, 1, 0, 2)") == 1
    assert n("nvmlDeviceGetMemoryErrorCounter(h, 1, 1, 1)") == 9
    assert n("nvmlDeviceGetMemoryErrorCounter(h, 1, 1, 7)") == 9
    n.run("nvmlDeviceClearEccErrorCounts(h, 0)")
    assert n("nvmlDeviceGetTotalEccErrors(h, 0, 0)") == 0


def test_remapped_rows_and_retired_pages_exclude_each_other(sim_root: RootMaker, n: Nvml, state: DriverState) -> None:
    with state.locked():
        state.gpu(0).remap_uncorrected, state.gpu(0).remap_pending = 2, 1
    assert n("nvmlDeviceGetRemappedRows(h)") == [0, 2, 1, 0]
    assert n.code("nvmlDeviceGetRetiredPages(h, 0)") == UNSUPPORTED
    root = sim_root("t4", gpus=1)
    with Nvml(root) as old, DriverState.open(root / "state") as opened:
        with opened.locked():
            opened.gpu(0).retired_dbe_count = 1
            opened.gpu(0).retired_dbe[0] = 0xABC
        old.run("h = nvmlDeviceGetHandleByIndex(0)")
        assert old("nvmlDeviceGetRetiredPages(h, 1)") == [0xABC]
        assert old.code("nvmlDeviceGetRemappedRows(h)") == UNSUPPORTED


def test_field_values_answer_each_for_itself(n: Nvml, state: DriverState) -> None:
    with state.locked():
        state.gpu(0).pcie_replays, state.gpu(0).pcie_err[3] = 5, 7
        state.gpu(0).remap_corrected = 4
        state.gpu(0).link[2].err_replay = 11
        state.gpu(0).recovery_action = 1
    n.run(
        "def fields(*wanted):\n"
        "    values = (c_nvmlFieldValue_t * len(wanted))()\n"
        "    for v, w in zip(values, wanted):\n"
        "        v.fieldId, v.scopeId = w if isinstance(w, tuple) else (w, 0)\n"
        "    assert pynvml.nvmlLib.nvmlDeviceGetFieldValues(h, len(wanted), values) == 0\n"
        "    return [[v.nvmlReturn, v.value.uiVal if v.valueType == 1 else v.value.ullVal] for v in values]"
    )
    assert n("fields(94, 176, 142, (161, 2), (165, 2), 91, 230)") == [
        [0, 5],
        [0, 7],
        [0, 4],
        [0, 11],
        [0, 1],
        [0, state.gpu(0).link_count],
        [0, 1],
    ]
    assert n("fields((161, 35), 29, 999)") == [[UNSUPPORTED, 0]] * 3
    assert n("fields(0, 100000)") == [[INVALID, 0]] * 2
    assert n("fields(190)")[0] == [0, n("nvmlDeviceGetPowerManagementLimit(h)")]
    listed = [
        *range(3, 7),
        *range(74, 82),
        82,
        83,
        94,
        *range(142, 146),
        185,
        186,
        187,
        188,
        189,
        190,
        *range(197, 199),
    ]
    assert {code for code, _ in n(f"fields(*{listed})")} == {0}


def test_nvlink_and_topology(n: Nvml, state: DriverState) -> None:
    links = state.gpu(0).link_count
    assert n(f"[nvmlDeviceGetNvLinkState(h, i) for i in range({links})]") == [1] * links
    assert n.code(f"nvmlDeviceGetNvLinkState(h, {links})") == UNSUPPORTED
    assert n.code("nvmlDeviceGetNvLinkState(h, 36)") == INVALID
    peer = n("nvmlDeviceGetNvLinkRemotePciInfo(h, 0).busId")
    link = state.gpu(0).link[0]
    assert peer == f"{link.remote_domain:08X}:{link.remote_bus:02X}:{link.remote_device:02X}.0"
    n.run("all = [nvmlDeviceGetHandleByIndex(i) for i in range(4)]")
    levels = n("[nvmlDeviceGetTopologyCommonAncestor(h, x) for x in all]")
    assert levels == [state.view.topology[i] for i in range(4)]
    nearest = n(f"[nvmlDeviceGetIndex(x) for x in nvmlDeviceGetTopologyNearestGpus(h, {levels[1]})]")
    assert nearest == [i for i in range(1, 4) if levels[i] == levels[1]]
    assert n("nvmlDeviceGetP2PStatus(h, all[1], NVML_P2P_CAPS_INDEX_NVLINK)") == 0
    words = schema.C["CPU_WORDS"]
    assert n(f"nvmlDeviceGetCpuAffinity(h, {words})") == list(state.gpu(0).cpu_affinity)


def test_gpm_is_an_average_between_two_samples(n: Nvml, state: DriverState) -> None:
    state.set_load(0, 100)
    assert n("nvmlGpmQueryDeviceSupport(h).isSupportedDevice") == 1
    n.run("a, b = nvmlGpmSampleAlloc(), nvmlGpmSampleAlloc()")
    until(lambda: n("nvmlDeviceGetPowerUsage(h)") > 600_000)
    n.run("nvmlGpmSampleGet(h, a); time.sleep(0.11); nvmlGpmSampleGet(h, b)")
    n.run(
        "def metrics(one, two, *ids):\n"
        "    q = c_nvmlGpmMetricsGet_t(); q.version, q.numMetrics, q.sample1, q.sample2 = 1, len(ids), one, two\n"
        "    for m, i in zip(q.metrics, ids): m.metricId = i\n"
        "    nvmlGpmMetricsGet(q)\n"
        "    return [[m.nvmlReturn, m.value] for m in q.metrics[:len(ids)]]"
    )
    (_, busy), (_, tensor), (_, links), (_, first), (code, _) = n("metrics(a, b, 1, 5, 61, 63, 104)")
    assert 75 <= busy <= 100
    assert 0 < tensor < busy
    assert links == pytest.approx(first * state.gpu(0).link_count, rel=0.01)
    assert code == UNSUPPORTED
    assert n.code("metrics(b, a, 1)") == INVALID, "samples in the wrong order"
    n.run("nvmlGpmSampleFree(a)")
    assert n.code("metrics(a, b, 1)") == INVALID


def test_what_a_model_lacks_is_not_supported(sim_root: RootMaker) -> None:
    with Nvml(sim_root("geforce", gpus=1)) as n:
        n.run("h = nvmlDeviceGetHandleByIndex(0)")
        for call in (
            "nvmlDeviceGetEccMode(h)",
            "nvmlDeviceGetSerial(h)",
            "nvmlDeviceGetNvLinkState(h, 0)",
            "nvmlDeviceGetMigMode(h)",
            "nvmlDeviceGetRemappedRows(h)",
        ):
            assert n.code(call) == UNSUPPORTED, call
        assert n("nvmlGpmQueryDeviceSupport(h).isSupportedDevice") == 0
        assert n("nvmlDeviceGetFanSpeed(h)") > 0


def test_settings_are_seen_by_everybody(root: Path, n: Nvml) -> None:
    with Nvml(root) as other:
        other.run("h = nvmlDeviceGetHandleByIndex(0)")
        n.run(
            "nvmlDeviceSetPowerManagementLimit(h, 450000); nvmlDeviceSetComputeMode(h, 3); nvmlDeviceSetEccMode(h, 0)"
        )
        assert other("nvmlDeviceGetPowerManagementLimit(h)") == 450000
        assert other("nvmlDeviceGetComputeMode(h)") == 3
        assert other("nvmlDeviceGetEccMode(h)") == [1, 0]
        assert n.code("nvmlDeviceSetPowerManagementLimit(h, 1)") == INVALID


def test_process_lists_by_kind(n: Nvml, state: DriverState) -> None:
    with state.locked():
        for slot, kind in enumerate((1, 2, 4)):
            process = state.gpu(0).process[slot]
            process.used, process.pid, process.kind, process.memory, process.sm_util = 1, 100 + slot, kind, 1 << 30, 10
            process.gi_id = process.ci_id = schema.NO_INSTANCE
    assert n("[p.pid for p in nvmlDeviceGetComputeRunningProcesses(h)]") == [100, 102]
    assert n("[p.pid for p in nvmlDeviceGetGraphicsRunningProcesses(h)]") == [101]
    assert n("[p.pid for p in nvmlDeviceGetMPSComputeRunningProcesses(h)]") == [102]
    assert n("sorted([p.pid, p.smUtil] for p in nvmlDeviceGetProcessUtilization(h, 0))") == [
        [100, 10],
        [101, 10],
        [102, 10],
    ]
