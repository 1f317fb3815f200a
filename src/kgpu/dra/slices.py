"""From a node's devices to the ResourceSlices of its pool. Pure.

The pool is named after the node. Its slices have a fixed order and stable names, ``<index>-<driver>-<node>-<of whom>``,
the last part telling a Node from a later one of that name. Generations are in ``plan``.

Where counters have slices of their own these come first, then one for each GPU with counters, then the other devices.
An API server that drops counters is sent no slice that could be made twice of the same hardware, and one that drops
taints no device that a taint withdraws.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from kgpu.base.errors import UserError
from kgpu.dra.api import MAX_COUNTER_SETS, MAX_DEVICES, MAX_DEVICES_WITH_MORE, DraApi, problems
from kgpu.dra.model import DeviceTaintEffect, DraCounterSet, DraDevice, GpuDevices, PublishedNode
from kgpu.kube.port import Object

MAX_NAME: Final = 253
T = TypeVar("T")
_SUFFIX: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOwner:
    """The Node that the pool is of."""

    name: str
    uid: str = ""

    @property
    def reference(self) -> Object:
        """As ownerReferences have it: the slices go with the Node."""
        return {"apiVersion": "v1", "kind": "Node", "name": self.name, "uid": self.uid, "controller": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceContent:
    """What is in one slice."""

    devices: tuple[DraDevice, ...] = ()
    counter_sets: tuple[DraCounterSet, ...] = ()


def pool_slices(node: PublishedNode, owner: PoolOwner, api: DraApi, *, generation: int = 1) -> tuple[Object, ...]:
    """The slices of the node's pool, all of one generation; none where there are no devices. Raises InvalidSlicesError
    for what the API server would refuse.
    """
    parts = tuple(contents(node.gpus, api))
    pool: Object = {"name": owner.name, "generation": generation, "resourceSliceCount": len(parts)}
    slices = tuple(
        {
            "apiVersion": api.resource.api_version,
            "kind": api.resource.kind,
            "metadata": {"name": slice_name(index, node.driver, owner), **_owned(owner)},
            "spec": {"driver": node.driver, "nodeName": owner.name, "pool": dict(pool), **_content(part, api)},
        }
        for index, part in enumerate(parts)
    )
    if slices and (found := problems(slices, api)):
        raise InvalidSlicesError(found)
    return slices


class InvalidSlicesError(UserError):
    """The API server would refuse the slices: what they are made of is not as it should be."""

    def __init__(self, found: Sequence[str]) -> None:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        super().__init__(
            f"the node's ResourceSlices would be refused: {found[0]}{more}",
            "slices that Kubernetes' own rules take",
            "check the node's name, then report this with `kgpu labels -o json` of the node",
        )
        self.found = tuple(found)


def contents(gpus: Iterable[GpuDevices], api: DraApi) -> Iterator[SliceContent]:
    """What is in each of the slices, in their order."""
    shown = [_shown(gpu, api) for gpu in gpus]
    sharing = [(gpu, gpu.counters) for gpu in shown if gpu.counters is not None and gpu.devices]
    if api.split:
        for sets in _chunks([counters for _, counters in sharing], MAX_COUNTER_SETS):
            yield SliceContent(counter_sets=sets)
    for gpu, counters in sharing:
        yield SliceContent(devices=gpu.devices, counter_sets=() if api.split else (counters,))
    plain = [device for gpu in shown if gpu.counters is None for device in gpu.devices]
    most = MAX_DEVICES_WITH_MORE if any(device.taints for device in plain) else MAX_DEVICES
    for devices in _chunks(plain, most):
        yield SliceContent(devices=devices)


def _chunks(items: Sequence[T], size: int) -> Iterator[tuple[T, ...]]:
    for at in range(0, len(items), size):
        yield tuple(items[at : at + size])


def _shown(gpu: GpuDevices, api: DraApi) -> GpuDevices:
    """What of the GPU can be published on this API server."""
    devices = gpu.devices
    if not api.taints:
        devices = tuple(replace(device, taints=()) for device in devices if not device.withdrawn)
    elif not api.seen_taints:
        devices = tuple(
            replace(device, taints=tuple(one for one in device.taints if one.effect is not DeviceTaintEffect.NONE))
            for device in devices
        )
    if gpu.counters is None or api.counters:
        return replace(gpu, devices=devices)
    # Without counters: what is there anyway, else the whole GPU alone.
    there = tuple(device for device in devices if not device.counter_set)
    whole = tuple(replace(one, counter_set="", consumes={}) for one in devices if one.whole)
    return GpuDevices(devices=there or whole)


def slice_name(index: int, driver: str, owner: PoolOwner) -> str:
    """The slice's name; a long node name is cut."""
    suffix = hashlib.sha256(f"{owner.name}/{owner.uid}".encode()).hexdigest()[:_SUFFIX]
    before = f"{index:x}-{driver}-{owner.name}"[: MAX_NAME - _SUFFIX - 1].rstrip(".-")
    return f"{before}-{suffix}"


def _owned(owner: PoolOwner) -> Object:
    return {"ownerReferences": [owner.reference]} if owner.uid else {}


def _content(part: SliceContent, api: DraApi) -> Object:
    spec: Object = {}
    if part.counter_sets:
        spec["sharedCounters"] = [{"name": one.name, "counters": _amounts(one.counters)} for one in part.counter_sets]
    if part.devices:
        spec["devices"] = [_device(device, api) for device in part.devices]
    return spec


def _device(device: DraDevice, api: DraApi) -> Object:
    body: dict[str, Any] = {}
    if device.attributes:
        body["attributes"] = {name: {str(one.kind): one.value} for name, one in device.attributes.items()}
    if device.capacity:
        body["capacity"] = _amounts(device.capacity)
    if device.counter_set:
        body["consumesCounters"] = [{"counterSet": device.counter_set, "counters": _amounts(device.consumes)}]
    if device.taints:
        body["taints"] = [
            {"key": one.key, **({"value": one.value} if one.value else {}), "effect": str(one.effect)}
            for one in device.taints
        ]
    return {"name": device.name, "basic": body} if api.version == "v1beta1" else {"name": device.name, **body}


def _amounts(amounts: Any) -> Object:
    return {name: {"value": amount} for name, amount in amounts.items()}
