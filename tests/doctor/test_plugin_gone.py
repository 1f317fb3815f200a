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
