"""What devices are doing now and who holds them: what ``kgpu idle`` shows, and what reclaiming decides by.

The agents' readings are judged by whoever asks, as alerts, a node and a policy each have their own window and limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kgpu.formats.usage import HolderSharing
from kgpu.usage.states import IdleRules, UsageVerdict


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderNow:
    """A container that holds a device, or a part of it. ``share``: its part of the device, in millionths.

    ``owner``: the top of its pod's owners, such as ``Deployment/llama``, "" for a pod that nothing would make again.
    ``held_since``: seconds since 1970.
    """

    namespace: str
    pod: str
    uid: str
    container: str = ""
    owner: str = ""
    sharing: HolderSharing = HolderSharing.WHOLE
    share: int = 1_000_000
    held_since: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNow:
    """A device or a partition of it, judged. ``verdict`` is the device's own; ``tenants`` has one by holder's uid
    where several share it. ``read_at``: when its agent was last heard, in seconds since 1970.
    """

    node: str
    device: str
    verdict: UsageVerdict
    partition: str = ""
    product: str = ""
    read_at: float = 0.0
    holders: tuple[HolderNow, ...] = ()
    tenants: tuple[tuple[str, UsageVerdict], ...] = ()


class IdleSource(Protocol):
    """Where judged devices come from: the agents, a store of what they said, or a test's list."""

    def devices(self, rules: IdleRules, now: float) -> Sequence[DeviceNow]:
        """All devices that are known, judged by the rules. An agent that is not heard gives ``unknown``."""
        ...
