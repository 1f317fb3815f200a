"""Reads and sets the modes by which AMD GPUs are parted, through the driver's files.

A compute mode is set by a write that the kernel obeys at once. A memory mode is noted by the driver, and comes when it
is loaded anew. Each GPU has a lane of its own with a deadline: a write that hangs costs one thread, and is an error
that says so. Nothing is written that does not differ from what is there.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar

from kgpu.base.errors import HwError
from kgpu.hw import roots
from kgpu.hw import sysfs as files
from kgpu.hw.amd import kfd
from kgpu.hw.amd.gather import DEVICES
from kgpu.hw.amd.product_names import product_name
from kgpu.hw.lanes import HungError, Lane
from kgpu.hw.partitioning import ModeGpu, ModeKernel, PartitionError
from kgpu.hw.sysfs import GarbageError

T = TypeVar("T")
READ_SECONDS: Final = 5.0
WRITE_SECONDS: Final = 120.0
"""The kernel takes a GPU's work away and starts its parts anew meanwhile."""
RELOAD_SECONDS: Final = 300.0
COMPUTE: Final = "compute_partition"
MEMORY: Final = "memory_partition"
_WHY: Final = {
    errno.EBUSY: (
        "it is in use", "GPUs that no program has open; older kernels ask for that of all GPUs of the node",
        "end the programs that use it, such as monitoring; `amd-smi process` lists them",
    ),
    errno.EINVAL: (
        "the driver refuses it", "a mode that goes with the GPU's other mode and firmware",
        "choose another mode; see dmesg for amdgpu",
    ),
    errno.EROFS: ("/sys is read-only here", "a privileged container", "run the agent privileged on this node"),
    errno.EACCES: ("it may not be written", "root", "run the agent as root and privileged on this node"),
    errno.ENOENT: ("it has no such file any more", "the GPU that was there", "see dmesg for amdgpu"),
}  # fmt: skip
_OTHERWISE: Final = ("a write that the driver takes", "see dmesg for amdgpu")


class AmdModes:
    """Implements ``kgpu.hw.partitioning.ModePartitioner``."""

    def __init__(
        self, driver_root: Path, kernel: ModeKernel, *, read_seconds: float = READ_SECONDS,
        write_seconds: float = WRITE_SECONDS,
    ) -> None:  # fmt: skip
        self._sys = roots.sys_root(str(driver_root))
        self._kernel = kernel
        self._seconds = read_seconds, write_seconds
        self._node = Lane(read_seconds)
        self._driver = Lane(RELOAD_SECONDS)
        self._reading: dict[str, Lane] = {}
        self._writing: dict[str, Lane] = {}

    async def gpus(self) -> tuple[ModeGpu, ...]:
        """Every GPU that the driver has."""
        try:
            scan = await self._node.ask(kfd.scan, self._sys)
        except kfd.NoDriverError as error:
            raise HwError(
                f"the driver amdgpu shows no GPUs: there is no {error}", "the driver with its KFD", "load it"
            ) from error
        except HungError as error:
            raise _hung(f"reading {self._sys}/{kfd.KFD}") from error
        return tuple([await self._gpu(index, bus) for index, bus in enumerate(scan.buses)])

    async def set_compute(self, uuid: str, mode: str) -> None:
        """Set the compute mode."""
        await self._store(uuid, COMPUTE, mode)

    async def set_memory(self, modes: Mapping[str, str]) -> None:
        """Set memory modes, and load the driver anew. A request that it has noted can't be taken back, so that nothing
        is written while the driver can't be unloaded.
        """
        try:
            users = await self._node.ask(files.number, f"{self._sys}/module/amdgpu/refcnt")
        except HungError as error:
            raise _hung("reading the driver's users") from error
        except (OSError, GarbageError):  # modprobe says it then
            users = 0
        if users > 0:
            why, expected, remedy = _WHY[errno.EBUSY]
            raise PartitionError(f"the driver amdgpu can't be loaded anew: {why}", expected, remedy)
        for uuid, mode in modes.items():
            await self._store(uuid, MEMORY, mode)
        try:
            await self._driver.ask(self._kernel.reload)
        except HungError as error:
            raise _hung("loading the driver amdgpu anew") from error

    async def close(self) -> None:
        """Nothing is open between two calls."""

    async def _gpu(self, index: int, bus: str) -> ModeGpu:
        lane = self._reading.setdefault(bus, Lane(self._seconds[0]))
        try:
            return await lane.ask(_read, self._sys, index, bus)
        except HungError:
            return ModeGpu(index=index, uuid=bus, problem=_hung(f"reading the modes of GPU {bus}"))

    async def _store(self, bus: str, what: str, mode: str) -> None:
        lane = self._writing.setdefault(bus, Lane(self._seconds[1]))
        words = f"the {what.replace('_', ' ')} of GPU {bus} can't be set to {mode}"
        try:
            await lane.ask(self._kernel.store, f"{self._sys}/{DEVICES}/{bus}/current_{what}", mode)
        except HungError as error:
            raise _hung(f"setting the {what.replace('_', ' ')} of GPU {bus} to {mode}") from error
        except OSError as error:
            why, expected, remedy = _WHY.get(error.errno or 0, (error.strerror or str(error), *_OTHERWISE))
            raise PartitionError(f"{words}: {why}", expected, remedy) from error


def _read(sys: str, index: int, bus: str) -> ModeGpu:
    folder = f"{sys}/{DEVICES}/{bus}"
    try:
        product = _or_none(files.line, f"{folder}/product_name")
        name = product or product_name(_or_none(files.hexadecimal, f"{folder}/device") or 0)
        compute = _or_none(files.word, f"{folder}/current_{COMPUTE}") or ""
        memory = _or_none(files.word, f"{folder}/current_{MEMORY}") or ""
        computes, memories = _listed(f"{folder}/available_{COMPUTE}"), _listed(f"{folder}/available_{MEMORY}")
    except (OSError, GarbageError) as error:
        what = error.strerror if isinstance(error, OSError) else "it has what no driver writes there"
        words = f"the modes of GPU {bus} can't be read: {what}"
        problem = HwError(words, "the driver's files of its modes", "see dmesg for amdgpu")
        return ModeGpu(index=index, uuid=bus, problem=problem)
    return ModeGpu(
        index=index, uuid=bus, product=name, compute=compute.upper(), memory=memory.upper(), computes=computes,
        memories=memories,
    )  # fmt: skip


def _or_none(read: Callable[[str], T], path: str) -> T | None:
    try:
        return read(path)
    except FileNotFoundError:
        return None


def _listed(path: str) -> tuple[str, ...]:
    text = _or_none(files.line, path) or ""
    return tuple(word.upper() for word in text.replace(",", " ").split())


def _hung(what: str) -> PartitionError:
    return PartitionError(
        f"{what} did not end in time", "an answer of the driver", "see dmesg for amdgpu; reboot the node if it stays so"
    )
