"""How well devices are, for the kubelet: what keeps claims away is unhealthy, and what nobody judges is not known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kgpu.dra.devices import node_devices
from kgpu.dra.health import device_health
from kgpu.dra.model import PublishRules
from kgpu.hw.port import HardwareFinding, Inventory, Problem
from kgpu.hw.verdicts import GpuVerdict
from kgpu.kubelet.model import ClaimDeviceHealth, DeviceCondition
from tests.dra.samples import NODE, h100
from tests.dra.test_taints import well, withdrawn

HEALTHY, UNHEALTHY, UNKNOWN = DeviceCondition.HEALTHY, DeviceCondition.UNHEALTHY, DeviceCondition.UNKNOWN


def health(inventory: Inventory, verdict: GpuVerdict | None, **rules: object) -> dict[str, DeviceCondition]:
    verdicts = None if verdict is None else {verdict.uuid: verdict}
    node = node_devices(inventory, PublishRules(**rules), verdicts)  # type: ignore[arg-type]
    found = device_health(node, NODE, verdicts)
    assert all(isinstance(one, ClaimDeviceHealth) and one.pool == NODE for one in found)
    return {one.device: one.condition for one in found}


@pytest.mark.parametrize(
    ("verdict", "condition"),
    [
        (None, UNKNOWN),
        (well(), HEALTHY),
        (well("xid:31"), HEALTHY),
        (withdrawn("xid:79"), UNHEALTHY),
        (withdrawn("driver:lost"), UNHEALTHY),
        (withdrawn(), UNHEALTHY),
    ],
)
def test_the_verdict_decides(verdict: GpuVerdict | None, condition: DeviceCondition) -> None:
    assert health(h100(), verdict) == {"gpu-0": condition}


def test_what_the_driver_reports_as_broken_is_unhealthy_whatever_health_says() -> None:
    gpu = h100().accelerators[0]
    lost = replace(
        gpu,
        findings=(
            HardwareFinding(problem=Problem.LOST, subject=gpu.uuid, what="it is gone", expected="a GPU", remedy="look"),
        ),
    )
    for verdict in (None, well()):
        assert health(replace(h100(), accelerators=(lost,)), verdict) == {"gpu-0": UNHEALTHY}


def test_every_device_is_told_of_also_those_that_could_be_made() -> None:
    found = health(h100(2), withdrawn("xid:79"), dynamic=True)
    assert len(found) == 52
    assert {name.split("-mig")[0] for name, condition in found.items() if condition is UNHEALTHY} == {"gpu-0"}
    assert {condition for name, condition in found.items() if name.startswith("gpu-1")} == {UNKNOWN}
