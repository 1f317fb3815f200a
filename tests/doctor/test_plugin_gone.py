"""Devices that are all gone at once while no plugin is ready: the plugin is at fault, not the devices."""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.doctor.model import CERTAIN, LIKELY, Finding, Report
from tests.doctor.small import READY, container, ended, node, plugin, report

CRASHES = {"waiting": {"reason": "CrashLoopBackOff"}}
AWAY = plugin(seen=[container(restartCount=9, state=CRASHES, lastState=ended(1))])
AWAY["status"]["conditions"] = [READY | {"status": "False"}]
AGENT = plugin()
AGENT["spec"]["containers"] = [{"name": "main", "image": "kgpu", "command": ["kgpu", "agent"]}]
AGENT["metadata"]["labels"] = {"app": "kgpu-agent"}


def every(found: Report) -> dict[str, Finding]:
    return {each.id: each for one in found.findings for each in one.all()}


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "amd.com/gpu", "google.com/tpu"])
def test_without_a_plugin_no_device_is_called_unhealthy(resource: str) -> None:
    found = every(report(node(can=0, resource=resource)))
    assert "SCH-03" not in found
    assert found["DPL-03"].confidence == LIKELY
    assert "device plugin is not there, or starts anew (none is seen there)" in found["DPL-03"].cause


def test_a_plugin_that_keeps_ending_explains_it() -> None:
    found = report(node(can=0), AWAY)
    assert [one.id for one in found.findings] == ["OPR-00"]
    assert set(every(found)) == {"OPR-00", "DPL-03"}


@pytest.mark.parametrize("ready", [plugin(), AGENT], ids=["plugin", "agent"])
def test_a_plugin_that_is_ready_has_withdrawn_them(ready: dict[str, Any]) -> None:
    found = every(report(node(can=0), ready))
    assert "DPL-03" not in found
    assert found["SCH-03"].confidence == CERTAIN
    assert "kgpu xid" in found["SCH-03"].remedy


def test_some_that_are_withdrawn_are_so_whoever_is_ready() -> None:
    assert "SCH-03" in every(report(node(can=7), AWAY))


def test_only_nvidias_devices_have_xids() -> None:
    found = every(report(node(can=7, resource="amd.com/gpu")))
    assert "kgpu xid" not in found["SCH-03"].remedy
    assert "Xid" not in " ".join(found["SCH-03"].remedy)


def test_without_pods_nobody_says_that_there_is_no_plugin() -> None:
    from kgpu.doctor.plan import diagnose
    from kgpu.doctor.snapshot import Snapshot

    found = diagnose(Snapshot.of([node(can=0)]), strict=True)
    assert [one.id for one in found.findings] == ["SCH-03"]


DRA_NODES = [
    ("nvidia.com/gpu", "gpu.nvidia.com"),
    ("amd.com/gpu", "gpu.amd.com"),
    ("habana.ai/gaudi", "gaudi.intel.com"),
    ("gpu.intel.com/xe", "gpu.intel.com"),
]


def slice_of(driver: str, on: str = "gpu-1") -> dict[str, Any]:
    spec = {"driver": driver, "nodeName": on, "pool": {"name": on}, "devices": [{"name": "gpu-0", "basic": {}}]}
    return {"kind": "ResourceSlice", "metadata": {"name": f"{on}-{driver}", "uid": driver}, "spec": spec}


@pytest.mark.parametrize("have", [8, 0], ids=["at first", "when the kubelet has started anew"])
@pytest.mark.parametrize(("resource", "driver"), DRA_NODES)
@pytest.mark.parametrize("agents", [(), (AGENT,)], ids=["operands", "agent"])
def test_a_driver_that_has_taken_its_place_needs_no_plugin(
    *, resource: str, driver: str, have: int, agents: tuple[dict[str, Any], ...]
) -> None:
    assert {"DPL-03", "SCH-03"}.isdisjoint(
        every(report(node(have=have, can=0, resource=resource), slice_of(driver), *agents))
    )


@pytest.mark.parametrize(
    "others",
    [
        (slice_of("gpu.nvidia.com"), AWAY),
        (slice_of("compute-domain.nvidia.com"),),
        (slice_of("gpu.nvidia.com", on="gpu-2"),),
        (slice_of("gpu.amd.com"),),
    ],
    ids=["a plugin is there", "channels alone", "of another node", "of another vendor"],
)
def test_slices_that_are_no_reason_to_have_no_plugin(others: tuple[dict[str, Any], ...]) -> None:
    assert "DPL-03" in every(report(node(can=0), *others))


@pytest.mark.parametrize("resource", ["amd.com/gpu", "habana.ai/gaudi"])
def test_an_agent_that_is_ready_has_withdrawn_devices_of_any_vendor(resource: str) -> None:
    found = every(report(node(can=0, resource=resource), AGENT))
    assert "DPL-03" not in found
    assert "SCH-03" in found
