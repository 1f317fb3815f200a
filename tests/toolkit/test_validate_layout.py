"""Specs held against the GPUs and slices of now: what changed is found, and nothing in a spec that is right."""

from __future__ import annotations

from dataclasses import replace

from kgpu.formats.cdi import CdiDevice, CdiDeviceNode, Spec, build_spec
from kgpu.hw.port import Accelerator, Inventory, Partition
from kgpu.toolkit.flaws import Flaw, FlawSeverity
from kgpu.toolkit.specs import FoundSpec
from kgpu.toolkit.validate_layout import layout_flaws

KIND = "nvidia.com/gpu"


def part(position: int, caps: tuple[int, int], uuid: str) -> Partition:
    nodes = ("/dev/nvidia1", *(f"/dev/nvidia-caps/nvidia-cap{cap}" for cap in caps))
    return Partition(
        uuid=uuid, index=f"1:{position}", parent_uuid="GPU-b", profile="1g.10gb", gpu_instance=caps[0],
        compute_instance=0, device_nodes=nodes,
    )  # fmt: skip


WHOLE = Accelerator(
    vendor="nvidia", index=0, uuid="GPU-a", name="H100", device_nodes=("/dev/nvidia0",), minor=0
)  # fmt: skip
CUT = replace(
    WHOLE, index=1, uuid="GPU-b", device_nodes=("/dev/nvidia1",), minor=1, mig_enabled=True,
    partitions=(part(0, (12, 13), "MIG-a"), part(1, (21, 22), "MIG-b")),
)  # fmt: skip


def node(*gpus: Accelerator) -> Inventory:
    return Inventory(vendor="nvidia", driver_version="570.1.2", accelerators=gpus)


def device(nodes: tuple[str, ...], *names: str) -> CdiDevice:
    return CdiDevice(names=names, nodes=tuple(CdiDeviceNode(path=path) for path in nodes))


def made_of(*gpus: Accelerator, kind: str = KIND) -> Spec:
    whole = [device(gpu.device_nodes, str(gpu.index), gpu.uuid) for gpu in gpus if not gpu.mig_enabled]
    parts = [device(one.device_nodes, one.index, one.uuid) for gpu in gpus for one in gpu.partitions]
    return build_spec(kind=kind, devices=[*whole, *parts])


def flaws(spec: Spec, *gpus: Accelerator) -> list[Flaw]:
    return list(layout_flaws([FoundSpec(path="/x.yaml", spec=spec)], node(*gpus)))


def test_a_spec_of_this_layout_has_no_flaw() -> None:
    assert flaws(made_of(WHOLE, CUT), WHOLE, CUT) == []


def test_slices_that_were_made_anew_under_the_same_index() -> None:
    anew = replace(CUT, partitions=(part(0, (30, 31), "MIG-c"), part(1, (21, 22), "MIG-b")))
    found = flaws(made_of(WHOLE, CUT), WHOLE, anew)
    assert {(flaw.where, flaw.severity) for flaw in found} == {
        ("device 1:0", FlawSeverity.ERROR), ("device MIG-a", FlawSeverity.ERROR),
        ("MIG slice 1:0 (MIG-c)", FlawSeverity.WARNING),
    }  # fmt: skip
    assert "nvidia-cap12" in found[0].what
    assert "nvidia-cap30" in found[0].what


def test_a_uuid_that_is_gone_although_its_nodes_are_another_slices() -> None:
    anew = replace(CUT, partitions=(part(0, (12, 13), "MIG-c"), part(1, (21, 22), "MIG-b")))
    assert [(flaw.where, flaw.what[:20]) for flaw in flaws(made_of(CUT), anew)] == [
        ("device MIG-a", "this node has no suc")
    ]


def test_a_gpu_that_was_put_in_mig_mode_and_one_that_is_gone() -> None:
    before = replace(CUT, mig_enabled=False, partitions=())
    found = flaws(made_of(WHOLE, before), CUT)
    assert {flaw.where for flaw in found if flaw.severity is FlawSeverity.ERROR} == {"device 0", "device GPU-a"}
    assert all("MIG mode" in flaw.what for flaw in found if flaw.where in {"device 1", "device GPU-b"})
    assert {flaw.where for flaw in found} >= {"device 1", "device GPU-b", "MIG slice 1:1 (MIG-b)"}


def test_the_nodes_of_an_integrated_gpu_are_the_boards_business() -> None:
    thor = replace(WHOLE, name="NVIDIA Thor")
    listed = build_spec(kind=KIND, devices=[device(("/dev/nvidia0", "/dev/nvidia1", "/dev/nvmap"), "0")])
    assert flaws(listed, thor) == []
    assert len(flaws(listed, WHOLE)) == 2


def test_only_gpus_of_those_who_use_them_are_compared() -> None:
    assert flaws(made_of(WHOLE, kind="management.nvidia.com/gpu"), CUT) == []
    channel = build_spec(
        kind="nvidia.com/imex-channel", devices=[device(("/dev/nvidia-caps-imex-channels/channel7",), "7")]
    )
    assert flaws(channel, WHOLE) == []
    # Names of a plugin's own say nothing, their nodes do.
    own = build_spec(kind="k8s.device-plugin.nvidia.com/gpu", devices=[device(("/dev/nvidia0",), "slot-a")])
    assert flaws(own, WHOLE) == []
