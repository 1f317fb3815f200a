"""Chooses the devices of a resource that the kubelet should take: aligned, distributed or packed. Pure.

Whole unshared GPUs are aligned (``search.py``). Shares and MIG devices are spread over the GPUs or packed onto few, or
without a policy the first are taken.
Ties go to the first device, so the same request gets the same answer. Every choice has its reason.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kgpu.base.errors import ConfigError
from kgpu.deviceplugin.allocate import AllocationError
from kgpu.deviceplugin.config import NO_POLICY
from kgpu.deviceplugin.model import PluginDevice, PluginResource
from kgpu.deviceplugin.plan import whole_gpu
from kgpu.deviceplugin.topology import GpuTopology
from kgpu.formats.names import GPU_RESOURCE
from kgpu.hw.port import Inventory, Link
from kgpu.hw.vendor import Pairing
from kgpu.kubelet.model import PreferenceRequest

if TYPE_CHECKING:
    from kgpu.deviceplugin.weights import PairWeights


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferredDevices:
    """The preferred ids, the score of their GPUs' connections, and the reason in one sentence."""

    ids: tuple[str, ...]
    score: int
    why: str


def prefer(
    resource: PluginResource,
    request: PreferenceRequest,
    topology: GpuTopology,
    *,
    policy: str,
    weights: PairWeights | None = None,
) -> PreferredDevices:
    """The choice for one container. Raises AllocationError if devices are too few or unknown."""
    known = resource.by_id
    for wanted in (*request.available, *request.must_include):
        if wanted not in known:
            raise AllocationError(
                f"error getting list of preferred allocation devices: unknown device: {wanted}",
                f"one of the {len(known)} devices that {resource.name} has now",
                "the kubelet asks again when it has the present list",
            )
    available = [known[wanted] for wanted in dict.fromkeys(request.available)]
    required = [known[wanted] for wanted in dict.fromkeys(request.must_include)]
    if weights is not None and resource.vendor.pairing is Pairing.WEIGHTS:
        return _weighed(resource, available, required, request.size, weights)
    whole = not any(device.unit.is_mig or device.is_replica for device in (*resource.devices, *available))
    if whole and all(topology.knows(device.unit.uuid) for device in available):
        return _aligned(available, required, request.size, topology)
    if policy == NO_POLICY:
        return _first(resource, available, required, request.size, topology)
    return _spread(resource, available, required, request.size, topology, packed=policy == "packed")


def _first(
    resource: PluginResource,
    available: Sequence[PluginDevice],
    required: Sequence[PluginDevice],
    size: int,
    topology: GpuTopology,
) -> PreferredDevices:
    """The required devices and the first others in the node's order: without a policy nothing is weighed."""
    _check_size(len(available), [device.id for device in required], size)
    left = {device.id for device in available} - {device.id for device in required}
    others = [device for device in resource.devices if device.id in left]
    chosen = [*required, *others[: size - len(required)]]
    return PreferredDevices(
        ids=tuple(device.id for device in chosen),
        score=topology.score(list(dict.fromkeys(device.unit.gpu_uuid for device in chosen))),
        why=f"no policy is set: the first {size} available devices",
    )


def _aligned(
    available: Sequence[PluginDevice], required: Sequence[PluginDevice], size: int, topology: GpuTopology
) -> PreferredDevices:
    by_uuid = {device.unit.uuid: device.id for device in available}
    alignment = (
        topology.align(list(by_uuid), [device.unit.uuid for device in required], size)
        if all(device.unit.uuid in by_uuid for device in required)
        else None
    )
    if alignment is None or not alignment.uuids:
        return PreferredDevices(
            ids=(),
            score=0,
            why=f"no choice of {size} among {len(by_uuid)} available devices can include"
            f" the {len(required)} required ones",
        )
    if size == len(by_uuid):
        why = "all available GPUs are needed"
    elif size == len(required):
        why = "the required GPUs are all that is asked for"
    elif size == 1:
        why = "the other available GPUs lose least in connections when this one is taken"
    else:
        why = (
            f"of all ways to split the {len(by_uuid)} available GPUs into sets of {size}, this set belongs to the one"
            " with the best connections within its sets"
        )
        if not alignment.exact:
            why = f"these GPUs are well connected; {len(by_uuid)} are too many to compare every way to split them"
    return PreferredDevices(ids=tuple(by_uuid[uuid] for uuid in alignment.uuids), score=alignment.score, why=why)


def _weighed(
    resource: PluginResource,
    available: Sequence[PluginDevice],
    required: Sequence[PluginDevice],
    size: int,
    weights: PairWeights,
) -> PreferredDevices:
    from kgpu.deviceplugin.weights import lightest  # loaded only where there are such GPUs

    ids = {device.id for device in available}
    _check_size(len(ids), [device.id for device in required], size)
    if not {device.id for device in required} <= ids:
        raise AllocationError(
            "error getting list of preferred allocation devices: a required device is not available",
            "required devices among the available ones",
            "the kubelet then chooses by itself, or refuses the pod",
        )
    choice = lightest([device for device in resource.devices if device.id in ids], required, size, weights)
    gpus = sorted({device.unit.gpu_index for device in choice.devices})
    return PreferredDevices(
        ids=tuple(device.id for device in choice.devices),
        score=choice.weight,
        why=f"the least sum of distances (parts of one GPU, XGMI, NUMA node) of {size} among {len(ids)} available"
        f" devices; GPUs {', '.join(map(str, gpus))}" + ("" if choice.exact else "; not every choice was compared"),
    )


def _check_size(available: int, required: Sequence[str], size: int) -> None:
    if size <= 0 or size > available or len(required) > size:
        raise AllocationError(
            "error getting list of preferred allocation devices: not enough available devices to satisfy allocation",
            f"1 to {available} devices, of which {len(required)} are required; {size} are asked for",
            "the kubelet then chooses by itself, or refuses the pod",
        )


def _spread(
    resource: PluginResource,
    available: Sequence[PluginDevice],
    required: Sequence[PluginDevice],
    size: int,
    topology: GpuTopology,
    *,
    packed: bool,
) -> PreferredDevices:
    order = {device.id: position for position, device in enumerate(resource.devices)}
    must = {device.id for device in required}
    candidates = sorted((device for device in available if device.id not in must), key=lambda d: order[d.id])
    need = size - len(required)
    if need < 0 or len(candidates) < need:
        raise AllocationError(
            "error getting list of preferred allocation devices: not enough available devices to satisfy allocation",
            f"at least {max(need, 0)} devices beside the {len(required)} required ones, of {len(candidates)} available",
            "the kubelet then chooses by itself, or refuses the pod",
        )
    total = Counter(device.unit.gpu_uuid for device in resource.devices)
    free = Counter(device.unit.gpu_uuid for device in candidates)
    picked: Counter[str] = Counter()
    picks: list[PluginDevice] = []
    # Only GPUs are compared, and the first device of one is taken: there can be thousands of shares.
    queues: dict[str, deque[PluginDevice]] = {}
    for device in candidates:
        queues.setdefault(device.unit.gpu_uuid, deque()).append(device)
    for _ in range(need):
        gpu = min(
            queues,
            key=lambda gpu: ((total[gpu] - free[gpu]) * (-1 if packed else 1), picked[gpu], order[queues[gpu][0].id]),
        )
        free[gpu] -= 1
        picked[gpu] += 1
        picks.append(queues[gpu].popleft())
        if not queues[gpu]:
            del queues[gpu]
    chosen = [*required, *picks]
    gpus = sorted({device.unit.gpu_uuid: device.unit.gpu_index for device in chosen}.values())
    how = "most" if packed else "least"
    return PreferredDevices(
        ids=tuple(device.id for device in chosen),
        score=topology.score(list(dict.fromkeys(device.unit.gpu_uuid for device in chosen))),
        why=f"taken from the GPUs with the {how} devices in use: {', '.join(map(str, gpus))}"
        if chosen
        else "nothing was asked for",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexChoice:
    """A choice among whole GPUs, by the driver's indices."""

    indices: tuple[int, ...]
    score: int
    why: str


def prefer_indices(
    inventory: Inventory, links: Sequence[Link], *, available: Sequence[int], required: Sequence[int], size: int
) -> IndexChoice:
    """The choice that an unshared GPU resource of this inventory would make.

    Raises ConfigError for unknown indices and for a size that no choice can have.
    """
    gpus = {gpu.index: gpu for gpu in inventory.accelerators}
    for index in (*available, *required):
        if index not in gpus or (index in required and index not in available):
            known = ", ".join(map(str, sorted(gpus if index not in gpus else available))) or "none"
            raise ConfigError(
                f"GPU {index} is required but not available" if index in gpus else f"there is no GPU {index}",
                f"indices among: {known}",
                "correct --available or --must",
            )
    least = max(1, len(required))
    if not least <= size <= len(available):
        raise ConfigError(
            f"{size} of {len(available)} available GPUs can't be chosen"
            + (f" with {len(required)} required ones among them" if required else ""),
            f"a size from {least} to {len(available)}" if least <= len(available) else "at least one available GPU",
            "correct --size, --available or --must",
        )
    units = [whole_gpu(gpu) for gpu in gpus.values()]
    resource = PluginResource(name=GPU_RESOURCE, devices=tuple(PluginDevice(id=unit.uuid, unit=unit) for unit in units))
    topology = GpuTopology((), ()).updated(inventory.accelerators, links)
    request = PreferenceRequest(
        available=tuple(gpus[index].uuid for index in available),
        must_include=tuple(gpus[index].uuid for index in required),
        size=size,
    )
    weights = None
    if units and resource.vendor.pairing is Pairing.WEIGHTS:
        from kgpu.deviceplugin.weights import PairWeights

        weights = PairWeights({}, {}).updated(inventory.accelerators, links)
    choice = prefer(resource, request, topology, policy="distributed", weights=weights)
    by_uuid = {gpu.uuid: index for index, gpu in gpus.items()}
    return IndexChoice(indices=tuple(by_uuid[uuid] for uuid in choice.ids), score=choice.score, why=choice.why)
