"""What a look at a node's devices finds: readings, and who holds what. Nothing here depends on how it was found."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Protocol

import msgspec

from kgpu.formats.usage import HolderSharing
from kgpu.formats.usage_now import UsageSource
from kgpu.hw.port import Inventory
from kgpu.usage.states import UsageReading


class LookedHolder(msgspec.Struct, frozen=True, kw_only=True):
    """A container that holds a device, or the partition of that id.

    ``sm`` and ``memory_mib`` are what its own processes have of the card's activity, and hold of its memory; None where
    the driver does not say.
    """

    namespace: str
    pod: str
    uid: str
    container: str = ""
    partition: str = ""
    owner: str = ""
    gang: str = ""
    labels: Mapping[str, str] = {}
    sharing: HolderSharing = HolderSharing.WHOLE
    replicas: int = 1
    units: int = 1
    claim: str = ""
    sm: float | None = None
    memory_mib: float | None = None

    @property
    def by_name(self) -> str:
        """What stands for its uid where that is not known: its name, which is not that of two pods at a time."""
        return f"{self.namespace}/{self.pod}"

    @property
    def key(self) -> str:
        """By what its counters are followed."""
        return f"{self.uid}/{self.container}/{self.partition}"


class LookedPart(msgspec.Struct, frozen=True, kw_only=True):
    """A partition. ``reading`` is None where it was not read; that of the card where ``source`` says so. ``checked``:
    kgpu itself has worked on it since the look before, so that readings say nothing of who holds it.
    """

    id: str
    profile: str = ""
    memory_mib: float = 0.0
    reading: UsageReading | None = None
    source: UsageSource = UsageSource.NOTHING
    checked: bool = False


class LookedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device. ``idle_limit_w``: what it can't draw without work; ``energy_mj``: its board's meter; ``checked`` as of
    a partition.
    """

    device: str
    product: str = ""
    memory_mib: float = 0.0
    usable: bool = True
    reading: UsageReading | None = None
    source: UsageSource = UsageSource.NOTHING
    idle_limit_w: float | None = None
    energy_mj: float | None = None
    parts: tuple[LookedPart, ...] = ()
    checked: bool = False


class UsageLook(msgspec.Struct, frozen=True, kw_only=True):
    """All of it at one moment. ``holders`` are by device, None where nobody can say who holds what."""

    at: dt.datetime
    uptime_us: int
    devices: tuple[LookedDevice, ...] = ()
    holders: Mapping[str, tuple[LookedHolder, ...]] | None = {}


class HoldersPort(Protocol):
    """Who holds this node's devices."""

    async def holders(self, inventory: Inventory) -> Mapping[str, tuple[LookedHolder, ...]] | None:
        """By device; None while that can't be said. Never raises, and never waits for long."""
        ...

    async def close(self) -> None:
        """Stop following."""
        ...
