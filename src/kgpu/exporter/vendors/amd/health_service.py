"""The health service of AMD's exporter, so that ROCm's device plugin works beside kgpu's exporter.

It is served where its folder is there and no other program serves it. A GPU is healthy where the driver answers for it,
nothing found says that work on it would fail, and the role ``health`` does not withdraw it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kgpu.base.advice import Advice, AdviceSink
from kgpu.base.errors import ConfigError, KubeletError
from kgpu.base.service import Complaint
from kgpu.exporter.vendors.amd.settings import RocmConfig
from kgpu.exporter.vendors.families import LabelledPart
from kgpu.kubelet.amd_health import HEALTHY, UNHEALTHY, AmdHealthServer, GpuCondition
from kgpu.kubelet.rpc import is_served

if TYPE_CHECKING:
    from kgpu.exporter.holders import Holder

LOOK_SECONDS: Final = 5.0
_COUNTED: Final = "GPU_ECC_UNCORRECT_"
"""How fields begin whose errors make a GPU unhealthy."""


class RocmHealthService:
    """Implements ``kgpu.kubelet.amd_health.Conditions``; ``run`` serves it."""

    def __init__(self, path: str, report: AdviceSink, config: Callable[[], RocmConfig]) -> None:
        self._path = Path(path)
        self._config = config
        self._complaint = Complaint(report, reason="RocmHealthService", subject=path)
        self._gpus: tuple[GpuCondition, ...] = ()
        self._pretended: dict[str, dict[str, int]] = {}

    def update(self, parts: Sequence[LabelledPart], *, answers: bool, healthy: Mapping[str, bool]) -> None:
        """What is known now. ``healthy`` are the health role's verdicts by uuid."""
        self._gpus = tuple(
            GpuCondition(
                id=str(part.number), uuid=part.uuid, device=part.uuid,
                health=HEALTHY
                if answers and part.gpu.usable and healthy.get(part.gpu.uuid, True)
                else UNHEALTHY,
                workloads=tuple(map(_workload, part.users)),
            )
            for part in parts
        )  # fmt: skip

    def conditions(self) -> tuple[GpuCondition, ...]:
        """Every GPU and partition, those with pretended errors unhealthy."""
        if not self._config().debug_api:
            return self._gpus
        return tuple(_with_errors(gpu, self._pretended.get(gpu.id, {})) for gpu in self._gpus)

    def pretend(self, gpu: str, errors: dict[str, int]) -> None:
        """Count errors that are none; 0 takes them back. Raises ConfigError unless the configuration allows it."""
        if not self._config().debug_api:
            raise ConfigError("errors can't be set", "CommonConfig.Debug.EnableAPI: true", "set it for a test alone")
        if gpu not in {one.id for one in self._gpus}:
            raise ConfigError(f"there is no GPU {gpu[:60]!r}", "a number of List", "correct the ID")
        odd = [field for field in errors if not (field.startswith(_COUNTED) and field.isascii() and len(field) < 60)]
        if odd:
            raise ConfigError(f"{odd[0][:60]!r} is no count of errors", f"{_COUNTED}...", "correct Fields")
        kept = {**self._pretended.get(gpu, {}), **errors}
        self._pretended[gpu] = {field: count for field, count in kept.items() if count}

    async def run(self) -> None:
        """Serve it until cancelled, whatever happens to the socket."""
        server: AmdHealthServer | None = None
        try:
            while True:
                server = await self._kept(server)
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            if server is not None:
                await server.close()

    async def _kept(self, server: AmdHealthServer | None) -> AmdHealthServer | None:
        """The server that should be there now."""
        why = self._why_not(server)
        if server is not None and (why or not server.exists):
            await server.close()
            server = None
        if why:
            self._complaint.tell(self._not_served(why))
        elif server is None:
            server = AmdHealthServer(self._path, self)
            try:
                await server.start()
            except KubeletError as error:
                self._complaint.of(error)
                return None
            self._complaint.over()
        return server

    def _why_not(self, server: AmdHealthServer | None) -> str:
        if not self._config().health_service:
            return "CommonConfig.HealthService.Enable is false"
        if not self._path.parent.is_dir():
            return f"{self._path.parent} is not there"
        if (server is None or not server.exists) and is_served(self._path):
            return "another program serves it already"
        return ""

    def _not_served(self, why: str) -> Advice:
        return Advice(
            subject=str(self._path), what="the health service of AMD's exporter is not served", why=why,
            remedy="nothing, unless ROCm's device plugin is to hear of GPUs' health from kgpu",
            reason="RocmHealthService",
        )  # fmt: skip


def _workload(holder: Holder) -> str:
    return f"{holder.namespace}/{holder.pod}/{holder.container}"


def _with_errors(gpu: GpuCondition, errors: Mapping[str, int]) -> GpuCondition:
    if not errors:
        return gpu
    return GpuCondition(id=gpu.id, uuid=gpu.uuid, health=UNHEALTHY, device=gpu.device, workloads=gpu.workloads)
