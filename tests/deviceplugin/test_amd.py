"""What is offered of AMD's GPUs and given for them, over data alone."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from kgpu.agent.role_options import parse_args
from kgpu.deviceplugin.allocate import allocate
from kgpu.deviceplugin.config import FLAGS, PluginSettings, resolve, without_effect
from kgpu.deviceplugin.model import HostDevices
from kgpu.deviceplugin.plan import plan
from kgpu.deviceplugin.prefer import prefer_indices
from kgpu.formats.plugin_config import NamePattern, PluginConfig
from kgpu.hw.port import Accelerator, Inventory, Link, Partition, TopologyLevel
from kgpu.kubelet.model import ContainerAllocation, DeviceNode
from tests.deviceplugin.nodes import entry, shared

MIXED = PluginSettings(naming_strategy="mixed")
GPU = "amd.com/gpu"


def gpu(index: int, mode: str = "spx_nps1", parts: int = 0) -> Accelerator:
    bus = f"0000:{index + 1:02x}:00.0"
    partitions = tuple(
        Partition(
            uuid=f"amdgpu_xcp_{8 * index + part}" if part else bus, index=f"{index}:{part}", parent_uuid=bus,
            profile=mode, gpu_instance=part, compute_instance=0,
            device_nodes=(f"/dev/dri/card{8 * index + part}", f"/dev/dri/renderD{128 + 8 * index + part}"),
        )
        for part in range(parts)
    )  # fmt: skip
    return Accelerator(
        vendor="amd", index=index, uuid=bus, name="MI300X", mode=mode, partitions=partitions, numa_node=0,
        device_nodes=(f"/dev/dri/card{8 * index}", f"/dev/dri/renderD{128 + 8 * index}"),
    )  # fmt: skip


def offered(gpus: list[Accelerator], settings: PluginSettings = PluginSettings()) -> dict[str, int]:  # noqa: B008
    return {resource.name: len(resource.devices) for resource in plan(gpus, settings).resources}


WHOLE = [gpu(0), gpu(1)]
CUT = [gpu(0, "cpx_nps4", 8), gpu(1, "cpx_nps4", 8)]


@pytest.mark.parametrize(
    ("gpus", "single", "mixed"),
    [
        (WHOLE, {GPU: 2}, {"amd.com/spx_nps1": 2}),
        (CUT, {GPU: 16}, {"amd.com/cpx_nps4": 16}),
        ([gpu(0), *CUT[1:]], {GPU: 8}, {"amd.com/spx_nps1": 1, "amd.com/cpx_nps4": 8}),
        ([gpu(0, ""), gpu(1, "")], {GPU: 2}, {GPU: 2}),
        ([gpu(0, ""), gpu(1)], {GPU: 1}, {GPU: 1, "amd.com/spx_nps1": 1}),
    ],
)
def test_names_by_strategy(gpus, single: dict[str, int], mixed: dict[str, int]) -> None:
    assert offered(gpus) == single
    assert offered(gpus, MIXED) == mixed


def test_what_single_leaves_out_is_told_with_what_to_do() -> None:
    made = plan([gpu(0), gpu(1), gpu(2, "dpx_nps1", 2)], PluginSettings())
    (advice,) = [row for row in made.advice if row.reason == "ModesDiffer"]
    assert "2 devices with partition mode spx_nps1" in advice.what or "dpx_nps1" in advice.what
    assert "mixed" in advice.remedy
    assert "2 of spx_nps1" in advice.evidence


def test_the_mig_strategy_changes_nothing() -> None:
    assert all(offered(CUT, PluginSettings(mig_strategy=word)) == {GPU: 16} for word in ("none", "single", "mixed"))


def test_patterns_name_models() -> None:
    settings = PluginSettings(gpus=(NamePattern(pattern="MI3*", name="amd.com/big"),))
    assert offered(WHOLE, settings) == {"amd.com/big": 2}


def test_sharing_is_refused_and_the_gpus_are_offered_whole() -> None:
    made = plan(WHOLE, shared(entry(4, GPU)))
    assert {resource.name: len(resource.devices) for resource in made.resources} == {GPU: 2}
    assert any("can't be shared" in row.what + row.why for row in made.advice)


@pytest.mark.parametrize("strategy", ["envvar", "volume-mounts"])
def test_a_container_gets_the_nodes_and_no_variable(strategy: str) -> None:
    settings = PluginSettings(list_strategies=(strategy,))
    resource = plan(CUT, settings).resource(GPU)
    assert resource is not None
    got = allocate(resource, ["amdgpu_xcp_9", "0000:01:00.0"], settings, HostDevices(), unhealthy={})
    paths = ["/dev/kfd", "/dev/dri/card9", "/dev/dri/renderD137", "/dev/dri/card0", "/dev/dri/renderD128"]
    nodes = tuple(DeviceNode(container_path=path, host_path=path, permissions="rw") for path in paths)
    assert got == ContainerAllocation(devices=nodes)


def test_with_cdi_alone_it_gets_names() -> None:
    settings = replace(MIXED, list_strategies=("cdi-cri",))
    resource = plan(CUT, settings).resource("amd.com/cpx_nps4")
    assert resource is not None
    got = allocate(resource, ["amdgpu_xcp_1"], settings, HostDevices(), unhealthy={})
    assert got == ContainerAllocation(cdi_devices=("k8s.device-plugin.amd.com/gpu=amdgpu_xcp_1",))


def test_the_choice_by_indices_is_by_distance() -> None:
    gpus = tuple(gpu(index) for index in range(4))
    links = [
        Link(a=a.uuid, b=b.uuid, level=TopologyLevel.NODE, lanes=int({a.index, b.index} in ({0, 3}, {1, 2})))
        for a, b in itertools.combinations(gpus, 2)
    ]
    inventory = Inventory(vendor="amd", driver_version="6", accelerators=gpus)
    choice = prefer_indices(inventory, links, available=[0, 1, 2, 3], required=[3], size=2)
    assert (choice.indices, choice.score) == ((0, 3), 40)
    assert "least sum of distances" in choice.why


def test_the_replaced_programs_flags_are_taken() -> None:
    values = parse_args(["-pulse=30", "-resource_naming_strategy=mixed"], FLAGS, "device plugin")
    settings = resolve(PluginConfig(), overrides=values, env={})
    assert settings.naming_strategy == "mixed"
    assert any("pulse" in advice.what + advice.subject for advice in without_effect(settings))
