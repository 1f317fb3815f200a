"""Look-alikes: a tenant's pods and DaemonSets with the names, images, labels, logs and Events of a GPU stack's parts."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from kgpu.doctor import matching
from kgpu.doctor.hearsay import takes_from_others
from kgpu.doctor.kinds import Pod
from kgpu.doctor.model import Finding
from kgpu.doctor.objects import Obj
from kgpu.doctor.plan import diagnose
from kgpu.doctor.snapshot import Snapshot
from tests.doctor.example import Example, all_examples

TENANT = "tenant"
STACK: dict[str, Any] = {
    "kind": "Pod", "metadata": {"name": "exporter", "namespace": "gpu-operator", "uid": "e"},
    "spec": {
        "nodeName": "gpu-1", "volumes": [{"name": "pods", "hostPath": {"path": "/var/lib/kubelet/pod-resources"}}],
        "containers": [{"name": "c", "image": "nvcr.io/nvidia/k8s/dcgm-exporter:4.2.3"}],
    },
    "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
}  # fmt: skip
"""A part of the real one, by which it is known that there is one, and where."""
MADE = {"Pod", "DaemonSet", "Deployment", "ReplicaSet", "Job"}
Object = dict[str, Any]


def disguised(example: Example) -> Iterator[Object]:
    """The broken half's parts of a stack that ask for no accelerator, made by a tenant: without privileges and folders
    of the node, and read from an API server, so that they have a uid. Their logs and Events come with them.
    """
    parts = [one for one in example.broken if one.get("kind") in MADE and is_part(one)]
    names = {one["metadata"]["name"] for one in parts}
    for number, one in enumerate(parts):
        mine = copy.deepcopy(one)
        mine["metadata"] |= {"namespace": TENANT, "uid": f"t-{number}", "name": f"t-{one['metadata']['name']}"}
        spec = mine.get("spec") or {}
        harmless(spec if mine["kind"] == "Pod" else (spec.get("template") or {}).get("spec") or {})
        yield mine
    for one in example.broken:
        about = one.get("involvedObject") or {}
        if one.get("kind") == "PodLog" and one["metadata"]["name"] in names:
            yield {**one, "metadata": {"namespace": TENANT, "name": f"t-{one['metadata']['name']}"}}
        elif one.get("kind") == "Event" and about.get("kind") == "Pod" and about.get("name") in names:
            moved = {"kind": "Pod", "namespace": TENANT, "name": f"t-{about['name']}"}
            yield {**one, "metadata": {**one["metadata"], "namespace": TENANT}, "involvedObject": moved}


def is_part(one: Object) -> bool:
    owner = Pod(one) if one["kind"] == "Pod" else Obj(one)
    asks = matching.uses_accelerators(owner) if isinstance(owner, Pod) else matching.makes_accelerator_pods(owner)
    return bool(matching.parts_of(owner)) and not asks


def harmless(spec: Object) -> None:
    for field in ("containers", "initContainers"):
        for container in spec.get(field) or []:
            container.pop("securityContext", None)
    spec["volumes"] = [one for one in spec.get("volumes") or [] if "hostPath" not in one]


def told(objects: list[Object], example: Example) -> list[Finding]:
    snapshot = Snapshot.of(copy.deepcopy(objects), taken=example.taken, listed=example.listed)
    return [one for root in diagnose(snapshot, strict=True).findings for one in root.all()]


LOOK_ALIKES = [one for one in all_examples() if any(True for _ in disguised(one))]


def test_there_are_enough_of_them() -> None:
    assert len(LOOK_ALIKES) > 100


@pytest.mark.parametrize("example", LOOK_ALIKES, ids=lambda one: one.name)
def test_a_look_alike_says_nothing_of_others_and_takes_nothing_from_them(example: Example) -> None:
    real = [*example.healthy, STACK]
    before = {(one.id, one.cause) for one in told(real, example)}
    after = told([*real, *disguised(example)], example)
    new = [one for one in after if (one.id, one.cause) not in before]
    assert [(one.id, str(one.subject)) for one in new if one.subject.namespace != TENANT] == []
    assert [(one.id, step) for one in new for step in one.remedy if takes_from_others(step, {TENANT})] == []
    assert {(one.id, one.cause) for one in after} >= before
