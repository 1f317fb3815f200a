"""Devices that must be attached to a node before a pod may run there: binding conditions of what a claim has got.

Their driver sets the conditions in the claim's status. Source: isClaimReadyForBinding and isClaimTimeout of
kube-scheduler 1.35 (dynamicresources.go); it knows them with the gate DRADeviceBindingConditions.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kgpu.base.plain import items, mapping, text, texts
from kgpu.base.times import moment_of

Object = Mapping[str, Any]
BINDING_TIMEOUT_S: Final = 600.0
"""kube-scheduler's ``bindingTimeout``, when it is told nothing else."""


@dataclass(frozen=True, slots=True)
class ClaimBinding:
    """``failure`` says in the scheduler's words which condition ended the wait. ``since``: when it was allocated."""

    ready: bool = False
    failure: str = ""
    since: dt.datetime | None = None

    def late(self, now: dt.datetime) -> bool:
        """Whether it has waited for too long."""
        if self.ready or self.since is None:
            return False
        return (now - self.since).total_seconds() > BINDING_TIMEOUT_S


def claim_binding(name: str, status: Object) -> ClaimBinding | None:
    """What a claim's devices wait for; None where nothing is waited for."""
    allocation = mapping(status.get("allocation"))
    results = [mapping(result) for result in items(mapping(allocation.get("devices")).get("results"))]
    waiting = [result for result in results if texts(result.get("bindingConditions"))]
    if not waiting:
        return None
    since = moment_of(allocation.get("allocationTimestamp"))
    for result in waiting:
        conditions = _conditions(status, result)
        if conditions is None:
            return ClaimBinding(since=since)
        for condition in texts(result.get("bindingFailureConditions")):
            said = conditions.get(condition, {})
            if said.get("status") == "True":
                message = json.dumps(text(said.get("message")), ensure_ascii=False)
                words = f"claim {name} binding failed: reason={text(said.get('reason'))}, message={message}"
                return ClaimBinding(failure=words, since=since)
        wanted = texts(result.get("bindingConditions"))
        if any(conditions.get(condition, {}).get("status") != "True" for condition in wanted):
            return ClaimBinding(since=since)
    return ClaimBinding(ready=True, since=since)


def _conditions(status: Object, result: Object) -> dict[str, Object] | None:
    """The conditions that the driver has set for a device, by type; None where it has said nothing."""
    for device in map(mapping, items(status.get("devices"))):
        if all(device.get(key) == result.get(key) for key in ("driver", "pool", "device")):
            return {text(row.get("type")): row for row in map(mapping, items(device.get("conditions")))}
    return None
