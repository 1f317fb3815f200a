"""Which GPU operator there is already: kgpu's own, or another one."""

from __future__ import annotations

from collections.abc import Iterator

from kgpu.doctor import matching
from kgpu.doctor.kinds import containers_of
from kgpu.doctor.matching import OPERATOR
from kgpu.doctor.objects import Obj
from kgpu.doctor.snapshot import Snapshot
from kgpu.formats import names


def of_kgpu(obj: Obj) -> bool:
    """Whether a pod, or the pods of a Deployment or DaemonSet, are kgpu's."""
    if names.KGPU in (obj.labels.get(names.PART_OF_LABEL), obj.labels.get(names.NAME_LABEL)):
        return True
    base = "spec" if obj.kind == "Pod" else "spec.template.spec"
    return any(names.IMAGE_REPOSITORY in one.image for one in containers_of(obj, base, ""))


def operators(snapshot: Snapshot) -> Iterator[Obj]:
    """The Deployments that are believed to be an operator of NVIDIA's GPUs."""
    for deployment in snapshot.all("Deployment"):
        parts = matching.believed(snapshot, deployment)
        if any(part.name == OPERATOR and part.vendor == matching.NVIDIA for part in parts):
            yield deployment


def foreign(snapshot: Snapshot) -> Obj | None:
    """Another operator than kgpu that runs."""
    running = (one for one in operators(snapshot) if one.number("status.readyReplicas"))
    return next((one for one in running if not of_kgpu(one)), None)


def is_installed(snapshot: Snapshot) -> bool:
    """Whether kgpu's own operator is there."""
    return any(of_kgpu(one) for one in operators(snapshot))


def images(snapshot: Snapshot) -> dict[str, str]:
    """The images that operators' own variables name (``DRIVER_IMAGE``)."""
    return {
        key: value
        for deployment in operators(snapshot)
        for container in containers_of(deployment, "spec.template.spec", "")
        for key, value in container.env.items()
        if key.endswith("_IMAGE") and value
    }
