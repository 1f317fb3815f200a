"""DPL-19: GPUs that the device plugin and a DRA driver hand out, and slices that only linger."""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.formats import agent_report, names
from kgpu.formats.agent_report import AgentReport, RoleReport
from tests.doctor.small import found, node, pod

SLICE = {
    "kind": "ResourceSlice",
    "metadata": {"name": "gpu-1-slice"},
    "spec": {
        "driver": names.DRA_GPU_DRIVER,
        "nodeName": "gpu-1",
        "pool": {"name": "gpu-1", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "gpu-0", "attributes": {"type": {"string": "gpu"}}}],
    },
}
OTHERS = pod("driver", gpus=0, metadata={"labels": {"app": "dra-driver-nvidia-gpu"}})


def told(*others: dict[str, Any], part: str = "", **roles: RoleReport) -> bool:
    """Whether it is told of a node whose agent reports these roles."""
    made = node()
    report = AgentReport(version="1", roles=roles)
    made["metadata"]["annotations"] = {agent_report.annotation(part): agent_report.encode(report)} if roles else {}
    return "DPL-19" in {each.id for root in found(made, SLICE, *others) for each in root.all()}


@pytest.mark.parametrize("state", ["running", "starting", "waiting", "failed"])
def test_two_that_hand_out_are_told(state: str) -> None:
    assert told(dra=RoleReport(state=state))
    assert told()
    assert told(deviceplugin=RoleReport(state="running"))


@pytest.mark.parametrize("part", ["", "dra"])
@pytest.mark.parametrize("state", ["stopped", "left"])
def test_slices_of_a_driver_of_kgpus_that_has_ended_only_linger(state: str, part: str) -> None:
    assert not told(dra=RoleReport(state=state), part=part)


def test_another_driver_that_is_there_is_told_all_the_same() -> None:
    assert told(OTHERS, dra=RoleReport(state="stopped"))
