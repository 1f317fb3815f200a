"""``NvmlPartitioner``: the port to MIG over NVML in a child process, which ends with a call that hangs or crashes.

A step whose child hung or died may still have been taken: whoever asked reads the GPU again. NVML has no reset: that is
handed in, and the child ends before, since it has the GPUs open itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeVar

from kgpu.base.errors import DriverFault, HwError
from kgpu.hw.nvidia.codes import IN_USE, INSUFFICIENT_RESOURCES, NO_PERMISSION, NOT_FOUND, NOT_SUPPORTED
from kgpu.hw.nvidia.faults import init_error, node_error
from kgpu.hw.nvidia.process import ChildProcess, Died, Refused, Stalled
from kgpu.hw.nvidia.wire import Init, MigState, NodeReply, Trouble
from kgpu.hw.partitioning import CutCompute, CutGpu, CutInstance, GpuReset, PartitionError

READ_S: Final = 15.0
CHANGE_S: Final = 90.0
"""A mode change of an Ampere resets the GPU, which takes many seconds."""
INIT_S: Final = 60.0

_ADVICE: Final[Mapping[int, tuple[str, str]]] = {
    IN_USE: ("instances and GPUs that no process uses", "end the processes on it, then try again; see `nvidia-smi`"),
    INSUFFICIENT_RESOURCES: ("room for it on the GPU", "read the GPU again; somebody else may have cut it meanwhile"),
    NO_PERMISSION: ("the right to change slices", "run it as root, in a container with privileges"),
    NOT_FOUND: ("an instance or GPU that is there", "read the GPU again"),
    NOT_SUPPORTED: ("a GPU with MIG, and the mode on for slices", "look at its mode with `nvidia-smi -q -d MIG`"),
}
_OTHERWISE: Final = ("a driver that answers", "read the kernel log for NVRM and Xid lines")

T = TypeVar("T")


class NvmlPartitioner:
    """Implements ``kgpu.hw.partitioning.Partitioner``. Times are seconds: for what is read, and what is changed."""

    def __init__(
        self, driver_root: Path | str, reset: GpuReset, *, deadline: float = READ_S, change_deadline: float = CHANGE_S
    ) -> None:
        self._root = str(driver_root or "/")
        self._reset = reset
        self._deadline = deadline
        self._change_deadline = change_deadline
        self._child: ChildProcess | None = None
        self._lock = asyncio.Lock()

    @property
    def child_pid(self) -> int | None:
        """The child's process id, None while there is none."""
        return self._child.pid if self._child is not None and self._child.alive else None

    async def gpus(self) -> tuple[CutGpu, ...]:
        """Every GPU that the driver counts; one that hangs, crashes or refuses has a ``problem``."""
        async with self._lock:
            node = await self._ask("node", NodeReply, self._deadline, "the driver's GPUs")
            return tuple([await self._at(index) for index in range(node.count)])

    async def gpu(self, uuid: str) -> CutGpu:
        """One GPU as it is now."""
        async with self._lock:
            return _cut(await self._ask("mig_state", MigState, self._deadline, f"GPU {uuid}", uuid=uuid))

    async def set_mode(self, uuid: str, enabled: bool, *, resets: bool = True) -> None:
        """Set the mode. Where the driver may reset the GPU for it, a fresh child goes on."""
        await self._step("mig_set_mode", uuid, f"MIG mode of GPU {uuid}", enabled=enabled)
        if resets:
            await self.close()

    async def reset(self, uuid: str) -> None:
        """Reset the GPU by what was handed in."""
        await self.close()
        await self._reset(uuid)

    async def create_instance(self, uuid: str, profile: int, start: int) -> int:
        """Make a GPU instance."""
        what = f"a new GPU instance at {start} on GPU {uuid}"
        return await self._step("mig_create_instance", uuid, what, profile=profile, start=start)

    async def create_compute(self, uuid: str, instance: int, profile: int, start: int) -> int:
        """Make a compute instance."""
        what = f"a new compute instance at {start} in GPU instance {instance} of GPU {uuid}"
        return await self._step("mig_create_compute", uuid, what, instance=instance, profile=profile, start=start)

    async def destroy(self, uuid: str, instance: int, compute: int | None = None) -> None:
        """Remove an instance."""
        inner = "" if compute is None else f"compute instance {compute} in "
        what = f"removal of {inner}GPU instance {instance} of GPU {uuid}"
        await self._step("mig_destroy", uuid, what, instance=instance, compute=compute)

    async def close(self) -> None:
        """End the child; the next call starts another."""
        async with self._lock:
            if self._child is not None:
                await self._child.close()
                self._child = None

    async def _step(self, op: str, uuid: str, what: str, **arguments: object) -> int:
        async with self._lock:
            return await self._ask(op, int, self._change_deadline, what, uuid=uuid, **arguments)

    async def _at(self, index: int) -> CutGpu:
        try:
            return _cut(await self._ask("mig_state", MigState, self._deadline, f"GPU {index}", index=index))
        except PartitionError as problem:
            return CutGpu(index=index, problem=problem)

    async def _ask(self, op: str, kind: type[T], deadline: float, what: str, **arguments: object) -> T:
        """Ask the child. Call with the lock held. Raises PartitionError, or HwError if there is no driver."""
        child = await self._ready()
        try:
            return await child.ask(op, kind, deadline, **arguments)
        except Refused as error:
            raise _refused(what, error.trouble) from error
        except (Stalled, Died) as error:
            await self._drop(child)
            fault = DriverFault.HUNG if isinstance(error, Stalled) else DriverFault.CRASHED
            raise PartitionError(f"{what}: {error}", *_OTHERWISE, fault=fault) from error
        except BaseException:
            # Its answer would still come; the step may be under way in the driver.
            await self._drop(child)
            raise

    async def _ready(self) -> ChildProcess:
        if self._child is not None and self._child.alive:
            return self._child
        child = await ChildProcess.start(self._root, lambda _event: None)
        try:
            await child.ask("init", Init, INIT_S)
        except Refused as error:
            await self._drop(child)
            raise init_error(error.trouble, self._root) from error
        except (Stalled, Died) as error:
            await self._drop(child)
            raise node_error(error) from error
        except BaseException:
            await self._drop(child)
            raise
        self._child = child
        return child

    async def _drop(self, child: ChildProcess) -> None:
        child.kill()
        self._child = None
        await child.close()


def _refused(what: str, trouble: Trouble) -> HwError:
    call, code, text = trouble
    return PartitionError(f"{what}: the driver refuses ({call}: {text})", *_ADVICE.get(code, _OTHERWISE))


def _cut(reply: MigState) -> CutGpu:
    instances = tuple(
        CutInstance(
            id=one.id, profile=one.profile, start=one.start, used=one.used,
            compute=tuple(CutCompute(id=ci.id, profile=ci.profile, start=ci.start) for ci in one.compute),
        )
        for one in reply.instances
    )  # fmt: skip
    return CutGpu(
        index=reply.index, uuid=reply.uuid, product=reply.product, device=reply.device, subsystem=reply.subsystem,
        capable=reply.capable, enabled=reply.enabled, pending=reply.pending, instances=instances, used=reply.used,
    )  # fmt: skip
