"""What the child reads of a GPU, through a stand-in library: absent readings, errors, MIG, files of the root."""

from __future__ import annotations

import msgspec
import pynvml
import pytest

from kgpu.hw.nvidia.codes import GPU_IS_LOST, NOT_FOUND, NOT_SUPPORTED, RESET_REQUIRED
from kgpu.hw.nvidia.facts import accelerator
from kgpu.hw.nvidia.fallbacks import Nvml, NvmlError
from kgpu.hw.nvidia.gather import Gatherer
from kgpu.hw.nvidia.wire import GpuReply, Pulse
from tests.hw.nvidia.stub import StubLibrary, healthy_gpu


def gatherer(stub: StubLibrary, tmp_path) -> Gatherer:
    return Gatherer(Nvml(stub, pynvml), str(tmp_path / "proc"), str(tmp_path / "sys"))


def over_the_wire(facts: dict[str, object]) -> GpuReply:
    return msgspec.json.decode(msgspec.json.encode(facts), type=GpuReply)


def mig_gpu() -> StubLibrary:
    """GPU with one 1c.3g slice at position 2."""
    stub = healthy_gpu()
    stub.answer("nvmlDeviceGetMigMode", 0, 1, 1)

    def mig_handle(_handle, position, _out) -> int:
        return 0 if position == 2 else NOT_FOUND

    stub.functions["nvmlDeviceGetMigDeviceHandleByIndex"] = mig_handle
    stub.answer("nvmlDeviceGetGpuInstanceId", 0, 3)
    stub.answer("nvmlDeviceGetComputeInstanceId", 0, 1)
    stub.answer(
        "nvmlDeviceGetAttributes_v2",
        0,
        {
            "multiprocessorCount": 14,
            "sharedCopyEngineCount": 3,
            "sharedDecoderCount": 2,
            "gpuInstanceSliceCount": 3,
            "computeInstanceSliceCount": 1,
            "memorySizeMB": 19968,
        },
    )
    stub.answer("nvmlDeviceGetGpuInstanceById")
    stub.answer("nvmlGpuInstanceGetInfo", 0, {"profileId": 9, "placement": {"start": 4, "size": 4}})
    stub.answer("nvmlGpuInstanceGetComputeInstanceById")
    stub.answer("nvmlComputeInstanceGetInfo_v2", 0, {"profileId": 0})

    def gi_profile(_handle, kind, out) -> int:
        if kind > 4:
            return NOT_SUPPORTED
        out._obj.id = {0: 19, 1: 14, 2: 9, 3: 5, 4: 0}[kind]
        out._obj.memorySizeMB = {0: 4864, 1: 9856, 2: 19968, 3: 19968, 4: 40192}[kind]
        return 0

    def ci_profile(_gi, kind, _engine, out) -> int:
        out._obj.id = kind
        return 0

    stub.functions["nvmlDeviceGetGpuInstanceProfileInfo"] = gi_profile
    stub.functions["nvmlGpuInstanceGetComputeInstanceProfileInfo"] = ci_profile
    return stub


def test_facts_fit_the_wire_types(tmp_path) -> None:
    facts = over_the_wire(gatherer(healthy_gpu(), tmp_path).gpu(0))
    assert facts.pulse == Pulse(
        uuid="GPU-00000000", mig_capable=True, mig=False, mig_pending=False, instances=(), recovery=None
    )
    assert (facts.bus_id, facts.minor, facts.compute_capability) == ("0000:07:00.0", 5, (8, 0))
    assert facts.errors == ()


def test_pci_files_come_from_the_given_sys(tmp_path) -> None:
    folder = tmp_path / "sys/bus/pci/devices/0000:07:00.0"
    folder.mkdir(parents=True)
    (folder / "numa_node").write_text("1\n")
    (folder / "class").write_text("0x030200\n")
    facts = over_the_wire(gatherer(healthy_gpu(), tmp_path).gpu(0))
    assert (facts.numa_node, facts.pci_class) == (1, 0x030200)


@pytest.mark.parametrize("text", ["-1\n", "", "zero"])
def test_unknown_numa_node_is_none(tmp_path, text: str) -> None:
    folder = tmp_path / "sys/bus/pci/devices/0000:07:00.0"
    folder.mkdir(parents=True)
    (folder / "numa_node").write_text(text)
    assert over_the_wire(gatherer(healthy_gpu(), tmp_path).gpu(0)).numa_node is None


def test_failed_memory_reading_is_tolerated_and_named(tmp_path) -> None:
    stub = healthy_gpu()
    stub.answer("nvmlDeviceGetMemoryInfo", 999)
    facts = over_the_wire(gatherer(stub, tmp_path).gpu(0))
    assert facts.memory_bytes is None
    assert facts.errors == (("memory", 999, "reason 999"),)


def test_absent_reading_is_no_error(tmp_path) -> None:
    stub = healthy_gpu()
    stub.answer("nvmlDeviceGetMigMode", NOT_SUPPORTED)
    stub.answer("nvmlDeviceGetSerial", NOT_SUPPORTED)
    facts = over_the_wire(gatherer(stub, tmp_path).gpu(0))
    assert (facts.pulse.mig_capable, facts.serial, facts.errors) == (False, "", ())


@pytest.mark.parametrize("symbol", ["nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetName", "nvmlDeviceGetMigMode"])
@pytest.mark.parametrize("code", [GPU_IS_LOST, RESET_REQUIRED])
def test_unreachable_gpu_raises_whichever_call_says_so(tmp_path, symbol: str, code: int) -> None:
    stub = healthy_gpu()
    stub.answer(symbol, code)
    with pytest.raises(NvmlError) as caught:
        gatherer(stub, tmp_path).gpu(0)
    assert caught.value.code == code


def test_recovery_action_is_field_230(tmp_path) -> None:
    stub = healthy_gpu()

    def field_values(_handle, _count, values) -> int:
        assert values[0].fieldId == pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
        values[0].value.uiVal = 2
        return 0

    stub.functions["nvmlDeviceGetFieldValues"] = field_values
    assert gatherer(stub, tmp_path).pulse(0)["recovery"] == 2


def test_mig_device_in_full(tmp_path) -> None:
    caps = tmp_path / "proc/driver/nvidia-caps"
    caps.mkdir(parents=True)
    (caps / "mig-minors").write_text(
        "config 1\nmonitor 2\ngpu5/gi3/access 30\ngpu5/gi3/ci1/access 32\nbroken\ngpu5/x y\n"
    )
    facts = over_the_wire(gatherer(mig_gpu(), tmp_path).gpu(0))
    assert facts.pulse.instances == ((2, 3, 1),)
    (mig,) = facts.migs
    assert (mig.position, mig.gi, mig.ci) == (2, 3, 1)
    assert (mig.gi_kind, mig.ci_kind, mig.gi_memory_mib) == (2, 0, 19968)
    assert (mig.start, mig.size) == (4, 4)
    assert mig.slices == (3, 1)
    assert mig.engines == (3, 2, 0, 0, 0)
    assert mig.caps == (30, 32)


def test_capability_minors_are_read_again_when_the_file_changes(tmp_path) -> None:
    caps = tmp_path / "proc/driver/nvidia-caps"
    caps.mkdir(parents=True)
    reader = gatherer(mig_gpu(), tmp_path)
    assert over_the_wire(reader.gpu(0)).migs[0].caps == (None, None)
    (caps / "mig-minors").write_text("gpu5/gi3/access 30\ngpu5/gi3/ci1/access 32\n")
    assert over_the_wire(reader.gpu(0)).migs[0].caps == (30, 32)


def test_slice_destroyed_while_it_is_read_is_simply_gone(tmp_path) -> None:
    stub = mig_gpu()
    stub.answer("nvmlDeviceGetAttributes_v2", NOT_FOUND)
    facts = over_the_wire(gatherer(stub, tmp_path).gpu(0))
    assert facts.migs == ()
    assert facts.errors == ()


def test_unreadable_slice_does_not_hide_the_gpu(tmp_path) -> None:
    stub = mig_gpu()
    stub.answer("nvmlDeviceGetAttributes_v2", 999)
    facts = over_the_wire(gatherer(stub, tmp_path).gpu(0))
    assert facts.migs == ()
    assert [error[0] for error in facts.errors] == ["mig 2: attributes"]


def test_topology_counts_live_lanes_by_remote_bus_id(tmp_path) -> None:
    stub = healthy_gpu()
    stub.answer("nvmlDeviceGetTopologyCommonAncestor", 0, 10)

    def state(_handle, link, out) -> int:
        out._obj.value = 1 if link < 4 else 0
        return 0 if link < 6 else NOT_SUPPORTED

    stub.functions["nvmlDeviceGetNvLinkState"] = state
    stub.answer("nvmlDeviceGetNvLinkRemotePciInfo_v2", 0, {"domain": 0, "bus": 0x0F, "device": 0})
    answer = gatherer(stub, tmp_path).topology(0, [0, 1, 2])
    assert answer == {"levels": {1: 10, 2: 10}, "lanes": {"0000:0f:00.0": 4}}


def test_readings_leave_out_what_the_gpu_lacks(tmp_path) -> None:
    stub = healthy_gpu()
    stub.answer("nvmlDeviceGetPowerUsage", 0, 71500)
    stub.answer("nvmlDeviceGetUtilizationRates", 0, {"gpu": 40, "memory": 7})
    answer = gatherer(stub, tmp_path).readings(0)
    assert answer["uuid"] == "GPU-00000000"
    assert (answer["failures"], answer["instances"], answer["links"]) == ({}, [], [])
    assert set(answer["values"]) == {
        "power_w", "utilization_percent", "memory_utilization_percent", "memory_total_mib", "memory_used_mib",
        "memory_free_mib", "vgpu_licensed",
    }  # fmt: skip
    assert answer["values"]["power_w"] == 71.5


@pytest.mark.parametrize(("mode", "coherent"), [(2, True), (1, False), (0, False)])
def test_coherent_gpus_are_those_with_address_translation_by_the_cpu(tmp_path, mode: int, coherent: bool) -> None:
    stub = healthy_gpu()
    stub.answer("nvmlDeviceGetAddressingMode", 0, {"value": mode})
    facts = over_the_wire(gatherer(stub, tmp_path).gpu(0))
    assert facts.coherent is coherent
    assert not over_the_wire(gatherer(healthy_gpu(), tmp_path).gpu(0)).coherent


@pytest.mark.parametrize(
    ("number", "brand"), [(0, "unknown"), (2, "tesla"), (14, "nvidia"), (16, "titanrtx"), (99, "")]
)
def test_brands_have_the_words_of_requirements(tmp_path, number: int, brand: str) -> None:
    stub = healthy_gpu()
    stub.answer("nvmlDeviceGetBrand", 0, number)
    assert accelerator(over_the_wire(gatherer(stub, tmp_path).gpu(0))).brand == brand
    assert accelerator(over_the_wire(gatherer(healthy_gpu(), tmp_path).gpu(0))).brand == ""
