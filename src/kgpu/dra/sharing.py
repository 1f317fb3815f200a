"""How a claim's devices are shared by its containers: time slices of whole GPUs, and MPS control daemons.

What is set is decided first (``plan`` only reads), so that it is recorded before it is done, and taken back from the
record. A GPU that nobody set anything for keeps what it has. A daemon serves all devices that one entry of parameters
is for.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from kgpu.base.errors import ConfigError, HostError, UserError
from kgpu.dra.granted import ClaimRefusedError
from kgpu.dra.records import ClaimRecord, RecordedSharing
from kgpu.formats.cdi import CdiMount, ContainerEdits
from kgpu.formats.dra_config import ClaimMps, ClaimTimeSlicing
from kgpu.formats.dra_parameters import INTERVALS
from kgpu.formats.names import ENV_MPS_PIPE_DIRECTORY

log = logging.getLogger(__name__)

PIPE_IN_CONTAINER: Final = "/tmp/nvidia-mps"  # noqa: S108 - the path in the container
SHM_IN_CONTAINER: Final = "/dev/shm"  # noqa: S108 - the path in the container
SHARED: Final = "DEFAULT"
"""The compute mode in which several processes may use a GPU."""
NO_INTERVAL: Final = 0
ALL_THREADS: Final = 100
_MOUNT: Final = ("rw", "nosuid", "nodev", "rbind", "rprivate")

Sharing: TypeAlias = ClaimTimeSlicing | ClaimMps


@dataclass(frozen=True, slots=True)
class GivenSharing:
    """How a device is to be shared, by which ``entry`` of the claim's parameters."""

    entry: int
    sharing: Sharing


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimDaemon:
    """An MPS control daemon of a claim, by its ``number``. ``limits_mib``: pinned memory of a client on each GPU, 0 for
    all of it; ``threads`` is a percentage.
    """

    number: int
    gpus: tuple[str, ...]
    limits_mib: tuple[int, ...]
    threads: int


@dataclass(frozen=True, slots=True)
class DaemonFolders:
    """What clients share with their daemon: paths on the host."""

    pipe: str
    shm: str


class TimesliceAnswer(enum.Enum):
    """What a driver says to a time slice."""

    SET = enum.auto()
    UNSUPPORTED = enum.auto()  # this GPU has none that can be set
    GONE = enum.auto()  # the driver does not know the GPU (any more), which has lost what was set


class GpuSettings(Protocol):
    """What is set of a whole GPU. Raises HostError for what may go better the next time."""

    async def mode(self, uuid: str) -> str:
        """The compute mode, such as ``DEFAULT``."""
        ...

    async def set_mode(self, uuid: str, mode: str) -> None:
        """Set the compute mode."""
        ...

    async def set_timeslice(self, uuid: str, interval: int) -> TimesliceAnswer:
        """Set the time slice, by an index of ``INTERVALS``; 0 is the driver's own."""
        ...


class DaemonKeeper(Protocol):
    """Keeps the MPS control daemons of claims. Raises HostError."""

    async def begin(self, claims: Mapping[str, tuple[str, Sequence[ClaimDaemon]]]) -> None:
        """Take up the daemons of these claims (uid: name, daemons), and end all others. Waits for none."""
        ...

    async def up(self, uid: str, claim: str, daemons: Sequence[ClaimDaemon]) -> None:
        """Return once they serve, with their limits in force."""
        ...

    async def down(self, uid: str, claim: str, daemons: Sequence[ClaimDaemon]) -> None:
        """End them, with all that they had; what is not there is no error."""
        ...

    def folders(self, uid: str, number: int) -> DaemonFolders:
        """Where the clients of a daemon find it."""
        ...


class ClaimSharer(Protocol):
    """Sets how the containers of claims share their devices."""

    async def plan(self, claim: str, wanted: Mapping[str, GivenSharing]) -> tuple[RecordedSharing, ...]:
        """What has to be set for devices by UUID. Changes nothing. Raises UserError."""
        ...

    async def share(self, record: ClaimRecord) -> Mapping[str, ContainerEdits]:
        """Bring what is recorded into force; what containers get for it besides, by UUID. Raises UserError."""
        ...

    async def unshare(self, record: ClaimRecord) -> None:
        """Take it back; what is not there any more is no error. Raises UserError."""
        ...

    async def resume(self, records: Sequence[ClaimRecord]) -> None:
        """After a start: what an earlier process has set for these is in force, and nothing for others."""
        ...


@dataclass(frozen=True, slots=True)
class DeviceSharer:
    """The real one, over two ports."""

    gpus: GpuSettings
    daemons: DaemonKeeper

    async def plan(self, claim: str, wanted: Mapping[str, GivenSharing]) -> tuple[RecordedSharing, ...]:
        by_entry: dict[int, list[str]] = {}
        planned = []
        for uuid, given in wanted.items():
            if isinstance(given.sharing, ClaimMps):
                by_entry.setdefault(given.entry, []).append(uuid)
            elif given.sharing.interval is not None:
                mode = await self.gpus.mode(uuid)
                former = mode if mode != SHARED else ""
                planned.append(RecordedSharing(uuid=uuid, interval=given.sharing.interval, former_mode=former))
        for number, uuids in enumerate(by_entry.values()):
            mps = wanted[uuids[0]].sharing
            assert isinstance(mps, ClaimMps)
            planned += _served(claim, mps, number, uuids)
        return tuple(planned)

    async def share(self, record: ClaimRecord) -> Mapping[str, ContainerEdits]:
        for one in record.shared:
            if one.interval is not None:
                await self._slice(str(record), one)
        daemons = claim_daemons(record)
        if daemons:
            await self.daemons.up(record.uid, str(record), daemons)
        return {one.uuid: self._edits(record.uid, one.daemon) for one in record.shared if one.daemon is not None}

    async def unshare(self, record: ClaimRecord) -> None:
        daemons = claim_daemons(record)
        if daemons:
            await self.daemons.down(record.uid, str(record), daemons)
        failed: UserError | None = None
        for one in record.shared:
            try:
                await self._unslice(one)
            except UserError as error:  # the others are given back all the same
                failed = failed or error
        if failed is not None:
            raise failed

    async def resume(self, records: Sequence[ClaimRecord]) -> None:
        await self.daemons.begin({one.uid: (str(one), claim_daemons(one)) for one in records if claim_daemons(one)})
        for record in records:
            for one in record.shared:
                if one.interval is None:
                    continue
                try:  # the driver forgets it when nobody has the GPU open, without persistence mode
                    await self._slice(str(record), one)
                except UserError as error:
                    log.warning("%s", error.one_line())

    async def _slice(self, claim: str, one: RecordedSharing) -> None:
        assert one.interval is not None
        if one.former_mode:
            await self.gpus.set_mode(one.uuid, SHARED)
        answer = await self.gpus.set_timeslice(one.uuid, one.interval)
        if answer is TimesliceAnswer.SET:
            return
        why = "it has none that can be set" if answer is TimesliceAnswer.UNSUPPORTED else "the driver does not know it"
        raise HostError(
            f"claim {claim}: the time slice of {one.uuid} can't be {INTERVALS[one.interval]}: {why}",
            "a GPU whose time slice can be set (P100, V100 and later)"
            if answer is TimesliceAnswer.UNSUPPORTED
            else "a GPU that nvidia-smi -L lists",
            "leave timeSlicingConfig out of the parameters: containers take turns anyway, at the driver's own interval"
            if answer is TimesliceAnswer.UNSUPPORTED
            else "look at nvidia-smi -L and at `kgpu health`",
        )

    async def _unslice(self, one: RecordedSharing) -> None:
        if one.interval is None:
            return
        answer = await self.gpus.set_timeslice(one.uuid, NO_INTERVAL)
        if one.former_mode and answer is not TimesliceAnswer.GONE:
            await self.gpus.set_mode(one.uuid, one.former_mode)

    def _edits(self, uid: str, number: int) -> ContainerEdits:
        there = self.daemons.folders(uid, number)
        mounts = ((there.pipe, PIPE_IN_CONTAINER), (there.shm, SHM_IN_CONTAINER))
        return ContainerEdits(
            env=(f"{ENV_MPS_PIPE_DIRECTORY}={PIPE_IN_CONTAINER}",),
            mounts=tuple(CdiMount(host_path=host, container_path=inside, options=_MOUNT) for host, inside in mounts),
        )


def claim_daemons(record: ClaimRecord) -> tuple[ClaimDaemon, ...]:
    """The daemons that a record has, by number."""
    served: dict[int, list[RecordedSharing]] = {}
    for one in record.shared:
        if one.daemon is not None:
            served.setdefault(one.daemon, []).append(one)
    return tuple(
        ClaimDaemon(
            number=number, gpus=tuple(one.uuid for one in devices),
            limits_mib=tuple(one.memory_mib for one in devices), threads=devices[0].threads,
        )
        for number, devices in sorted(served.items())
    )  # fmt: skip


def _served(claim: str, mps: ClaimMps, number: int, uuids: Sequence[str]) -> list[RecordedSharing]:
    try:
        limits = mps.limits(uuids)
    except ConfigError as error:
        raise ClaimRefusedError(f"claim {claim}: {error.what}", error.expected, error.remedy) from error
    threads = mps.threads if mps.threads is not None else ALL_THREADS
    return [
        RecordedSharing(uuid=uuid, daemon=number, threads=threads, memory_mib=limits.get(uuid, 0)) for uuid in uuids
    ]
