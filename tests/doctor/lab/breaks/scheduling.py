"""Pods that no node takes: what they ask for, where they want to be, and what stands in the way."""

from __future__ import annotations

from tests.doctor.lab.breaking import Break, Change, Until
from tests.doctor.lab.labs import FIRST, PLAIN, SMALL
from tests.doctor.lab.things import GPU, SPACE, deployment, job, make, obj, pod, relabel, taint

BROKEN = f"{SPACE}/broken"


def wants(key: str, operator: str, *values: str) -> dict[str, object]:
    """A required node affinity."""
    term = {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


def mounted(claim: str) -> dict[str, object]:
    """A volume of a pod that is a claim's."""
    return {"name": "data", "persistentVolumeClaim": {"claimName": claim}}


BREAKS = (
    Break(
        what="more GPUs than any node has", first="SCH-00", names=BROKEN, target=f"pod {BROKEN}",
        steps=(make(pod(gpus=9)),),
    ),
    Break(
        what="a MIG slice where nothing is partitioned", first="SCH-00", names="no GPU is cut into 1g.10gb yet",
        target=f"pod {BROKEN}",
        steps=(make(pod(gpus={"nvidia.com/mig-1g.10gb": 1})),),
    ),
    Break(
        what="a volume claim that is not there", first="SCH-00", names="the volume claim datasets", target=f"pod {BROKEN}",
        steps=(make(pod(volumes=[mounted("datasets")])),),
    ),
    Break(
        what="a volume claim whose storage class is not there", first="SCH-00", names="storage class fast",
        target=f"pod {BROKEN}",
        steps=(
            make(
                obj("PersistentVolumeClaim", "data", SPACE, spec={
                    "accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
                    "resources": {"requests": {"storage": "1Gi"}},
                }),
                pod(volumes=[mounted("data")]),
            ),
        ),
    ),
    Break(
        what="another vendor's GPU", first="SCH-00", names=BROKEN, steps=(make(pod(gpus={"amd.com/gpu": 1})),),
    ),
    Break(
        what="every GPU is taken by another team's pod", first="SCH-01", names=BROKEN, target=f"pod {BROKEN}",
        steps=(make(pod("holder", 5), pod("holder-2", 2), pod(gpus=1)),),
    ),
    Break(
        what="a product that no node has", first="SCH-08", names="NVIDIA-H100-80GB-HBM3", target=f"pod {BROKEN}",
        steps=(make(pod(nodeSelector={"nvidia.com/gpu.product": "H100-80GB-HBM3"})),),
    ),
    Break(
        what="the product of seed manuals, without NVIDIA- before it", first="SCH-08", names=BROKEN,
        steps=(make(pod(nodeSelector={"nvidia.com/gpu.product": "A100-SXM4-80GB"})),),
    ),
    Break(
        what="more memory than the label says", first="SCH-09", names=BROKEN,
        steps=(make(pod(affinity=wants("nvidia.com/gpu.memory", "Gt", "81559"))),),
    ),
    Break(
        what="the node with the GPUs is cordoned", first="SCH-12", names=FIRST, target=f"pod {BROKEN}",
        steps=(Change("Node", FIRST, {"spec": {"unschedulable": True}}), make(pod(gpus=4))),
    ),
    Break(
        what="no processors are left where GPUs are free", first="SCH-13", names=BROKEN,
        steps=(
            make(
                pod("web", 0, container={"resources": {"requests": {"cpu": "220"}}}, nodeName=FIRST),
                pod(gpus={GPU: 4, "cpu": 16}),
            ),
        ),
    ),
    Break(
        what="the label is on one node and the room on another", first="SCH-14", names=BROKEN,
        steps=(make(pod(gpus=4, nodeSelector={"kubernetes.io/hostname": SMALL})),),
    ),
    Break(
        what="a scheduler that is not installed", first="SCH-15", names="volcano", target=f"pod {BROKEN}",
        steps=(make(pod(schedulerName="volcano")),),
    ),
    Break(
        what="GPUs are free, but no node has as many", first="SCH-07", names=BROKEN,
        steps=(make(pod("holder", 2, nodeSelector={"kubernetes.io/hostname": FIRST}), pod(gpus=5)),),
    ),
    Break(
        what="two indexed jobs hold half of what each needs", first="SCH-18", names="Job",
        steps=(
            make(pod("holder", 2, nodeSelector={"kubernetes.io/hostname": SMALL}), job("left", 2, count=1, indexed=True)),
            Until("Job", f"{SPACE}/left", ("status", "ready"), 1),
            make(job("right", 2, count=2, indexed=True)),
            Until("Job", f"{SPACE}/right", ("status", "ready"), 1),
            Change("Job", f"{SPACE}/left", {"spec": {"parallelism": 2, "completions": 2}}),
        ),
    ),
    Break(
        what="a rollout without a spare GPU", first="SCH-22", names="serve", target=f"deployment {SPACE}/serve",
        steps=(
            make(pod("holder", 2, nodeSelector={"kubernetes.io/hostname": SMALL}), pod("holder-2", 2, nodeSelector={"kubernetes.io/hostname": FIRST}), deployment("serve", 3)),
            Until("Deployment", f"{SPACE}/serve", ("status", "readyReplicas"), 3),
            Change("Deployment", f"{SPACE}/serve", {"spec": {"template": {"metadata": {"annotations": {"v": "2"}}}}}),
        ),
    ),
    Break(
        what="pushed out by a pod of higher priority", first="SCH-19", names="low",
        steps=(
            make(obj("PriorityClass", "high", value=1000, globalDefault=False), deployment("low", 1, 5)),
            Until("Deployment", f"{SPACE}/low", ("status", "readyReplicas"), 1),
            make(pod("urgent", 4, priorityClassName="high", nodeSelector={"kubernetes.io/hostname": FIRST})),
        ),
    ),
    Break(
        what="a taint that the pod does not tolerate", first="TNT-01", names=BROKEN, target=f"pod {BROKEN}",
        steps=(taint(FIRST, {"key": GPU, "value": "present", "effect": "NoSchedule"}), make(pod(gpus=4))),
    ),
    Break(
        what="a toleration of another value", first="TNT-02", names=BROKEN,
        steps=(
            taint(FIRST, {"key": GPU, "value": "present", "effect": "NoSchedule"}),
            make(pod(gpus=4, tolerations=[{"key": GPU, "operator": "Equal", "value": "true", "effect": "NoSchedule"}])),
        ),
    ),
    Break(
        what="the volume is bound to a zone without GPUs", first="SCH-23", names=BROKEN,
        steps=(
            relabel(PLAIN, {"topology.kubernetes.io/zone": "a"}),
            relabel(FIRST, {"topology.kubernetes.io/zone": "b"}),
            relabel(SMALL, {"topology.kubernetes.io/zone": "b"}),
            make(
                obj("PersistentVolume", "data-a", spec={
                    "capacity": {"storage": "10Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "zonal",
                    "hostPath": {"path": "/data"}, "claimRef": {"namespace": SPACE, "name": "data"},
                    "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                        {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a"]},
                    ]}]}},
                }, status={"phase": "Bound"}),
                obj("PersistentVolumeClaim", "data", SPACE, spec={
                    "accessModes": ["ReadWriteOnce"], "storageClassName": "zonal", "volumeName": "data-a",
                    "resources": {"requests": {"storage": "10Gi"}},
                }, status={"phase": "Bound", "capacity": {"storage": "10Gi"}, "accessModes": ["ReadWriteOnce"]}),
                pod(volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]),
            ),
        ),
        played="the lab binds no volumes: the claim and the volume are written as bound",
    ),
)  # fmt: skip
