"""What is told where no other rule tells anything: not of what began a moment ago, and not hidden by what is near."""

from __future__ import annotations

import copy
import datetime as dt
from typing import Any

import pytest

from kgpu.doctor.agent_reports import FRESH_SECONDS
from kgpu.doctor.model import CERTAIN, Level, Report
from kgpu.doctor.plan import diagnose
from kgpu.doctor.snapshot import Snapshot
from kgpu.formats import names
from kgpu.health.run import HEARTBEAT_SECONDS
from tests.doctor.example import base, merged

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


MIGHTY = {"containers": [{"name": "agent", "image": "i", "securityContext": {"privileged": True}}]}


def read(spec: dict[str, Any]) -> dict[str, Any]:
    """An agent's pod as the API server has it."""
    return {**AGENT, "metadata": {**AGENT["metadata"], "uid": "u"}, "spec": {**AGENT["spec"], **spec}}


@pytest.mark.parametrize(
    ("times", "agents", "over"),
    [({"lastHeartbeatTime": LATELY}, [AGENT], True), ({"lastHeartbeatTime": LATELY}, [], False),
     ({"lastHeartbeatTime": BEFORE}, [AGENT], False), ({"lastTransitionTime": LATELY}, [AGENT], True),
     ({"lastHeartbeatTime": LATELY}, [read(MIGHTY)], True), ({"lastHeartbeatTime": LATELY}, [read({})], False)],
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


def fetching(minutes: int, *lines: str, accelerators: bool = True) -> list[dict[str, Any]]:
    """A pod whose init container has run for that long, and what it has written."""
    began = dt.datetime.fromtimestamp(TAKEN - 60 * minutes, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    status = {"name": "fetch", "ready": False, "restartCount": 0, "state": {"running": {"startedAt": began}}}
    asked = {"limits": {"nvidia.com/gpu": "1"}} if accelerators else {}
    found: list[dict[str, Any]] = [{
        "kind": "Pod", "metadata": {"name": "serve", "namespace": "ml", "creationTimestamp": began},
        "spec": {"nodeName": "gpu-1", "initContainers": [{"name": "fetch", "image": "fetcher"}],
                 "containers": [{"name": "main", "image": "server", "resources": asked}]},
        "status": {"phase": "Pending", "startTime": began, "initContainerStatuses": [status],
                   "conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": began}]},
    }]  # fmt: skip
    if lines:
        found.append(
            {
                "kind": "PodLog",
                "metadata": {"name": "serve", "namespace": "ml"},
                "container": "fetch",
                "lines": list(lines),
            }
        )
    return found


WAITS = ("waiting for minio:9000 (1)", "waiting for minio:9000 (2)", "waiting for minio:9000 (3)")


@pytest.mark.parametrize(
    ("minutes", "lines", "level"),
    [
        (5, WAITS, None),
        (15, (), Level.WAIT),
        (15, WAITS, Level.WAIT),
        (15, ("Cloning into '/data'...",), Level.WAIT),
        (15, ("2026-01-01T11:30:00Z connecting",), Level.WAIT),
        (90, WAITS, Level.PROBLEM),
        (90, (), Level.PROBLEM),
    ],
)
def test_an_init_container_that_does_not_end_is_told(minutes: int, lines: tuple[str, ...], level: Level | None) -> None:
    found = report(*fetching(minutes, *lines)).findings
    assert [(one.id, one.level) for one in found] == ([("POD-00", level)] if level else [])
    for one in found:
        assert f"for {minutes} minutes" in one.cause
        assert one.confidence < 1
        assert ("again and again" in one.cause) == (lines == WAITS)
        assert not lines or lines[-1] in one.cause
        assert ("an hour" in one.expected) == (one.level is Level.WAIT)


@pytest.mark.parametrize(
    "lines",
    [
        ("model.safetensors:  12%|#   | 1.2G/10G", "model.safetensors:  13%|#   | 1.3G/10G"),
        ("Downloaded 40 MB / 100 MB",),
        ("2026-01-01T11:58:10Z shard 3 of 30", "2026-01-01T11:59:00Z verifying shard 3"),
    ],
)
@pytest.mark.parametrize("minutes", [15, 90])
def test_an_init_container_that_works_is_left_alone(minutes: int, lines: tuple[str, ...]) -> None:
    assert report(*fetching(minutes, *lines)).findings == ()


def test_a_download_that_stands_still_is_told() -> None:
    assert ids(report(*fetching(15, *["model:  12%|#   | 1.2G/10G"] * 4))) == ["POD-00"]


def pinned(node: str, minutes: int = 10, **status: Any) -> dict[str, Any]:
    began = dt.datetime.fromtimestamp(TAKEN - 60 * minutes, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "kind": "Pod", "metadata": {"name": "train", "namespace": "ml", "creationTimestamp": began},
        "spec": {"nodeName": node, "containers": [{"name": "main", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
        "status": {"phase": "Pending", **status},
    }  # fmt: skip


def test_a_pod_on_a_node_that_there_is_not() -> None:
    (found,) = report(pinned("gpu-11")).findings
    assert found.id == "POD-00"
    assert "its spec.nodeName is gpu-11, and there is no such node (is gpu-1 meant?)" in found.cause
    assert "take nodeName out" in found.remedy[0]
    assert found.evidence[0].field == "spec.nodeName"


def test_where_not_all_nodes_were_given_a_pod_may_be_on_another() -> None:
    other = pinned("cpu-7", phase="Running", conditions=[{"type": "Ready", "status": "True"}])
    other["metadata"]["name"] = "other"
    assert all("no such node" not in one.cause for one in report(pinned("gpu-11"), other).findings)


def test_a_pod_whose_node_has_gone_a_moment_ago_is_left_alone() -> None:
    assert report(pinned("gpu-11", minutes=1)).findings == ()
    began = {"state": {"running": {"startedAt": LATELY}}, "name": "main", "ready": False, "restartCount": 0}
    assert report(pinned("gpu-11", containerStatuses=[began])).findings == ()


def job(**status: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    return {
        "kind": "Job", "metadata": {"name": "tune", "namespace": "ml", "uid": "j"},
        "spec": {"parallelism": 1, "template": {"spec": {"containers": [container]}}}, "status": status,
    }  # fmt: skip


def refusal(message: str, when: str = LATELY) -> dict[str, Any]:
    return {"kind": "Event", "metadata": {"name": "r", "namespace": "ml"}, "type": "Warning", "reason": "FailedCreate",
            "message": f'Error creating: pods "tune-" is forbidden: {message}', "lastTimestamp": when,
            "involvedObject": {"kind": "Job", "namespace": "ml", "name": "tune"}}  # fmt: skip


@pytest.mark.parametrize(("since", "level"), [("2026-01-01T11:40:00Z", Level.PROBLEM), (BEFORE, Level.NOTE)])
def test_a_refusal_before_a_pod_was_made_explains_no_failure(since: str, level: Level) -> None:
    failed = {
        "type": "Failed",
        "status": "True",
        "reason": "BackoffLimitExceeded",
        "message": "m",
        "lastTransitionTime": since,
    }
    made = pinned("gpu-1", minutes=30, phase="Failed", containerStatuses=[
        {"name": "main", "ready": False, "restartCount": 0, "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}])  # fmt: skip
    made["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "tune", "controller": True}]
    early = refusal("failed quota: q: must specify limits.memory for: main", "2026-01-01T11:20:00Z")
    said = {
        "kind": "PodLog",
        "metadata": {"name": "train", "namespace": "ml"},
        "container": "main",
        "lines": ["bad data"],
    }
    (found,) = report(job(failed=1, conditions=[failed]), made, early, said).findings
    assert (found.id, found.level) == ("POD-00", level)
    assert "has failed" in found.cause
    assert "BackoffLimitExceeded" in found.cause
    assert 'it said last: "bad data"' in found.cause


@pytest.mark.parametrize(
    ("message", "step"),
    [
        ("failed quota: team: must specify limits.memory,requests.cpu for: main", "put limits.memory,requests.cpu into the resources of every container"),
        ('error looking up service account ml/robot: serviceaccount "robot" not found', "kubectl -n ml create serviceaccount robot"),
        ("no PriorityClass with name urgent was found", "make urgent, or name in its template's priorityClassName one of"),
        ('admission webhook "pods.example.com" denied the request: no team', "as the webhook pods.example.com wants it"),
        ("something new", "get resourcequota,limitrange"),
    ],
)  # fmt: skip
def test_what_to_do_about_a_refusal_follows_its_words(message: str, step: str) -> None:
    (found,) = report(job(), refusal(message)).findings
    assert found.id == "QTA-00"
    assert step in "\n".join(found.remedy)


def test_a_failing_driver_is_told_with_its_last_words() -> None:
    state = {"waiting": {"reason": "CrashLoopBackOff"}}
    driver = pod(state, since=BEFORE)
    driver["metadata"] |= {"name": "driver-a", "labels": {"app": "nvidia-driver-daemonset"}}
    driver["spec"] = {"nodeName": "gpu-1", "containers": [{"name": "plugin", "image": "nvcr.io/nvidia/driver:570"}]}
    said = {
        "kind": "PodLog",
        "metadata": {"name": "driver-a", "namespace": "gpu-operator"},
        "container": "plugin",
        "previous": True,
        "lines": ["a new error"],
    }
    found = next(one for one in report(driver, said).findings if one.id == "DRV-02")
    assert 'it said last: "a new error"' in found.cause


def test_a_device_config_that_is_not_valid_is_told_at_once_and_certainly() -> None:
    """Whatever else is wrong: who waits for it waits in vain."""
    condition = {"type": "Ready", "status": "False", "reason": "Error", "message": "x", "lastTransitionTime": NOW}
    error = {**condition, "type": "Error", "status": "True", "reason": "ValidationError"}
    config = {
        "kind": "DeviceConfig", "metadata": {"name": "amd-gpus", "namespace": "kube-amd-gpu"},
        "spec": {}, "status": {"conditions": [condition, error]},
    }  # fmt: skip
    (found,) = [one for one in report(config, bases=("amd",)).findings if one.id == "OBJ-00"]
    assert (found.level, found.confidence, found.expected) == (Level.PROBLEM, CERTAIN, "")
    assert found.remedy[0] == "kubectl -n kube-amd-gpu edit deviceconfig amd-gpus"
    waits = {**config, "status": {"conditions": [{**condition, "reason": "NotReady"}]}}
    (found,) = [one for one in report(waits, bases=("amd",)).findings if one.id == "OBJ-00"]
    assert found.level is Level.WAIT


ERROR = [
    "started",
    'kgpu: KGPU_VENDORS has "intl"',
    "  expected: nvidia, amd, gaudi or intel",
    "  to do: correct it",
    "",
]


def operator(restarts: int, *, app: str = "gpu-operator") -> dict[str, Any]:
    """An operator's pod that ends soon after each start."""
    last = {"terminated": {"exitCode": 2, "reason": "Error", "finishedAt": NOW}}
    state = {
        "name": "main",
        "ready": False,
        "restartCount": restarts,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
    }
    labels = {"app": app, "app.kubernetes.io/name": "kgpu"}
    return {
        "kind": "Pod",
        "metadata": {"name": "op-a", "namespace": "gpu-operator", "labels": labels, "creationTimestamp": LATELY},
        "spec": {"nodeName": "gpu-1", "containers": [{"name": "main", "image": "kgpu", "args": ["operator", "run"]}]},
        "status": {
            "phase": "Running", "startTime": LATELY, "containerStatuses": [{**state, "lastState": last}],
            "conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": LATELY}],
        },
    }  # fmt: skip


def test_an_operator_that_ends_again_is_told_with_the_whole_of_what_it_said() -> None:
    """Unlike its operands it waits for nothing."""
    log = {
        "kind": "PodLog",
        "metadata": {"namespace": "gpu-operator", "name": "op-a"},
        "container": "main",
        "previous": True,
        "lines": ERROR,
    }
    (found,) = report(operator(2), log).findings
    assert found.id == "OPR-00"
    said = 'kgpu: KGPU_VENDORS has "intl"; expected: nvidia, amd, gaudi or intel; to do: correct it'
    assert f'it said last: "{said}"' in found.cause
    assert not report(operator(1), log).findings, "the API server may have been away"
