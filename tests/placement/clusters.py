"""Small clusters as API objects, and their states, for the tests of placement."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

from kgpu.placement.state import PlacementState

Object = dict[str, Any]
GPU = "nvidia.com/gpu"
PRODUCT = "nvidia.com/gpu.product"
H100 = "NVIDIA-H100-80GB-HBM3"


def node(name: str, gpus: int = 8, *, cpu: str = "64", labels: dict[str, str] | None = None, **spec: Any) -> Object:
    sizes = {"cpu": cpu, "memory": "512Gi", "pods": "110", **({GPU: str(gpus)} if gpus else {})}
    own = {"kubernetes.io/hostname": name, PRODUCT: H100, "nvidia.com/gpu.count": str(gpus), **(labels or {})}
    status = {"capacity": sizes, "allocatable": sizes, "conditions": [{"type": "Ready", "status": "True"}]}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": own},
        "spec": spec,
        "status": status,
    }


def pod(
    name: str, gpus: int = 1, on: str = "", *, owner: str = "ReplicaSet/serve", namespace: str = "ml", cpu: str = "1",
    annotations: dict[str, str] | None = None, resource: str = GPU, **spec: Any,
) -> Object:  # fmt: skip
    kind, _, of = owner.partition("/")
    owners = [{"kind": kind, "name": of, "controller": True}] if owner else []
    limits = {"cpu": cpu, **({resource: gpus} if gpus else {})}
    metadata = {
        "name": name, "namespace": namespace, "uid": f"uid-{name}", "ownerReferences": owners, "labels": {"app": name},
        "annotations": annotations or {}, "creationTimestamp": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    containers = [{"name": "c", "image": "i", "resources": {"limits": limits}}]
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": {"phase": "Running" if on else "Pending"},
        "spec": {"containers": containers, **({"nodeName": on} if on else {}), **spec},
    }  # fmt: skip


def budget(app: str, allowed: int, namespace: str = "ml") -> Object:
    return {
        "kind": "PodDisruptionBudget", "metadata": {"name": f"pdb-{app}", "namespace": namespace},
        "spec": {"selector": {"matchLabels": {"app": app}}}, "status": {"disruptionsAllowed": allowed},
    }  # fmt: skip


def state(*objects: Object) -> PlacementState:
    return PlacementState(objects)


def drawn(seed: int, *, nodes: Sequence[int] = (1, 4), sizes: Sequence[int] = (1, 2, 3, 4)) -> list[Object]:
    """A few nodes of up to four GPUs with pods on them, and nothing else."""
    draw = random.Random(seed)
    found: list[Object] = []
    for number in range(draw.randint(*nodes)):
        gpus = draw.choice((2, 4, 4))
        found.append(node(f"n{number}", gpus, cpu=draw.choice(("4", "8"))))
        left = gpus
        while left and draw.random() < 0.7:
            size = draw.choice([one for one in sizes if one <= left])
            left -= size
            bound = draw.random() < 0.15
            name = f"p{number}-{left}"
            found.append(pod(name, size, f"n{number}", owner="" if bound else "ReplicaSet/serve"))
    return found


def by_name(outcomes: Iterable[Any]) -> dict[str, str]:
    return {outcome.pod.name: outcome.node for outcome in outcomes}
