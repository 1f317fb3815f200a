"""The library's face: every symbol, struct sizes, initialisation, hostile arguments and hostile state files."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from kgpu.hw.simulator import schema
from kgpu.hw.simulator.build import find_compiler, source_dir
from kgpu.hw.simulator.state import DriverState
from tests.budget import tries
from tests.hw.simulator.nvml_process import Nvml, NvmlFailure

RootMaker = Callable[..., Path]


@pytest.fixture(scope="module")
def root(sim_libs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from kgpu.hw.simulator.create import create_root

    return create_root("hgx-h100", tmp_path_factory.mktemp("abi") / "root", gpus=2)


@pytest.fixture(scope="module")
def nvml(root: Path) -> Iterator[Nvml]:
    with Nvml(root) as process:
        yield process


def exported(library: Path) -> dict[str, str]:
    """Names of the dynamic symbols, with nm's letter: T, or W for the answers to what is not simulated."""
    out = subprocess.run(["nm", "-D", "--defined-only", str(library)], check=True, capture_output=True, text=True)
    return {line.split()[2]: line.split()[1] for line in out.stdout.splitlines()}


def wanted_symbols() -> set[str]:
    source = Path(pynvml.__file__).read_text()
    names = set(re.findall(r'_nvmlGetFunctionPointer\("(nvml\w+)"', source))
    assert len(names) > 350
    return names


def test_every_symbol_of_the_python_bindings_is_exported(sim_libs: Path) -> None:
    assert wanted_symbols() - set(exported(sim_libs / "libnvidia-ml.so.1")) == set()


def test_nothing_else_is_exported(sim_libs: Path) -> None:
    """Apart from functions of the simulated nvidia-smi, which the real one does by private means."""
    others = {name for name in exported(sim_libs / "libnvidia-ml.so.1") if not name.startswith("nvml")}
    assert others == {"kgpuSimDeviceReset", "kgpuSimDeviceBusId", "kgpuSimGetTimeslice", "kgpuSimSetTimeslice"}


def test_the_soname_is_the_real_one(sim_libs: Path) -> None:
    out = subprocess.run(
        ["readelf", "-d", str(sim_libs / "libnvidia-ml.so.1")], check=True, capture_output=True, text=True
    )
    assert "Library soname: [libnvidia-ml.so.1]" in out.stdout


# C type in native/include/kgpu_nvml.h: its twin in the Python bindings.
TWINS = {
    "nvmlPciInfo_t": "nvmlPciInfo_t",
    "nvmlPciInfo_v2_t": "nvmlPciInfo_v2_t",
    "nvmlPciInfoExt_t": "nvmlPciInfoExt_v1_t",
    "nvmlMemory_t": "c_nvmlMemory_t",
    "nvmlMemory_v2_t": "c_nvmlMemory_v2_t",
    "nvmlBAR1Memory_t": "c_nvmlBAR1Memory_t",
    "nvmlUtilization_t": "c_nvmlUtilization_t",
    "nvmlEccErrorCounts_t": "c_nvmlEccErrorCounts_t",
    "nvmlProcessInfo_t": "c_nvmlProcessInfo_t",
    "nvmlProcessDetail_t": "c_nvmlProcessDetail_v1_t",
    "nvmlProcessDetailList_t": "c_nvmlProcessDetailList_v1_t",
    "nvmlProcessUtilizationSample_t": "c_nvmlProcessUtilizationSample_t",
    "nvmlProcessUtilizationInfo_t": "c_nvmlProcessUtilizationInfo_v1_t",
    "nvmlProcessesUtilizationInfo_t": "c_nvmlProcessesUtilizationInfo_v1_t",
    "nvmlDeviceAttributes_t": "c_nvmlDeviceAttributes",
    "nvmlPlacement_t": "c_nvmlGpuInstancePlacement_t",
    "nvmlGpuInstanceProfileInfo_t": "c_nvmlGpuInstanceProfileInfo_t",
    "nvmlGpuInstanceProfileInfo_v2_t": "c_nvmlGpuInstanceProfileInfo_v2_t",
    "nvmlGpuInstanceInfo_t": "c_nvmlGpuInstanceInfo_t",
    "nvmlComputeInstanceProfileInfo_t": "c_nvmlComputeInstanceProfileInfo_t",
    "nvmlComputeInstanceProfileInfo_v2_t": "c_nvmlComputeInstanceProfileInfo_v2_t",
    "nvmlComputeInstanceInfo_t": "c_nvmlComputeInstanceInfo_t",
    "nvmlRowRemapperHistogramValues_t": "c_nvmlRowRemapperHistogramValues",
    "nvmlRemappedRowsInfo_v2_t": "c_nvmlRemappedRowsInfo_v2_t",
    "nvmlEccSramErrorStatus_t": "c_nvmlEccSramErrorStatus_v1_t",
    "nvmlViolationTime_t": "c_nvmlViolationTime_t",
    "nvmlValue_t": "c_nvmlValue_t",
    "nvmlSample_t": "c_nvmlSample_t",
    "nvmlFieldValue_t": "c_nvmlFieldValue_t",
    "nvmlEventData_t": "c_nvmlEventData_t",
    "nvmlGpuFabricInfo_t": "c_nvmlGpuFabricInfo_t",
    "nvmlGpuFabricInfo_v2_t": "c_nvmlGpuFabricInfo_v2_t",
    "nvmlGpuFabricInfo_v3_t": "c_nvmlGpuFabricInfo_v3_t",
    "nvmlPlatformInfo_t": "c_nvmlPlatformInfo_v2_t",
    "nvmlGpmMetric_t": "c_nvmlGpmMetric_t",
    "nvmlGpmSupport_t": "c_nvmlGpmSupport_t",
    "nvmlVersionedValue_t": "c_nvmlMarginTemperature_v1_t",
    "nvmlTemperature_v1_t": "c_nvmlTemperature_v1_t",
    "nvmlFanSpeedInfo_t": "c_nvmlFanSpeedInfo_t",
    "nvmlUUID_t": "c_nvmlUUID_t",
    "nvmlPdi_t": "c_nvmlPdi_t",
    "nvmlRepairStatus_t": "c_nvmlRepairStatus_t",
    "nvmlConfComputeSystemState_t": "c_nvmlConfComputeSystemState_t",
    "nvmlConfComputeMemSizeInfo_t": "c_nvmlConfComputeMemSizeInfo_t",
    "nvmlGpuDynamicPstatesInfo_t": "c_nvmlGpuDynamicPstatesInfo_t",
    "nvmlSystemDriverBranchInfo_t": "c_nvmlSystemDriverBranchInfo_v1_t",
    "nvmlExcludedDeviceInfo_t": "c_nvmlExcludedDeviceInfo_t",
}


def test_struct_sizes_agree_with_the_python_bindings(tmp_path: Path) -> None:
    lines = [f'    printf("{name} %zu\\n", sizeof({name}));' for name in TWINS]
    source = tmp_path / "sizes.c"
    source.write_text(
        '#include <stdio.h>\n#include "kgpu_nvml.h"\nint main(void) {\n' + "\n".join(lines) + "\n    return 0;\n}\n"
    )
    program = tmp_path / "sizes"
    subprocess.run(
        [find_compiler(), "-std=c11", f"-I{source_dir() / 'include'}", str(source), "-o", str(program)], check=True
    )
    out = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    sizes = {line.split()[0]: int(line.split()[1]) for line in out.splitlines()}
    assert sizes == {name: ctypes.sizeof(getattr(pynvml, twin)) for name, twin in TWINS.items()}


def test_initialisation_is_counted(root: Path) -> None:
    with Nvml(root, init=False) as n:
        assert n.code("nvmlDeviceGetCount()") == pynvml.NVML_ERROR_UNINITIALIZED
        n.run("for _ in range(3): nvmlInit()")
        n.run("nvmlShutdown(); nvmlShutdown()")
        assert n("nvmlDeviceGetCount()") == 2
        n.run("nvmlShutdown()")
        assert n.code("nvmlDeviceGetCount()") == pynvml.NVML_ERROR_UNINITIALIZED
        assert n.code("nvmlShutdown()") == pynvml.NVML_ERROR_UNINITIALIZED


def test_threads_may_do_all_of_it_at_once(root: Path) -> None:
    with Nvml(root) as n:
        n.run(
            "failures = []\n"
            "def work(number):\n"
            "    try:\n"
            "        for _ in range(150):\n"
            "            nvmlInit()\n"
            "            h = nvmlDeviceGetHandleByIndex(number % 2)\n"
            "            nvmlDeviceGetUUID(h), nvmlDeviceGetPowerUsage(h), nvmlDeviceSetPersistenceMode(h, 1)\n"
            "            s = nvmlEventSetCreate()\n"
            "            nvmlDeviceRegisterEvents(h, 8, s)\n"
            "            nvmlEventSetFree(s)\n"
            "            nvmlGpmSampleFree(nvmlGpmSampleAlloc())\n"
            "            nvmlShutdown()\n"
            "    except Exception as error:\n"
            "        failures.append(repr(error))\n"
            "threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]\n"
            "[t.start() for t in threads], [t.join(60) for t in threads]"
        )
        assert n("failures") == []
        assert not n("any(t.is_alive() for t in threads)")


def test_versions_and_error_texts(nvml: Nvml) -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", nvml("nvmlSystemGetDriverVersion()"))
    assert nvml("nvmlSystemGetNVMLVersion()").endswith(nvml("nvmlSystemGetDriverVersion()"))
    assert nvml("nvmlSystemGetCudaDriverVersion()") >= 11000
    assert nvml("nvmlErrorString(15)") == "GPU is lost"
    assert nvml("nvmlErrorString(12345)") == "Unknown Error"


def test_what_is_not_simulated_says_so(nvml: Nvml, sim_libs: Path) -> None:
    plain = sorted(name for name, kind in exported(sim_libs / "libnvidia-ml.so.1").items() if kind == "W")
    assert len(plain) > 100
    nvml.run("call = lambda name: getattr(pynvml.nvmlLib, name)(None, None, None, None)")
    codes = nvml(f"{{name: call(name) for name in {plain!r}}}")
    assert set(codes.values()) <= {pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND}, codes


def test_no_function_crashes_on_null_or_random_handles(root: Path) -> None:
    with Nvml(root) as n:
        symbols = re.findall(r"KG_SYMBOL\((\w+), ", (source_dir() / "nvml" / "symbols.h").read_text())
        takes_handle = re.compile(
            r"nvml(Device(?!GetCount|GetHandle)|GpuInstance|ComputeInstance|EventSet(Wait|Free)|GpmSample(Get|Free)|GpmMig|GpmQuery)"
        )
        keep = [symbol for symbol in symbols if takes_handle.match(symbol)]
        assert len(keep) > 300
        n.run("import random; rng = random.Random(7)")
        n.run(
            "raw = lambda: ctypes.c_void_p(rng.choice([0, 1, 0x1000, 0x6b1000000000, 0x6b2ffff00000, 2**63, rng.getrandbits(64)]))"
        )
        n.run("buffer = (ctypes.c_char * 65536)()")
        # a random first argument, then NULL or a roomy zeroed buffer for everything else
        n.run(
            "def abuse(name):\n"
            "    for _ in range(6):\n"
            "        ctypes.memset(buffer, 0, len(buffer))\n"
            "        rest = [ctypes.c_void_p(ctypes.addressof(buffer)) if rng.random() < 0.5 else None for _ in range(5)]\n"
            "        getattr(pynvml.nvmlLib, name)(raw(), *rest)"
        )
        for symbol in keep:
            n.run(f"abuse({symbol!r})")
        assert n("nvmlDeviceGetCount()") == 2


def test_good_handles_with_null_outputs_are_refused(nvml: Nvml) -> None:
    nvml.run("h = nvmlDeviceGetHandleByIndex(0)")
    for name in (
        "Name",
        "UUID",
        "MemoryInfo",
        "PowerUsage",
        "PciInfo_v3",
        "Index",
        "MinorNumber",
        "EccMode",
        "MigMode",
    ):
        assert nvml(f"pynvml.nvmlLib.nvmlDeviceGet{name}(h, None, None)") == pynvml.NVML_ERROR_INVALID_ARGUMENT, name


def test_handles_stay_good_over_shutdown_and_stale_ones_are_refused(nvml: Nvml) -> None:
    nvml.run("h = nvmlDeviceGetHandleByIndex(1); before = nvmlDeviceGetUUID(h); nvmlShutdown()")
    assert nvml.code("nvmlDeviceGetUUID(h)") == pynvml.NVML_ERROR_UNINITIALIZED
    nvml.run("nvmlInit()")
    assert nvml("nvmlDeviceGetUUID(h) == before")
    assert nvml.code("nvmlDeviceGetUUID(ctypes.c_void_p(12345))") == pynvml.NVML_ERROR_INVALID_ARGUMENT


def test_short_buffers_and_wrong_versions(nvml: Nvml) -> None:
    nvml.run("h = nvmlDeviceGetHandleByIndex(0); b = ctypes.create_string_buffer(5)")
    assert nvml("pynvml.nvmlLib.nvmlDeviceGetUUID(h, b, 5)") == pynvml.NVML_ERROR_INSUFFICIENT_SIZE
    nvml.run("m = c_nvmlMemory_v2_t(); m.version = 1234")
    assert (
        nvml("pynvml.nvmlLib.nvmlDeviceGetMemoryInfo_v2(h, ctypes.byref(m))")
        == pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
    )


@pytest.mark.parametrize("content", [None, b"", b"junk" * 100, b"\0" * schema.STATE_SIZE])
def test_without_a_good_state_the_driver_is_not_loaded(root: Path, tmp_path: Path, content: bytes | None) -> None:
    state = tmp_path / "state"
    if content is not None:
        state.write_bytes(content)
    shutil.copytree(root / "dev", tmp_path / "dev", copy_function=lambda s, d: Path(d).touch(), symlinks=True)
    with Nvml(root, init=False, state=state) as n:
        assert n.code("nvmlInit()") == pynvml.NVML_ERROR_DRIVER_NOT_LOADED


def test_a_state_cut_short_while_in_use_is_an_error(sim_root: RootMaker) -> None:
    root = sim_root("hgx-h100", gpus=1)
    with Nvml(root) as n:
        n.run("h = nvmlDeviceGetHandleByIndex(0)")
        os.truncate(root / "state", 4096)
        assert n.code("nvmlDeviceGetUUID(h)") == pynvml.NVML_ERROR_DRIVER_NOT_LOADED


def test_functions_newer_than_the_driver(sim_root: RootMaker) -> None:
    root = sim_root("hgx-h100", gpus=1)
    with DriverState.open(root / "state") as state, state.locked():
        state.view.driver_version = b"470.199.02"
    with Nvml(root) as n:
        n.run("h = nvmlDeviceGetHandleByIndex(0)")
        assert n.code("nvmlDeviceGetMemoryInfo(h, version=nvmlMemory_v2)") == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
        assert n("nvmlDeviceGetMemoryInfo(h).total") > 0
        assert n.code("nvmlDeviceGetMarginTemperature(h)") == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND


TOUR = """
def tour():
    count = nvmlDeviceGetCount()
    for i in range(count):
        try:
            h = nvmlDeviceGetHandleByIndex(i)
        except NVMLError:
            continue
        for name in TOUR_NAMES:
            try:
                getattr(pynvml, name)(h)
            except (NVMLError, UnicodeDecodeError):
                pass
        try:
            nvmlDeviceGetCpuAffinity(h, 16)
            nvmlDeviceGetRetiredPages_v2(h, 0)
        except NVMLError:
            pass
        for link in range(40):
            try:
                nvmlDeviceGetNvLinkRemotePciInfo(h, link)
            except NVMLError:
                pass
        try:
            for p in range(20):
                nvmlDeviceGetGpuInstanceProfileInfo(h, p)
        except NVMLError:
            pass
        for k in range(8):
            try:
                m = nvmlDeviceGetMigDeviceHandleByIndex(h, k)
                nvmlDeviceGetName(m), nvmlDeviceGetAttributes(m), nvmlDeviceGetMemoryInfo(m)
            except (NVMLError, UnicodeDecodeError):
                pass
        f = (c_nvmlFieldValue_t * 310)()
        for k in range(310):
            f[k].fieldId, f[k].scopeId = k, k % 40
        pynvml.nvmlLib.nvmlDeviceGetFieldValues(h, 310, f)
    s = nvmlEventSetCreate()
    pynvml.nvmlLib.nvmlEventSetWait_v2(s, ctypes.byref(c_nvmlEventData_t()), 0)
    nvmlEventSetFree(s)
    return count
"""
TOUR_NAMES = [
    f"nvmlDeviceGet{name}"
    for name in [
        "Name",
        "UUID",
        "Serial",
        "PciInfo",
        "MemoryInfo",
        "PowerUsage",
        "TotalEnergyConsumption",
        "UtilizationRates",
        "CurrentClocksEventReasons",
        "EncoderUtilization",
        "FanSpeed",
        "PerformanceState",
        "RemappedRows",
        "MigMode",
        "MaxMigDeviceCount",
        "Index",
        "ComputeRunningProcesses",
        "SupportedMemoryClocks",
        "BAR1MemoryInfo",
    ]
]


def test_random_states_never_crash_a_reader(root: Path, tmp_path: Path) -> None:
    good = bytearray((root / "state").read_bytes())
    shutil.copytree(root / "dev", tmp_path / "dev", copy_function=lambda s, d: Path(d).touch(), symlinks=True)
    state = tmp_path / "state"
    gpu_at = schema.CLASSES["kg_state"].gpu.offset  # type: ignore[attr-defined]
    gpu_size = ctypes.sizeof(schema.CLASSES["kg_gpu"])
    state.write_bytes(good)
    # faults that make calls wait on purpose are not what this test is about
    quiet = [schema.CLASSES["kg_state"].slow_us, schema.CLASSES["kg_state"].hang_all]  # type: ignore[attr-defined]
    spots = [(f.offset, f.size) for f in quiet]
    for index in range(schema.MAX_GPUS):
        for name in ("hang", "slow_us"):
            field = getattr(schema.CLASSES["kg_gpu"], name)
            spots.append((gpu_at + index * gpu_size + field.offset, field.size))
    with Nvml(root, init=False, state=state) as n:
        n.run(f"TOUR_NAMES = {TOUR_NAMES!r}")
        n.run(TOUR)
        n.run("nvmlInit()")
        assert n("tour()") == 2
        n.run("nvmlShutdown()")

        places = st.one_of(st.integers(24, gpu_at - 1), st.integers(gpu_at, gpu_at + 2 * gpu_size))
        damage = st.lists(
            st.tuples(
                places, st.one_of(st.binary(min_size=1, max_size=64), st.just(b"\xff" * 512), st.just(b"\xff" * 40000))
            ),
            min_size=1,
            max_size=8,
        )

        @given(patches=damage)
        @tries(150, suppress_health_check=list(HealthCheck))
        def run(patches: list[tuple[int, bytes]]) -> None:
            data = bytearray(good)
            for at, patch in patches:
                data[at : at + len(patch)] = patch
            for at, size in spots:
                data[at : at + size] = bytes(size)
            with state.open("r+b") as file:
                file.write(data[: schema.STATE_SIZE])
            try:
                n.run("nvmlInit()")
            except NvmlFailure:
                return
            n.run("tour()")
            n.run("nvmlShutdown()")

        run()
