"""Which resource claims of a pod are for accelerators, and which container has them: claims are for network cards, too.

By the classes that a claim asks for. A claim that nobody has looked at, or whose class says nothing, may be for one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from kgpu.base.plain import items, mapping, text
from kgpu.doctor.devices import requests
from kgpu.doctor.kinds import Container, Pod
from kgpu.doctor.objects import Obj
from kgpu.doctor.snapshot import Snapshot

_ACCELERATOR: Final = re.compile(
    r"gpu|nvidia|(?<![a-z])mig(?![a-z])|(?<![a-z])amd(?![a-z])|gaudi|habana|accel|tpu|cuda|rocm|xpu|npu|neuron",
    re.IGNORECASE,
)
_OTHER: Final = re.compile(
    r"(?<![a-z])(?:net|nic|rdma|ib|infiniband|roce|sr-?iov|mlnx|eth|vlan|fpga|disk|storage|usb|imex|compute-domain)(?![a-z])"
    r"|network|channel",
    re.IGNORECASE,
)


def accelerator_claims(snapshot: Snapshot, pod: Pod) -> tuple[str, ...]:
    """The names in ``spec.resourceClaims`` of those that may be for accelerators."""
    rows = (mapping(row) for row in items(pod.at("spec.resourceClaims")))
    return tuple(text(row.get("name")) for row in rows if _may_be(snapshot, pod, row))


def held_by(container: Container) -> frozenset[str]:
    """The names of the pod's claims that are given to a container."""
    rows = items(mapping(container.spec.get("resources")).get("claims"))
    return frozenset(text(mapping(row).get("name")) for row in rows)


def _may_be(snapshot: Snapshot, pod: Pod, row: Any) -> bool:
    classes = list(_classes(snapshot, pod, row))
    if any(_ACCELERATOR.search(one) for one in classes):
        return True
    return not classes or not all(_OTHER.search(one) for one in classes)


def _classes(snapshot: Snapshot, pod: Pod, row: Any) -> Iterator[str]:
    """The classes asked for, with what selects their devices, which names the driver as a rule."""
    claim = snapshot.get("ResourceClaim", text(row.get("resourceClaimName")), pod.namespace)
    template = snapshot.get("ResourceClaimTemplate", text(row.get("resourceClaimTemplateName")), pod.namespace)
    if template is not None:
        claim = Obj({"kind": template.kind, "metadata": template.map("metadata"), "spec": template.map("spec.spec")})
    for request in requests(snapshot, claim) if claim is not None else ():
        yield " ".join((request.device_class, *request.class_selectors))
