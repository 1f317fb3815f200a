"""Rows TS about containers that share a GPU: what they get of it, and what they do to each other."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

from kgpu.base.remedy import Remedy
from kgpu.doctor import matching, remedies
from kgpu.doctor.kinds import Pod
from kgpu.doctor.matching import EXPORTER
from kgpu.doctor.messages import Hit
from kgpu.doctor.model import CERTAIN, LIKELY, Evidence, Finding, Level, Place
from kgpu.doctor.objects import seconds
from kgpu.doctor.rule import rule
from kgpu.doctor.signs import EVENT, LOG, STATUS, Sign, rules_of
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.stack_config import (
    cards_of,
    is_time_sliced,
    replicas_of,
    uses_mps,
)
from kgpu.formats import names

_REPLICAS: Final = names.LABEL_GPU_REPLICAS
_COUNT: Final = names.LABEL_GPU_COUNT
_VIRTUAL: Final = "KUBERNETES_VIRTUAL_GPUS"
_TOGETHER: Final = 10.0


@rule("TS-07", "Several shares are no bigger share", Place.CLUSTER)
def many_shares(snapshot: Snapshot) -> Iterator[Finding]:
    """All containers on a GPU take turns alike, whatever number of replicas they asked for."""
    for pod in snapshot.pods.values():
        node = snapshot.nodes.get(pod.node)
        if node is None or pod.ended or not is_time_sliced(snapshot, node):
            continue
        many = {
            name: count for name, count in matching.accelerators(pod).items() if count > 1 and not matching.is_mig(name)
        }
        others = [
            neighbour
            for neighbour in snapshot.pods_by_node.get(node.name, ())
            if neighbour.key != pod.key and not neighbour.ended and matching.accelerators(neighbour)
        ]
        if not many or not others or cards_of(node) != 1:
            continue
        name, count = next(iter(many.items()))
        yield Finding(
            subject=pod.subject,
            cause=(
                f"{pod} asks for {count} {name} of node {node.name}, which are shares of one GPU: it gets the same "
                f"turn as {others[0]} beside it, not {count} times as much"
            ),
            evidence=(
                pod.cite("spec.containers[0].resources"),
                node.cite(f"metadata.labels[{_REPLICAS}]"),
                node.cite(f"metadata.labels[{_COUNT}]"),
            ),
            remedy=(
                Remedy("ask for 1; for a steady part of a GPU use MIG, for all of it a node without sharing"),
                Remedy("failRequestsGreaterThanOne: true in sharing.timeSlicing refuses such requests"),
            ),
            confidence=LIKELY,
            level=Level.NOTE,
            nodes=(node.name,),
            pods=(pod.path,),
        )


@rule(
    "TS-09",
    "Metrics of shared GPUs without their pods",
    Place.CLUSTER,
    rests_on=("NVIDIA/dcgm-exporter#151",),
)
def no_pod_labels(snapshot: Snapshot) -> Iterator[Finding]:
    """dcgm-exporter knows shares (GPU-...::N) only with KUBERNETES_VIRTUAL_GPUS."""
    bare = []
    for pod in matching.pods_of_part(snapshot, EXPORTER, vendor=matching.NVIDIA):
        env = {name for container in pod.containers for name in container.env}
        if (
            pod.node
            and "dcgm-exporter" in " ".join(container.image for container in pod.containers)
            and _VIRTUAL not in env
            and is_time_sliced(snapshot, snapshot.nodes.get(pod.node))
        ):
            bare.append(pod)
    if bare:
        pod = bare[0]
        node = snapshot.nodes[pod.node]
        yield Finding(
            subject=pod.subject,
            cause=(
                f"{pod} labels the metrics of a shared GPU with one pod at most: {_VIRTUAL} is not set, and node "
                f"{node.name} gives each GPU to {replicas_of(node)} pods"
            ),
            evidence=(pod.cite("spec.containers[0].env"), node.cite(f"metadata.labels[{_REPLICAS}]")),
            remedy=(
                Remedy(
                    "set {}=true in spec.dcgmExporter.env of the ClusterPolicy: then each share has its own series, "
                    "with the label vgpu",
                    _VIRTUAL,
                ),
            ),
            confidence=LIKELY,
            level=Level.NOTE,
        )


@rule("TS-11", "One crash, all neighbours", Place.CLUSTER)
def all_at_once(snapshot: Snapshot) -> Iterator[Finding]:
    """Pods on one GPU by time-slicing share its faults: an Xid ends all of them."""
    for node in matching.gpu_nodes(snapshot, matching.NVIDIA):
        if not is_time_sliced(snapshot, node):
            continue
        ended = sorted(
            (when, pod)
            for pod in snapshot.pods_by_node.get(node.name, ())
            if matching.accelerators(pod) and not pod.ready and (when := _crashed(pod))
        )
        close = [(pod, later) for (when, pod), (then, later) in itertools.pairwise(ended) if then - when <= _TOGETHER]
        owners = {pod.owner or pod.name for row in close for pod in row}
        if not close or len(owners) < 2:
            continue
        pods = tuple(dict.fromkeys(pod.path for row in close for pod in row))
        host = snapshot.hosts.get(node.name)
        xid = next((xid for xid in (host.xids if host else ()) if not xid.over), None)
        with_xid = f", with Xid {xid.code} in the kernel's log" if xid else ""
        yield Finding(
            subject=node.subject,
            cause=(
                f"{len(pods)} pods that share GPUs of node {node.name} ended within seconds of each other{with_xid}: "
                "one fault ends all that share a GPU by time-slicing"
            ),
            evidence=(
                *(_end(pod) for pod in close[0]),
                *((host.cite("xids", f"xid {xid.code}: {xid.text}"),) if host and xid else ()),
            ),
            remedy=(
                Remedy("find the one that failed first:"),
                remedies.pods_on(node.name, wide=True),
                Remedy("where faults must stay apart, use MIG or whole GPUs"),
            ),
            confidence=LIKELY,
            nodes=(node.name,),
            pods=pods,
        )


def _crashed(pod: Pod) -> float:
    for container in pod.containers:
        for place in ("state", "lastState"):
            end = container.status.get(place)
            end = end.get("terminated") if isinstance(end, dict) else None
            if isinstance(end, dict) and end.get("exitCode") not in (0, None):
                return seconds(end.get("finishedAt")) or 0.0
    return 0.0


def _end(pod: Pod) -> Evidence:
    bad = next((container for container in pod.containers if container.exit_code), None)
    return bad.cite_status() if bad else pod.cite("status.phase")


def _neighbours(snapshot: Snapshot, hit: Hit) -> tuple[Evidence, ...] | None:
    """Other pods on the shared GPUs of the node."""
    node = snapshot.nodes.get(hit.node)
    if node is None or hit.pod is None or not is_time_sliced(snapshot, node):
        return None
    others = [
        pod
        for pod in snapshot.pods_by_node.get(node.name, ())
        if pod.key != hit.pod.key and not pod.ended and matching.accelerators(pod)
    ]
    return (
        (
            node.cite(f"metadata.labels[{_REPLICAS}]"),
            *(neighbour.cite("spec.containers[0].resources") for neighbour in others[:3]),
        )
        if others
        else None
    )


def _alone(snapshot: Snapshot, hit: Hit) -> tuple[Evidence, ...] | None:
    """Evidence that the pod had the GPU to itself, so that it filled the memory itself."""
    node = snapshot.nodes.get(hit.node)
    if node is None or hit.pod is None or is_time_sliced(snapshot, node) or uses_mps(snapshot, node.name):
        return None
    if not matching.accelerators(hit.pod):
        return None
    return (node.cite("metadata.labels[nvidia.com/gpu.memory]"),)


RULES: Final = rules_of(
    Sign(
        id="TS-05",
        title="More than one share asked for",
        place=Place.CLUSTER,
        where=(STATUS, EVENT),
        pattern=r"maximum request size for shared resources is (?P<most>\d+)(?:; found (?P<asked>\d+))?",
        words="maximum request size for shared resources",
        cause=(
            "{who} was refused: it asks for {asked} shares of GPUs, and {most} is the most (failRequestsGreaterThanOne)"
        ),
        remedy=(
            "ask for {most}: more shares do not give more of the GPU",
            remedies.DELETE_POD + "  # the refused pod stays where it is",
        ),
        explain=(
            "With failRequestsGreaterThanOne the plugin refuses requests for several shares, "
            "because they would give nothing."
        ),
        confidence=CERTAIN,
        rests_on=("NVIDIA/k8s-device-plugin v0.20.0, source",),
    ),
    Sign(
        id="TS-06",
        title="A neighbour took the memory",
        place=Place.CLUSTER,
        where=(LOG, STATUS),
        words="out of memory",
        pattern=r"CUDA(?: error:)? out of memory",
        proof=_neighbours,
        cause=(
            "{who} ran out of GPU memory on a GPU that it shares: time-slicing does not divide the memory, "
            "and neighbours have their part"
        ),
        remedy=(
            "see who has how much:",
            "kgpu top --node {node}",
            "fewer replicas, or MIG or MPS, which limit each one's memory",
        ),
        explain="Replicas share one memory: whoever comes first takes what it wants.",
    ),
    Sign(
        id="TS-14",
        title="Its own work does not fit",
        place=Place.CLUSTER,
        where=(LOG, STATUS),
        words="out of memory",
        pattern=r"CUDA(?: error:)? out of memory",
        proof=_alone,
        cause="{who} ran out of GPU memory on a GPU of its own: what it loads does not fit",
        remedy=(
            "much reserved and little allocated in PyTorch's message: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
            "FP16 or BF16 in place of FP32, a smaller batch, or a bigger card; driver and contexts take 0.5 to 2 GB",
        ),
        explain="In this order: a neighbour on the GPU (TS-06), fragmentation of the allocator, precision, then size.",
    ),
)
