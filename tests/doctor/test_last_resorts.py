"""What is told where no other rule tells anything: not of what began a moment ago, and not hidden by what is near."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from doctor.example import base, merged

from kgpu.doctor.model import Level, Report
from kgpu.doctor.plan import diagnose
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.told import FRESH_SECONDS
from kgpu.formats import names
from kgpu.health.run import HEARTBEAT_SECONDS

TAKEN = 1767268800.0  # 2026-01-01T12:00:00Z
NOW, LATELY, BEFORE = "2026-01-01T11:59:50Z", "2026-01-01T11:58:00Z", "2025-12-01T00:00:00Z"
AWAY = {"type": "Ready", "status": "Unknown", "lastTransitionTime": "2026-01-01T11:00:00Z"}


def report(*objects: dict[str, Any], bases: tuple[str, ...] = ("gpu-node",)) -> Report:
    below = [one for name in bases for one in base(name)]
    return diagnose(Snapshot.of(copy.deepcopy(merged([*below, *objects])), taken=TAKEN), strict=True)


def ids(found: Report) -> list[str]:
    return [one.id for one in found.findings]


def node(*conditions: dict[str, Any], created: str = BEFORE) -> dict[str, Any]:
    ready = [] if any(one["type"] == "Ready" for one in conditions) else [{"type": "Ready", "status": "True"}]
    metadata = {"name": "gpu-1", "creationTimestamp": created}
    return {"kind": "Node", "metadata": metadata, "status": {"conditions": [*ready, *conditions]}}


def pod(state: dict[str, Any], *, since: str, phase: str = "Running", init: bool = False) -> dict[str, Any]:
    """The plugin's, made long ago."""
    status = {"name": "plugin", "ready": False, "restartCount": 1, "state": state}
    ready = {"type": "Ready", "status": "False", "lastTransitionTime": since}
    found = {
        "kind": "Pod",
        "metadata": {"name": "plugin-a", "namespace": "gpu-operator", "creationTimestamp": BEFORE},
        "status": {"phase": phase, "conditions": [ready], "containerStatuses": [] if init else [status]},
    }
    if init:
        found["spec"] = {"initContainers": [{"name": "plugin", "image": "i"}]}
        found["status"] |= {"initContainerStatuses": [status]}  # type: ignore[operator]
    return found


def warning(reason: str) -> dict[str, Any]:
    about = {"kind": "Pod", "name": "plugin-a", "namespace": "gpu-operator"}
    metadata = {"name": reason, "namespace": "gpu-operator"}
    return {"kind": "Event", "metadata": metadata, "type": "Warning", "reason": reason, "message": "m",
            "involvedObject": about, "lastTimestamp": LATELY}  # fmt: skip


@pytest.mark.parametrize(
    ("state", "phase", "init"),
    [({"running": {"startedAt": "SINCE"}}, "Pending", True), ({"running": {"startedAt": "SINCE"}}, "Running", False),
     ({"waiting": {"reason": "ContainerCreating"}}, "Pending", False),
     ({"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": "SINCE"}}, "Running", False)],
)  # fmt: skip
def test_the_age_is_that_of_the_state(state: dict[str, Any], phase: str, init: bool) -> None:
    """An old pod after its node's boot, or after its container's restart."""

    def found(since: str) -> list[str]:
        kind, said = next(iter(state.items()))
        now = {kind: {key: since if one == "SINCE" else one for key, one in said.items()}}
        return ids(report(pod(now, since=since, phase=phase, init=init), warning("Unhealthy")))

    assert found(NOW) == []
    assert found(BEFORE) == ["OPR-00"]


@pytest.mark.parametrize("name", ["GPUDriverInstalled", "NvidiaFabricManagerRunning", "AcceleratedNetworking"])
def test_what_is_well_by_true_is_no_fault(name: str) -> None:
    assert ids(report(node({"type": name, "status": "True"}))) == []


@pytest.mark.parametrize("name", ["GPUMissing", "NVLinkStatusInactive", "UnhealthyNvidiaDevicePlugin", "XIDErrors"])
def test_a_fault_by_true_is_told(name: str) -> None:
    assert ids(report(node({"type": name, "status": "True"}))) == ["NODE-00"]


def test_a_node_that_joins_is_waited_for() -> None:
    found = report(node(AWAY | {"status": "False"}, created=NOW))
    assert [(one.id, one.level) for one in found.findings] == [("NODE-00", Level.WAIT)]


def test_a_node_that_is_away_is_told_once() -> None:
    state = {"running": {"startedAt": BEFORE}}
    assert ids(report(node(AWAY), pod(state, since=BEFORE), warning("NodeNotReady"))) == ["NODE-00"]


def facts(code: int) -> dict[str, Any]:
    xid = {"code": code, "pci": "0000:61:00", "action": "reboot", "advice": "reboot"}
    line = f"NVRM: Xid (PCI:0000:61:00): {code}, pid=1"
    return {"kind": "HostFacts", "metadata": {"name": "gpu-1"}, "kernelLog": [line], "xids": [xid]}


def test_an_error_of_a_gpu_does_not_hide_that_the_node_is_away() -> None:
    assert set(ids(report(node(AWAY), facts(79)))) == {"HW-01", "NODE-00"}


AGENT = {
    "kind": "Pod", "metadata": {"name": "agent-a", "namespace": "g", "labels": {"app": "kgpu-agent"}},
    "spec": {"nodeName": "gpu-1", "containers": [{"name": "agent", "image": "i"}]},
    "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
}  # fmt: skip


@pytest.mark.parametrize(
    ("times", "agents", "over"),
    [({"lastHeartbeatTime": LATELY}, [AGENT], True), ({"lastHeartbeatTime": LATELY}, [], False),
     ({"lastHeartbeatTime": BEFORE}, [AGENT], False), ({"lastTransitionTime": LATELY}, [AGENT], True)],
)  # fmt: skip
def test_only_an_agent_that_lives_says_what_is_over(times: dict[str, str], agents: list[Any], over: bool) -> None:
    well = {"type": names.GPUS_HEALTHY_CONDITION, "status": "True", **times}
    assert ids(report(node(well), facts(79), *agents)) == ([] if over else ["HW-01"])


def test_what_is_said_now_was_said_within_three_heartbeats() -> None:
    assert FRESH_SECONDS == 3 * HEARTBEAT_SECONDS


def test_a_name_that_begins_alike_hides_nothing() -> None:
    """A Job whose pods are refused, beside another one's pod with trouble of its own."""
    template = {"spec": {"containers": [{"name": "c", "image": "x", "resources": {"limits": {"nvidia.com/gpu": 1}}}]}}
    job = {"kind": "Job", "metadata": {"name": "train-v2", "namespace": "ml"}, "spec": {"template": template}}
    waits = {
        "name": "main",
        "ready": False,
        "state": {"waiting": {"reason": "ImagePullBackOff", "message": "x: not found"}},
    }
    other = {"kind": "Pod", "metadata": {"name": "train", "namespace": "ml"},
             "status": {"phase": "Pending", "conditions": [], "containerStatuses": [waits]}}  # fmt: skip
    refused = {"kind": "Event", "metadata": {"name": "e", "namespace": "ml"}, "type": "Warning", "reason": "FailedCreate",
               "message": 'Error creating: pods "train-v2-x" is forbidden: violates a policy', "lastTimestamp": LATELY,
               "involvedObject": {"kind": "Job", "name": "train-v2", "namespace": "ml"}}  # fmt: skip
    found = ids(report(job, refused, other, bases=("gpu-node", "running")))
    assert "QTA-00" in found
    assert len(found) == 2
