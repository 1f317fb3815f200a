"""AMD's health service, both ends: how well each GPU is, as AMD's metrics exporter tells ROCm's device plugin.

The service ``metricssvc.MetricsService`` is on a unix socket. What comes over it may be anything: texts are cut, and of
very many GPUs the first count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from google.protobuf.empty_pb2 import Empty

from kgpu.base.errors import ConfigError
from kgpu.kubelet.pb import amd_metricssvc_pb2 as pb
from kgpu.kubelet.rpc import Method, RpcClient, RpcServer, Service

LIST: Final = Method(path="/metricssvc.MetricsService/List", request=Empty, reply=pb.GPUStateResponse)
GET_STATE: Final = Method(
    path="/metricssvc.MetricsService/GetGPUState", request=pb.GPUGetRequest, reply=pb.GPUStateResponse
)
SET_ERROR: Final = Method(
    path="/metricssvc.MetricsService/SetError", request=pb.GPUErrorRequest, reply=pb.GPUErrorResponse
)
METHODS: Final = (LIST, GET_STATE, SET_ERROR)
HEALTHY: Final = "healthy"
UNHEALTHY: Final = "unhealthy"
OURS: Final = "kgpu"
MOST: Final = 4096
TEXT: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCondition:
    """One GPU or partition. ``id`` is its number, ``device`` what the kubelet knows it by, ``health`` one of healthy,
    unhealthy and unknown, ``workloads`` who has it.
    """

    id: str
    uuid: str
    health: str
    device: str
    workloads: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionsAnswer:
    """An answer; ``ours``: it is kgpu's own exporter that has given it."""

    gpus: tuple[GpuCondition, ...]
    ours: bool


class Conditions(Protocol):
    """What answers at the service."""

    def conditions(self) -> Sequence[GpuCondition]:
        """Every GPU, empty while nothing is known."""
        ...

    def pretend(self, gpu: str, errors: dict[str, int]) -> None:
        """Count so many errors of these fields for a GPU, as a test of what follows. Raises UserError."""
        ...


class AmdHealthServer(RpcServer):
    """The service on the socket ``path``."""

    def __init__(self, path: Path, conditions: Conditions) -> None:
        self._conditions = conditions
        answers = {"List": self._list, "GetGPUState": self._get, "SetError": self._set}
        super().__init__(path, [Service(METHODS, answers)])

    async def _list(self, _request: Any) -> Any:
        return _reply(self._known())

    async def _get(self, request: Any) -> Any:
        by_id = {gpu.id: gpu for gpu in self._known()}
        missing = [text for text in request.ID if text not in by_id]
        if missing:
            raise ConfigError(f"there is no GPU {missing[0][:60]!r}", f"one of: {', '.join(by_id)}", "ask for those")
        return _reply([by_id[text] for text in request.ID])

    async def _set(self, request: Any) -> Any:
        if len(request.Fields) != len(request.Counts):
            raise ConfigError("not as many counts as fields", "a count for each field", "correct the request")
        self._conditions.pretend(request.ID, dict(zip(request.Fields, request.Counts, strict=True)))
        return pb.GPUErrorResponse(ID=request.ID, Fields=request.Fields)

    def _known(self) -> Sequence[GpuCondition]:
        known = self._conditions.conditions()
        if not known:
            raise ConfigError("no GPU has been read yet", "a driver that answers", "ask again")
        return known


def _reply(gpus: Sequence[GpuCondition]) -> Any:
    rows = [
        pb.GPUState(
            ID=gpu.id, UUID=gpu.uuid, Health=gpu.health, AssociatedWorkload=gpu.workloads, Device=gpu.device
        )
        for gpu in gpus
    ]  # fmt: skip
    return pb.GPUStateResponse(GPUState=rows, Server=OURS)


async def ask(path: Path, *, timeout: float) -> ConditionsAnswer:  # noqa: ASYNC109 - a gRPC deadline
    """What the exporter at ``path`` says of every GPU. Raises KubeletError."""
    async with RpcClient(path) as client:
        reply = await client.call(LIST, Empty(), timeout=timeout)
    rows = reply.GPUState[:MOST]
    gpus = tuple(
        GpuCondition(
            id=row.ID[:TEXT], uuid=row.UUID[:TEXT], health=row.Health[:TEXT].lower(), device=row.Device[:TEXT].lower()
        )
        for row in rows
    )  # fmt: skip
    return ConditionsAnswer(gpus=gpus, ours=reply.Server == OURS)
