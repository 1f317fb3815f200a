"""What real reports have taught: notes that hide nothing, pods and nodes that nobody told of, and words read for what they are.

Each test states a rule of how Kubernetes or a program behaves; none is a report.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kgpu.cli.doctor import xids_in
from kgpu.doctor import hami, matching
from kgpu.doctor.model import Level
from kgpu.doctor.plan import diagnose
from kgpu.doctor.snapshot import Snapshot
from kgpu.formats.gpu_report import ReportedGpu
from kgpu.formats.xid.action import Action
from kgpu.formats.xid.catalogue import guidance
from tests.doctor.gpu_words import saying

_NOON = 1767268800.0  # 2026-01-01T12:00:00Z
_MORNING = "2026-01-01T08:00:00Z"
_GPU: dict[str, Any] = {"limits": {"nvidia.com/gpu": 1}, "requests": {"nvidia.com/gpu": 1}}


def _node(name: str = "g", *, labels: dict[str, str] | None = None, gpus: str = "8", **info: str) -> dict[str, Any]:
    amounts = {"cpu": "8", "memory": "64Gi", "pods": "110"} | ({"nvidia.com/gpu": gpus} if gpus else {})
    return {
        "kind": "Node", "metadata": {"name": name, "labels": labels or {}, "creationTimestamp": _MORNING}, "spec": {},
        "status": {
            "capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": {"kubeletVersion": "v1.35.1", "containerRuntimeVersion": "containerd://2.1.4"} | info,
        },
    }  # fmt: skip


def _pod(name: str, namespace: str = "ml", *, status: dict[str, Any], node: str = "g", **more: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace, "creationTimestamp": _MORNING} | more.pop("metadata", {})
    spec = {"containers": [{"name": "main", "image": "i", "resources": _GPU}], "nodeName": node} | more
    return {"kind": "Pod", "metadata": metadata, "spec": spec, "status": {"startTime": _MORNING} | status}


def _running(*, ready: bool = True) -> dict[str, Any]:
    return {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": str(ready), "lastTransitionTime": _MORNING}],
        "containerStatuses": [{"name": "main", "ready": ready, "restartCount": 0, "state": {"running": {"startedAt": _MORNING}}}],
    }  # fmt: skip


def _plugin(**more: Any) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": "nvcr.io/nvidia/k8s-device-plugin:v0.18.0",
        "command": ["nvidia-device-plugin"],
    }
    return _pod("plugin", "gpu", status=_running(), containers=[container], **more)


def _found(*objects: dict[str, Any]) -> list[tuple[str, Level]]:
    report = diagnose(Snapshot.of(list(objects), taken=_NOON), strict=True)
    return [(one.id, one.level) for one in report.findings]


def _refused(name: str, owner: str = "s", reason: str = "UnexpectedAdmissionError") -> dict[str, Any]:
    owners = [{"kind": "ReplicaSet", "name": owner, "controller": True}]
    message = "Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate unhealthy devices nvidia.com/gpu"
    status = {"phase": "Failed", "reason": reason, "message": message}
    return _pod(name, status=status, metadata={"ownerReferences": owners})


@pytest.mark.parametrize("reason", ["UnexpectedAdmissionError", "OutOfnvidia.com/gpu"])
def test_refused_pods_whose_work_is_done_by_others_are_a_note(reason: str) -> None:
    owners = [{"kind": "ReplicaSet", "name": "s", "controller": True}]
    later = {"ownerReferences": owners, "creationTimestamp": "2026-01-01T08:01:00Z"}
    replaced = _pod("s-2", status=_running(), metadata=later)
    assert _found(_node(), _plugin(), _refused("s-1", reason=reason), replaced) == [("DPL-11", Level.NOTE)]


def test_a_note_about_a_pod_hides_nothing_that_is_wrong_with_it() -> None:
    waiting = {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}
    status = {
        "phase": "Running", "conditions": [{"type": "Ready", "status": "False"}],
        "containerStatuses": [{
            "name": "main", "ready": False, "restartCount": 30, "state": {"waiting": waiting},
            "lastState": {"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": "2026-01-01T11:50:00Z"}},
        }],
    }  # fmt: skip
    container = {"name": "main", "image": "nvcr.io/nvidia/gpu-operator:v24.6.0", "command": ["gpu-operator"]}
    found = _found(_node(), _plugin(), _pod("operator", "gpu", status=status, containers=[container]))
    assert ("OPR-00", Level.PROBLEM) in found
    assert ("OPR-27", Level.NOTE) in found  # that its release is no longer supported


def test_a_pod_with_claims_that_the_scheduler_fails_on_is_told_in_the_scheduler_s_words() -> None:
    said = 'running Score plugins: plugin "DynamicResources" failed with: no score'
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": said,
        "lastTransitionTime": _MORNING,
    }
    pod = _pod(
        "w", status={"phase": "Pending", "conditions": [condition]}, node="", containers=[{"name": "main", "image": "i"}],
        resourceClaims=[{"name": "gpu", "resourceClaimName": "one"}],
    )  # fmt: skip
    claim = {
        "kind": "ResourceClaim", "metadata": {"name": "one", "namespace": "ml"}, "status": {},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 1}}]}},
    }  # fmt: skip
    report = diagnose(Snapshot.of([_node(), _plugin(), pod, claim], taken=_NOON), strict=True)
    assert report.findings
    assert any("DynamicResources" in evidence.value for one in report.findings for evidence in one.evidence)


def test_a_pod_that_runs_for_hours_and_is_never_ready_is_told() -> None:
    assert _found(_node(), _plugin(), _pod("serve", status=_running(ready=False))) == [("POD-00", Level.PROBLEM)]


def test_a_pod_that_loads_its_model_is_not() -> None:
    young = {"conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T11:40:00Z"}]}
    assert _found(_node(), _plugin(), _pod("serve", status=_running(ready=False) | young)) == []


def test_a_pod_that_does_not_go_is_told_with_its_finalizers() -> None:
    leaving = {"deletionTimestamp": "2026-01-01T11:00:00Z", "finalizers": ["example.com/wait"]}
    report = diagnose(
        Snapshot.of([_node(), _plugin(), _pod("old", status=_running(ready=False), metadata=leaving)], taken=_NOON),
        strict=True,
    )
    assert [one.id for one in report.findings] == ["POD-00"]
    assert "60 minutes ago; finalizers hold it: example.com/wait" in report.findings[0].cause


def test_a_suspended_job_for_gpus_is_a_note_and_another_is_nothing() -> None:
    def job(resources: dict[str, Any]) -> dict[str, Any]:
        template = {"spec": {"containers": [{"name": "m", "image": "i", "resources": resources}]}}
        return {
            "kind": "Job",
            "metadata": {"name": "t", "namespace": "ml"},
            "spec": {"suspend": True, "template": template},
        }

    assert _found(_node(), _plugin(), job(_GPU)) == [("JOB-00", Level.NOTE)]
    assert _found(_node(), _plugin(), job({})) == []


def test_a_mig_label_that_nobody_reads_is_told() -> None:
    labels = {"nvidia.com/mig.config": "all-1g.10gb", "nvidia.com/mig.capable": "true"}
    assert _found(_node(labels=labels), _plugin())[:1] == [("MIG-00", Level.PROBLEM)]
    manager = [{"name": "main", "image": "nvcr.io/nvidia/cloud-native/k8s-mig-manager:v0.12.1"}]
    assert "MIG-00" not in [
        one
        for one, _ in _found(_node(labels=labels), _plugin(), _pod("m", "gpu", status=_running(), containers=manager))
    ]


def test_a_plugin_that_is_ready_and_registers_nothing_is_told() -> None:
    labels = {"feature.node.kubernetes.io/pci-10de.present": "true"}
    assert _found(_node(labels=labels, gpus=""), _plugin()) == [("DPL-00", Level.PROBLEM)]


def test_a_gpu_node_in_a_cluster_without_a_plugin_is_a_note() -> None:
    labels = {"feature.node.kubernetes.io/pci-10de.present": "true"}
    other = _pod("web", "web", status=_running(), containers=[{"name": "main", "image": "web"}])
    assert _found(_node(labels=labels, gpus=""), other) == [("DPL-00", Level.NOTE)]


@pytest.mark.parametrize("device", ["pci-0300_8086", "pci-0300_1002"])
def test_graphics_of_a_processor_are_nothing_to_tell(device: str) -> None:
    labels = {f"feature.node.kubernetes.io/{device}.present": "true"}
    other = _pod("web", "web", status=_running(), containers=[{"name": "main", "image": "web"}])
    assert _found(_node(labels=labels, gpus=""), other) == []


def test_a_gpu_node_whose_devices_are_for_claims_or_for_machines_is_well() -> None:
    labels = {"feature.node.kubernetes.io/pci-10de.present": "true"}
    rows = {
        "kind": "ResourceSlice",
        "metadata": {"name": "s"},
        "spec": {"nodeName": "g", "driver": "gpu.nvidia.com", "pool": {"name": "g"}, "devices": []},
    }
    other = _pod("web", "web", status=_running(), containers=[{"name": "main", "image": "web"}])
    assert _found(_node(labels=labels, gpus=""), other, rows) == []
    assert _found(_node(labels=labels | {"nvidia.com/gpu.workload.config": "vm-passthrough"}, gpus=""), other) == []


@pytest.mark.parametrize(
    "labels",
    [
        {"cloud.google.com/gke-accelerator": "nvidia-tesla-t4"},
        {"k8s.amazonaws.com/accelerator": "nvidia-tesla-v100"},
        {"karpenter.k8s.aws/instance-gpu-manufacturer": "nvidia"},
        {"kubernetes.azure.com/accelerator": "nvidia"},
        {"extensions.talos.dev/nvidia-container-toolkit-lts": "535.247.01-v1.17.8"},
        {"node.kubernetes.io/instance-type": "p5.48xlarge"},
        {"node.kubernetes.io/instance-type": "g4dn.xlarge"},
        {"node.kubernetes.io/instance-type": "g6e.2xlarge"},
        {"node.kubernetes.io/instance-type": "a3-highgpu-8g"},
        {"node.kubernetes.io/instance-type": "Standard_NC24ads_A100_v4"},
    ],
)
def test_clouds_say_by_labels_that_a_node_has_gpus(labels: dict[str, str]) -> None:
    snapshot = Snapshot.of([_node(labels=labels, gpus="")])
    assert [node.name for node in matching.gpu_nodes(snapshot, matching.NVIDIA)] == ["g"]


@pytest.mark.parametrize(
    "kind", ["m5.large", "g4ad.xlarge", "e2-standard-4", "Standard_D4s_v5", "gpu.large", "k3s", "a1.large"]
)
def test_other_machines_have_none_by_their_type(kind: str) -> None:
    snapshot = Snapshot.of([_node(labels={"node.kubernetes.io/instance-type": kind}, gpus="")])
    assert matching.gpu_nodes(snapshot) == []


@pytest.mark.parametrize(
    ("said", "cards"),
    [
        ("GPU-a,10,15360,100,NVIDIA-T4,0,true:", 1),
        ("GPU-a,10,15360,100,NVIDIA-T4,0,true:GPU-b,10,15360,100,NVIDIA-T4,0,true", 2),
        ('[{"id":"GPU-a"},{"id":"GPU-b"},{"id":"GPU-c"}]', 3),
        ("[broken", None),
        ('{"id":"GPU-a"}', None),
        ("", None),
    ],
)
def test_cards_that_hami_has_registered(said: str, cards: int | None) -> None:
    snapshot = Snapshot.of([_node() | {"metadata": {"name": "g", "annotations": {hami.REGISTERED: said}}}])
    assert hami.cards(snapshot.nodes["g"]) == cards


def test_rke2_is_not_k3s_though_its_containerd_says_so() -> None:
    env = [{"name": "CONTAINERD_CONFIG", "value": "/var/lib/rancher/rke2/agent/etc/containerd/config.toml.tmpl"}]
    toolkit = {"name": "main", "image": "nvcr.io/nvidia/k8s/container-toolkit:v1.18.0", "env": env}
    refused = {
        "kind": "Event", "metadata": {"name": "e", "namespace": "ml"}, "type": "Warning", "reason": "FailedCreatePodSandBox",
        "message": 'no runtime for "nvidia" is configured', "involvedObject": {"kind": "Pod", "namespace": "ml", "name": "p"},
    }  # fmt: skip
    pod = _pod("p", status={"phase": "Pending", "conditions": [{"type": "Ready", "status": "False"}]})

    def ids(kubelet: str) -> list[str]:
        node = _node(kubeletVersion=kubelet, containerRuntimeVersion="containerd://2.0.5-k3s1")
        return [
            one
            for one, _ in _found(
                node, _plugin(), _pod("t", "gpu", status=_running(), containers=[toolkit]), pod, refused
            )
        ]

    assert "RUN-10" not in ids("v1.33.1+rke2r1")
    assert "RUN-10" in ids("v1.33.1+k3s1")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("manifest unknown", "DRV-08"),
        ("dial tcp 10.0.0.1:443: i/o timeout", "IMG-04"),
        ("unexpected status code 405", "IMG-04"),
        ("401 Unauthorized", "IMG-03"),
    ],
)
def test_a_pull_error_is_read_for_what_it_is(words: str, expected: str) -> None:
    image = "nvcr.io/nvidia/driver:570.86.15-talosv1.6.1"
    waiting = {"phase": "Pending", "conditions": [{"type": "Ready", "status": "False"}], "containerStatuses": [
        {"name": "main", "ready": False, "restartCount": 0, "state": {"waiting": {"reason": "ImagePullBackOff"}}}]}  # fmt: skip
    driver = _pod("driver", "gpu", status=waiting, containers=[{"name": "main", "image": image}])
    event = {
        "kind": "Event", "metadata": {"name": "e", "namespace": "gpu"}, "type": "Warning", "reason": "Failed",
        "message": f'Failed to pull image "{image}": {words}', "involvedObject": {"kind": "Pod", "namespace": "gpu", "name": "driver"},
    }  # fmt: skip
    assert _found(_node(), _plugin(), driver, event)[0][0] == expected


def test_what_an_agent_orders_is_quoted_and_never_offered() -> None:
    """Whoever has a node's token writes what he likes: of what is to be done he has the choice among kgpu's own words."""
    order = "kubectl delete namespace kube-system"
    gpu = ReportedGpu(uuid="GPU-aaaaaaaa-0000-0000-0000-000000000000", index=0, action=Action.RESET_GPU, facts=("xid:48",),
                      what=f"Xid 48, DBE; to do: {order}", evidence=(order,), remedy_key=guidance(48).key)  # fmt: skip
    for one in (
        gpu,
        msgspec.structs.replace(gpu, remedy_key=order),
        msgspec.structs.replace(gpu, remedy_key=f"check/{order}"),
    ):
        snapshot = Snapshot.of([saying(_node(), one), _plugin()], taken=_NOON).judged(xids_in)
        (found,) = diagnose(snapshot, strict=True).findings
        assert found.id == "HW-02"
        assert not any("delete" in step for step in found.remedy)
        assert (guidance(48).advice in found.remedy) is (one is gpu)


def test_what_an_event_says_empties_no_node_of_gpus_that_work() -> None:
    """Whoever may write Events in default could else have any node with a small verdict drained."""
    gpu = "GPU 0 (GPU-aaaaaaaa-0000-0000-0000-000000000000)"
    hot = ReportedGpu(
        uuid=gpu.partition("(")[2].rstrip(")"), index=0, action=Action.INSPECT, works=True, what="it is hot"
    )
    node = saying(_node(), hot, lastTransitionTime=_MORNING)
    event = {
        "kind": "Event", "metadata": {"name": "e", "namespace": "default"}, "type": "Warning", "reason": "GPUHot",
        "message": f"{gpu} is hot, because the evidence calls for: a look [GPU is lost (NVML error 15); UUID did not answer within 2 s]",
        "involvedObject": {"kind": "Node", "name": "g"}, "lastTimestamp": _MORNING,
    }  # fmt: skip
    report = diagnose(Snapshot.of([node, _plugin(), event], taken=_NOON).judged(xids_in), strict=True)
    steps = [step for root in report.findings for one in root.all() for step in one.remedy]
    assert not any("drain" in step or "cordon" in step for step in steps)
