"""What an update of a ResourceClaim's status drops by itself: what drivers said of devices that it deallocates."""

from __future__ import annotations

from typing import TypeAlias

from kgpu.lab.embedded.status import Object

DeviceKey: TypeAlias = tuple[str, str, str, str]


def device_key(row: Object) -> DeviceKey:
    """Which device a result or a device's status is about: driver, pool, device, share."""
    driver, pool, device, share = (str(row.get(field) or "") for field in ("driver", "pool", "device", "shareID"))
    return driver, pool, device, share


def _allocated(obj: Object) -> set[DeviceKey]:
    allocation = (obj.get("status") or {}).get("allocation") or {}
    return {device_key(row) for row in (allocation.get("devices") or {}).get("results") or ()}


def claim_status(obj: Object, old: Object) -> None:
    """Remove the statuses of devices that were allocated and are no more, so that clients need not know of them."""
    status = obj.get("status") or {}
    devices = status.get("devices")
    if not devices:
        return
    gone = _allocated(old) - _allocated(obj)
    left = [row for row in devices if device_key(row) not in gone]
    if left:
        status["devices"] = left
    else:
        del status["devices"]
