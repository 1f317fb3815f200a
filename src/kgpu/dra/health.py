"""How well a node's devices are, as the kubelet shows it of pods that have them. Pure.

The same verdicts decide as for taints: a device that is to get no new claim is unhealthy. One of whose GPU health says
nothing, and that has no taint, is not known to be well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kgpu.dra.model import DeviceTaintEffect, DraDevice, PublishedNode
from kgpu.hw.verdicts import GpuVerdict
from kgpu.kubelet.model import ClaimDeviceHealth, DeviceCondition

VALID_S: Final = 180
"""How long a list holds: the hardware is looked at every minute, and a look may fail."""


def device_health(
    node: PublishedNode, pool: str, verdicts: Mapping[str, GpuVerdict] | None
) -> tuple[ClaimDeviceHealth, ...]:
    """Of each device. ``verdicts`` are by the GPU's UUID, None where no process gives any."""
    known = verdicts or {}
    return tuple(
        ClaimDeviceHealth(pool=pool, device=device.name, condition=_condition(device, judged=device.gpu in known))
        for device in node.devices
    )


def _condition(device: DraDevice, *, judged: bool) -> DeviceCondition:
    if any(taint.effect is not DeviceTaintEffect.NONE for taint in device.taints):
        return DeviceCondition.UNHEALTHY
    return DeviceCondition.HEALTHY if judged else DeviceCondition.UNKNOWN
