"""A pod's way, step by step: what was seen of it decides, and no step is called done that nothing shows."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.doctor.kinds import Pod
from kgpu.doctor.model import Report, StepState, TraceStep
from kgpu.doctor.render import as_text
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.trace import trace
from tests.doctor.small import EARLY, GPU, LATE, NOW, TAKEN, container, ended, node, pod

DONE, WAITS, FAILED = StepState.DONE, StepState.WAITS, StepState.FAILED
NONE, UNKNOWN, LATER = StepState.NOT_ASKED, StepState.UNKNOWN, StepState.LATER
RUNS = {"running": {"startedAt": EARLY}}
PLACED = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T06:00:03Z"}
UNPLACED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available"}
NAMES = ["admitted", "scheduled", "allocated", "devices injected", "started", "computing"]


def waiting(reason: str, **more: Any) -> dict[str, Any]:
    return container(state={"waiting": {"reason": reason}}, **more)


def warned(reason: str, message: str, when: str = NOW) -> dict[str, Any]:
    about = {"kind": "Pod", "namespace": "ml", "name": "train", "uid": "ml-train"}
    return {"kind": "Event", "metadata": {"name": f"e-{reason}", "namespace": "ml"}, "type": "Warning", "reason": reason,
            "involvedObject": about, "message": message, "lastTimestamp": when, "firstTimestamp": when}  # fmt: skip


def log(*lines: str) -> dict[str, Any]:
    return {
        "kind": "PodLog",
        "metadata": {"namespace": "ml", "name": "train"},
        "container": "main",
        "lines": list(lines),
    }


def steps(*objects: dict[str, Any], listed: tuple[str, ...] = ("Node", "Pod")) -> tuple[TraceStep, ...]:
    snapshot = Snapshot.of(copy.deepcopy((node(), *objects)), taken=TAKEN, listed=listed)
    found = snapshot.get("Pod", "train", "ml")
    assert isinstance(found, Pod)
    return trace(snapshot, found)


UNMADE = warned("FailedCreatePodSandBox", "failed to inject CDI devices: unresolvable")
CASES: dict[str, tuple[tuple[dict[str, Any], ...], list[StepState]]] = {
    "held by a gate": (
        (pod(on="", phase="Pending", spec={"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}),),
        [WAITS, LATER, LATER, LATER, LATER, LATER],
    ),
    "no node": ((pod(on="", phase="Pending", conditions=[UNPLACED]),), [DONE, WAITS, LATER, LATER, LATER, LATER]),
    "refused by the kubelet": (
        (pod(phase="Failed", reason="UnexpectedAdmissionError", message="Allocate failed"),),
        [DONE, DONE, FAILED, LATER, LATER, LATER],
    ),
    "not yet seen by the kubelet": ((pod(phase="Pending"),), [DONE, DONE, WAITS, LATER, LATER, LATER]),
    "being made": (
        (pod(phase="Pending", seen=[waiting("ContainerCreating")]),), [DONE, DONE, DONE, WAITS, LATER, LATER],
    ),
    "a device that is not there": (
        (pod(phase="Pending", seen=[waiting("ContainerCreating")]), UNMADE), [DONE, DONE, DONE, FAILED, LATER, LATER],
    ),
    "a warning of long ago": (
        (pod(phase="Pending", seen=[waiting("ContainerCreating")]), warned("FailedMount", "timed out", EARLY)),
        [DONE, DONE, DONE, WAITS, LATER, LATER],
    ),
    "the engine fails": (
        (pod(phase="Pending", seen=[waiting("RunContainerError")]),), [DONE, DONE, DONE, FAILED, LATER, LATER],
    ),
    "its program was never run": (
        (pod(phase="Failed", seen=[container(state=ended(128, reason="StartError"))]),),
        [DONE, DONE, DONE, FAILED, LATER, LATER],
    ),
    "its program crashes": (
        (pod(seen=[waiting("CrashLoopBackOff", lastState=ended(139), restartCount=4)]),),
        [DONE, DONE, DONE, DONE, FAILED, LATER],
    ),
    "an init container runs": (
        (
            pod(
                phase="Pending", seen=[waiting("PodInitializing")], spec={"initContainers": [{"name": "fetch", "image": "i"}]},
                initContainerStatuses=[container("fetch", state=RUNS)],
            ),
        ),
        [DONE, DONE, DONE, WAITS, LATER, LATER],
    ),
    "it runs and says nothing": ((pod(seen=[container(state=RUNS)]),), [DONE, DONE, DONE, DONE, DONE, UNKNOWN]),
    "it works": (
        (pod(seen=[container(state=RUNS)]), log("step 10 %", "step 11 %", "step 12 %")), [DONE, DONE, DONE, DONE, DONE, DONE],
    ),
    "it says the same again and again": (
        (pod(seen=[container(state=RUNS)]), log(*["waiting for rank 1"] * 6)), [DONE, DONE, DONE, DONE, DONE, WAITS],
    ),
    "it is done": (
        (pod(phase="Succeeded", seen=[container(state=ended(0, reason="Completed"))]),), [DONE] * 6,
    ),
    "no accelerator": ((pod(gpus=0, seen=[container(state=RUNS)]),), [DONE, DONE, NONE, NONE, DONE, UNKNOWN]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_each_step_is_what_was_seen_of_it(name: str) -> None:
    objects, expected = CASES[name]
    found = steps(*objects)
    assert [step.name for step in found] == NAMES
    assert [step.state for step in found] == expected
    assert all(step.said or step.state is LATER for step in found)


def test_the_proof_stands_with_each_step() -> None:
    found = {
        step.name: step
        for step in steps(pod(seen=[container(state=RUNS)], conditions=[PLACED]), log("epoch 1", f"{LATE} epoch 2"))
    }
    assert [one.field for one in found["admitted"].evidence][1] == f"spec.containers[0].resources.limits[{GPU}]"
    assert found["admitted"].said.endswith(f"1 {GPU}")
    assert found["scheduled"].said == "on node gpu-1, 3 s after it was made"
    assert f"status.allocatable[{GPU}]" in [one.field for one in found["scheduled"].evidence]
    assert found["started"].evidence[0].value == f"running since {EARLY}"
    assert "kgpu top" in found["allocated"].said


def test_devices_are_named_by_the_kubelets_own_file() -> None:
    checkpoint = (
        '{"Data": {"PodDeviceEntries": [{"PodUID": "ml-train", "ContainerName": "main", "ResourceName": "nvidia.com/gpu", '
        '"DeviceIDs": {"0": ["GPU-1"]}}, {"PodUID": "other", "ContainerName": "main", "ResourceName": "nvidia.com/gpu", '
        '"DeviceIDs": {"0": ["GPU-2"]}}], "RegisteredDevices": {}}}'
    )
    path = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
    host = {"kind": "HostFacts", "node": "gpu-1", "files": {path: {"text": checkpoint}}}
    found = steps(pod(seen=[container(state=RUNS)]), host)[2]
    assert found.said == "it was given GPU-1"
    assert found.evidence[0].file == path


def test_devices_of_a_claim_are_its_allocation() -> None:
    asks = {
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "one"}],
        "containers": [{"name": "main", "image": "i", "resources": {"claims": [{"name": "gpu"}]}}],
    }
    request = {"name": "r", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    claim: dict[str, Any] = {
        "kind": "ResourceClaim",
        "metadata": {"name": "one", "namespace": "ml"},
        "spec": {"devices": {"requests": [request]}},
    }
    waits = steps(pod(phase="Pending", spec=asks, gpus=0), claim)[2]
    assert (waits.state, waits.said) == (WAITS, "the claim gpu has no device yet")
    given_ = {
        **claim,
        "status": {
            "allocation": {"devices": {"results": [{"pool": "gpu-1", "device": "gpu-3", "driver": "gpu.nvidia.com"}]}}
        },
    }
    has = steps(pod(phase="Pending", spec=asks, gpus=0, seen=[waiting("ContainerCreating")]), given_)[2]
    assert (has.state, has.said) == (DONE, "it was given gpu-1/gpu-3")


def test_it_is_printed_above_the_report_and_is_in_the_data() -> None:
    report = Report(scope="Pod ml/train", trace=steps(pod(seen=[container(state=RUNS)])), looked={"nodes": 1})
    lines = as_text(report, 80).splitlines()
    assert lines[0] == "Pod ml/train, step by step:"
    assert [line.split()[1] for line in lines if line[:3].strip().isdigit()] == [name.split()[0] for name in NAMES]
    assert max(map(len, lines)) <= 80
    assert [row["step"] for row in report.data()["trace"]] == NAMES
    assert "trace" not in Report(scope="Pod ml/train").data()


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "state", "waiting", "reason", "devices"]), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(spec=st.dictionaries(st.sampled_from(["containers", "initContainers", "resourceClaims", "schedulingGates", "nodeName"]), ANYTHING),
       status=st.dictionaries(st.sampled_from(["phase", "reason", "containerStatuses", "conditions", "resourceClaimStatuses"]), ANYTHING))  # fmt: skip
def test_a_pod_of_any_shape_has_six_steps(spec: dict[str, Any], status: dict[str, Any]) -> None:
    found = steps({"kind": "Pod", "metadata": {"name": "train", "namespace": "ml"}, "spec": spec, "status": status})
    assert [step.name for step in found] == NAMES
