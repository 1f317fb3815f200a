"""A small cluster for tests that say of a pod or two how they stand: GPU nodes, their plugin, and pods on them."""

from __future__ import annotations

import copy
from typing import Any

from kgpu.doctor.model import Finding, Level, Report
from kgpu.doctor.plan import diagnose
from kgpu.doctor.snapshot import Snapshot

TAKEN = 1767268800.0  # 2026-01-01T12:00:00Z
EARLY, LATE, NOW = "2026-01-01T06:00:00Z", "2026-01-01T11:55:00Z", "2026-01-01T11:59:30Z"
GPU = "nvidia.com/gpu"
READY = {"type": "Ready", "status": "True", "lastTransitionTime": EARLY}


def node(
    name: str = "gpu-1", *, have: int | None = 8, can: int | None = None, resource: str = GPU, labels: Any = None
) -> dict[str, Any]:
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110"}
    less = amounts | ({resource: str(have if can is None else can)} if have is not None else {})
    signs = {"nvidia.com/gpu.present": "true", "feature.node.kubernetes.io/pci-10de.present": "true"}
    return {
        "kind": "Node",
        "metadata": {"name": name, "uid": name, "creationTimestamp": "2025-01-01T00:00:00Z", "labels": signs if labels is None else labels},
        "spec": {},
        "status": {"capacity": amounts | ({resource: str(have)} if have is not None else {}), "allocatable": less, "conditions": [READY]},
    }  # fmt: skip


def container(name: str = "main", **state: Any) -> dict[str, Any]:
    """A container's status."""
    return {"name": name, "ready": False, "restartCount": 0, **state}


def ended(code: int, when: str = LATE, reason: str = "Error") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "finishedAt": when}}


def pod(
    name: str = "train", *, on: str = "gpu-1", gpus: int = 1, phase: str = "Running", created: str = EARLY,
    conditions: Any = None, seen: Any = None, spec: Any = None, metadata: Any = None, **status: Any,
) -> dict[str, Any]:  # fmt: skip
    """A pod with GPUs that has not been ready since it was made; ``seen`` are its containers' statuses."""
    unready = [{"type": "Ready", "status": "False", "lastTransitionTime": created}] if on else []
    asks = {"limits": {GPU: str(gpus)}} if gpus else {}
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "ml", "uid": f"ml-{name}", "creationTimestamp": created, **(metadata or {})},
        "spec": {
            "containers": [{"name": "main", "image": "i", "resources": asks}],
            **({"nodeName": on} if on else {}),
            **(spec or {}),
        },
        "status": {
            "phase": phase,
            "startTime": created,
            "conditions": unready if conditions is None else conditions,
            "containerStatuses": seen,
            **status,
        },
    }  # fmt: skip


def waits(
    name: str = "train", *, gpus: int = 1, created: str = EARLY, spec: Any = None, conditions: Any = ()
) -> dict[str, Any]:
    """A pod that has no node."""
    return pod(name, on="", gpus=gpus, phase="Pending", created=created, conditions=list(conditions), spec=spec)


def plugin(on: str = "gpu-1", **more: Any) -> dict[str, Any]:
    labels = {"app": "nvidia-device-plugin-daemonset"}
    owner = {"kind": "DaemonSet", "name": "nvidia-device-plugin-daemonset", "controller": True}
    metadata = {"namespace": "gpu-operator", "labels": labels, "ownerReferences": [owner]}
    found = pod(f"plugin-{on}", on=on, gpus=0, conditions=[READY], metadata=metadata, **more)
    found["spec"]["containers"] = [{"name": "main", "image": "nvcr.io/nvidia/k8s-device-plugin:v0.18.0"}]
    return found


def report(*objects: dict[str, Any]) -> Report:
    listed = ("Node", "Pod", "Job", "DaemonSet", "Event")
    return diagnose(Snapshot.of(copy.deepcopy(objects), taken=TAKEN, listed=listed), strict=True)


def told(*objects: dict[str, Any]) -> list[tuple[str, Level]]:
    """The roots beside a healthy node with its plugin."""
    return [(one.id, one.level) for one in found(*objects)]


def found(*objects: dict[str, Any]) -> tuple[Finding, ...]:
    return report(node(), plugin(), *objects).findings
