"""How each way to share stands on some GPUs, as rules: one function for each way, which gives a state and the reason.

What kgpu itself has not got yet is asked of the operands' rows: with a MIG manager the answer changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from kgpu.advise.model import DraService, ModelOnNode, Possibility, ResourceShares, SharingWay
from kgpu.formats import names
from kgpu.formats.mig_geometry import Geometry, geometry_of
from kgpu.formats.operands import BY_NAME
from kgpu.formats.plugin_config import MPS_CLIENTS, VOLTA
from kgpu.formats.support import dotted

Stand = tuple[Possibility, str]

_UNLABELLED: Final = "labels come with the driver and feature discovery; kgpu doctor says what keeps them"

AMPERE: Final = (8, 0)
DRA_BY_DEFAULT: Final = (1, 34)
"""The first Kubernetes with resource.k8s.io/v1, on by default."""
DRA_BY_GATE: Final = (1, 32)
"""The first with it as beta, off by default."""
DRA_GPU_DRIVER: Final = (565,)
"""The first GPU driver that NVIDIA's DRA driver takes."""


def provided(operand: str) -> bool:
    """Whether kgpu has something that does the job."""
    row = BY_NAME.get(operand)
    return row is not None and bool(row.role)


def whole(gpus: ModelOnNode, _dra: DraService) -> Stand:
    """Any GPU can be given to one container."""
    offered = dict(gpus.offered)
    if gpus.slices:
        return Possibility.YES, "after MIG is turned off: the GPUs are cut into slices"
    shared = next((row for row in gpus.shares if row.resource == names.GPU_RESOURCE), None)
    apart = names.GPU_RESOURCE + names.SHARED_SUFFIX in offered  # then shares do not have the whole GPU's name
    if shared is not None and not (apart and names.GPU_RESOURCE in offered):
        return Possibility.YES, f"after sharing is taken out of the device plugin's configuration: {_said(shared)}"
    if names.GPU_RESOURCE in offered:
        return Possibility.IN_USE, f"the node offers {names.GPU_RESOURCE}"
    if _has_slices(gpus):
        return Possibility.YES, "after MIG is turned off on a GPU: the node offers slices alone"
    return Possibility.YES, "with the device plugin; none offers these GPUs now"


def time_slicing(gpus: ModelOnNode, _dra: DraService) -> Stand:
    """Any GPU, and slices of GPUs too."""
    shared = _shared(gpus, SharingWay.TIME_SLICING)
    if shared is not None:
        return Possibility.IN_USE, _said(shared)
    instead = _shared(gpus, SharingWay.MPS)
    if instead is not None:
        return Possibility.YES, f"instead of MPS and not beside it: {_said(instead)}"
    on_slices = ", of MIG slices too" if gpus.slices or _has_slices(gpus) else ""
    return Possibility.YES, f"any GPU{on_slices}: by the device plugin's configuration"


def mps(gpus: ModelOnNode, _dra: DraService) -> Stand:
    """Volta or newer, and no MIG."""
    shared = _shared(gpus, SharingWay.MPS)
    if shared is not None:
        return _mps_set_up(gpus, shared)
    if gpus.compute and gpus.compute < VOLTA:
        known = f"compute capability {dotted(gpus.compute)} is older than Volta (7.0)"
        return Possibility.NO, f"{known}: there MPS would neither isolate nor limit anybody"
    if gpus.slices or _has_slices(gpus):
        return Possibility.NO, "the GPUs are cut into MIG slices, which MPS can't share"
    if gpus.mig_strategy == "mixed":
        return Possibility.NO, "the MIG strategy is mixed, with which the device plugin refuses MPS"
    if not gpus.compute and geometry_of(gpus.product) is None:
        return Possibility.UNKNOWN, f"no label tells the compute capability, and it takes 7.0 (Volta): {_UNLABELLED}"
    return Possibility.YES, f"up to {MPS_CLIENTS} clients: by the device plugin's configuration"


def _mps_set_up(gpus: ModelOnNode, shared: ResourceShares) -> Stand:
    """Configured; in use where something is offered, which takes the daemon."""
    if gpus.offered:
        return Possibility.IN_USE, _said(shared)
    return Possibility.MISSING, "configured, and the node offers nothing: kgpu doctor says what keeps the daemon"


def mig(gpus: ModelOnNode, _dra: DraService) -> Stand:
    """A model with MIG, by the driver's word or the table of models; never beside MPS."""
    if gpus.slices or _has_slices(gpus):
        offered = ", ".join(f"{count} {name}" for name, count in gpus.offered)
        return Possibility.IN_USE, f"slices are there{f': {offered}' if offered else ''}"
    geometry = geometry_of(gpus.product)
    refusal = _no_mig(gpus, geometry)
    if refusal is not None:
        return refusal
    shared = _shared(gpus, SharingWay.MPS)
    if shared is not None:
        return Possibility.NO, f"not while MPS shares these GPUs: {_said(shared)}"
    return Possibility.YES, _how_to_cut(geometry)


def dra(gpus: ModelOnNode, service: DraService) -> Stand:
    """The API, a kubelet that knows it, and a driver that publishes the node's devices."""
    if service.publishers is None:
        return Possibility.UNKNOWN, "ResourceSlices could not be read: it takes the right to list them"
    drivers = service.publishers.get(gpus.node)
    if drivers:
        return Possibility.IN_USE, f"published by DRA driver {', '.join(sorted(drivers))}"
    missing = [*_api_missing(gpus, service), *_driver_missing(gpus)]
    return Possibility.MISSING, "; ".join(missing)


def _no_mig(gpus: ModelOnNode, geometry: Geometry | None) -> Stand | None:
    """Why these GPUs can't be cut, None where they can. The driver's word goes before the table's: a GPU that is passed
    on to a virtual machine has the model's name and no MIG.
    """
    if gpus.compute and gpus.compute < AMPERE:
        return Possibility.NO, f"compute capability {dotted(gpus.compute)} is older than Ampere (8.0)"
    if gpus.mig_capable is False:
        return Possibility.NO, f"{names.LABEL_MIG_CAPABLE}=false: the driver finds no MIG on this node's GPUs"
    if geometry is not None:
        return None
    if gpus.mig_capable and not gpus.beside:
        return None
    if gpus.product and (gpus.mig_capable is None or gpus.beside):
        return (
            Possibility.UNKNOWN,
            f"{gpus.product} is in no table of MIG models; nvidia-smi mig -lgip on the node tells",
        )
    return Possibility.UNKNOWN, f"the model is not known: {_UNLABELLED}"


def _how_to_cut(geometry: Geometry | None) -> str:
    said = "the driver says so; its profiles are in no table here" if geometry is None else _most(geometry)
    reset = "; turning MIG on resets the GPU" if geometry is not None and geometry.needs_reset else ""
    return f"{said}{reset}"


def _most(geometry: Geometry) -> str:
    count = geometry.max_devices
    return f"up to {count} slices on each GPU, {geometry.smallest.name} the smallest"


def _api_missing(gpus: ModelOnNode, service: DraService) -> list[str]:
    missing = []
    if not service.served:
        missing.append(_not_served(service.kubernetes))
    if gpus.kubelet and gpus.kubelet[:2] < DRA_BY_DEFAULT:
        missing.append(f"the kubelet is {dotted(gpus.kubelet)}: from {dotted(DRA_BY_DEFAULT)} on it is on by default")
    return missing


def _not_served(version: tuple[int, ...]) -> str:
    here = f"Kubernetes {dotted(version)}" if version else "the API server"
    if version >= DRA_BY_DEFAULT:
        return f"{here} does not serve resource.k8s.io: it was switched off"
    if version >= DRA_BY_GATE:
        return f"{here} does not serve resource.k8s.io: before {dotted(DRA_BY_DEFAULT)} feature gates turn it on"
    return f"{here} has no resource.k8s.io that drivers can use: it takes {dotted(DRA_BY_DEFAULT)}"


def _driver_missing(gpus: ModelOnNode) -> list[str]:
    missing = ["no DRA driver publishes these GPUs"]
    if provided("dra"):
        missing.append(f"kgpu's comes with the Helm value dra.enabled and the node label {names.ALLOCATION_LABEL}=dra")
    else:
        missing.append("DRA driver: not provided by kgpu yet")
    if gpus.driver and gpus.driver[:1] < DRA_GPU_DRIVER:
        missing.append(f"NVIDIA's takes GPU driver {dotted(DRA_GPU_DRIVER)}, and this is {gpus.driver[0]}")
    return missing


def _shared(gpus: ModelOnNode, way: SharingWay) -> ResourceShares | None:
    return next((row for row in gpus.shares if row.way is way), None)


def _said(shares: ResourceShares) -> str:
    each = f", {shares.replicas} shares each" if shares.replicas else ""
    return f"{shares.resource} by {shares.way.words}{each}"


def _has_slices(gpus: ModelOnNode) -> bool:
    return any(name.startswith(names.MIG_RESOURCE_PREFIX) for name, _ in gpus.offered)


STANDS: Final[Mapping[SharingWay, Callable[[ModelOnNode, DraService], Stand]]] = {
    SharingWay.WHOLE: whole,
    SharingWay.TIME_SLICING: time_slicing,
    SharingWay.MPS: mps,
    SharingWay.MIG: mig,
    SharingWay.DRA: dra,
}
