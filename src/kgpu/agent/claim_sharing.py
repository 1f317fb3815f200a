"""How claims' devices are shared on this node: the driver's own programs behind the ports of ``kgpu.dra.sharing``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kgpu.base.advice import AdviceSink
from kgpu.base.boot import boot_id
from kgpu.base.threads import beside
from kgpu.dra.sharing import ClaimDaemon, DaemonFolders, DeviceSharer, TimesliceAnswer
from kgpu.formats.mps_folders import pipe_folder, shm_folder
from kgpu.mps.claims import ClaimControlDaemons
from kgpu.mps.driver import DriverMps
from kgpu.mps.model import DaemonSpec
from kgpu.mps.programs import DriverPrograms
from kgpu.mps.record import FILE_NAME
from kgpu.mps.smi import GONE, NOT_SUPPORTED, SmiError, SmiSettings


@dataclass(frozen=True, slots=True)
class SmiGpus:
    """``GpuSettings`` by nvidia-smi."""

    smi: SmiSettings

    async def mode(self, uuid: str) -> str:
        return await beside(self.smi.mode, uuid)

    async def set_mode(self, uuid: str, mode: str) -> None:
        await beside(self.smi.set_mode, uuid, mode)

    async def set_timeslice(self, uuid: str, interval: int) -> TimesliceAnswer:
        try:
            await beside(self.smi.set_timeslice, uuid, interval)
        except SmiError as error:
            if error.code == NOT_SUPPORTED:
                return TimesliceAnswer.UNSUPPORTED
            if error.code in GONE:
                return TimesliceAnswer.GONE
            raise
        return TimesliceAnswer.SET


@dataclass(frozen=True, slots=True)
class DriverDaemons:
    """``DaemonKeeper`` by nvidia-cuda-mps-control; each claim has a folder in ``root``."""

    root: Path
    kept: ClaimControlDaemons

    async def begin(self, claims: Mapping[str, tuple[str, Sequence[ClaimDaemon]]]) -> None:
        specs = [spec for uid, (claim, daemons) in claims.items() for spec in self._specs(uid, claim, daemons)]
        await self.kept.begin(specs)

    async def up(self, uid: str, claim: str, daemons: Sequence[ClaimDaemon]) -> None:
        await self.kept.up(self._specs(uid, claim, daemons))

    async def down(self, uid: str, claim: str, daemons: Sequence[ClaimDaemon]) -> None:
        await self.kept.down(self._specs(uid, claim, daemons))

    def folders(self, uid: str, number: int) -> DaemonFolders:
        root = str(self.root / uid)
        return DaemonFolders(pipe=pipe_folder(root, str(number)), shm=shm_folder(root))

    def _specs(self, uid: str, claim: str, daemons: Sequence[ClaimDaemon]) -> list[DaemonSpec]:
        return [
            DaemonSpec(
                root=str(self.root / uid), resource=str(one.number), gpus=one.gpus, limits_mib=one.limits_mib,
                percentage=one.threads, title=f"claim {claim}",
            )
            for one in daemons
        ]  # fmt: skip


def driver_sharer(root: str, folder: Path, report: AdviceSink) -> tuple[DeviceSharer, ClaimControlDaemons]:
    """What shares by the programs of the driver at ``root``, with its files in ``folder``; and what is to be closed."""
    programs = DriverPrograms(root)
    kept = ClaimControlDaemons(
        driver=DriverMps(programs), record=folder / FILE_NAME, boot=boot_id(), report=report,
        shared_memory=not programs.simulated,
    )  # fmt: skip
    return DeviceSharer(SmiGpus(SmiSettings(programs)), DriverDaemons(folder / "mps", kept)), kept
