"""Taints come with a verdict or a finding, say why, concern what they are about, and go with their cause."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kgpu.dra.devices import node_devices
from kgpu.dra.model import PublishRules
from kgpu.hw.port import HardwareFinding, Inventory, Problem
from kgpu.hw.verdicts import GpuVerdict
from tests.dra.samples import cut, h100, named, node_of
from tests.dra.test_devices import SEVEN

Told = tuple[str, str, str]
XID = "gpu.nvidia.com/xid"
LOST = ("gpu.nvidia.com/gpu-lost", "", "NoSchedule")
UNMONITORED = ("gpu.nvidia.com/unmonitored", "", "None")


def taints(inventory: Inventory, verdict: GpuVerdict | None, **rules: object) -> dict[str, list[Told]]:
    verdicts = None if verdict is None else {verdict.uuid: verdict}
    node = node_devices(inventory, PublishRules(**rules), verdicts)  # type: ignore[arg-type]
    return {device.name: [(one.key, one.value, str(one.effect)) for one in device.taints] for device in node.devices}


def withdrawn(*causes: str, facts: tuple[str, ...] = (), reason: str = "") -> GpuVerdict:
    uuid = h100().accelerators[0].uuid
    return GpuVerdict(uuid=uuid, withdraws=True, causes=causes, facts=(*causes, *facts), reason=reason)


def well(*facts: str) -> GpuVerdict:
    return GpuVerdict(uuid=h100().accelerators[0].uuid, facts=facts)


@pytest.mark.parametrize(
    ("verdict", "wanted"),
    [
        (None, []),
        (well(), []),
        (withdrawn("xid:79"), [(XID, "79", "NoSchedule")]),
        (withdrawn("xid:79", "driver:lost"), [(XID, "79", "NoSchedule"), LOST]),
        (withdrawn("driver:lost"), [LOST]),
        (withdrawn("driver:missing"), [LOST]),
        (withdrawn("xid:79", "xid:48"), [(XID, "79", "NoSchedule")]),
        (withdrawn("ecc:sram", reason="EccErrors"), [("kgpu.dev/gpu-unhealthy", "EccErrors", "NoSchedule")]),
        (withdrawn(reason="Two Words!"), [("kgpu.dev/gpu-unhealthy", "Two-Words", "NoSchedule")]),
        (withdrawn(), [("kgpu.dev/gpu-unhealthy", "unhealthy", "NoSchedule")]),
        (well("xid:31"), [(XID, "31", "None")]),
        (withdrawn("xid:79", facts=("xid:31",)), [(XID, "79", "NoSchedule")]),
        (withdrawn("ecc:sram", facts=("xid:31",), reason="E"),
         [("kgpu.dev/gpu-unhealthy", "E", "NoSchedule"), (XID, "31", "None")]),
    ],
)  # fmt: skip
def test_what_a_verdict_shows_as(verdict: GpuVerdict | None, wanted: list[Told]) -> None:
    assert taints(h100(), verdict) == {"gpu-0": wanted}


def test_an_xid_on_the_users_list_keeps_nothing_away() -> None:
    assert taints(h100(), withdrawn("xid:79"), ignored_xids=frozenset({79})) == {"gpu-0": [(XID, "79", "None")]}
    both = withdrawn("xid:79", "xid:48")
    assert taints(h100(), both, ignored_xids=frozenset({79})) == {"gpu-0": [(XID, "48", "NoSchedule")]}


def test_who_has_no_verdict_is_unmonitored_where_that_is_asked() -> None:
    assert taints(h100(), None, monitored=True) == {"gpu-0": [UNMONITORED]}
    assert taints(h100(), well(), monitored=True) == {"gpu-0": []}
    assert taints(h100(2), well(), monitored=True) == {"gpu-0": [], "gpu-1": [UNMONITORED]}


@pytest.mark.parametrize(
    ("problem", "wanted"),
    [
        (Problem.LOST, [LOST]),
        (Problem.MISSING, [LOST]),
        (Problem.HUNG, [("kgpu.dev/gpu-unhealthy", "hung", "NoSchedule")]),
        (Problem.CRASHED, [("kgpu.dev/gpu-unhealthy", "crashed", "NoSchedule")]),
        (Problem.NEEDS_RESET, [("kgpu.dev/gpu-unhealthy", "needs-reset", "NoSchedule")]),
        (Problem.UNPROVEN, [("kgpu.dev/gpu-unhealthy", "unproven", "NoSchedule")]),
        (Problem.UNREADABLE, []),
    ],
)
@pytest.mark.parametrize("verdict", [None, well()])
def test_what_the_driver_reports_as_broken_always_counts(
    problem: Problem, wanted: list[Told], verdict: GpuVerdict | None
) -> None:
    gpu = h100().accelerators[0]
    finding = HardwareFinding(subject=gpu.uuid, problem=problem, what="w", expected="e", remedy="r")
    assert taints(node_of(replace(gpu, findings=(finding,))), verdict) == {"gpu-0": wanted}


def test_an_xid_of_one_instance_concerns_its_device_alone() -> None:
    gpu = cut(h100().accelerators[0], [named(SEVEN, "3g.40gb"), named(SEVEN, "2g.20gb")])
    first, second = gpu.partitions
    told = taints(node_of(gpu), withdrawn(f"xid:94@{first.gpu_instance}.0"))
    touched = {name for name, found in told.items() if found}
    assert touched == {f"gpu-0-mig-3g40gb-9-{first.placement_start}"}
    dynamic = taints(node_of(gpu), withdrawn(f"xid:94@{second.gpu_instance}"), dynamic=True)
    assert {name for name, found in dynamic.items() if found} == {f"gpu-0-mig-2g20gb-14-{second.placement_start}"}


def test_an_xid_of_the_gpu_concerns_all_its_devices_and_no_other_gpus() -> None:
    told = taints(h100(2), withdrawn("xid:79"), dynamic=True)
    assert {name.split("-mig")[0] for name, found in told.items() if found} == {"gpu-0"}
    assert all(found for name, found in told.items() if name.startswith("gpu-0"))
