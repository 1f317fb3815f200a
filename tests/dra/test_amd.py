"""AMD's GPUs and partitions as devices: names, exact attributes, and that nothing is made up or left out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kgpu.dra.devices import node_devices
from kgpu.dra.model import DraDevice, PublishRules
from kgpu.hw.amd.client import AmdReader
from kgpu.hw.port import Accelerator, HardwareFinding, Problem
from kgpu.hw.simulator.amd import operate
from kgpu.hw.verdicts import GpuVerdict
from tests.dra.samples import mi300x

RULES = PublishRules(pcie_roots={"0000:05:00.0": "pci0000:00"})
OF_ALL = {
    "pciAddr": "0000:05:00.0", "deviceID": "0x74a1", "family": "AI", "productName": "AMD_Instinct_MI300X_OAM",
    "driverVersion": "6.10.5", "driverSrcVersion": "0C1A2B", "numaNode": 0,
    "resource.kubernetes.io/pciBusID": "0000:05:00.0", "resource.kubernetes.io/pcieRoot": "pci0000:00",
}  # fmt: skip


def devices(*gpus: Accelerator, rules: PublishRules = RULES) -> tuple[DraDevice, ...]:
    return node_devices(replace(mi300x(), accelerators=gpus), rules).devices


def values(device: DraDevice) -> dict[str, object]:
    return {name: one.value for name, one in device.attributes.items()}


def test_a_whole_gpu_has_exactly_the_attributes_of_amds_driver() -> None:
    (device,) = devices(mi300x().accelerators[0])
    assert (device.name, device.uuid, device.size) == ("gpu-0-128", "0000:05:00.0", 0)
    assert values(device) == OF_ALL | {
        "type": "amdgpu", "cardIndex": 0, "renderIndex": 128, "partitionProfile": "spx_nps1",
    }  # fmt: skip
    assert {name: str(one.kind) for name, one in device.attributes.items() if str(one.kind) != "string"} == {
        "cardIndex": "int", "renderIndex": "int", "driverVersion": "version", "numaNode": "int",
    }  # fmt: skip
    assert device.capacity == {"memory": "196592Mi", "computeUnits": "304", "simdUnits": "1216"}


def test_each_partition_is_a_device_of_its_own_with_its_parents_address() -> None:
    first, second = devices(mi300x(parts=2).accelerators[0])
    assert [first.name, second.name] == ["gpu-0-128", "gpu-1-129"]
    assert [first.uuid, second.uuid] == ["0000:05:00.0", "amdgpu_xcp_1"]
    assert values(second) == OF_ALL | {
        "type": "amdgpu-partition", "cardIndex": 1, "renderIndex": 129, "partitionProfile": "dpx_nps1",
        "parentPciAddr": "0000:05:00.0", "parentDeviceID": "0x74a1",
    }  # fmt: skip
    assert second.capacity == {"memory": "98296Mi", "computeUnits": "152", "simdUnits": "608"}


def test_a_gpu_that_can_not_be_parted_is_a_device_like_any() -> None:
    (device,) = devices(replace(mi300x().accelerators[0], mode="", name="AMD Radeon PRO W7900"))
    assert device.attributes["type"].value == "amdgpu"
    assert "partitionProfile" not in device.attributes


def test_what_the_driver_does_not_tell_is_absent() -> None:
    gpu = replace(
        mi300x().accelerators[0], memory_mib=None, compute_units=0, simds=0, family="", pci_device_id=0, numa_node=None
    )
    (device,) = devices(gpu, rules=PublishRules())
    assert device.capacity == {}
    gone = {"deviceID", "family", "numaNode", "resource.kubernetes.io/pcieRoot"}
    assert set(device.attributes) == (set(OF_ALL) | {"type", "cardIndex", "renderIndex", "partitionProfile"}) - gone
    part = replace(mi300x(parts=2).accelerators[0].partitions[1], memory_mib=0, multiprocessors=0)
    parted = replace(gpu, partitions=(part,))
    assert devices(parted)[0].capacity == {}


def test_a_gpu_without_nodes_is_told_and_the_others_are_published() -> None:
    first, second = mi300x().accelerators
    node = node_devices(replace(mi300x(), accelerators=(replace(first, device_nodes=()), second)), RULES)
    assert [device.name for device in node.devices] == ["gpu-8-136"]
    (advice,) = node.advice
    assert advice.subject == first.uuid
    assert "no card and render node" in advice.why
    # It has no number of its own, and takes nobody's.
    bare = replace(second, minor=0, device_nodes=())
    assert [device.gpu for device in devices(bare, first)] == [first.uuid]


def test_a_missing_gpus_numbers_may_be_anothers_by_now() -> None:
    """A driver gives numbers anew: what is gone is not published under a name that something else has."""
    gone, parted = mi300x(2, parts=2).accelerators
    finding = HardwareFinding(subject=gone.uuid, problem=Problem.MISSING, what="w", expected="e", remedy="r")
    first, second = parted.partitions
    taken = replace(parted, partitions=(first, replace(second, device_nodes=gone.partitions[1].device_nodes)))
    node = node_devices(replace(mi300x(), accelerators=(replace(gone, findings=(finding,)), taken)), RULES)
    assert [(device.name, device.gpu) for device in node.devices] == [
        ("gpu-0-128", gone.uuid), ("gpu-8-136", parted.uuid), ("gpu-1-129", parted.uuid),
    ]  # fmt: skip
    assert [(one.subject, one.why) for one in node.advice] == [
        (gone.partitions[1].uuid, "another device has that name"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("problem", "key", "value"),
    [
        (Problem.LOST, "gpu.amd.com/gpu-lost", ""), (Problem.MISSING, "gpu.amd.com/gpu-lost", ""),
        (Problem.NEEDS_RESET, "kgpu.dev/gpu-unhealthy", "needs-reset"), (Problem.HUNG, "kgpu.dev/gpu-unhealthy", "hung"),
        (Problem.UNPROVEN, "kgpu.dev/gpu-unhealthy", "unproven"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("parts", [0, 2])
def test_a_fault_is_a_taint_of_all_that_the_gpu_is_published_as(
    problem: Problem, key: str, value: str, parts: int
) -> None:
    gpu = mi300x(parts=parts).accelerators[0]
    finding = HardwareFinding(subject=gpu.uuid, problem=problem, what="w", expected="e", remedy="r")
    found = devices(replace(gpu, findings=(finding,)))
    assert len(found) == max(1, parts)
    for device in found:
        assert [(one.key, one.value, str(one.effect)) for one in device.taints] == [(key, value, "NoSchedule")]


def test_who_has_no_verdict_is_unmonitored_where_that_is_asked() -> None:
    first, second = mi300x().accelerators
    verdicts = {first.uuid: GpuVerdict(uuid=first.uuid)}
    node = node_devices(mi300x(), PublishRules(monitored=True), verdicts)
    told = {device.gpu: [(one.key, str(one.effect)) for one in device.taints] for device in node.devices}
    assert told == {first.uuid: [], second.uuid: [("gpu.amd.com/unmonitored", "None")]}


async def test_a_simulated_node_in_two_modes(sim_root: object) -> None:
    root: Path = sim_root("mi300x")  # type: ignore[operator]
    operate.set_partition(root, [1], "dpx")
    reader = AmdReader(driver_root=root)
    node = node_devices(await reader.inventory(), PublishRules())
    await reader.close()
    kinds = [device.attributes["type"].value for device in node.devices]
    assert kinds == ["amdgpu", *["amdgpu-partition"] * 2, *["amdgpu"] * 6]
    assert node.advice == ()
