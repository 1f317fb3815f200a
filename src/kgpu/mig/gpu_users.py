"""Says who has a GPU open where the driver refuses a step because the GPU is in use.

NVML and nvidia-smi say no more than "In use by another client". Who that is shows in the device nodes that processes
have open: monitoring that does no work on the GPU is in no list of the driver's.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from kgpu.base.errors import HostError, HwError
from kgpu.base.threads import beside
from kgpu.formats.simulated import state_file
from kgpu.host.dev_nodes import read_gpu_minor
from kgpu.host.device_holders import gpu_holders
from kgpu.host.kernel_modules import drm_user
from kgpu.host.root import read_some
from kgpu.hw import roots
from kgpu.hw.open import open_partitioner
from kgpu.hw.partitioning import CutGpu, Partitioner, PartitionError
from kgpu.mig.reset import SmiReset

_IN_USE: Final = "in use"
_NAMED: Final = 6
_FILE_BYTES: Final = 1 << 14


def open_driver(root: str) -> Partitioner:
    """What cuts the GPUs of the driver under this root, "" for wherever there is one. Raises NoHardwareError."""
    driver = open_partitioner(driver_root=Path(root) if root else None, reset=SmiReset(root))
    return NamingPartitioner(driver, partial(gpu_users, root or "/"))


class NamingPartitioner:
    """A driver whose refusals name who has the GPU open. ``users(uuid)`` finds them, for people; it may block."""

    def __init__(self, driver: Partitioner, users: Callable[[str], Sequence[str]]) -> None:
        self._driver = driver
        self._users = users

    async def gpus(self) -> tuple[CutGpu, ...]:
        """Every GPU that the driver counts."""
        return await self._driver.gpus()

    async def gpu(self, uuid: str) -> CutGpu:
        """One GPU as it is now."""
        return await self._driver.gpu(uuid)

    async def set_mode(self, uuid: str, enabled: bool, *, resets: bool = True) -> None:
        """Set the mode."""
        async with self._named(uuid):
            await self._driver.set_mode(uuid, enabled, resets=resets)

    async def reset(self, uuid: str) -> None:
        """Reset the GPU."""
        async with self._named(uuid):
            await self._driver.reset(uuid)

    async def create_instance(self, uuid: str, profile: int, start: int) -> int:
        """Make a GPU instance."""
        return await self._driver.create_instance(uuid, profile, start)

    async def create_compute(self, uuid: str, instance: int, profile: int, start: int) -> int:
        """Make a compute instance."""
        return await self._driver.create_compute(uuid, instance, profile, start)

    async def destroy(self, uuid: str, instance: int, compute: int | None = None) -> None:
        """Remove an instance."""
        async with self._named(uuid):
            await self._driver.destroy(uuid, instance, compute)

    async def close(self) -> None:
        """Let go of the driver."""
        await self._driver.close()

    @contextlib.asynccontextmanager
    async def _named(self, uuid: str) -> AsyncIterator[None]:
        try:
            yield
        except (HwError, HostError) as error:
            if _IN_USE not in error.what.lower():
                raise
            await self._driver.close()  # or its own child would be among them
            users = await beside(self._users, uuid)
            if not users:
                raise
            what = f"{error.what}; {_listed(users)}"
            if isinstance(error, HwError):
                raise PartitionError(what, error.expected, error.remedy, fault=error.fault) from error
            raise HostError(what, error.expected, error.remedy) from error


def _listed(users: Sequence[str]) -> str:
    more = f" and {len(users) - _NAMED} more" if len(users) > _NAMED else ""
    return f"it is open in {', '.join(users[:_NAMED])}{more}"


def gpu_users(root: str, uuid: str) -> tuple[str, ...]:
    """Who has the GPU of the driver under ``root`` open, for people; none where that can't be seen."""
    state = state_file(root) or ""
    minor = _minor(root, uuid)
    found: list[str] = []
    if minor is not None:
        with contextlib.suppress(HostError):
            found += map(str, gpu_holders({minor: uuid}, root.rstrip("/"), state))
    drm = drm_user(Path(roots.sys_root(root)))
    return (*found, *([f"the kernel module {drm}"] if drm else []))


def _minor(root: str, uuid: str) -> int | None:
    folder = Path(roots.proc_root(root), "driver/nvidia/gpus")
    texts = (read_some(path, _FILE_BYTES).decode("utf-8", "replace") for path in sorted(folder.glob("*/information")))
    return next((read_gpu_minor(text) for text in texts if uuid in text.split()), None)
