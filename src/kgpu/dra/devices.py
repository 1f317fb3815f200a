"""From a node's inventory to the devices that it publishes. Pure; read this first.

What a vendor's accelerators are published as is that vendor's own (``DRIVERS``); here devices get names that no other
has, and taints. What can't be published is told and left out, so that the others are published all the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from kgpu.base.advice import Advice, Severity
from kgpu.base.errors import ConfigError
from kgpu.dra import nvidia_gpus
from kgpu.dra.model import DraDevice, GpuDevices, PublishedNode, PublishRules
from kgpu.dra.taints import tainted
from kgpu.formats.names import DRA_GPU_DRIVER, NVIDIA
from kgpu.hw.port import Accelerator, Inventory
from kgpu.hw.verdicts import GpuVerdict


@dataclass(frozen=True, slots=True)
class VendorDevices:
    """How a vendor's accelerators are published: under which driver's name, and as which devices each."""

    name: str
    published: Callable[[Inventory, Accelerator, PublishRules], GpuDevices]


DRIVERS: Final[Mapping[str, VendorDevices]] = {NVIDIA: VendorDevices(DRA_GPU_DRIVER, nvidia_gpus.published)}
"""By vendor; one that is not here publishes nothing yet."""
_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)


def node_devices(
    inventory: Inventory, rules: PublishRules, verdicts: Mapping[str, GpuVerdict] | None = None
) -> PublishedNode:
    """What the node publishes. ``verdicts`` are by UUID, None where no process gives any. Raises ConfigError for a
    vendor whose devices kgpu does not publish.
    """
    driver = driver_of(inventory.vendor)
    advice: list[Advice] = []
    gpus: list[GpuDevices] = []
    named = _by_minor(inventory.accelerators)
    for gpu in inventory.accelerators:
        if gpu.uuid in rules.taken:
            advice.append(_taken(gpu.uuid, rules.taken[gpu.uuid]))
            continue
        if named[gpu.minor] is not gpu:  # the names of its devices and counters are those of another GPU
            advice.append(_unpublished(gpu.uuid, "it", f"another GPU has minor number {gpu.minor} too"))
            continue
        published = driver.published(inventory, gpu, rules)
        kept = tuple(_named(published.devices, advice))
        devices = tainted(kept, gpu, None if verdicts is None else verdicts.get(gpu.uuid), rules)
        if devices:
            gpus.append(replace(published, devices=devices))
    return PublishedNode(driver=driver.name, gpus=tuple(gpus), advice=tuple(advice))


def _by_minor(gpus: Iterable[Accelerator]) -> Mapping[int, Accelerator]:
    """Which GPU has the names with a minor number: of several one that works, since a lost one's number may be old."""
    found: dict[int, Accelerator] = {}
    for gpu in sorted(gpus, key=lambda one: not one.usable):
        found.setdefault(gpu.minor, gpu)
    return found


def driver_of(vendor: str) -> VendorDevices:
    """How a vendor's accelerators are published. Raises ConfigError."""
    if vendor not in DRIVERS:
        raise ConfigError(
            f'kgpu has no DRA driver for vendor "{vendor}"', f"one of: {', '.join(DRIVERS)}",
            "use the device plugin, which offers its devices as resources",
        )  # fmt: skip
    return DRIVERS[vendor]


def _named(devices: Iterable[DraDevice], advice: list[Advice]) -> Iterator[DraDevice]:
    """Those with a legal name that no other of the GPU's devices has."""
    names: set[str] = set()
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
        reason="DeviceNotPublished", remedy="compare with `nvidia-smi -q`; if the driver says the same, update it",
    )  # fmt: skip
