"""From a node's inventory to the devices that it publishes. Pure; read this first.

What a vendor's accelerators are published as is that vendor's own (``drivers.DRIVERS``); here devices get names that no
other has, and taints. What can't be published is told and left out, so that the others are published all the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from kgpu.base.advice import Advice, Severity
from kgpu.dra.drivers import DraDriver, driver_of
from kgpu.dra.model import DraDevice, GpuDevices, PublishedNode, PublishRules
from kgpu.dra.taints import tainted
from kgpu.dra.values import flag_of
from kgpu.hw.port import Inventory
from kgpu.hw.verdicts import GpuVerdict

_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)


def node_devices(
    inventory: Inventory, rules: PublishRules, verdicts: Mapping[str, GpuVerdict] | None = None
) -> PublishedNode:
    """What the node publishes. ``verdicts`` are by UUID, None where no process gives any. Raises ConfigError for a
    vendor whose devices kgpu does not publish.
    """
    driver = driver_of(inventory.vendor)
    advice: list[Advice] = []
    gpus: dict[int, GpuDevices] = {}
    places, names = set[str](), set[str]()
    # Of several with one name that one has it that works: what a lost one had may be old.
    for at, gpu in sorted(enumerate(inventory.accelerators), key=lambda one: not one[1].usable):
        place = driver.place(gpu)
        if place in places:  # the names of its devices and counters are those of another GPU
            advice.append(_unpublished(gpu.uuid, "it", f"another GPU has {place} too"))
            continue
        places.add(place)
        if gpu.uuid in rules.taken:
            advice.append(_taken(gpu.uuid, rules.taken[gpu.uuid]))
            continue
        published = driver.published(inventory, gpu, rules)
        if published.unnamed:
            advice.append(_unpublished(gpu.uuid, "it", published.unnamed))
        kept = tuple(_named(published.devices, advice, names))
        verdict = None if verdicts is None else verdicts.get(gpu.uuid)
        devices = tuple(_judged(device, driver) for device in tainted(kept, gpu, verdict, rules, driver.taints))
        if devices:
            gpus[at] = replace(published, devices=devices)
    return PublishedNode(driver=driver.name, gpus=tuple(gpus[at] for at in sorted(gpus)), advice=tuple(advice))


def _judged(device: DraDevice, driver: DraDriver) -> DraDevice:
    """The device, which says itself whether it is fit for work where its driver's devices do."""
    if not driver.healthy:
        return device
    return replace(device, attributes={**device.attributes, driver.healthy: flag_of(not device.withdrawn)})


def _named(devices: Iterable[DraDevice], advice: list[Advice], names: set[str]) -> Iterator[DraDevice]:
    """Those with a legal name that is not among ``names`` yet, to which they are added."""
    for device in devices:
        if not _LABEL.fullmatch(device.name):
            advice.append(_unpublished(device.partition or device.gpu, device.name, "that is no DNS label"))
        elif device.name in names:
            advice.append(_unpublished(device.partition or device.gpu, device.name, "another device has that name"))
        else:
            names.add(device.name)
            yield device


def _taken(uuid: str, why: str) -> Advice:
    return Advice(
        subject=uuid, what="it is not published as a device", why=why, reason="DeviceTaken",
        remedy="nothing: it is published once that is over",
    )  # fmt: skip


def _unpublished(uuid: str, name: str, why: str) -> Advice:
    return Advice(
        subject=uuid, what=f"{name} is not published as a device", why=why, severity=Severity.WARNING,
        reason="DeviceNotPublished",
        remedy="compare with what the driver's own programs list; if they say the same, update the driver",
    )  # fmt: skip
