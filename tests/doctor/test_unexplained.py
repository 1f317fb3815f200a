"""A pod that does not run and of which no rule knows why is told all the same."""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.doctor.model import LIKELY, Level, Missing
from kgpu.doctor.plan import diagnose
from kgpu.doctor.snapshot import Snapshot
from tests.doctor.small import EARLY, LATE, NOW, READY, container, ended, found, node, plugin, pod, report, told, waits

RUNS = {"running": {"startedAt": EARLY}}
GATES = {
    "type": "Ready",
    "status": "False",
    "reason": "ReadinessGatesNotReady",
    "message": "no lb",
    "lastTransitionTime": EARLY,
}
CLAIM = {
    "resourceClaims": [{"name": "g", "resourceClaimTemplateName": "t"}],
    "containers": [{"name": "main", "image": "i"}],
}


@pytest.mark.parametrize(
    ("unready", "words"),
    [
        (pod(conditions=[GATES], seen=[container(ready=True, state=RUNS)]), "ReadinessGatesNotReady: no lb"),
        (pod(seen=None), "Ready is False"),
        (pod(seen=None, conditions=[]), "neither by a condition nor otherwise its kubelet has said why"),
        (pod(seen=[container(state={"waiting": {"reason": "PostStartHookError", "message": "hook"}})]), "PostStartHookError; hook"),
        (pod(phase="Pending", seen=[container(state={"waiting": {"reason": "ImageInspectError", "message": "no space"}})]),
         "container main: ImageInspectError; no space"),
        (pod(phase="Pending", seen=[container(state={"waiting": {"reason": "SignatureValidationFailed", "message": "bad"}})]),
         "container main: SignatureValidationFailed; bad"),
    ],
    ids=["gates", "no-statuses", "no-conditions", "hook", "inspect", "signature"],
)  # fmt: skip
def test_what_stands_for_hours_is_a_problem(unready: dict[str, Any], words: str) -> None:
    (one,) = found(unready)
    assert (one.id, one.level, one.pods) == ("POD-00", Level.PROBLEM, ("ml/train",))
    assert words in one.cause
    assert one.evidence
    assert one.remedy


def test_a_young_one_that_stands_oddly_is_a_note() -> None:
    odd = container(state={"waiting": {"reason": "PostStartHookError", "message": "hook"}})
    (one,) = found(pod(created=NOW, seen=[odd]))
    assert (one.id, one.level) == ("POD-00", Level.NOTE)
    assert "container main: PostStartHookError: hook" in one.cause


@pytest.mark.parametrize(
    "young",
    [pod(created=NOW, seen=None), pod(created=NOW, phase="Pending", seen=[container(state={"waiting": {"reason": "ContainerCreating"}})]),
     pod(created="2026-01-01T11:40:00Z", seen=[container(state={"running": {"startedAt": "2026-01-01T11:40:00Z"}})]),
     pod(conditions=[GATES | {"lastTransitionTime": "2026-01-01T11:40:00Z"}], seen=[container(
         restartCount=1, lastState=ended(0), state={"running": {"startedAt": "2026-01-01T11:40:00Z"}})]),
     waits(created=NOW)],
    ids=["no-statuses", "creating", "loads-its-model", "loads-it-again", "no-node-yet"],
)  # fmt: skip
def test_what_starts_in_an_ordinary_way_is_counted_alone(young: dict[str, Any]) -> None:
    whole = report(node(), plugin(), young)
    assert whole.findings == ()
    assert whole.stuck == 1


def test_a_node_without_gpus_that_is_away_is_named() -> None:
    away = node("virtual", have=None, labels={})
    away["status"]["conditions"] = [READY | {"status": "Unknown", "lastTransitionTime": LATE}]
    seen = [container(ready=True, state=RUNS)]
    lost = pod(on="virtual", seen=seen, conditions=[{"type": "Ready", "status": "False", "lastTransitionTime": LATE}])
    (one,) = found(away, lost)
    assert "its node is not Ready" in one.cause
    assert one.remedy[0] == "kubectl describe node virtual"
    assert any(each.object == "Node virtual" for each in one.evidence)


def test_a_node_with_gpus_that_is_away_is_told_once() -> None:
    away = node("gpu-2")
    away["status"]["conditions"] = [READY | {"status": "Unknown"}]
    assert told(away, pod(on="gpu-2", seen=None)) == [("NODE-00", Level.PROBLEM)]


def test_pods_of_one_owner_are_told_together() -> None:
    owner = {"ownerReferences": [{"kind": "ReplicaSet", "name": "serve", "controller": True}]}
    (one,) = found(*(pod(f"serve-{number}", seen=None, metadata=owner) for number in range(3)))
    assert one.pods == ("ml/serve-0", "ml/serve-1", "ml/serve-2")
    assert "and 2 more of ReplicaSet/serve" in one.cause


def test_so_many_that_each_can_not_be_told_alone_are_all_named() -> None:
    whole = report(node(), plugin(), *(pod(f"p{number}", seen=None) for number in range(250)))
    assert len(whole.findings) == 201
    assert len({name for one in whole.findings for name in one.pods}) == 250


def test_where_no_nodes_are_known_the_report_says_so_itself() -> None:
    gap = Missing("why pods are Pending: ml/train", "no nodes")
    found = diagnose(Snapshot.of([waits()], missing=[gap], listed=("Pod",)), strict=True)
    assert found.findings == ()
    assert found.exit_code == 2


SCHEDULER = {
    "kind": "Pod", "metadata": {"name": "kube-scheduler-m", "namespace": "kube-system", "uid": "s"},
    "spec": {"nodeName": "m", "containers": [{"name": "kube-scheduler", "image": "i", "command": ["kube-scheduler"]}]},
    "status": {"phase": "Running", "conditions": [READY | {"status": "False"}],
               "containerStatuses": [container("kube-scheduler", state={"waiting": {"reason": "CrashLoopBackOff"}})]},
}  # fmt: skip
PLACED = {"type": "PodScheduled", "status": "True"}


def test_a_scheduler_that_is_down_is_told_once_with_its_own_state() -> None:
    (one,) = found(SCHEDULER, *(waits(f"train-{number}") for number in range(3)))
    assert (one.id, one.level, one.confidence) == ("SCH-15", Level.PROBLEM, LIKELY)
    assert one.pods == ("ml/train-0", "ml/train-1", "ml/train-2")
    assert "for 360 minutes" in one.cause
    assert "Pod kube-system/kube-scheduler-m is not ready" in one.cause
    assert any("CrashLoopBackOff" in each.value for each in one.evidence)


@pytest.mark.parametrize("spec", [None, CLAIM], ids=["gpu", "claim"])
def test_a_scheduler_that_nobody_sees_may_be_silent_too(spec: Any) -> None:
    (one,) = found(waits(spec=spec))
    assert one.id == "SCH-15"
    assert "not ready" not in one.cause


def test_what_no_node_takes_is_told_as_such() -> None:
    assert [one.id for one in found(SCHEDULER, waits(gpus=99))] == ["SCH-00"]


def test_a_scheduler_that_has_placed_others_since_is_not_silent() -> None:
    after = pod("web", gpus=0, conditions=[READY, PLACED | {"lastTransitionTime": LATE}])
    (one,) = found(waits(), after)
    assert (one.id, one.level) == ("SCH-00", Level.PROBLEM)
    assert "neither by a condition nor otherwise a scheduler has said why" in one.cause


def test_a_word_of_the_scheduler_that_says_nothing_is_quoted() -> None:
    said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": EARLY}
    (one,) = found(waits(conditions=[said]))
    assert (one.id, one.level) == ("SCH-00", Level.PROBLEM)
    assert "PodScheduled is False (Unschedulable)" in one.cause


SLICED = node(labels={
    "nvidia.com/gpu.present": "true", "nvidia.com/mig.strategy": "single", "nvidia.com/gpu.count": "1",
    "nvidia.com/gpu.product": "NVIDIA-A100-MIG-1g.10gb",
})  # fmt: skip
BY_COUNT = {"nodeName": "gpu-1", "nodeSelector": {"nvidia.com/gpu.count": "1"}}


@pytest.mark.parametrize(("created", "ids"), [(EARLY, ["POD-00", "SCH-10"]), (NOW, ["SCH-10"])], ids=["old", "young"])
def test_a_note_explains_no_pod_that_has_stood_for_long(created: str, ids: list[str]) -> None:
    """That it chose its node by a count of slices is no reason why it does not run."""
    stuck = pod(created=created, conditions=[], spec=BY_COUNT)
    assert [one.id for one in report(SLICED, plugin(), stuck).findings] == ids


def operand(app: str, **more: Any) -> dict[str, Any]:
    metadata = {"namespace": "gpu-operator", "labels": {"app": app}}
    containers = {"containers": [{"name": "main", "image": f"registry/{app}:1"}]}
    return pod(app, gpus=0, metadata=metadata, spec=containers, **more)


BROKEN = container(state={"waiting": {"reason": "CrashLoopBackOff"}}, lastState=ended(1), restartCount=9)
INITIALISES = {
    "initContainerStatuses": [container("first", state=RUNS, started=True)],
    "containerStatuses": [container(state={"waiting": {"reason": "PodInitializing"}})],
    "phase": "Pending",
}


def test_a_part_that_is_unready_beside_another_fault_of_its_node_is_told() -> None:
    gated = operand("nvidia-dcgm-exporter", conditions=[GATES], seen=[container(ready=True, state=RUNS)])
    whole = report(node(), operand("nvidia-driver-daemonset", seen=[BROKEN]), gated)
    assert {one.subject.name for one in whole.findings} >= {"nvidia-driver-daemonset", "nvidia-dcgm-exporter"}


def test_a_part_that_waits_for_another_is_told_under_it() -> None:
    waiting = operand("nvidia-operator-validator", **INITIALISES)
    waiting["spec"]["initContainers"] = [{"name": "first", "image": "i"}]
    whole = report(node(), operand("nvidia-container-toolkit-daemonset", seen=[BROKEN]), waiting)
    (root,) = (one for one in whole.findings if one.subject.name == "nvidia-container-toolkit-daemonset")
    assert [one.subject.name for one in root.consequences] == ["nvidia-operator-validator"]
