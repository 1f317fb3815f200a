"""AMD's health service over a real socket: its wire shape, its answers, and whatever a hostile one may answer."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
from google.protobuf.empty_pb2 import Empty

from kgpu.base.errors import ConfigError, KubeletError
from kgpu.kubelet.amd_health import (
    GET_STATE,
    LIST,
    METHODS,
    MOST,
    SET_ERROR,
    AmdHealthServer,
    GpuCondition,
    ask,
)
from kgpu.kubelet.pb import amd_metricssvc_pb2 as pb
from kgpu.kubelet.rpc import Method, RpcClient, RpcError, RpcServer, Service

# Message -> field -> number, from AMD's published stubs, written down here a second time on purpose.
WIRE = {
    "GPUState": {"ID": 1, "UUID": 2, "Health": 3, "AssociatedWorkload": 4, "Device": 5},
    "GPUGetRequest": {"ID": 1},
    "GPUStateResponse": {"GPUState": 1, "Server": 1000},
    "GPUErrorRequest": {"ID": 1, "Fields": 2, "Counts": 3},
    "GPUErrorResponse": {"ID": 1, "Fields": 2},
}
ONE = GpuCondition(id="0", uuid="u", health="healthy", device="0000:05:00.0", workloads=("team/p/main",))
TWO = GpuCondition(id="1", uuid="v", health="unhealthy", device="0000:15:00.0")


class Known:
    def __init__(self, *gpus: GpuCondition) -> None:
        self.gpus = gpus
        self.pretended: list[tuple[str, dict[str, int]]] = []

    def conditions(self) -> tuple[GpuCondition, ...]:
        return self.gpus

    def pretend(self, gpu: str, errors: dict[str, int]) -> None:
        if gpu not in {one.id for one in self.gpus}:
            raise ConfigError("no such GPU", "another", "correct it")
        self.pretended.append((gpu, errors))


@contextlib.asynccontextmanager
async def served(path: Path, known: Known):
    server = AmdHealthServer(path, known)
    await server.start()
    async with RpcClient(path) as client:
        yield client
    await server.close()


def test_messages_and_paths_are_the_published_ones() -> None:
    for name, fields in WIRE.items():
        assert {field.name: field.number for field in pb.DESCRIPTOR.message_types_by_name[name].fields} == fields
    assert pb.DESCRIPTOR.package == "metricssvc"
    assert {method.path for method in METHODS} == {
        f"/metricssvc.MetricsService/{name}" for name in ("List", "GetGPUState", "SetError")
    }


async def test_a_client_of_amds_sees_every_gpu_and_asks_for_one(folder) -> None:
    path = folder / "s"
    async with served(path, Known(ONE, TWO)) as client:
        rows = (await client.call(LIST, Empty(), timeout=20)).GPUState
        assert [(row.ID, row.Health, row.Device) for row in rows] == [
            ("0", "healthy", "0000:05:00.0"), ("1", "unhealthy", "0000:15:00.0"),
        ]  # fmt: skip
        assert list(rows[0].AssociatedWorkload) == ["team/p/main"]
        (row,) = (await client.call(GET_STATE, pb.GPUGetRequest(ID=["1"]), timeout=20)).GPUState
        assert (row.ID, row.UUID) == ("1", "v")


async def test_what_can_not_be_answered_is_refused_with_the_reason(folder) -> None:
    known = Known(ONE)
    async with served(folder / "s", known) as client:
        for method, request, words in (
            (GET_STATE, pb.GPUGetRequest(ID=["9"]), "there is no GPU '9'"),
            (SET_ERROR, pb.GPUErrorRequest(ID="0", Fields=["a", "b"], Counts=[1]), "not as many counts as fields"),
            (SET_ERROR, pb.GPUErrorRequest(ID="7", Fields=["a"], Counts=[1]), "no such GPU"),
        ):
            with pytest.raises(RpcError, match=words):
                await client.call(method, request, timeout=20)
        reply = await client.call(SET_ERROR, pb.GPUErrorRequest(ID="0", Fields=["a"], Counts=[3]), timeout=20)
        assert (reply.ID, list(reply.Fields)) == ("0", ["a"])
        assert known.pretended == [("0", {"a": 3})]
        known.gpus = ()
        with pytest.raises(RpcError, match="no GPU has been read yet"):
            await client.call(LIST, Empty(), timeout=20)


async def test_kgpu_knows_its_own_answer_and_another_ones(folder) -> None:
    async with served(folder / "s", Known(ONE)):
        assert (await ask(folder / "s", timeout=20)).ours

    async def theirs(_request):
        return pb.GPUStateResponse(GPUState=[pb.GPUState(ID="0", Health="Unhealthy", Device="0000:05:00.0")])

    server = RpcServer(folder / "t", [Service(METHODS, {"List": theirs})])
    await server.start()
    answer = await ask(folder / "t", timeout=20)
    assert (answer.ours, answer.gpus[0].health) == (False, "unhealthy")
    await server.close()


async def test_a_very_long_answer_is_cut(folder) -> None:
    async def much(_request):
        return pb.GPUStateResponse(GPUState=[pb.GPUState(ID="x" * 300)] * (MOST + 5))

    server = RpcServer(folder / "s", [Service(METHODS, {"List": much})])
    await server.start()
    answer = await ask(folder / "s", timeout=60)
    assert (len(answer.gpus), len(answer.gpus[0].id)) == (MOST, 200)
    await server.close()


@pytest.mark.parametrize(("says", "ends"), [(b"", False), (b"", True), (b"HTTP/1.1 200 OK\r\n\r\nhello", True)])
async def test_what_speaks_no_grpc_is_an_error_within_the_time(folder, says: bytes, ends: bool) -> None:
    lines: list[asyncio.StreamWriter] = []

    async def answer(_reader, writer) -> None:
        lines.append(writer)
        writer.write(says)
        if ends:
            writer.close()

    server = await asyncio.start_unix_server(answer, folder / "s")
    with pytest.raises(KubeletError):
        await ask(folder / "s", timeout=0.3)
    server.close()
    for line in lines:
        line.close()
        with contextlib.suppress(OSError):
            await line.wait_closed()


async def test_another_message_and_no_such_service_are_errors(folder) -> None:
    async def bytes_of_another(_request):
        return pb.GPUErrorResponse(ID="\x7f" * 5)

    odd = [Method(path=LIST.path, request=Empty, reply=pb.GPUErrorResponse)]
    for number, service in enumerate((Service(odd, {"List": bytes_of_another}), Service(odd, {}))):
        server = RpcServer(folder / str(number), [service])
        await server.start()
        with pytest.raises(KubeletError):
            await ask(folder / str(number), timeout=20)
        await server.close()
    with pytest.raises(KubeletError):
        await ask(folder / "absent", timeout=1)
