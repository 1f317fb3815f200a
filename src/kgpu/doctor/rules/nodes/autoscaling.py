"""Rows ASC: what autoscalers do with GPU nodes, and GPUs that are paid for and not used."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from kgpu.base.plain import text
from kgpu.base.remedy import Remedy
from kgpu.doctor import matching, remedies
from kgpu.doctor.host_facts import Gpu
from kgpu.doctor.kinds import Node, Pod
from kgpu.doctor.model import CERTAIN, LIKELY, Evidence, Finding, Level, Place, Subject
from kgpu.doctor.objects import Obj, at, plain
from kgpu.doctor.rule import rule
from kgpu.doctor.signs import EVENT, Sign, rules_of
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.waiting import waiting
from kgpu.formats import names

_ACCELERATOR: Final = (
    names.LABEL_AWS_ACCELERATOR,
    names.LABEL_GCE_ACCELERATOR,
    "accelerator",
    names.LABEL_AZURE_ACCELERATOR,
)
_LATE: Final = 900.0
_LONG: Final = 12 * 3600.0
_IDLE_PERCENT: Final = 5.0
_CONTEXT_MIB: Final = 700.0
_ENDING: Final = re.compile(
    r"aws-node-termination-handler/(?:spot-itn|rebalance.*|asg-lifecycle.*)"
    r"|cloud\.google\.com/impending-node-termination|remediator\.kubernetes\.azure\.com/.*"
)
_SPOT: Final = frozenset(
    {
        "SpotInterrupted",
        "SpotInterruption",
        "SpotInterruptionWarning",
        "PreemptScheduled",
        "NodePreempted",
        "SpotTermination",
    }
)
_GPU_METRIC: Final = re.compile(r"DCGM_|gpu", re.IGNORECASE)
# Blank, not found, not supported, not permissioned: as integers of 64 and 32 bits, and as rounded by floating point.
_BLANK: Final = re.compile(
    r"(?:922337203685477\d{4}|18446744073709\d{6}|1\.8446744\d*e\+?19|9\.2233720\d*e\+?18|214748363[2-5]"
    r"|14073748835532[89])(?:\.0+)?m?|922337203685477\d{4}000m"
)
_UNREGISTERED: Final = re.compile(
    r"[Rr]esource \"?(?P<resource>[\w.-]+/[\w.-]+)\"? (?:was requested but not registered|didn't register)"
)


@rule(
    "ASC-01",
    "Nodes are added twice",
    Place.CLUSTER,
    rests_on=(
        "kubernetes/autoscaler#3464",
        "kubernetes/autoscaler#1949",
        "kubernetes/autoscaler#3164",
        "kubernetes/autoscaler#7956",
        "NVIDIA/gpu-operator#708",
    ),
)
def twice(snapshot: Snapshot) -> Iterator[Finding]:
    """A node is ready before its device plugin has registered; the autoscaler sees a node without GPUs and adds
    another. An accelerator label lets it wait.
    """
    nodes = matching.gpu_nodes(snapshot)
    marked = any(label in node.labels for node in nodes for label in _ACCELERATOR)
    if marked or not nodes:
        return
    for pod in snapshot.pods.values():
        ups = [event for event in snapshot.events(pod) if event.reason == "TriggeredScaleUp"]
        if sum(max(event.number("count", 1), 1) for event in ups) < 2 or not matching.accelerators(pod):
            continue
        young = max(nodes, key=lambda node: node.created)
        yield Finding(
            subject=pod.subject,
            cause=(
                f"more than one node was added for {pod}: the autoscaler takes a new node for ready before its GPUs "
                "are registered, since no GPU node has an accelerator label"
            ),
            evidence=(ups[0].quote(), young.cite("metadata.labels"), young.cite("metadata.creationTimestamp")),
            remedy=(
                Remedy(
                    "label the node group: k8s.amazonaws.com/accelerator=TYPE (EKS), "
                    "cloud.google.com/gke-accelerator=TYPE (GKE), accelerator=TYPE (AKS)"
                ),
                Remedy("then the autoscaler takes such a node for not ready until nvidia.com/gpu is allocatable"),
            ),
            confidence=LIKELY,
            since=ups[-1].first,
            pods=(pod.path,),
        )


@rule(
    "ASC-03",
    "Karpenter's node never gets its GPUs",
    Place.PLUGIN,
    explains=("SCH-01", "SCH-02", "TNT-01", "ASC-04"),
    rests_on=(
        "aws/karpenter-provider-aws#1914",
        "aws/karpenter-provider-aws#3794",
        "aws/karpenter-provider-aws#3862",
        "Azure/karpenter-provider-azure#1790",
    ),
)
def not_registered(snapshot: Snapshot) -> Iterator[Finding]:
    """A NodeClaim is initialized when all resources that were asked for are registered; that needs a device plugin on
    the node, which tolerates its taints.
    """
    for claim in snapshot.all("NodeClaim"):
        condition = claim.condition("Initialized")
        hit = _UNREGISTERED.search(condition.message) if condition and condition.status != "True" else None
        if condition is None or hit is None or not matching.is_accelerator(hit["resource"]):
            continue
        name = plain(claim.text("status.nodeName"))
        node = snapshot.nodes.get(name)
        plugins = matching.pods_of_part(snapshot, matching.PLUGIN, node=name) if name else []
        why = f"{plugins[0]} is there and has not registered it" if plugins else "no device plugin runs there"
        yield Finding(
            subject=claim.subject,
            cause=f"{claim} is never initialized: node {name or '?'} does not offer {hit['resource']}; {why}",
            evidence=(condition.cite(), *((node.cite("status.capacity"), node.cite("spec.taints")) if node else ())),
            remedy=(
                Remedy(
                    "install the device plugin for this image of nodes, "
                    "and let it tolerate the NodePool's taints and startupTaints"
                ),
                remedies.ask_doctor(name or "NODE"),
            ),
            confidence=CERTAIN,
            since=condition.since,
            nodes=(name,) if name else (),
            pods=tuple(
                pod.path for pending in waiting(snapshot) if pending.resource == hit["resource"] for pod in pending.pods
            ),
        )


@rule("ASC-04", "A startup taint stays", Place.CLUSTER, explains=("TNT-01", "TNT-02", "TNT-04"))
def startup_taint(snapshot: Snapshot) -> Iterator[Finding]:
    """A program of yours has to remove startup taints; Karpenter does not."""
    temporary = {
        (text(row.get("key")), text(row.get("effect"))): pool
        for pool in snapshot.all("NodePool")
        for row in pool.maps("spec.template.spec.startupTaints")
    }
    for node in snapshot.nodes.values() if temporary else ():
        age = snapshot.age(node.created)
        for position, row in enumerate(node.taints):
            pool = temporary.get((text(row.get("key")), text(row.get("effect"))))
            if pool is None or age is None or age < _LATE or not matching.vendors_of(node):
                continue
            yield Finding(
                subject=node.subject,
                cause=(
                    f"node {node.name} is {int(age // 60)} minutes old and still has the startup taint "
                    f"{text(row.get('key'))} of {pool}: what should take it away does not"
                ),
                evidence=(
                    node.cite(f"spec.taints[{position}]"),
                    pool.cite("spec.template.spec.startupTaints"),
                    node.cite("metadata.creationTimestamp"),
                ),
                remedy=(
                    remedies.taint(node.name, f"{text(row.get('key'))}:{text(row.get('effect'))}-"),
                    Remedy(
                        "start the program that removes it (CNI, driver or node initialiser), "
                        "or take it out of the NodePool"
                    ),
                ),
                confidence=LIKELY,
                nodes=(node.name,),
            )


@rule("ASC-05", "GPUs are held and idle", Place.CLUSTER)
def idle(snapshot: Snapshot) -> Iterator[Finding]:
    """Pods hold GPUs for long without a process on them; the node can't be removed either."""
    for node in matching.gpu_nodes(snapshot):
        host = snapshot.hosts.get(node.name)
        gpus = (host.gpus if host else None) or ()
        holders = [
            pod for pod in snapshot.pods_by_node.get(node.name, ()) if not pod.ended and matching.accelerators(pod)
        ]
        if host is None or not gpus or not holders or not all(_unused(gpu) for gpu in gpus):
            continue
        ages = [snapshot.age(pod.text("status.startTime") or pod.created) for pod in holders]
        if any(age is None or age < _LONG for age in ages):
            continue
        pod = holders[0]
        hurt = tuple(
            p.path
            for pending in waiting(snapshot)
            if pending.resource in matching.accelerators(pod)
            for p in pending.pods
        )
        yield Finding(
            subject=node.subject,
            cause=(
                f"all {len(gpus)} GPUs of node {node.name} are held by {', '.join(pod.path for pod in holders[:5])} "
                f"for {int(min(age or 0 for age in ages) // 3600)} hours or more, and none of them works: "
                "nothing runs on them"
            ),
            evidence=(_reading(host.node, gpus[0]), *(pod.cite("spec.nodeName") for pod in holders[:3])),
            remedy=(
                remedies.delete_pod(pod.namespace, pod.name).why("after asking its owner"),
                Remedy("let notebooks end by themselves when idle, and alert on GPUs that are held and not used"),
            ),
            confidence=LIKELY,
            level=Level.PROBLEM if hurt else Level.NOTE,
            nodes=(node.name,),
            pods=hurt,
        )


def _unused(gpu: Gpu) -> bool:
    used, busy = gpu.readings.get("memory_used_mib"), gpu.readings.get("utilization_percent")
    return (
        isinstance(used, int | float) and isinstance(busy, int | float) and used < _CONTEXT_MIB and busy < _IDLE_PERCENT
    )


def _reading(node: str, gpu: Gpu) -> Evidence:
    readings = f"utilization {gpu.readings['utilization_percent']} %, memory used {gpu.readings['memory_used_mib']} MiB"
    return Evidence(object=f"Node {node}, on the host", field=f"GPU {gpu.index}", value=readings)


@rule("TS-10", "The autoscaler does not know shares", Place.CLUSTER)
def fewer_than_come(snapshot: Snapshot) -> Iterator[Finding]:
    """A group's template says how many GPUs a new node has; time-slicing makes more of them when the node is there."""
    for group, field, resource, wanted, nodes in _groups(snapshot):
        shared = [
            node
            for node in nodes
            if node.labels.get(names.LABEL_GPU_REPLICAS, "1") not in ("", "1")
            and (node.allocatable(resource) or 0) > wanted
        ]
        if not shared or not wanted:
            continue
        node = shared[0]
        yield Finding(
            subject=group.subject,
            cause=(
                f"{group} tells the autoscaler that a node has {wanted} {resource}; with shares node {node.name} has "
                f"{node.allocatable(resource)}: too many nodes are added"
            ),
            evidence=(
                group.cite(field),
                node.cite(f"status.allocatable[{resource}]"),
                node.cite(f"metadata.labels[{names.LABEL_GPU_REPLICAS}]"),
            ),
            remedy=(
                Remedy(
                    "tell the autoscaler the amount with shares: {} (the annotation of the group; on AWS the tag "
                    "k8s.io/cluster-autoscaler/node-template/resources/{})",
                    node.allocatable(resource),
                    resource,
                ),
                Remedy(
                    "Karpenter does not know shares before a node is there: limit the NodePool, "
                    "or do not share on nodes that it makes"
                ),
            ),
            confidence=LIKELY,
            level=Level.NOTE,
            nodes=tuple(node.name for node in shared),
        )


def _groups(snapshot: Snapshot) -> Iterator[tuple[Obj, str, str, int, list[Node]]]:
    """Node groups as autoscalers see them: object, field with the count of a new node, resource, count, nodes."""
    for kind in ("MachineDeployment", "MachineSet", "MachinePool"):
        for group in snapshot.all(kind):
            count = group.annotations.get(names.CAPI_GPU_COUNT, "")
            nodes = [
                node
                for node in snapshot.nodes.values()
                if f"{node.annotations.get(names.CAPI_OWNER_NAME, '')}-".startswith(f"{group.name}-")
            ]
            if count.isdecimal() and len(count) < 6:
                resource = group.annotations.get(names.CAPI_GPU_TYPE) or names.GPU_RESOURCE
                yield group, f"metadata.annotations[{names.CAPI_GPU_COUNT}]", resource, int(count), nodes
    for claim in snapshot.all("NodeClaim"):
        node = snapshot.nodes.get(claim.text("status.nodeName"))
        for resource in claim.map("status.capacity") if node else ():
            if node is not None and matching.is_accelerator(str(resource)):
                field = f"status.capacity[{resource}]"
                yield claim, field, str(resource), claim.number(field), [node]


@rule("MET-09", "A mark for no value is taken for one", Place.CLUSTER)
def blank_metric(snapshot: Snapshot) -> Iterator[Finding]:
    """DCGM has numbers such as 9223372036854775794 for blank, not found or not supported; exporters that pass them on
    spoil sums and autoscalers.
    """
    for scaler in snapshot.all("HorizontalPodAutoscaler"):
        for position, row in enumerate(scaler.maps("status.currentMetrics")):
            for where in ("pods", "object", "external"):
                name = text(at(row, f"{where}.metric.name"))
                values = at(row, f"{where}.current")
                for field, value in values.items() if isinstance(values, dict) else ():
                    if not _GPU_METRIC.search(name) or not _BLANK.fullmatch(str(value)):
                        continue
                    yield Finding(
                        subject=scaler.subject,
                        cause=(
                            f"{scaler} takes {value} for a value of {name}: "
                            "that is DCGM's mark for a value that it does not have"
                        ),
                        evidence=(scaler.cite(f"status.currentMetrics[{position}].{where}.current.{field}"),),
                        remedy=(
                            Remedy("filter it in the query: {} < 1e15", name),
                            Remedy("kgpu's exporter leaves out what has no value"),
                        ),
                        confidence=CERTAIN,
                    )


@rule("ASC-06", "No GPU metric to scale by", Place.CLUSTER)
def no_metric(snapshot: Snapshot) -> Iterator[Finding]:
    """A HorizontalPodAutoscaler on DCGM metrics needs prometheus-adapter, with a rule that serves the
    metric for pods.
    """
    warnings = (
        event for event in snapshot.all_events() if event.about[0] == "HorizontalPodAutoscaler" and event.warning
    )
    for about, event in matching.latest(warnings).items():
        hit = re.search(
            r"unable to (?:get|fetch) (?:metrics?|pods metric|object metric)[^:]*?"
            r"(?P<name>DCGM_\w+|\w*[Gg][Pp][Uu]\w*)",
            event.message,
        )
        scaler = snapshot.get(*_turned(about))
        active = scaler.condition("ScalingActive") if scaler else None
        if hit is None or (active is not None and active.status == "True"):
            continue
        yield Finding(
            subject=Subject("HorizontalPodAutoscaler", about[2], about[1]),
            cause=(
                f"HorizontalPodAutoscaler {about[1]}/{about[2]} does not scale: nobody serves the metric {hit['name']}"
            ),
            evidence=(event.quote(), *((active.cite(),) if active else ())),
            remedy=(
                Remedy("add a rule for {} to prometheus-adapter (seriesQuery by namespace and pod)", hit["name"]),
                Remedy("kubectl get --raw /apis/custom.metrics.k8s.io/v1beta1 | grep {}", hit["name"]),
            ),
            confidence=LIKELY,
            since=event.first,
        )


def _turned(about: tuple[str, str, str]) -> tuple[str, str, str]:
    kind, namespace, name = about
    return kind, name, namespace


@rule("ASC-07", "The spot node is taken back", Place.CLUSTER)
def taken_away(snapshot: Snapshot) -> Iterator[Finding]:
    """The cloud takes spot and preemptible nodes back at short notice."""
    for node in matching.gpu_nodes(snapshot):
        taint = next((at for at, row in enumerate(node.taints) if _ENDING.fullmatch(text(row.get("key")))), None)
        event = next((event for event in snapshot.events(node) if event.reason in _SPOT), None)
        if taint is None and (event is None or node.ready):
            continue
        shown = (
            *((node.cite(f"spec.taints[{taint}]"),) if taint is not None else ()),
            *((event.quote(),) if event else ()),
        )
        pods = _working(snapshot, node)
        yield Finding(
            subject=node.subject,
            cause=f"the cloud takes node {node.name} back (spot or preemptible capacity)"
            + (f", with {len(pods)} GPU pods on it" if pods else ""),
            evidence=shown,
            remedy=(
                Remedy("save checkpoints on the termination signal, and let the controller start the pods elsewhere"),
                Remedy("put training that can't be interrupted on on-demand nodes"),
            ),
            confidence=CERTAIN,
            nodes=(node.name,),
            pods=tuple(pod.path for pod in pods),
        )


def _working(snapshot: Snapshot, node: Node) -> list[Pod]:
    return [
        pod for pod in snapshot.pods_by_node.get(node.name, ()) if not pod.ended and matching.uses_accelerators(pod)
    ]


RULES: Final = rules_of(
    Sign(
        id="ASC-02",
        title="The autoscaler's template has no GPU",
        place=Place.CLUSTER,
        where=(EVENT,),
        pattern=(
            r"didn't trigger scale-up.*\d+ Insufficient "
            r"(?P<resource>[\w.-]+/[\w.-]*(?:gpu|mig|gaudi|accelerator)[\w.-]*)"
        ),
        words="trigger scale-up",
        cause="the cluster autoscaler adds no node for {who}: by its templates a new node would not have {resource}",
        remedy=(
            (
                "tag the node group: k8s.io/cluster-autoscaler/node-template/resources/{resource}=N (AWS: "
                "a tag of the Auto Scaling group)"
            ),
            (
                "and k8s.io/cluster-autoscaler/node-template/label/... and /taint/... "
                "for the labels and taints that its nodes get"
            ),
        ),
        explain="A node group that has no node is judged by its template; without the tag the template has no GPU.",
        explains=("SCH-01", "SCH-02", "SCH-07"),
        also=("SCH-20",),
        rests_on=("NVIDIA/gpu-operator#423",),
    ),
)
