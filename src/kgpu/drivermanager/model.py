"""What the driver manager knows of its machine and its Node, and the steps that it takes. Values only."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kgpu.base.plain import items, mapping, strings, text
from kgpu.formats import names
from kgpu.formats.pod_origin import controller_reference

MODULES: Final = (
    "nvidia_drm", "nvidia_modeset", "nvidia_uvm", "nvidia_peermem", "nvidia_fs", "nvidia_vgpu_vfio", "gdrdrv", "nvidia",
)  # fmt: skip
"""The driver's kernel modules, in the order in which they are unloaded where none needs another."""
NOUVEAU: Final = "nouveau"


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineState:
    """The machine. ``host_driver`` is the release of a driver that is installed on the host and works, "" for none;
    ``loaded`` whether NVIDIA's modules are, ``digest`` what the driver container wrote of them; ``nouveau`` whether
    that is loaded; ``mellanox`` whether the machine has a network card whose driver GPUDirect RDMA needs.
    """

    host_driver: str = ""
    loaded: bool = False
    digest: str = ""
    nouveau: bool = False
    mellanox: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedNode:
    """The Node as it was read; ``version`` is its resourceVersion."""

    name: str
    version: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    unschedulable: bool = False

    @property
    def operator_upgrades(self) -> bool:
        """Whether an operator empties and cordons this node for driver upgrades, so that the manager must not."""
        return self.annotations.get(names.DRIVER_UPGRADE_ENABLED) == "true"

    @property
    def not_emptied(self) -> bool:
        """Whether it is the operator's to empty this node, and it has not: pods may come to it."""
        return self.operator_upgrades and not self.unschedulable


def read_node(obj: Mapping[str, Any]) -> ManagedNode:
    """Read a Node from the API server."""
    metadata = mapping(obj.get("metadata"))
    return ManagedNode(
        name=text(metadata.get("name")), version=text(metadata.get("resourceVersion")),
        labels=strings(metadata.get("labels")), annotations=strings(metadata.get("annotations")),
        unschedulable=mapping(obj.get("spec")).get("unschedulable") is True,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPod:
    """A pod of this node. ``owner`` is the kind of its controller, "" for none; ``gpus`` whether it asks for GPUs,
    ``claims`` whether it has resource claims; ``containers`` are the ids of its containers, without the runtime;
    ``leaving`` is True once it is being deleted.
    """

    namespace: str
    name: str
    uid: str
    owner: str = ""
    mirror: bool = False
    leaving: bool = False
    ended: bool = False
    empty_dirs: bool = False
    gpus: bool = False
    claims: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    containers: frozenset[str] = frozenset()

    @property
    def where(self) -> str:
        """Namespace and name, for messages."""
        return f"{self.namespace}/{self.name}"


_GPUS: Final = (names.GPU_RESOURCE, names.MIG_RESOURCE_PREFIX)
_STATUSES: Final = ("containerStatuses", "initContainerStatuses")


def read_pod(obj: Mapping[str, Any]) -> LocalPod:
    """Read a Pod from the API server."""
    metadata, spec, status = (mapping(obj.get(key)) for key in ("metadata", "spec", "status"))
    owner = controller_reference(obj)
    claims = bool(items(spec.get("resourceClaims")))
    rows = [mapping(row) for key in _STATUSES for row in items(status.get(key))]
    return LocalPod(
        namespace=text(metadata.get("namespace")), name=text(metadata.get("name")), uid=text(metadata.get("uid")),
        owner=text(owner.get("kind")), mirror=names.MIRROR_ANNOTATION in strings(metadata.get("annotations")),
        leaving=metadata.get("deletionTimestamp") is not None,
        ended=text(status.get("phase")) in {"Succeeded", "Failed"},
        empty_dirs=any("emptyDir" in mapping(volume) for volume in items(spec.get("volumes"))),
        gpus=claims or _asks(spec), claims=claims, labels=strings(metadata.get("labels")),
        node_selector=strings(spec.get("nodeSelector")),
        containers=frozenset(text(row.get("containerID")).rpartition("//")[2] for row in rows) - {""},
    )  # fmt: skip


def _asks(spec: Mapping[str, Any]) -> bool:
    """Whether a container asks for NVIDIA's GPUs or slices of them."""
    rows = (mapping(row) for key in ("containers", "initContainers") for row in items(spec.get(key)))
    resources = (mapping(mapping(row.get("resources")).get(key)) for row in rows for key in ("limits", "requests"))
    return any(str(name).startswith(_GPUS) for asked in resources for name in asked)


class ManagerAction(enum.StrEnum):
    """What a step does."""

    MARK_PRE_INSTALLED = "mark-pre-installed"  # the host has a driver of its own: none is installed here
    UNUSED = "unused"  # no pod may have GPUs where nobody has emptied the node
    HOLD = "hold"  # pause the operands, and cordon the node where pods are evicted
    OPERANDS = "operands"  # wait until the paused ones are gone
    EVICT = "evict"  # the pods with GPUs
    CLAIMS = "claims"  # none may be held any more
    UNLOAD = "unload"
    UNMOUNT = "unmount"  # the driver's root and its files
    NOUVEAU = "nouveau"
    MOFED = "mofed"  # wait for the network cards' driver
    GIVE_BACK = "give-back"  # what was paused and cordoned


@dataclass(frozen=True, slots=True)
class ManagerStep:
    """One step and why it is taken, for the log."""

    action: ManagerAction
    why: str
