"""What the driver manager does, from what its machine and its Node are like. Pure; read this first.

The order is that of the replaced manager. Where it differs: nothing is uncordoned that this manager has not cordoned,
and only what it has paused is given back. Both are written on the Node in the same request that does them, so that a
manager that is started again after a sudden end knows it. An operand is paused by its label alone if that is ``true``:
another value is somebody's word.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kgpu.base.plain import mapping, texts
from kgpu.drivermanager.config import ManagerSettings
from kgpu.drivermanager.model import LocalPod, MachineState, ManagedNode, ManagerAction, ManagerStep
from kgpu.formats import names

OPERANDS: Final = (
    "operator-validator", "container-toolkit", "device-plugin", "gpu-feature-discovery", "dcgm", "dcgm-exporter",
    "mig-manager", "nvsm", "sandbox-validator", "sandbox-device-plugin", "vgpu-device-manager", "client",
    "dra-validator", "dcgm-dra", "dcgm-exporter-dra", "dra-driver",
)  # fmt: skip
"""The ends of the labels ``nvidia.com/gpu.deploy.<x>`` of all that uses the driver."""
_FINISH: Final = (
    ManagerStep(ManagerAction.UNMOUNT, "the former driver container's root is still there"),
    ManagerStep(ManagerAction.NOUVEAU, "it would keep NVIDIA's driver from the GPUs"),
    ManagerStep(ManagerAction.MOFED, "the driver's RDMA module is built against it"),
)


def steps(settings: ManagerSettings, machine: MachineState, node: ManagedNode) -> tuple[ManagerStep, ...]:
    """All steps, in their order."""
    if machine.host_driver:
        return (
            ManagerStep(ManagerAction.MARK_PRE_INSTALLED, f"driver {machine.host_driver} is installed on the host"),
        )
    return tuple(step for step in _wanted(settings, machine, node) if _applies(step, settings, machine))


def _wanted(settings: ManagerSettings, machine: MachineState, node: ManagedNode) -> tuple[ManagerStep, ...]:
    back = ManagerStep(ManagerAction.GIVE_BACK, "all is ready for the driver's container")
    if not machine.loaded:
        return (*_FINISH, back)
    stopping = (
        ManagerStep(ManagerAction.HOLD, "what uses the driver has to let go of it"),
        ManagerStep(ManagerAction.OPERANDS, "they end by themselves"),
    )
    if settings.digest and settings.digest == machine.digest and not settings.reinstall:
        return (
            *stopping,
            ManagerStep(ManagerAction.UNMOUNT, "the wanted driver is loaded, and only its container is new"),
            back,
        )
    evicting = ManagerStep(ManagerAction.EVICT, "they would lose their GPUs")
    unused = (ManagerStep(ManagerAction.UNUSED, "no operation has emptied the node"),)
    checks = unused if settings.evict_gpu_pods and node.not_emptied else ()
    return (
        *checks,
        *stopping,
        *checks,
        *((evicting,) if evicts(settings, node) else ()),
        ManagerStep(ManagerAction.CLAIMS, "a claim of a GPU is given back only while the DRA driver runs"),
        ManagerStep(ManagerAction.UNLOAD, _why_unload(settings, machine)),
        *_FINISH,
        back,
    )


def _why_unload(settings: ManagerSettings, machine: MachineState) -> str:
    if settings.reinstall:
        return "FORCE_REINSTALL is set"
    return "another driver is wanted" if machine.digest else "which driver is loaded is not known"


def _applies(step: ManagerStep, settings: ManagerSettings, machine: MachineState) -> bool:
    if step.action is ManagerAction.NOUVEAU:
        return machine.nouveau
    return step.action is not ManagerAction.MOFED or (settings.rdma and machine.mellanox)


def evicts(settings: ManagerSettings, node: ManagedNode) -> bool:
    """Whether pods are evicted, and the node cordoned for that, by this manager and not by an operator."""
    return settings.evict_gpu_pods and not node.operator_upgrades


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """What a manager has done to its Node and takes back: whether it has cordoned it, and the labels it has paused."""

    cordoned: bool = False
    paused: tuple[str, ...] = ()


def encode(hold: Hold) -> str:
    """The hold for the Node's annotation."""
    return json.dumps({"cordoned": hold.cordoned, "paused": list(hold.paused)}, separators=(",", ":"))


def hold_of(node: ManagedNode) -> Hold:
    """The hold that is written on the Node, of this manager or an earlier one; an empty one for none.

    Of a text that nobody can read, the labels that are paused count: only managers pause.
    """
    text = node.annotations.get(names.DRIVER_MANAGER_ANNOTATION, "")
    if not text:
        return Hold()
    try:
        value: Any = mapping(json.loads(text))
    except (ValueError, RecursionError):
        return Hold(paused=_paused(node.labels, _keys("")))
    known = [key for key in texts(value.get("paused")) if key.partition("/")[2]]
    return Hold(cordoned=value.get("cordoned") is True, paused=tuple(known))


def _keys(extra: str) -> tuple[str, ...]:
    return (*(names.LABEL_DEPLOY_PREFIX + end for end in OPERANDS), *((extra,) if extra else ()))


def _paused(labels: Mapping[str, str], keys: Iterable[str]) -> tuple[str, ...]:
    return tuple(key for key in keys if labels.get(key) == names.PAUSED_FOR_DRIVER_UPGRADE)


def take(settings: ManagerSettings, node: ManagedNode) -> tuple[Hold, dict[str, Any]]:
    """The hold, and the merge patch of the Node that makes it.

    Labels that are paused already were left by a manager that has died: they become this one's.
    """
    keys, former = _keys(settings.extra_label), hold_of(node)
    pausing = [key for key in keys if node.labels.get(key) == "true"]
    cordons = evicts(settings, node) and not node.unschedulable
    hold = Hold(
        cordoned=cordons or former.cordoned,
        paused=tuple(dict.fromkeys((*former.paused, *_paused(node.labels, keys), *pausing))),
    )
    metadata = {
        "resourceVersion": node.version,
        "annotations": {names.DRIVER_MANAGER_ANNOTATION: encode(hold)},
        "labels": dict.fromkeys(pausing, names.PAUSED_FOR_DRIVER_UPGRADE),
    }
    return hold, {"metadata": metadata, **({"spec": {"unschedulable": True}} if cordons else {})}


def give_back(node: ManagedNode) -> dict[str, Any]:
    """The merge patch that takes a hold back, {} if there is none.

    Of what a person or a program has changed meanwhile, nothing is changed again.
    """
    if names.DRIVER_MANAGER_ANNOTATION not in node.annotations:
        return {}
    hold = hold_of(node)
    metadata = {
        "resourceVersion": node.version,
        "annotations": {names.DRIVER_MANAGER_ANNOTATION: None},
        "labels": dict.fromkeys(_paused(node.labels, hold.paused), "true"),
    }
    uncordons = hold.cordoned and node.unschedulable
    return {"metadata": metadata, **({"spec": {"unschedulable": None}} if uncordons else {})}


def mark_pre_installed(node: ManagedNode) -> dict[str, Any]:
    """The merge patch by which no driver is installed on this node, {} if it says so already."""
    key = f"{names.LABEL_DEPLOY_PREFIX}driver"
    if node.labels.get(key) == names.PRE_INSTALLED:
        return {}
    return {"metadata": {"labels": {key: names.PRE_INSTALLED}}}


def stopping(pods: Iterable[LocalPod], hold: Hold) -> tuple[LocalPod, ...]:
    """The pods that a paused label keeps off this node: those of DaemonSets that select it, and that still run."""
    return tuple(
        pod
        for pod in pods
        if pod.owner == "DaemonSet" and not pod.ended and pod.node_selector.keys() & set(hold.paused)
    )


def holding_claims(pods: Iterable[LocalPod]) -> tuple[LocalPod, ...]:
    """The pods that still hold resource claims. Those of DaemonSets look at GPUs with admin access."""
    return tuple(pod for pod in pods if pod.claims and not pod.ended and pod.owner != "DaemonSet")
