"""Prepares claims on this node, and takes back what was prepared: NodePrepareResources and its counterpart.

All or nothing. What is going to be done to the hardware is recorded first; what fails is undone, and what a kill has
left is undone at the next start or the next call about the claim. A claim for which nothing is done but a CDI spec has
one record, before that. Read ``prepare`` and ``_undo`` first.

Slices that are made for a claim are made at the place that the scheduler has chosen, and go with the claim. Only those
are destroyed that a record names. MIG mode is turned on with the first slice of a GPU and off with the last, where that
needs no reset.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from kgpu.base.errors import UserError
from kgpu.base.threads import beside
from kgpu.dra.claim_specs import ClaimSpecs
from kgpu.dra.granted import ClaimRefusedError, GrantedClaim, GrantedDevice
from kgpu.dra.model import DraDevice
from kgpu.dra.records import ClaimRecord, ClaimRecords, RecordedDevice, RecordedSlice
from kgpu.dra.sharing import ClaimSharer, GivenSharing
from kgpu.dra.slice_maker import SliceMaker
from kgpu.formats.cdi import ContainerEdits
from kgpu.formats.dra_parameters import GPU, MIG
from kgpu.formats.names import ALLOCATION_DRA, ALLOCATION_LABEL
from kgpu.hw.port import Inventory

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Preparations:
    """One node's. ``offered()`` are its devices by name, ``known()`` is what was read last of the GPUs, and ``read()``
    reads them anew. ``news()`` is called once slices have come or gone. ``taken()`` are the GPUs that pods have without
    a claim, by UUID, and which; ``off()`` is why no further claim is prepared on this node, "" if one is. ``slices``
    and ``sharer`` are None for a driver that makes no slices for claims, and whose parameters say nothing of sharing.
    """

    records: ClaimRecords
    specs: ClaimSpecs
    known: Callable[[], Awaitable[Inventory]]
    read: Callable[[], Awaitable[Inventory]]
    offered: Callable[[], Awaitable[Mapping[str, DraDevice]]]
    slices: SliceMaker | None = None
    sharer: ClaimSharer | None = None
    gates: Collection[str] = ()
    news: Callable[[], None] = lambda: None
    taken: Callable[[], Mapping[str, str]] = dict
    off: Callable[[], str] = lambda: ""
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def made(self) -> frozenset[tuple[str, int]]:
        """The places of the slices that claims have or get, and that go with them: GPU and first memory slice."""
        return frozenset((one.gpu, one.start) for record in self.records.all.values() for one in record.made)

    async def start(self) -> None:
        """Take up what an earlier process has left: what was not done is undone. Raises HostError."""
        async with self._lock:
            await beside(self._load)
            if self.sharer is not None:
                await self.sharer.resume([one for one in self.records.all.values() if one.done])
            for record in [one for one in self.records.all.values() if not one.done]:
                try:
                    await self._undo(record)
                except UserError as error:  # tried again when the claim is prepared or unprepared
                    log.warning("claim %s was left half prepared: %s", record, error.one_line())

    async def prepare(self, claim: GrantedClaim) -> tuple[RecordedDevice, ...]:
        """Prepare a claim; what is prepared already stays as it is. Raises UserError, and nothing is left behind."""
        async with self._lock:
            record = self.records.all.get(claim.uid)
            if record is not None and record.done and _is_of(record, claim):
                if not await beside(self.specs.has, claim.uid):
                    await self._in_force(record, await self.known())
                return record.devices
            if record is not None:
                await self._undo(record)
            planned = self._plan(claim, await self.offered())
            if planned.made:
                await self._maker.refuse_taken(planned.made)
                await beside(self.records.put, planned)
            doing = asyncio.ensure_future(self._do(planned, claim))
            try:
                return await asyncio.shield(doing)
            except asyncio.CancelledError:  # the kubelet has hung up: it asks again, and then all is done
                await asyncio.wait([doing])
                raise

    async def unprepare(self, uid: str) -> None:
        """Take back what was prepared for a claim; of one that nothing is known of there is nothing to do. Raises
        UserError, and the kubelet tries again.
        """
        async with self._lock:
            record = self.records.all.get(uid)
            if record is not None:
                await asyncio.shield(self._undo(record))

    @property
    def _maker(self) -> SliceMaker:
        assert self.slices is not None, "no device of such a driver is made for a claim"
        return self.slices

    @property
    def _sharing(self) -> ClaimSharer:
        assert self.sharer is not None, "no parameters of such a driver say how a device is shared"
        return self.sharer

    def _load(self) -> None:
        self.records.load()
        for uid in self.records.former:  # whose folder may outlive a boot
            self.specs.remove(uid)

    # --- decisions ---

    def _plan(self, claim: GrantedClaim, offered: Mapping[str, DraDevice]) -> ClaimRecord:
        """The record of what is to be done. Raises ClaimRefusedError."""
        if why := self.off():
            raise ClaimRefusedError(
                f"claim {claim}: this node gives out no devices by claims any more: {why}",
                f"a node whose label {ALLOCATION_LABEL} is {ALLOCATION_DRA}",
                "delete the pod and the claim, so that they are placed anew",
            )  # fmt: skip
        found = [(granted, self._found(claim, granted, offered)) for granted in claim.devices]
        devices = tuple(
            RecordedDevice(
                request=granted.request, pool=granted.pool, device=device.name, gpu=device.gpu, uuid=device.uuid,
                start=device.start, size=device.size, admin=granted.admin, share=granted.share,
            )
            for granted, device in found
        )  # fmt: skip
        self._refuse_taken(claim, devices)
        for granted, device in found:
            if claim.config(granted, _type(device.size), self.gates).sharing is not None:
                self._refuse_shared(claim, granted, device)
        made = tuple(
            RecordedSlice(gpu=device.gpu, profile=device.profile, start=device.start)
            for _, device in found
            if device.profile is not None
        )
        return ClaimRecord(
            uid=claim.uid, namespace=claim.namespace, name=claim.name, boot=self.records.boot, devices=devices,
            made=made,
        )  # fmt: skip

    def _found(self, claim: GrantedClaim, granted: GrantedDevice, offered: Mapping[str, DraDevice]) -> DraDevice:
        device = offered.get(granted.device)
        if device is None:
            raise ClaimRefusedError(
                f"claim {claim}: the device {granted.device} is not on this node (any more)",
                "a device that this node offers",
                "delete the pod, so that the scheduler allocates another device",
            )  # fmt: skip
        return device

    def _refuse_taken(self, claim: GrantedClaim, devices: Collection[RecordedDevice]) -> None:
        """Two claims never have parts of the same GPU in common, whatever the scheduler thought, and no claim one of a
        GPU that a pod has otherwise.
        """
        taken = self.taken()
        for device in devices:
            if device.gpu in taken and not device.admin:
                raise ClaimRefusedError(
                    f"claim {claim}: {device.device} is not free: {taken[device.gpu]}",
                    "a device that no other pod has",
                    "wait until that pod has ended, or delete it",
                )  # fmt: skip
        for record in self.records.all.values():
            for theirs in record.devices:
                for device in devices:
                    if theirs.admin or device.admin or (device.share and theirs.share) or not device.overlaps(theirs):
                        continue
                    raise ClaimRefusedError(
                        f"claim {claim}: claim {record} has {theirs.device}, a part of which {device.device} is"
                        if device.device != theirs.device
                        else f"claim {claim}: claim {record} has {device.device} on this node",
                        "a device that no other claim has",
                        f"wait until the pods of claim {record} have ended, or delete them",
                    )  # fmt: skip

    def _refuse_shared(self, claim: GrantedClaim, granted: GrantedDevice, device: DraDevice) -> None:
        """How a device is shared is for the claim to say that has it: another's containers would feel it."""
        if granted.admin or granted.share:
            raise ClaimRefusedError(
                f"claim {claim}: its parameters say how {device.name} is shared, which other claims may have, too",
                "parameters without sharing, or a device for this claim alone",
                "remove sharing from the parameters of the claim and of its device class",
            )  # fmt: skip

    # --- steps ---

    async def _do(self, planned: ClaimRecord, claim: GrantedClaim) -> tuple[RecordedDevice, ...]:
        try:
            if planned.made:
                await self._maker.make(planned.made)
            inventory = await (self.read() if planned.made else self.known())
            record = await self._noted_sharing(_identified(planned, inventory), claim)
            record = await self._in_force(record, inventory)
        except UserError as failure:
            await self._undo_after(failure, self.records.all.get(planned.uid, planned))
            raise
        if record.made:
            self.news()
        return record.devices

    async def _undo_after(self, failure: UserError, record: ClaimRecord) -> None:
        try:
            await self._undo(record)
        except UserError as error:
            log.warning("claim %s: %s; and it is not undone yet: %s", record, failure.one_line(), error.one_line())

    async def _noted_sharing(self, record: ClaimRecord, claim: GrantedClaim) -> ClaimRecord:
        """The record with what is to be set for sharing, which is on the disk before it is done."""
        wanted = {}
        for granted, device in zip(claim.devices, record.devices, strict=True):
            entry, config = claim.entry(granted, _type(device.size), self.gates)
            if config.sharing is not None:
                wanted[device.uuid] = GivenSharing(entry, config.sharing)
        shared = await self._sharing.plan(str(record), wanted) if wanted else ()
        if shared:
            record = msgspec.structs.replace(record, shared=shared)
            await beside(self.records.put, record)
        return record

    async def _in_force(self, record: ClaimRecord, inventory: Inventory) -> ClaimRecord:
        """Bring sharing into force and write the claim's CDI spec; the record of what is done."""
        nodes = _nodes(inventory, record.devices)
        edits = await self._sharing.share(record) if record.shared else {}
        sharing = {one.device: edits.get(one.uuid, ContainerEdits()) for one in record.devices}
        names = self.specs.names(record.uid, list(nodes))
        devices = tuple(msgspec.structs.replace(device, cdi=(names[device.device],)) for device in record.devices)
        done = msgspec.structs.replace(record, devices=devices, done=True)

        def write() -> None:
            self.records.put(done)
            self.specs.write(record, nodes, sharing)

        await beside(write)
        return done

    async def _undo(self, record: ClaimRecord) -> None:
        """Containers can't get the devices any more, then sharing ends, then slices go, then the record."""
        if record.made or record.shared:
            await self._undo_hardware(record)

        def forget() -> None:
            self.specs.remove(record.uid)
            self.records.drop(record.uid)

        await beside(forget)
        if record.made:
            self.news()

    async def _undo_hardware(self, record: ClaimRecord) -> None:
        """That it has begun is recorded, so that it is ended after a kill."""
        if record.done:
            record = msgspec.structs.replace(record, done=False)
            await beside(self.records.put, record)
        await beside(self.specs.remove, record.uid)
        if record.shared:
            await self._sharing.unshare(record)
        if record.made:
            others = [made for other in self.records.all.values() if other.uid != record.uid for made in other.made]
            await self._maker.unmake(record.made, keep={made.gpu for made in others})


def _type(size: int) -> str:
    """The type that parameters are for."""
    return MIG if size else GPU


def _is_of(record: ClaimRecord, claim: GrantedClaim) -> bool:
    """Whether the record is of the allocation that the claim has now."""
    recorded = [(one.request, one.pool, one.device, one.admin, one.share) for one in record.devices]
    return recorded == [(one.request, one.pool, one.device, one.admin, one.share) for one in claim.devices]


def _identified(record: ClaimRecord, inventory: Inventory) -> ClaimRecord:
    """The record with the UUIDs of the slices that were made. Raises ClaimRefusedError for one that is not listed."""
    parts = [part for gpu in inventory.accelerators for part in gpu.partitions]
    places = {(part.parent_uuid, part.placement_start): part.uuid for part in parts}
    devices = tuple(
        device if device.uuid else msgspec.structs.replace(device, uuid=places.get((device.gpu, device.start), ""))
        for device in record.devices
    )
    for device in devices:
        if not device.uuid:
            raise ClaimRefusedError(
                f"claim {record}: the driver has made {device.device} and does not list it", "a slice with a UUID",
                "nothing: it is tried again; if it goes on, look at nvidia-smi -L",
            )  # fmt: skip
    return msgspec.structs.replace(record, devices=devices)


def _nodes(inventory: Inventory, devices: Iterable[RecordedDevice]) -> dict[str, tuple[str, ...]]:
    """The paths of the device nodes by device. Raises ClaimRefusedError for one that is not there any more."""
    by_uuid = {gpu.uuid: gpu.device_nodes for gpu in inventory.accelerators}
    by_uuid |= {part.uuid: part.device_nodes for gpu in inventory.accelerators for part in gpu.partitions}
    nodes = {}
    for device in devices:
        if not by_uuid.get(device.uuid):
            raise ClaimRefusedError(
                f"the device {device.device} ({device.uuid}) has no device nodes", "nodes of the driver in /dev",
                "see whether they are in /dev; if the GPU is parted otherwise by now, delete the pod and its claim",
            )  # fmt: skip
        nodes[device.device] = by_uuid[device.uuid]
    return nodes
