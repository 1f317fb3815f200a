"""Rows QTA that need the pods: quotas that are bypassed, queues that hold work back, GPUs that nobody counts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from kgpu.base.remedy import Remedy
from kgpu.doctor import matching, remedies
from kgpu.doctor.kinds import Pod
from kgpu.doctor.model import CERTAIN, LIKELY, Finding, Level, Place
from kgpu.doctor.rule import rule
from kgpu.doctor.signs import LOG, STATUS, Sign, rules_of
from kgpu.doctor.snapshot import Snapshot
from kgpu.formats import names

_ALL: Final = frozenset({"all"})
_SEES: Final = names.ENV_VISIBLE_DEVICES


@rule("QTA-06", "Accelerators that the quota does not count", Place.CLUSTER)
def passed_by(snapshot: Snapshot) -> Iterator[Finding]:
    """Each resource name is a key of its own: nvidia.com/gpu.shared, nvidia.com/mig-... and device classes are not
    counted with nvidia.com/gpu.
    """
    for quota in snapshot.all("ResourceQuota"):
        keys = map(str, quota.map("spec.hard"))
        counted = {key.removeprefix("requests.") for key in keys if key.startswith("requests.")}
        mine = {matching.vendor_of(name) for name in counted} - {""}
        if not mine:
            continue
        missed: dict[str, list[Pod]] = {}
        for pod in snapshot.pods.values():
            if pod.namespace != quota.namespace or pod.ended:
                continue
            for name in matching.accelerators(pod):
                if name not in counted and matching.vendor_of(name) in mine:
                    missed.setdefault(name, []).append(pod)
        for name, pods in missed.items():
            yield Finding(
                subject=quota.subject,
                cause=(
                    f"{quota} counts {', '.join(sorted(name for name in counted if matching.is_accelerator(name)))}, "
                    f"and {len(pods)} pods of the namespace use {name}, which it does not"
                ),
                evidence=(quota.cite("spec.hard"), pods[0].cite("spec.containers[0].resources")),
                remedy=(
                    remedies.patch(
                        quota.namespace, "resourcequota", quota.name, {"spec": {"hard": {f"requests.{name}": "N"}}}
                    ),
                    Remedy("devices of DRA are counted as CLASS.deviceclass.resource.k8s.io/devices"),
                ),
                confidence=CERTAIN,
                level=Level.NOTE,
            )


@rule("QTA-09", "Kueue has no quota left", Place.CLUSTER, explains=("SCH-01",))
def kueue(snapshot: Snapshot) -> Iterator[Finding]:
    """Kueue keeps a job suspended until its ClusterQueue has quota for all of it."""
    for work in snapshot.all("Workload"):
        condition = work.condition("QuotaReserved")
        if condition is None or condition.status != "False" or "insufficient" not in condition.message:
            continue
        hit = re.search(r"insufficient (?:unused )?quota (?:for|in flavor) (?P<resource>\S+)", condition.message)
        owners = work.maps("metadata.ownerReferences")
        owner = f"{owners[0].get('kind')} {work.namespace}/{owners[0].get('name')}" if owners else str(work)
        queues = list(snapshot.all("ClusterQueue"))
        yield Finding(
            subject=work.subject,
            cause=(
                f"{owner} stays suspended: the ClusterQueue behind queue {work.text('spec.queueName') or '?'} "
                "has no quota left"
            )
            + (f" of {hit['resource']}" if hit else ""),
            evidence=(
                condition.cite(),
                work.cite("spec.queueName"),
                *(queue.cite("spec.resourceGroups") for queue in queues[:1]),
            ),
            remedy=(
                Remedy("kubectl get clusterqueues -o wide; kubectl get workloads -A"),
                Remedy("raise nominalQuota, allow borrowing in a cohort, or let admitted work end"),
            ),
            confidence=CERTAIN,
            since=condition.since,
        )


@rule(
    "QTA-11",
    "GPUs that nobody counts",
    Place.CLUSTER,
    rests_on=("NVIDIA/nvidia-container-toolkit v1.20.0, source",),
)
def uncounted(snapshot: Snapshot) -> Iterator[Finding]:
    """Where nvidia is the default runtime, NVIDIA_VISIBLE_DEVICES=all gives all GPUs to a container that asked for
    none.
    """
    nodes = {node.name: node for node in matching.gpu_nodes(snapshot, matching.NVIDIA)}
    for pod in snapshot.pods.values():
        node = nodes.get(pod.node)
        if node is None or pod.ended or pod.owner.startswith("DaemonSet/"):
            continue
        bad = next(
            (container for container in pod.containers if container.env.get(_SEES) in _ALL and not container.init), None
        )
        if bad is None or matching.uses_accelerators(pod) or matching.parts_of(pod):
            continue
        yield Finding(
            subject=pod.subject,
            cause=(
                f"{pod} asks for no GPU and sets {_SEES}=all: it sees every GPU of node {node.name}, "
                "and nobody counts that"
            ),
            evidence=(bad.cite("env"), bad.cite("resources")),
            remedy=(
                Remedy("take {} out of the manifest, and ask for nvidia.com/gpu in limits", _SEES),
                Remedy(
                    "let the toolkit refuse it: accept-nvidia-visible-devices-envvar-when-unprivileged = false, "
                    "or CDI mode"
                ),
            ),
            confidence=LIKELY,
            level=Level.NOTE,
            nodes=(node.name,),
            pods=(pod.path,),
        )


RULES: Final = rules_of(
    Sign(
        id="QTA-12",
        title="kubectl run has no such flag",
        place=Place.CLUSTER,
        where=(LOG, STATUS),
        pattern=r"unknown flag: --(?P<flag>requests|limits)\b",
        words="unknown flag: --",
        cause="{who} calls kubectl run with --{flag}, which kubectl does not have any more",
        remedy=(
            "with the pod's name in place of NAME, and its image in place of IMAGE:",
            (
                "kubectl run NAME --image=IMAGE --overrides='"
                '{{"spec":{{"containers":[{{"name":"NAME","image":"IMAGE",'
                '"resources":{{"limits":{{"nvidia.com/gpu":1}}}}}}]}}}}\''
            ),
            "or write a manifest: a GPU has to be in limits",
        ),
        explain=(
            "The flags --requests and --limits of kubectl run are gone since 1.24; "
            "requests alone would not do for a GPU either."
        ),
        confidence=CERTAIN,
    ),
)
