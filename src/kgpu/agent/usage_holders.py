"""For the role ``usage``: who holds this node's devices, by the same sources as the exporter's.

How devices are shared stands in the device plugin's configuration; who uses what of a shared one, and how much, is by
the processes on it, in the time since the role's look before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final

import msgspec

from kgpu.agent.shared_reader import RoleReader, SharedReader
from kgpu.base.errors import ConfigError
from kgpu.exporter.holders import Holder, resolve
from kgpu.exporter.model import PodFacts, Unit, Users, UsersPort
from kgpu.exporter.users.shares import BUSY, MEMORY
from kgpu.formats.config_choice import ConfigText
from kgpu.formats.plugin_config import Sharing, SharingKind
from kgpu.formats.usage import HolderSharing
from kgpu.hw.port import Activity, Inventory, Process
from kgpu.usage.looks import LookedHolder

_NO_FACTS: Final = PodFacts()
_KINDS: Final = {SharingKind.TIME_SLICING: HolderSharing.TIME_SLICING, SharingKind.MPS: HolderSharing.MPS}


class MeasuredReader(RoleReader):
    """The role's view of the reader: what a process uses is what it has used since the role last asked for activity."""

    def __init__(self, shared: SharedReader) -> None:
        super().__init__(shared)
        self._measured: dict[str, Mapping[int, float]] = {}

    async def activity(self, keys: Collection[str]) -> tuple[Activity, ...]:
        self._measured = {}  # of a call that fails nothing is known
        found = await super().activity(keys)
        self._measured = {one.uuid: one.processes for one in found if one.processes is not None}
        return found

    async def processes(self) -> tuple[Process, ...]:
        return tuple(
            replace(one, sm_percent=self._measured[one.uuid].get(one.pid, 0.0)) if one.uuid in self._measured else one
            for one in await super().processes()
        )


class UsersHolders:
    """A ``HoldersPort``. ``config`` is the device plugin's configuration; ``labels`` are the keys of pods' labels that
    are kept.
    """

    def __init__(self, users: UsersPort, config: Callable[[], ConfigText | None], labels: Collection[str] = ()) -> None:
        self._users = users
        self._config = config
        self._labels = frozenset(labels)
        self._parsed: tuple[str, Sharing | None] = ("", None)

    async def holders(self, inventory: Inventory) -> Mapping[str, tuple[LookedHolder, ...]] | None:
        users = await self._users.current()
        if users.holdings is None or "users" in users.failures:
            return None
        return found(inventory, users, self._sharing(), self._labels)

    async def close(self) -> None:
        await self._users.close()

    def _sharing(self) -> Sharing | None:
        """How devices are shared; as before while the configuration can't be read."""
        config = self._config()
        if config is None or config.problem is not None or config.text == self._parsed[0]:
            return self._parsed[1]
        from kgpu.formats.plugin_config_parse import parse_config

        try:
            self._parsed = (config.text, parse_config(config.text).sharing if config.text.strip() else None)
        except ConfigError:
            self._parsed = (config.text, self._parsed[1])
        return self._parsed[1]


def found(
    inventory: Inventory, users: Users, sharing: Sharing | None, labels: Collection[str]
) -> dict[str, tuple[LookedHolder, ...]]:
    """Holders by device. Pure."""
    parts = _parts(inventory)
    resources = {(one.namespace, one.pod, one.container): one.resource for one in users.holdings or () if not one.claim}
    by_device: dict[str, list[LookedHolder]] = {}
    for unit, holders in resolve(inventory, users.holdings or (), users.claimed).held.items():
        units = Counter(holder.key for holder in holders)
        for holder in {one.key: one for one in holders}.values():
            who = _who(unit, holder, users, labels)
            kind, replicas = _shared(holder, sharing, resources.get(holder.key, ""), units[holder.key])
            by_device.setdefault(unit.uuid, []).append(
                msgspec.structs.replace(
                    who, partition=parts.get(unit, ""), sharing=HolderSharing.CLAIM if who.claim else kind,
                    replicas=replicas, units=units[holder.key],
                )
            )  # fmt: skip
    return {device: tuple(holders) for device, holders in by_device.items()}


def _who(unit: Unit, holder: Holder, users: Users, labels: Collection[str]) -> LookedHolder:
    facts = users.pods.get((holder.namespace, holder.pod), _NO_FACTS)
    own = users.shares.get((unit, holder.key), {})
    claim, busy = dict(holder.claim).get("dra_claim_name", ""), own.get(BUSY)
    return LookedHolder(
        namespace=holder.namespace, pod=holder.pod, container=holder.container, owner=facts.owner,
        gang=facts.gang[:512],
        # Without an API server the name has to do: it is not that of two pods at a time.
        uid=facts.uid or f"{holder.namespace}/{holder.pod}",
        labels={key: value[:512] for key, value in facts.labels.items() if key in labels},
        claim=f"{holder.namespace}/{claim}" if claim else "",
        sm=None if busy is None else min(1.0, busy / 100), memory_mib=own.get(MEMORY),
    )  # fmt: skip


def _shared(holder: Holder, sharing: Sharing | None, resource: str, units: int) -> tuple[HolderSharing, int]:
    """By which right, and of how many shares. Ids of shared devices have a replica's number."""
    if not holder.replica:
        return HolderSharing.WHOLE, units
    row = next((row for row in sharing.resources if sharing.offered_name(row) == resource), None) if sharing else None
    if sharing is None or row is None:
        return HolderSharing.TIME_SLICING, max(units, int(holder.replica) + 1)
    return _KINDS[sharing.kind], max(units, row.replicas)


def _parts(inventory: Inventory) -> dict[Unit, str]:
    """The id of a partition by its GPU instance: the first of that instance, as readings are of the instance."""
    first: dict[Unit, str] = {}
    for gpu in inventory.accelerators:
        for part in gpu.partitions:
            first.setdefault(Unit(gpu.uuid, part.gpu_instance), part.uuid)
    return first
