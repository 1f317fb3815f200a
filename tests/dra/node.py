"""A node for tests of prepared claims: GPUs of a fake driver, files in a folder, and a kill at any moment."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kgpu.base.advice import Advice
from kgpu.dra.claim_specs import NO_SHARING, ClaimSpecs
from kgpu.dra.drivers import DRIVERS
from kgpu.dra.granted import GivenParameters, GrantedClaim, GrantedDevice
from kgpu.dra.model import DraDevice
from kgpu.dra.preparing import Preparations
from kgpu.dra.records import ClaimRecord, ClaimRecords, RecordedDevice
from kgpu.dra.sharing import SHARED, DeviceSharer
from kgpu.dra.sharing_fake import FakeDaemonKeeper, FakeGpuSettings
from kgpu.dra.slice_maker import SliceMaker
from kgpu.formats.cdi import CdiDeviceNode, ContainerEdits
from kgpu.formats.dra_parameters import MPS_GATE, TIME_SLICING_GATE
from kgpu.formats.mig_geometry import GEOMETRIES
from kgpu.formats.names import NVIDIA
from kgpu.hw.fake_partitioner import FakePartitioner
from kgpu.hw.partitioning import CutGpu
from kgpu.hw.port import Accelerator, Inventory, Partition

POOL: Final = "node-1"
DRIVER_FILES: Final = ContainerEdits(env=("NVIDIA_DRIVER=here",))


class Killed(BaseException):
    """The process is gone."""


@dataclass
class Killer:
    """Counts moments, and kills at one of them; 0 for none."""

    at: int = 0
    moments: int = 0
    gone: bool = False

    def tick(self) -> None:
        self.moments += 1
        if self.gone or self.moments == self.at:
            self.gone = True
            raise Killed


class KilledRecords(ClaimRecords):
    killer: Killer

    def put(self, record: ClaimRecord) -> None:
        self.killer.tick()
        super().put(record)
        self.killer.tick()

    def drop(self, uid: str) -> None:
        self.killer.tick()
        super().drop(uid)
        self.killer.tick()


class KilledSpecs(ClaimSpecs):
    killer: Killer

    def write(self, record: ClaimRecord, nodes: Any, sharing: Mapping[str, ContainerEdits] = NO_SHARING) -> None:
        self.killer.tick()
        super().write(record, nodes, sharing)
        self.killer.tick()

    def remove(self, uid: str) -> None:
        self.killer.tick()
        super().remove(uid)
        self.killer.tick()


@dataclass
class Node:
    """GPUs of these families. ``start`` begins a process, with what is on the disk and in the driver."""

    folder: Path
    families: tuple[str, ...] = ("h100-80gb", "h100-80gb", "l4")
    boot: str = "boot-1"
    vendor: str = NVIDIA
    killer: Killer = field(default_factory=Killer)
    gpus: FakeGpuSettings = field(default_factory=FakeGpuSettings)
    daemons: FakeDaemonKeeper = field(default_factory=FakeDaemonKeeper)
    told: list[Advice] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.driver = FakePartitioner(*self.families)
        self.driver.meddle = lambda _step, _done: self.killer.tick()
        self.gpus.tick = self.daemons.tick = lambda: self.killer.tick()
        self.missing: set[str] = set()
        self.taken: dict[str, str] = {}
        self.off = ""
        self.reads = 0

    async def start(self, gates: Collection[str] = (TIME_SLICING_GATE, MPS_GATE)) -> Preparations:
        records = KilledRecords(self.folder / "claims", boot=self.boot, report=self.told.append)
        records.killer = self.killer
        specs = KilledSpecs(
            self.folder / "cdi", DRIVERS[self.vendor].cdi, lambda path: CdiDeviceNode(path=path), lambda _: DRIVER_FILES
        )
        object.__setattr__(specs, "killer", self.killer)
        divides = DRIVERS[self.vendor].divides
        made = Preparations(
            records=records, specs=specs, slices=SliceMaker(self.driver) if divides else None,
            sharer=DeviceSharer(self.gpus, self.daemons) if divides else None,
            known=self.known, read=self.read, offered=self.offered_now,
            gates=gates, taken=lambda: self.taken, off=lambda: self.off,
        )  # fmt: skip
        await made.start()
        return made

    async def read(self) -> Inventory:
        self.reads += 1
        return await self.known()

    async def known(self) -> Inventory:
        self.killer.tick()
        gpus = tuple(self._accelerator(gpu) for gpu in self.driver.state.values())
        return Inventory(vendor="nvidia", driver_version="570.133.20", accelerators=gpus)

    def _accelerator(self, gpu: CutGpu) -> Accelerator:
        nodes = (f"/dev/nvidia{gpu.index}", "/dev/nvidiactl")
        partitions = tuple(
            Partition(
                uuid=f"MIG-{gpu.index}-{one.start}-{one.profile}", index=f"{gpu.index}:{one.id}", parent_uuid=gpu.uuid,
                profile=str(one.profile), gpu_instance=one.id, compute_instance=one.compute[0].id,
                placement_start=one.start,
                device_nodes=(*nodes, f"/dev/nvidia-caps/nvidia-cap{one.start + 1}"),
            )
            for one in gpu.instances
            if one.compute
        )  # fmt: skip
        return Accelerator(
            vendor="nvidia", index=gpu.index, uuid=gpu.uuid, name=gpu.product, mig_enabled=gpu.enabled,
            partitions=partitions, device_nodes=nodes,
        )  # fmt: skip

    async def offered_now(self) -> dict[str, DraDevice]:
        return self.offered()

    def offered(self) -> dict[str, DraDevice]:
        """Each whole GPU and every slice that could be made of it."""
        found = {}
        for gpu, family in zip(self.driver.state.values(), self.families, strict=True):
            whole = DraDevice(name=f"gpu-{gpu.index}", gpu=gpu.uuid, whole=True)
            found[whole.name] = whole
            for row in GEOMETRIES[family].rows if family in GEOMETRIES else ():
                for start in row.starts:
                    name = f"gpu-{gpu.index}-mig-{row.enum}-{start}"
                    found[name] = DraDevice(name=name, gpu=gpu.uuid, profile=row.enum, start=start, size=row.units)
        return {name: device for name, device in found.items() if name not in self.missing}

    # --- what there is to see ---

    def slices(self) -> set[tuple[str, int, int]]:
        return {(gpu.uuid, one.profile, one.start) for gpu in self.driver.state.values() for one in gpu.instances}

    def modes(self) -> list[bool]:
        return [gpu.enabled for gpu in self.driver.state.values()]

    def sharing(self) -> tuple[dict[str, int], list[tuple[str, int]], dict[str, str]]:
        """The time slices that are set, the daemons, and the compute modes that are not the usual one."""
        modes = {uuid: mode for uuid, mode in self.gpus.modes.items() if mode != SHARED}
        return dict(self.gpus.intervals), sorted(self.daemons.serving), modes

    def spec_files(self) -> set[str]:
        return {path.name for path in (self.folder / "cdi").glob("*")}

    def record_files(self) -> set[str]:
        return {path.name for path in (self.folder / "claims").glob("*")}


def claim(uid: str, *devices: str, admin: bool = False, parameters: Any = None) -> GrantedClaim:
    """A claim for these devices, with parameters for all of them."""
    return GrantedClaim(
        namespace="team", name=f"claim-{uid}", uid=uid,
        devices=tuple(
            GrantedDevice(request=f"r{number}", pool=POOL, device=name, admin=admin) for number, name in enumerate(devices)
        ),
        parameters=(GivenParameters((), parameters),) if parameters is not None else (),
    )  # fmt: skip


def spec_file(uid: str) -> str:
    return f"k8s.gpu.nvidia.com-claim_{uid}.yaml"


def names(devices: Collection[RecordedDevice]) -> list[str]:
    return [device.device for device in devices]
