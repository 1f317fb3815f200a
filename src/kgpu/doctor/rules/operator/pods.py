"""Rows OPR that pods and nodes show: what the operator's pods wait for, what is there twice or left paused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from kgpu.base.remedy import Remedy
from kgpu.doctor import matching, remedies
from kgpu.doctor.kinds import Pod
from kgpu.doctor.matching import DRIVER, GFD, NFD_MASTER, OPERATOR, PLUGIN, TOOLKIT, VALIDATOR
from kgpu.doctor.model import CERTAIN, POSSIBLE, Finding, Level, Place
from kgpu.doctor.rule import rule
from kgpu.doctor.snapshot import Snapshot
from kgpu.formats import names

_INSTALL: Final = 20 * 60.0
_PUBLIC: Final = re.compile(r"^(?:nvcr\.io|docker\.io|ghcr\.io|registry\.k8s\.io|gcr\.io|quay\.io)/")
_PATIENCE: Final = 20 * 60.0
_TESTS: Final = frozenset({"nvidia-cuda-validator", "nvidia-device-plugin-validator"})
_CLOUD: Final = re.compile(
    r"(?:gke\.gcr\.io|gke-release|nvidia-gpu-device-plugin|mcr\.microsoft\.com/|602401143452\.dkr\.ecr)"
)


@rule(
    "OPR-05",
    "The operator is killed for memory",
    Place.CLUSTER,
    explains=("IMG-06", "OPR-18", "SCH-02", "TNT-*"),
    rests_on=("NVIDIA GPU Operator documentation: troubleshooting, release notes",),
)
def out_of_memory(snapshot: Snapshot) -> Iterator[Finding]:
    """Its limit of 350Mi is not enough for some hundred nodes."""
    for pod in matching.pods_of_part(snapshot, OPERATOR):
        for container in pod.containers:
            if container.end_reason == "OOMKilled" and (not pod.ready or container.restarts > 1):
                yield Finding(
                    subject=pod.subject,
                    cause=(
                        f"{pod}, the operator, is killed for memory (limit {container.limits.get('memory', 'none')}, "
                        f"{len(snapshot.nodes)} nodes)"
                    ),
                    evidence=(container.cite_status("lastState"), container.cite("resources.limits")),
                    remedy=(remedies.helm_set("operator.resources.limits.memory=1400Mi"),),
                    confidence=CERTAIN,
                    pods=(pod.path,),
                )


@rule("OPR-07", "Still installing", Place.CLUSTER, explains=("DRV-03", "OPR-15", "DPL-18", "RUN-16"))
def still_installing(snapshot: Snapshot) -> Iterator[Finding]:
    """helm --wait has 5 minutes; the driver's build takes up to 10 and its startup probe allows 20."""
    # Just installed by Helm, and the driver takes longer to start than ``--wait`` waits.
    for policy in snapshot.all("ClusterPolicy"):
        age = snapshot.age(policy.created)
        if age is None or age > _INSTALL or policy.labels.get(names.MANAGED_BY_LABEL) != "Helm":
            continue
        pods = [
            pod
            for pod in matching.pods_of_part(snapshot, DRIVER, vendor=matching.NVIDIA)
            if not pod.ready and not matching.failing(pod)
        ]
        if pods:
            yield Finding(
                subject=policy.subject,
                cause=(
                    f"the operator was installed {int(age // 60)} minutes ago and still builds its driver on "
                    f"{len(pods)} nodes: helm install --wait gives up after 5 minutes, and nothing is wrong"
                ),
                evidence=(policy.cite("metadata.creationTimestamp"), pods[0].cite("status.phase")),
                remedy=(
                    Remedy(
                        "kubectl wait clusterpolicy/{} --for=jsonpath='{{.status.state}}'=ready --timeout=20m",
                        policy.name,
                    ),
                    Remedy("next time:"),
                    Remedy("helm install --wait --timeout 20m"),
                ),
                confidence=CERTAIN,
                level=Level.WAIT,
                expected="3 to 10 minutes for the driver's build, 20 at most",
                nodes=tuple(dict.fromkeys(pod.node for pod in pods if pod.node)),
                pods=tuple(pod.path for pod in pods),
            )


@rule(
    "OPR-09",
    "One operand is not from the mirror",
    Place.CLUSTER,
    explains=("IMG-*", "DRV-02", "DRV-07", "DPL-*", "OPR-15", "SCH-02"),
    rests_on=("NVIDIA GPU Operator documentation: troubleshooting, release notes",),
)
def not_mirrored(snapshot: Snapshot) -> Iterator[Finding]:
    """Each component of the ClusterPolicy has a repository of its own."""
    parts = (DRIVER, TOOLKIT, PLUGIN, GFD, VALIDATOR, matching.EXPORTER, matching.DCGM, matching.MIG_MANAGER, OPERATOR)
    pods = {pod.key: pod for part in parts for pod in matching.pods_of_part(snapshot, part)}
    stuck = [(pod, bad) for pod in pods.values() if not pod.ready and (bad := matching.failing(pod))]
    stuck = [row for row in stuck if row[1].waiting in matching.IMAGE_WORDS and _PUBLIC.match(row[1].image)]
    if not stuck:
        return
    own = [
        container
        for pod in pods.values()
        if pod.ready
        for container in pod.containers
        if "/" in container.image and not _PUBLIC.match(container.image) and "." in container.image.split("/")[0]
    ]
    public = [
        pod
        for pod in pods.values()
        if pod.ready and any(_PUBLIC.match(container.image) for container in pod.containers)
    ]
    for pod, bad in stuck if own and not public else ():
        yield Finding(
            subject=pod.subject,
            cause=(
                f"{pod} takes its image from {bad.image.split('/')[0]}, while the rest of the stack comes from "
                f"{own[0].image.split('/')[0]}: one repository was not set"
            ),
            evidence=(bad.cite("image"), bad.cite_status(), own[0].cite("image")),
            remedy=(
                Remedy(
                    "set repository of every component: driver, driver.manager, toolkit, devicePlugin, gfd, dcgm, "
                    "dcgmExporter, migManager, validator, nodeStatusExporter"
                ),
            ),
            confidence=CERTAIN,
            nodes=(pod.node,) if pod.node else (),
            pods=(pod.path,),
        )


@rule(
    "OPR-13",
    "No GPU node",
    Place.CLUSTER,
    rests_on=("NVIDIA/gpu-operator v26.7.0, source",),
)
def no_gpu_nodes(snapshot: Snapshot) -> Iterator[Finding]:
    """With driver and toolkit off, on a laptop, only the operator and feature discovery run; all DaemonSets want 0
    pods.
    """
    if matching.gpu_nodes(snapshot) or not snapshot.nodes:
        return
    for policy in snapshot.all("ClusterPolicy"):
        condition = next((condition for condition in policy.conditions() if condition.reason == "NoGPUNodes"), None)
        if condition is not None:
            yield Finding(
                subject=policy.subject,
                cause=(
                    f"no node of this cluster has a GPU: {policy} has nothing to do, "
                    "and only the operator and feature discovery run"
                ),
                evidence=(condition.cite(), policy.cite("status.state")),
                remedy=(
                    Remedy("none on a machine without GPUs; with GPUs:"),
                    Remedy("kubectl get nodes -L feature.node.kubernetes.io/pci-10de.present"),
                    Remedy("to try everything without GPUs:"),
                    Remedy("kgpu lab up"),
                ),
                confidence=CERTAIN,
                level=Level.NOTE,
            )


@rule(
    "OPR-15",
    "A step of the validator is not done",
    Place.CLUSTER,
    rests_on=("NVIDIA GPU Operator documentation: troubleshooting, release notes",),
)
def validating(snapshot: Snapshot) -> Iterator[Finding]:
    """The validator's init containers are its steps: driver, toolkit, cuda, plugin. Its main container stays Running
    when all are done.
    """
    # Only which of the validator's steps is not done; other rules say what it waits for.
    for pod in matching.pods_of_part(snapshot, VALIDATOR):
        steps = [container for container in pod.containers if container.init]
        at = matching.initialising(pod)
        if at is None or len(steps) < 2 or not pod.node:
            continue
        age = snapshot.age(pod.created)
        late = age is None or age > _PATIENCE
        done = sum(step.state == "terminated" and step.exit_code == 0 for step in steps)
        yield Finding(
            subject=pod.subject,
            cause=f"{pod} on node {pod.node} stands at Init:{done}/{len(steps)}: the step {at.name} is not done",
            evidence=(at.cite_status(),),
            remedy=(remedies.logs(pod.namespace, pod.name, "-c", at.name, "--tail=20"),),
            confidence=POSSIBLE,
            level=Level.PROBLEM if late else Level.WAIT,
            expected="" if late else "until the driver is built: 3 to 10 minutes",
            since=pod.created,
            nodes=(pod.node,),
            pods=(pod.path,),
        )


@rule(
    "OPR-16",
    "The validator's test waits for a GPU",
    Place.CLUSTER,
    explains=("SCH-01", "SCH-03", "QTA-*", "OPR-15"),
    rests_on=("NVIDIA GPU Operator documentation: troubleshooting, release notes", "NVIDIA/gpu-operator#1738"),
)
def no_room(snapshot: Snapshot) -> Iterator[Finding]:
    """The plugin's validation runs a pod that asks for one GPU."""
    for pod in matching.pods_of_part(snapshot, VALIDATOR):
        if not pod.unplaced or pod.labels.get("app") not in _TESTS or not matching.accelerators(pod):
            continue
        condition = pod.condition("PodScheduled")
        yield Finding(
            subject=pod.subject,
            cause=(
                f"{pod}, the validator's test, waits for a GPU: all are in use, or a quota of its namespace is; "
                "validation can't end"
            ),
            evidence=((condition.cite(),) if condition else (pod.cite("status.phase"),)),
            remedy=(
                Remedy("free one GPU of that node for a moment"),
                Remedy(
                    "or validate without a pod of its own: validator.plugin.env "
                    "WITH_WORKLOAD=false in the ClusterPolicy"
                ),
            ),
            confidence=CERTAIN,
            since=pod.created,
            pods=(pod.path,),
        )


@rule(
    "OPR-20",
    "The cloud's device plugin and the operator's",
    Place.PLUGIN,
    explains=("DPL-20", "DRV-05"),
    rests_on=("NVIDIA/gpu-operator#933",),
)
def managed_too(snapshot: Snapshot) -> Iterator[Finding]:
    """GKE, AKS and EKS can install their own device plugin and driver."""
    sets = [
        daemon_set
        for daemon_set in matching.daemon_sets_of_part(snapshot, PLUGIN, vendor=matching.NVIDIA)
        if daemon_set.number("status.desiredNumberScheduled") > 0
    ]
    clouds = [
        daemon_set
        for daemon_set in sets
        if any(
            _CLOUD.search(c.get("image") or "")
            for c in daemon_set.maps("spec.template.spec.containers")
            if isinstance(c.get("image") or "", str)
        )
    ]
    others = [daemon_set for daemon_set in sets if daemon_set not in clouds]
    if clouds and others and snapshot.knows("ClusterPolicy"):
        yield Finding(
            subject=clouds[0].subject,
            cause=(
                f"{clouds[0]} of the cloud and {others[0]} of the operator both offer the GPUs, "
                "and write the same labels"
            ),
            evidence=(
                clouds[0].cite("spec.template.spec.containers[0].image"),
                others[0].cite("spec.template.spec.containers[0].image"),
            ),
            remedy=(
                Remedy(
                    "switch the cloud's off (GKE: gpu-driver-version=disabled and the label "
                    "gke-no-default-nvidia-gpu-device-plugin=true; AKS: --gpu-driver none; EKS: an AMI without it)"
                ),
                Remedy("or the operator's: devicePlugin.enabled=false, driver.enabled=false, toolkit.enabled=false"),
            ),
            confidence=CERTAIN,
        )


@rule(
    "OPR-21",
    "Operands are still paused",
    Place.CLUSTER,
    explains=("TNT-12", "SCH-02", "DPL-*"),
    rests_on=("NVIDIA/k8s-driver-manager v0.12.0, source",),
)
def left_paused(snapshot: Snapshot) -> Iterator[Finding]:
    """The driver manager sets the labels before it unloads a driver, and back after; it ended in between."""
    for node in snapshot.nodes.values():
        keys = [
            key
            for key, value in node.labels.items()
            if key.startswith(names.LABEL_DEPLOY_PREFIX) and value == names.PAUSED_FOR_DRIVER_UPGRADE
        ]
        state = node.labels.get(names.DRIVER_UPGRADE_STATE_LABEL, "")
        if not keys or state not in ("", "upgrade-done"):
            continue
        drivers = matching.pods_of_part(snapshot, DRIVER, vendor=matching.NVIDIA, node=node.name)
        if not all(pod.ready for pod in drivers):
            continue
        yield Finding(
            subject=node.subject,
            cause=f"operands of node {node.name} are still paused for an upgrade of the driver, which is over",
            evidence=(
                node.cite(f"metadata.labels[{keys[0]}]"),
                *((drivers[0].cite("status.phase"),) if drivers else ()),
            ),
            remedy=(remedies.labels(node.name, *(f"{key}=true" for key in keys)),),
            confidence=CERTAIN,
            nodes=(node.name,),
        )


@rule(
    "OPR-23",
    "Two node feature discoveries",
    Place.CLUSTER,
    explains=("TNT-05", "TNT-06", "TNT-07"),
    rests_on=("NVIDIA GPU Operator documentation: troubleshooting, release notes",),
)
def two_discoveries(snapshot: Snapshot) -> Iterator[Finding]:
    """The chart brings its own unless nfd.enabled=false."""
    by_namespace: dict[str, Pod] = {}
    for pod in matching.pods_of_part(snapshot, NFD_MASTER):
        by_namespace.setdefault(pod.namespace, pod)
    if len(by_namespace) > 1:
        first, second, *_ = by_namespace.values()
        yield Finding(
            subject=second.subject,
            cause=(
                f"node feature discovery is installed twice, in {' and '.join(sorted(by_namespace))}: both write the "
                "nodes' labels, which come and go"
            ),
            evidence=(first.cite("metadata.namespace"), second.cite("metadata.namespace")),
            remedy=(
                remedies.helm_set("nfd.enabled=false"),
                Remedy("or remove the other one:"),
                Remedy("helm list -A | grep node-feature-discovery"),
            ),
            confidence=CERTAIN,
        )
