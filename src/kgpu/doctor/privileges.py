"""Who can do what no tenant is given: be privileged on a node, or have one of its folders that matter.

A pod of the GPU stack has that, or shares its namespace with one that has. So nobody becomes a part of it by a name.
"""

from __future__ import annotations

import posixpath
from typing import Final

from kgpu.base.plain import items, mapping, text
from kgpu.doctor.kinds import Pod
from kgpu.doctor.objects import Obj
from kgpu.formats import names

_WHOLE: Final = frozenset({"/", "/boot", "/dev", "/etc", "/lib", "/opt", "/usr", "/var", "/var/lib"})
"""Folders that give something away as a whole. Much below them is harmless: ``/dev/shm``, ``/etc/localtime``."""
_BELOW: Final = (
    names.CDI_STATIC_DIR, names.STATE_DIR, posixpath.dirname(names.KUBELET_DEVICE_PLUGIN_DIR),
    "/etc/containerd", "/etc/crio", "/etc/docker", "/etc/kubernetes", "/lib/modules", "/proc", "/run", "/sys",
    "/var/lib/containerd", "/var/lib/docker", "/var/lib/rancher", "/var/run",
)  # fmt: skip
"""Folders of which every part does: the engine's, the kubelet's and the kernel's."""


def is_mighty(owner: Obj) -> bool:
    """Whether a pod, or those of a template, may do anything on a node, or have a folder of it that matters."""
    spec = owner.map("spec" if isinstance(owner, Pod) else "spec.template.spec")
    containers = [mapping(one) for field in ("containers", "initContainers") for one in items(spec.get(field))]
    if any(mapping(one.get("securityContext")).get("privileged") is True for one in containers):
        return True
    volumes = map(mapping, items(spec.get("volumes")))
    return any(_matters(text(mapping(one.get("hostPath")).get("path"))) for one in volumes)


def _matters(path: str) -> bool:
    if not path.startswith("/"):
        return False
    whole = posixpath.normpath("/" + path.lstrip("/"))
    return whole in _WHOLE or any(whole == one or whole.startswith(f"{one}/") for one in _BELOW)
