"""What stands behind CDI names: hardware, mounts, and who would reach into whose."""

from __future__ import annotations

from kgpu.formats.cdi import CdiDevice, build_spec
from kgpu.kubelet.pod_resources import Holding
from kgpu.toolkit.nri.devices import Units, index_of, is_nvidia_kind, units_of_nodes

from . import support_nri as node


def test_names_of_one_device_are_one_device() -> None:
    index = node.index()
    assert index.entries["nvidia.com/gpu=0"].units == index.entries["nvidia.com/gpu=GPU-0"].units
    assert index.entries["nvidia.com/gpu=0"].units == Units(frozenset({0}))
    assert index.entries["nvidia.com/gpu=2:0"].units == Units(frozenset({2}), frozenset({12, 13}))
    assert len(index.mounts) == len(node.MOUNTS)


def test_whom_a_device_would_reach_into() -> None:
    whole = Units(frozenset({2}))
    first, second = Units(frozenset({2}), frozenset({12, 13})), Units(frozenset({2}), frozenset({21, 22}))
    assert whole.meets(first)
    assert first.meets(whole)
    assert first.meets(first)
    assert not first.meets(second)
    assert not whole.meets(Units(frozenset({1})))
    assert not Units().meets(whole)
    # Two compute instances of one GPU instance share its capability and nothing else.
    assert not Units(frozenset({2}), frozenset({12, 13})).meets(Units(frozenset({2}), frozenset({12, 14})))
    assert Units(frozenset({2}), frozenset({12})).meets(Units(frozenset({2}), frozenset({12, 14})))


def test_bare_ids() -> None:
    index = node.index()
    assert index.bare("GPU-1") == "nvidia.com/gpu=GPU-1"
    assert index.bare("2:1") == "nvidia.com/gpu=2:1"
    assert index.bare("nvidia.com/gds=all") == "nvidia.com/gds=all"
    assert index.bare("GPU-9") == ""
    assert index.bare("") == ""


def test_members_of_all() -> None:
    index = node.index()
    members = index.members("nvidia.com/gpu=all")
    assert {index.entries[name].units for name in members} == {
        Units(frozenset({0})), Units(frozenset({1})),
        Units(frozenset({2}), frozenset({12, 13})), Units(frozenset({2}), frozenset({21, 22})),
    }  # fmt: skip
    assert len(members) == 4
    assert index.members("nvidia.com/gpu=0") == ("nvidia.com/gpu=0",)
    assert index.members("nvidia.com/gds=all") == ("nvidia.com/gds=all",)


def test_a_device_that_is_no_part_of_all_is_no_member() -> None:
    broken = CdiDevice(names=("1", "GPU-1"), nodes=node.nodes("/dev/nvidia1"), in_all=False)
    spec = build_spec(kind="nvidia.com/gpu", devices=[node.gpu(0), broken], common=node.COMMON)
    assert index_of([(0, spec)]).members("nvidia.com/gpu=all") == ("nvidia.com/gpu=0",)


def test_what_the_kubelet_says_of_others() -> None:
    index = node.index()
    assert index.held(node.holding("GPU-0", "MIG-b")) == (
        Units(frozenset({0})), Units(frozenset({2}), frozenset({21, 22}))
    )  # fmt: skip
    assert index.held(node.holding("GPU-1::3")) == (Units(frozenset({1})),)
    assert index.held(node.holding("GPU-77")) is None
    assert index.held(node.holding("eth0", resource="vendor.com/net")) == ()
    claim = {"namespace": "a", "pod": "b", "container": "c", "resource": "gpu.nvidia.com", "devices": ("gpu-0",)}
    assert index.held(Holding(**claim, cdi_devices=("nvidia.com/gpu=0",))) == (Units(frozenset({0})),)
    assert index.held(Holding(**claim, cdi_devices=("k8s.gpu.nvidia.com/device=gpu-0",))) is None
    assert index.held(Holding(**claim)) is None


def test_priorities_and_names_twice() -> None:
    low = build_spec(kind="nvidia.com/gpu", devices=[node.gpu(0)])
    high = build_spec(kind="nvidia.com/gpu", devices=[CdiDevice(names=("0",), nodes=node.nodes("/dev/nvidia7"))])
    for order in ([(0, low), (1, high)], [(1, high), (0, low)]):
        assert index_of(order).entries["nvidia.com/gpu=0"].units == Units(frozenset({7}))
    twice = index_of([(1, low), (1, high)])
    assert "nvidia.com/gpu=0" not in twice.entries
    assert "nvidia.com/gpu=GPU-0" in twice.entries


def test_other_vendors_are_not_spoken_for() -> None:
    other = build_spec(kind="vendor.com/gpu", devices=[node.gpu(0)])
    assert index_of([(0, other)]).entries == {}
    assert is_nvidia_kind("k8s.gpu.nvidia.com/claim")
    assert not is_nvidia_kind("evilnvidia.com/gpu")


def test_nodes_that_are_no_gpus() -> None:
    paths = [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia0x",
        "/dev/dri/card0",
        "/dev/nvidia-fs0",
        "/x/dev/nvidia0",
    ]
    assert not units_of_nodes(paths)
    assert units_of_nodes(["/dev/nvidia12"]) == Units(frozenset({12}))
