"""The labs that are broken: which nodes each has, and the healthy work that runs on every one of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kgpu.kube.port import Object
from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.embedded.model import FirstNode
from kgpu.lab.nodes import manage
from kgpu.lab.progress import QuietProgress
from kgpu.lab.real import build
from tests.doctor.lab.breaking import Ground, healthy, until
from tests.doctor.lab.things import CUDA, SPACE, obj

FIRST = "gpu-node-1"
SMALL = "small-1"
PLAIN = "cpu-1"
ELSEWHERE = "elsewhere"
"""No node: no kubelet of the lab says anything of a pod that is bound there."""
HOME = "research"
"""Where the healthy work is."""


def brought_up(name: str, folder: Path, *, operator: bool = False, gpus: int = 8) -> Iterator[Ground]:
    """A lab with a node of H100s, one of two A100s and one without GPUs, with work on it and nothing wrong."""
    if not build.find_kubectl():
        pytest.skip("no kubectl here")
    lab = EmbeddedLab(name, folder / "lab", QuietProgress(), first=FirstNode(gpus=gpus), operator=operator)
    ground = None
    try:
        lab.up()
        manage.add_to_running(lab.folder, "dgx-a100-40g", name_prefix="small", gpus=2, light=not operator)
        manage.add_to_running(lab.folder, "cpu")
        ground = Ground(lab)
        settle(ground)
        yield ground
    finally:
        if ground is not None:
            ground.close()
        lab.down()


def settle(ground: Ground) -> None:
    """Start the healthy work, and wait until all of it runs and the doctor has nothing to tell."""
    for name in (HOME, SPACE):
        space(ground, name)
    _apply(ground, *work())
    for row in DONE:
        until(lambda row=row: _is(ground, *row), f"{row[0]} {row[1]}: {row[2]} is {row[3]}")  # type: ignore[misc]
    until(lambda: _ready(ground, SMALL, gpus="2") and _ready(ground, PLAIN), "the other nodes are ready")
    if ground.operated:
        until(lambda: ground.policy_state() == "ready", "the policy is ready")
    ground.settled = ground.offered()
    healthy(ground)


def space(ground: Ground, name: str) -> None:
    """A namespace, unless it is there; no pod is taken in it before its account is made."""
    _apply(ground, obj("Namespace", name))
    until(lambda: ground.get("ServiceAccount", f"{name}/default") is not None, "accounts")


def _apply(ground: Ground, *objects: Object) -> None:
    for one in objects:
        resource = ground.resource(one["kind"])
        ground.wait(ground.api.apply(resource, {"apiVersion": resource.api_version, **one}, manager="tests"))


def _ready(ground: Ground, node: str, gpus: str = "") -> bool:
    status = (ground.get("Node", node) or {}).get("status") or {}
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions") or ())
    return ready and (status.get("allocatable") or {}).get("nvidia.com/gpu", "") == gpus


def _is(ground: Ground, kind: str, name: str, field: str, value: object) -> bool:
    found = ground.get(kind, f"{HOME}/{name}") or {}
    return bool((found.get("status") or {}).get(field) == value)


DONE = (
    ("Deployment", "inference", "readyReplicas", 2),
    ("Job", "evaluation", "succeeded", 1),
    ("Pod", "notebook", "phase", "Running"),
)


def work() -> list[Object]:
    """Two replicas that serve, a job that ends well, a pod that stays; one GPU each on the first node."""
    return [
        obj("Pod", "notebook", HOME, spec=_spec(["sleep", "36000"])),
        obj("Job", "evaluation", HOME, spec={"template": {"spec": {**_spec(["nvidia-smi", "-L"]), "restartPolicy": "Never"}}}),
        obj("Deployment", "inference", HOME, spec={
            "replicas": 2, "selector": {"matchLabels": {"app": "inference"}},
            "template": {"metadata": {"labels": {"app": "inference"}}, "spec": _spec(["sleep", "36000"])},
        }),
    ]  # fmt: skip


def _spec(command: list[str]) -> Object:
    main = {"name": "main", "image": CUDA, "command": command, "resources": {"limits": {"nvidia.com/gpu": 1}}}
    return {"containers": [main], "nodeSelector": {"kubernetes.io/hostname": FIRST}, "terminationGracePeriodSeconds": 0}
