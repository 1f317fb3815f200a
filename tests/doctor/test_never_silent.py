"""Over random clusters nothing that needs somebody is passed over: each unwell pod with accelerators, each GPU node
that should offer and does not, each operand that is not well is told, and "nothing is wrong" is so.

What is unwell is judged here from the objects as they were drawn, not by anything of the doctor's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kgpu.doctor.model import Finding, Level, Report
from kgpu.doctor.plan import diagnose
from kgpu.doctor.render import as_text
from kgpu.doctor.rule import Rule
from kgpu.doctor.rules import all_rules
from kgpu.doctor.snapshot import Snapshot
from tests.budget import tries

TAKEN = 1767268800.0  # 2026-01-01T12:00:00Z
BEFORE = "2025-12-30T12:00:00Z"
GPU = "nvidia.com/gpu"
LISTED = ("Node", "Pod", "DaemonSet", "Job", "Event", "ClusterPolicy", "ResourceClaim", "ResourceSlice", "DeviceClass")
NODES = ("gpu-1", "gpu-2", "cpu-1")

WAITING = (
    "ContainerCreating", "PodInitializing", "CrashLoopBackOff", "ImagePullBackOff", "ErrImagePull", "InvalidImageName",
    "CreateContainerConfigError", "CreateContainerError", "RunContainerError", "SomethingNew", "PostStartHookError",
    "ImageInspectError", "SignatureValidationFailed",
)  # fmt: skip
FAILED = (
    "UnexpectedAdmissionError", "OutOfnvidia.com/gpu", "OutOfcpu", "NodeAffinity", "Evicted", "DeadlineExceeded",
    "NodeLost", "Preempting", "TopologyAffinityError", "SomethingNew", "",
)  # fmt: skip
ENDS = ("Error", "OOMKilled", "ContainerCannotRun", "StartError")
OPERANDS = (
    ("nvidia-device-plugin-daemonset", "nvidia-device-plugin"),
    ("nvidia-driver-daemonset", "nvidia-driver-ctr"),
    ("nvidia-container-toolkit-daemonset", "nvidia-container-toolkit-ctr"),
    ("gpu-feature-discovery", "gpu-feature-discovery"),
    ("nvidia-dcgm-exporter", "nvidia-dcgm-exporter"),
    ("nvidia-operator-validator", "nvidia-operator-validator"),
    ("gpu-operator", "gpu-operator"),
)


HOST_FOLDER = [{"name": "folder", "hostPath": {"path": "/run/nvidia"}}]
"""By which a pod is believed to be a part of the stack."""
SAID = (
    ("Unhealthy", "Readiness probe failed: HTTP probe failed with statuscode: 503", "Warning"),
    ("BackOff", "Back-off restarting failed container main in pod x", "Warning"),
    ("FailedScheduling", "0/3 nodes are available: 3 cannot allocate all claims.", "Warning"),
    ("FailedMount", 'MountVolume.SetUp failed for volume "data": configmap "data" not found', "Warning"),
    ("FailedKillPod", "error killing pod: context deadline exceeded", "Warning"),
    ("UnexpectedAdmissionError", "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices", "Warning"),
    ("FailedCreatePodSandBox", 'failed to get sandbox runtime: no runtime for "nvidia" is configured', "Warning"),
    ("SomethingNew", "nobody has seen this before", "Warning"),
    ("Pulled", "Container image is already present on machine", "Normal"),
)  # fmt: skip
LINES = (
    "step 100 loss 2.5", "torch.cuda.OutOfMemoryError: CUDA out of memory.", "sh: 1: nvidia-smi: not found",
    "Failed to initialize NVML: Unknown Error", "No devices found. Waiting indefinitely.", "panic: nobody knows",
    "waiting for the driver", "",
)  # fmt: skip


@st.composite
def nodes(draw: st.DrawFn, name: str) -> dict[str, Any]:
    """A node; ``silent`` in its annotations when it has GPUs by its labels and offers none."""
    signs = ({}, {"nvidia.com/gpu.present": "true"}, {"feature.node.kubernetes.io/pci-10de.present": "true"},
             {"cloud.google.com/gke-accelerator": "nvidia-l4"}, {"nvidia.com/gpu.product": "NVIDIA-L4"})  # fmt: skip
    labels = draw(st.sampled_from(signs)) if name.startswith("gpu") else {}
    offered = draw(st.sampled_from(("8", "0", None))) if name.startswith("gpu") else None
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110"} | ({GPU: offered} if offered is not None else {})
    ready = draw(st.sampled_from(("True", "True", "True", "False", "Unknown")))
    condition = {"type": "Ready", "status": ready, "lastTransitionTime": BEFORE, "reason": "x", "message": "m"}
    taints = draw(st.sampled_from(((), (), ({"key": GPU, "effect": "NoSchedule", "value": "present"},))))
    return {
        "kind": "Node",
        "metadata": {"name": name, "uid": name, "creationTimestamp": BEFORE, "labels": {"kubernetes.io/os": "linux", **labels}},
        "spec": {"taints": list(taints)},
        "status": {"conditions": [condition], "allocatable": amounts, "capacity": dict(amounts)},
    }  # fmt: skip


def _container(name: str, gpus: bool) -> dict[str, Any]:
    return {"name": name, "image": f"registry/{name}:1", "resources": {"limits": {GPU: "1"} if gpus else {}}}


def _ended(reason: str, code: int) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "startedAt": BEFORE, "finishedAt": BEFORE}}


@st.composite
def states(draw: st.DrawFn, name: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """How a pod is, by a word; more of its spec, and its status."""
    kind = draw(
        st.sampled_from(
            (
                "well", "done", "unscheduled", "gated", "unheard", "starting", "crashing", "unready", "refused", "failed",
                "init", "gates", "sidecar", "quiet",
            )
        )
    )  # fmt: skip
    seen: dict[str, Any] = {"name": name, "ready": False, "restartCount": 0, "image": "i", "imageID": ""}
    unready = {"type": "Ready", "status": "False", "lastTransitionTime": BEFORE}
    placed = {"type": "PodScheduled", "status": "True", "lastTransitionTime": BEFORE}
    conditions = [placed, unready]
    status: dict[str, Any] = {"startTime": BEFORE, "phase": "Pending"}
    spec: dict[str, Any] = {"nodeName": draw(st.sampled_from(NODES))}
    if kind in {"well", "unready"}:
        seen |= {"ready": kind == "well", "started": True, "state": {"running": {"startedAt": BEFORE}}}
        conditions = [placed, {**unready, "status": "True"} if kind == "well" else unready]
        status |= {"phase": "Running"}
    elif kind == "done":
        seen |= {"state": _ended("Completed", 0)}
        status |= {"phase": "Succeeded"}
    elif kind == "unheard":
        return kind, {}, {"phase": "Pending"}
    elif kind in {"unscheduled", "gated"}:
        spec = {"schedulingGates": [{"name": "example.com/gate"}]} if kind == "gated" else {}
        reason = "SchedulingGated" if kind == "gated" else "Unschedulable"
        conditions = [{**placed, "status": "False", "reason": reason, "message": "0/3 nodes are available: words."}]
        return kind, spec, {"phase": "Pending", "conditions": conditions}
    elif kind == "starting":
        seen |= {"state": {"waiting": {"reason": draw(st.sampled_from(WAITING)), "message": "some words"}}}
    elif kind == "crashing":
        seen |= {
            "restartCount": draw(st.integers(1, 50)), "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "m"}},
            "lastState": _ended(draw(st.sampled_from(ENDS)), draw(st.sampled_from((1, 2, 127, 137, 139)))),
        }  # fmt: skip
        status |= {"phase": "Running"}
    elif kind == "quiet":
        return (
            kind,
            spec,
            {**status, "phase": "Running", "conditions": draw(st.sampled_from(([], [unready], conditions)))},
        )
    elif kind == "gates":
        seen |= {"ready": True, "started": True, "state": {"running": {"startedAt": BEFORE}}}
        conditions = [placed, {**unready, "reason": "ReadinessGatesNotReady"}]
        status |= {"phase": "Running"}
    elif kind == "sidecar":
        beside = {**seen, "name": "beside", "state": {"running": {"startedAt": BEFORE}}, "started": draw(st.booleans())}
        spec["initContainers"] = [_container("beside", gpus=False) | {"restartPolicy": "Always"}]
        seen |= {"ready": True, "started": True, "state": {"running": {"startedAt": BEFORE}}}
        status |= {"phase": "Running", "initContainerStatuses": [beside]}
    elif kind == "init":
        first = {**seen, "name": "first", "state": {"running": {"startedAt": BEFORE}}, "started": True}
        spec["initContainers"] = [_container("first", gpus=False)]
        status |= {"initContainerStatuses": [first]}
        seen |= {"state": {"waiting": {"reason": "PodInitializing"}}}
    else:
        reason = draw(st.sampled_from(FAILED if kind == "refused" else ("",)))
        status |= (
            {"phase": "Failed", "reason": reason, "message": "some words"} if kind == "refused" else {"phase": "Failed"}
        )
        seen |= {"state": _ended(draw(st.sampled_from(ENDS)), 1)}
        if kind == "refused":
            return kind, spec, {**status, "conditions": conditions}
    return kind, spec, {**status, "conditions": conditions, "containerStatuses": [seen]}


@st.composite
def pods(draw: st.DrawFn, number: int) -> dict[str, Any]:
    """A pod with a GPU, or one of an operand."""
    operand = draw(st.sampled_from((*(None for _ in OPERANDS), *OPERANDS)))  # half are work with GPUs
    app, name = operand or ("train", "main")
    kind, spec, status = draw(states(name))
    owner = {
        "kind": "DaemonSet" if operand else "Job",
        "name": f"{app}-of-{number}",
        "uid": app,
        "controller": True,
        "apiVersion": "apps/v1",
    }
    metadata = {
        "name": f"{app}-{number}", "namespace": "gpu-operator" if operand else "ml", "uid": f"p{number}",
        "creationTimestamp": BEFORE, "labels": {"app": app}, "annotations": {"drawn": kind},
        **({"ownerReferences": [owner]} if draw(st.booleans()) else {}),
    }  # fmt: skip
    if draw(st.sampled_from((False, False, False, False, True))):
        metadata |= {"deletionTimestamp": BEFORE, "deletionGracePeriodSeconds": 30}
    claims = operand is None and draw(st.sampled_from((False, False, True)))
    made = {"containers": [_container(name, gpus=operand is None and not claims)], **spec}
    if operand is not None:  # by which it is believed to be a part of the stack
        made["volumes"] = HOST_FOLDER
    if claims:
        made |= {"resourceClaims": [{"name": "g", "resourceClaimTemplateName": "t"}]}
    return {"kind": "Pod", "metadata": metadata, "spec": made, "status": status}


def _claim_of(pod: dict[str, Any], allocated: bool) -> dict[str, Any]:
    """The claim that was made for a pod of its template."""
    name = f"{pod['metadata']['name']}-g-x7k2p"
    pod["status"]["resourceClaimStatuses"] = [{"name": "g", "resourceClaimName": name}]
    request = {
        "name": "gpu",
        "exactly": {"deviceClassName": "gpu.nvidia.com", "allocationMode": "ExactCount", "count": 1},
    }
    device = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "gpu-1", "device": "gpu-0"}
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    return {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": pod["metadata"]["namespace"], "uid": name, "creationTimestamp": BEFORE,
                     "ownerReferences": [{**owner, "controller": True}]},
        "spec": {"devices": {"requests": [request]}},
        "status": {"allocation": {"devices": {"results": [device]}}} if allocated else {},
    }  # fmt: skip


@st.composite
def events(draw: st.DrawFn, pod: dict[str, Any], number: int) -> dict[str, Any]:
    """What somebody says of a pod, whether it fits how the pod is or not."""
    reason, message, kind = draw(st.sampled_from(SAID))
    about = {"kind": "Pod", "namespace": pod["metadata"]["namespace"], "name": pod["metadata"]["name"],
             "uid": pod["metadata"]["uid"]}  # fmt: skip
    when = draw(st.sampled_from((BEFORE, "2026-01-01T11:59:00Z")))
    return {
        "kind": "Event", "metadata": {"name": f"e{number}", "namespace": about["namespace"]}, "involvedObject": about,
        "reason": reason, "message": message, "type": kind, "count": draw(st.integers(1, 900)), "lastTimestamp": when,
        "source": {"component": draw(st.sampled_from(("kubelet", "default-scheduler", "somebody")))},
    }  # fmt: skip


@st.composite
def daemon_sets(draw: st.DrawFn, pods: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that the operands' pods are of, and one of which nobody has seen a pod."""
    owners = {}
    for pod in pods:
        owner = next(iter(pod["metadata"].get("ownerReferences", ())), {})
        if owner.get("kind") == "DaemonSet":
            ready = pod["metadata"]["annotations"]["drawn"] == "well"
            owners[owner["name"]] = (pod["metadata"]["labels"]["app"], pod["spec"], 1, 1, int(ready))
    if draw(st.booleans()):
        app, name = draw(st.sampled_from(OPERANDS[:-1]))
        wanted = draw(st.integers(0, 2))
        made = draw(st.integers(0, wanted))  # none of which anybody has seen
        owners["of-nobody"] = (
            app,
            {"containers": [_container(name, gpus=False)], "volumes": HOST_FOLDER},
            wanted,
            made,
            0,
        )
    return [
        {
            "kind": "DaemonSet",
            "metadata": {"name": name, "namespace": "gpu-operator", "uid": name, "creationTimestamp": BEFORE,
                         "annotations": {"drawn": "missing" if name == "of-nobody" and wanted else "as its pods"}},
            "spec": {"selector": {"matchLabels": {"app": app}},
                     "template": {"metadata": {"labels": {"app": app}},
                                  "spec": {key: spec[key] for key in ("containers", "volumes") if key in spec}}},
            "status": {"desiredNumberScheduled": wanted, "currentNumberScheduled": made,
                       "numberReady": ready, "numberUnavailable": wanted - ready, "observedGeneration": 1},
        }
        for name, (app, spec, wanted, made, ready) in owners.items()
    ]  # fmt: skip


@st.composite
def jobs(draw: st.DrawFn, number: int) -> dict[str, Any]:
    """A Job of which no pod is there: put off, failed, done, or never begun."""
    kind = draw(st.sampled_from(("suspended", "lost", "done")))
    since = {"status": "True", "lastTransitionTime": BEFORE}
    conditions = {
        "suspended": [{**since, "type": "Suspended", "reason": "JobSuspended", "message": "Job suspended"}],
        "lost": [
            {**since, "type": "Failed", "reason": draw(st.sampled_from(("BackoffLimitExceeded", "DeadlineExceeded")))}
        ],
        "done": [{**since, "type": "Complete"}],
    }[kind]
    return {
        "kind": "Job",
        "metadata": {"name": f"job-{number}", "namespace": "ml", "uid": f"j{number}", "creationTimestamp": BEFORE,
                     "annotations": {"drawn": kind}},
        "spec": {"suspend": kind == "suspended",
                 "template": {"spec": {"containers": [_container("main", gpus=True)], "restartPolicy": "Never"}}},
        "status": {"conditions": conditions, "failed": int(kind == "lost"), "succeeded": int(kind == "done")},
    }  # fmt: skip


@st.composite
def clusters(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Nodes and pods, and often what else there is of them: claims, Events, logs, DaemonSets, Jobs, the policy."""
    found = [draw(nodes(name)) for name in NODES]
    drawn = [draw(pods(number)) for number in range(draw(st.integers(0, 5)))]
    found += drawn
    if draw(st.booleans()):
        return found
    for number, pod in enumerate(drawn):
        if "resourceClaims" in pod["spec"] and draw(st.booleans()):
            found.append(_claim_of(pod, allocated="nodeName" in pod["spec"] or draw(st.booleans())))
        if draw(st.booleans()):
            found.append(draw(events(pod, number)))
        if draw(st.booleans()):
            container = pod["spec"]["containers"][0]["name"]
            place = {key: pod["metadata"][key] for key in ("name", "namespace")}
            lines = draw(st.lists(st.sampled_from(LINES), max_size=3))
            found.append({"kind": "PodLog", "metadata": place, "container": container, "lines": lines})
    found += draw(daemon_sets(drawn))
    found += [draw(jobs(number)) for number in range(draw(st.integers(0, 2)))]
    if draw(st.booleans()):
        state = draw(st.sampled_from(("ready", "notReady", "")))
        policy = {"name": "cluster-policy", "uid": "policy", "creationTimestamp": BEFORE}
        found.append({"kind": "ClusterPolicy", "metadata": policy, "spec": {}, "status": {"state": state}})
    return found


GATED = {"kind": "Job", "metadata": {"name": "later", "namespace": "ml", "uid": "j", "creationTimestamp": BEFORE}, "spec": {
    "suspend": True, "template": {"spec": {"containers": [_container("main", gpus=True)]}}}}  # fmt: skip
OLD_RELEASE = {
    "kind": "Pod", "metadata": {"name": "gpu-operator-old", "namespace": "gpu-operator", "uid": "o", "creationTimestamp": BEFORE,
                                "labels": {"app": "gpu-operator"}, "annotations": {"drawn": "well"}},
    "spec": {"nodeName": "cpu-1", "containers": [{"name": "gpu-operator", "image": "nvcr.io/nvidia/gpu-operator:v24.6.0"}]},
    "status": {"phase": "Running", "startTime": BEFORE, "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": BEFORE}]},
}  # fmt: skip
BY_HAND = {
    "kind": "DaemonSet", "metadata": {"name": "nvidia-device-plugin-daemonset", "namespace": "gpu-operator", "annotations": {
        "nvidia.com/last-applied-hash": "1", "kubectl.kubernetes.io/last-applied-configuration": "{}"}},
    "spec": {"template": {"metadata": {"labels": {"app": "nvidia-device-plugin-daemonset"}}, "spec": {"containers": [
        {"name": "p", "image": "nvcr.io/nvidia/k8s-device-plugin:v0.18.0"}]}}}, "status": {"desiredNumberScheduled": 1},
}  # fmt: skip
TOLERATES = {"tolerations": [{"key": GPU, "operator": "Exists"}]}


@st.composite
def noted_clusters(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Clusters with objects and fields of which there is a note, also on pods that are not well."""
    objects = draw(clusters())
    for one in objects:
        operand = one["metadata"].get("namespace") == "gpu-operator"
        if one["kind"] == "Pod" and operand and draw(st.booleans()):
            one["spec"]["containers"][0]["image"] = "nvcr.io/nvidia/gpu-operator:v24.6.0"
        elif one["kind"] == "Pod" and draw(st.booleans()):
            one["spec"] |= TOLERATES
            one["spec"]["nodeSelector"] = {"nvidia.com/gpu.count": "1"}
        elif one["kind"] == "Node" and one["metadata"]["labels"] and draw(st.booleans()):
            one["metadata"]["labels"] |= {
                "nvidia.com/mig.strategy": "single", "nvidia.com/gpu.count": "1", "nvidia.com/gpu.product": "A-MIG-1g.10gb",
            }  # fmt: skip
    return objects + [one for one in (GATED, OLD_RELEASE, BY_HAND) if draw(st.booleans())]


def without_notes() -> list[Rule]:
    """The rules, as if none told anything that is a note."""
    return [replace(rule, check=_serious(rule)) for rule in all_rules()]


def _serious(rule: Rule) -> Any:
    def check(snapshot: Snapshot) -> Iterator[Finding]:
        return (one for one in rule.check(snapshot) if one.level is not Level.NOTE)

    return check


def told(report: Report) -> tuple[list[Finding], set[str]]:
    """Everything that is told, and whom it names: nodes by name, pods by ``namespace/name``."""
    every = [one for root in report.findings for one in root.all()]
    named = {name for one in every for name in (*one.nodes, *one.pods)}
    named |= {f"{one.subject.namespace}/{one.subject.name}".lstrip("/") for one in every}
    return every, named | {row.node for one in every for row in one.table}


def well(pod: dict[str, Any]) -> bool:
    """Whether nobody has to look at it: it runs, or has done its work, and is not being deleted for two days.

    A program that was started and has failed is its author's, as long as an owner may make it anew.
    """
    drawn = pod["metadata"]["annotations"]["drawn"]
    ends = [
        one.get("state", {}).get("terminated", {}).get("reason") for one in pod["status"].get("containerStatuses", ())
    ]
    if drawn == "done" or (drawn in {"refused", "failed"} and "deletionTimestamp" in pod["metadata"]):
        return True  # it holds nothing any more
    return "deletionTimestamp" not in pod["metadata"] and (
        drawn in {"well", "done"}
        or (drawn == "failed" and "ownerReferences" in pod["metadata"] and ends[0] in {"Error", "OOMKilled"})
    )


def away(objects: list[dict[str, Any]]) -> set[str]:
    """The nodes that are not Ready: what is told of one is told of the pods on it."""
    found = (one for one in objects if one["kind"] == "Node")
    return {one["metadata"]["name"] for one in found if one["status"]["conditions"][0]["status"] != "True"}


@tries(300)
@given(objects=clusters())
def test_no_pod_that_is_not_well_is_passed_over(objects: list[dict[str, Any]]) -> None:
    report = diagnose(Snapshot.of(objects, taken=TAKEN, listed=LISTED), strict=True)
    _, named = told(report)
    for pod in (one for one in objects if one["kind"] == "Pod" and not well(one)):
        path = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        on = pod["spec"].get("nodeName")
        by_node = on in named and on in away(objects)
        assert path in named or by_node, f"{path} is {pod['metadata']['annotations']['drawn']}"


@tries(300)
@given(objects=clusters())
def test_no_workload_that_does_not_run_is_passed_over(objects: list[dict[str, Any]]) -> None:
    """Jobs that are put off or have failed, and DaemonSets of the stack that want pods of which none is ready."""
    _, named = told(diagnose(Snapshot.of(objects, taken=TAKEN, listed=LISTED), strict=True))
    for one in (one for one in objects if one["kind"] in {"Job", "DaemonSet"}):
        if one["metadata"]["annotations"]["drawn"] in {"suspended", "lost", "missing"}:
            assert f"{one['metadata']['namespace']}/{one['metadata']['name']}" in named


@tries(300)
@given(objects=clusters())
def test_what_counts_as_stuck_is_told(objects: list[dict[str, Any]]) -> None:
    """By whoever counts: all drawn pods are of two days ago, so that none may still be starting."""
    report = diagnose(Snapshot.of(objects, taken=TAKEN, listed=LISTED), strict=True)
    every, named = told(report)
    assert bool(every) or not report.stuck
    for pod in (one for one in objects if one["kind"] == "Pod" and one["metadata"]["namespace"] == "ml"):
        conditions = pod["status"].get("conditions", ())
        ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
        if not ready and pod["status"]["phase"] in {"Pending", "Running"}:
            on = pod["spec"].get("nodeName")
            assert f"ml/{pod['metadata']['name']}" in named or (on in named and on in away(objects))


@tries(300)
@given(objects=clusters())
def test_no_gpu_node_that_offers_nothing_is_passed_over(objects: list[dict[str, Any]]) -> None:
    report = diagnose(Snapshot.of(objects, taken=TAKEN, listed=LISTED), strict=True)
    _, named = told(report)
    for node in (one for one in objects if one["kind"] == "Node"):
        has_gpus = len(node["metadata"]["labels"]) > 1
        ready = node["status"]["conditions"][0]["status"] == "True"
        offers = node["status"]["allocatable"].get(GPU, "0") != "0"
        if (has_gpus and not offers) or (has_gpus and not ready):
            assert node["metadata"]["name"] in named


@tries(100)
@given(objects=clusters())
def test_what_is_well_is_left_alone(objects: list[dict[str, Any]]) -> None:
    """No finding names a pod that runs, unless its node or a neighbour has something."""
    calm = [one for one in objects if one["kind"] == "Node"]
    for node in calm:
        node["status"]["conditions"][0]["status"] = "True"
        node["spec"]["taints"] = []
        if len(node["metadata"]["labels"]) > 1:
            node["status"]["allocatable"][GPU] = node["status"]["capacity"][GPU] = "8"
        elif GPU in node["status"]["allocatable"]:
            del node["status"]["allocatable"][GPU], node["status"]["capacity"][GPU]
    drawn = [one for one in objects if one["kind"] == "Pod" and one["metadata"].get("namespace") == "ml" and well(one)]
    running = [one for one in drawn if one["metadata"]["annotations"]["drawn"] != "failed"]
    for pod in running:
        pod["spec"]["nodeName"] = "gpu-1"
        calm[0]["metadata"]["labels"]["nvidia.com/gpu.present"] = "true"
        calm[0]["status"]["allocatable"][GPU] = calm[0]["status"]["capacity"][GPU] = "8"
    report = diagnose(Snapshot.of([*calm, *running], taken=TAKEN), strict=True)
    problems = [one for one in told(report)[0] if one.level == "problem"]
    assert [(one.id, one.cause) for one in problems if one.subject.kind == "Pod"] == []


def serious(report: Report) -> set[tuple[str, str, str]]:
    """All that is told and is no note, roots and what follows from them."""
    return {(one.id, str(one.subject), one.cause) for one in told(report)[0] if one.level is not Level.NOTE}


@tries(300)
@given(objects=noted_clusters())
def test_a_note_suppresses_no_finding(objects: list[dict[str, Any]]) -> None:
    """Whatever would be told if there were no notes is told beside them."""
    alone = diagnose(Snapshot.of(objects, taken=TAKEN, listed=LISTED), rules=without_notes(), strict=True)
    beside = diagnose(Snapshot.of(objects, taken=TAKEN, listed=LISTED), strict=True)
    assert serious(alone) - serious(beside) == set()


def unwell(objects: list[dict[str, Any]]) -> list[str]:
    """The pods that are not well, and the GPU nodes that are not Ready or offer nothing though a plugin is there.

    A node with GPUs in a cluster without any device plugin is as somebody wanted it, as far as can be seen.
    """
    drawn = [one for one in objects if one["kind"] == "Pod"]
    installed = any(one["metadata"]["labels"].get("app") == "nvidia-device-plugin-daemonset" for one in drawn if "labels" in one["metadata"])  # fmt: skip
    found = [one["metadata"]["name"] for one in drawn if not well(one)]
    for node in (one for one in objects if one["kind"] == "Node" and len(one["metadata"]["labels"]) > 1):
        ready = node["status"]["conditions"][0]["status"] == "True"
        offers = node["status"]["allocatable"].get(GPU, "0") != "0"
        if not ready or (installed and not offers):
            found.append(node["metadata"]["name"])
    return found


@tries(300)
@given(objects=noted_clusters())
def test_nothing_is_wrong_is_said_only_where_all_is_well(objects: list[dict[str, Any]]) -> None:
    report = diagnose(Snapshot.of(objects, taken=TAKEN, listed=LISTED), strict=True)
    if "Nothing is wrong" in as_text(report):
        assert report.real == ()
        assert report.stuck == 0
        assert unwell(objects) == []
    else:
        assert report.real
