"""The health service of AMD's exporter, served by kgpu's: by a client of AMD's messages, over the exporter's whole life."""

from __future__ import annotations

import asyncio
import json
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from google.protobuf.empty_pb2 import Empty

from kgpu.base.errors import ConfigError, KubeletError
from kgpu.exporter.users.kubelet_users import FakeUsers
from kgpu.exporter.vendors.amd import health_service
from kgpu.exporter.vendors.amd.health_service import RocmHealthService
from kgpu.exporter.vendors.amd.page import RocmFamilies
from kgpu.exporter.vendors.amd.settings import RocmConfig
from kgpu.hw.fake_reader import FakeReader
from kgpu.hw.port import HardwareFinding, Inventory, Problem, Reading
from kgpu.hw.verdicts import GpuVerdict, MemoryVerdicts
from kgpu.kubelet.amd_health import LIST, SET_ERROR
from kgpu.kubelet.pb import amd_metricssvc_pb2 as pb
from kgpu.kubelet.rpc import RpcClient, RpcServer, Service
from tests.exporter.made import holding
from tests.exporter.serving import serving
from tests.exporter.vendors.amd.made import BUS, SETTINGS, gpu, look

FIELD = "GPU_ECC_UNCORRECT_UMC"


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(prefix="kgpu") as name:
        yield Path(name)


@pytest.fixture(autouse=True)
def quick(monkeypatch) -> None:
    monkeypatch.setattr(health_service, "LOOK_SECONDS", 0.02)


def service(*gpus, healthy=None, config=None, told=None, **more):
    seen = look(*gpus, power_w=1.0, more=more)
    families = RocmFamilies()
    families.plan(seen, SETTINGS, RocmConfig(), {})
    config = config or RocmConfig()
    found = RocmHealthService("/none/s", (told if told is not None else []).append, lambda: config)
    found.update(families.parts, answers=seen.answers, healthy=healthy or {})
    return found


def health_of(found: RocmHealthService) -> dict[str, str]:
    return {one.id: one.health for one in found.conditions()}


def lost(index: int):
    finding = HardwareFinding(subject="", problem=Problem.LOST, what="gone", expected="", remedy="")
    return replace(gpu(index), findings=(finding,))


@pytest.mark.parametrize(
    ("gpus", "more", "healthy", "expected"),
    [
        ((gpu(0), gpu(1)), {}, {}, {"0": "healthy", "1": "healthy"}),
        ((gpu(0), lost(1)), {}, {}, {"0": "healthy", "1": "unhealthy"}),
        ((gpu(0), gpu(1)), {}, {BUS: False}, {"0": "unhealthy", "1": "healthy"}),
        ((gpu(0, 2, "dpx_nps1"), gpu(1)), {}, {BUS: False}, {"0": "unhealthy", "1": "unhealthy", "2": "healthy"}),
        ((gpu(0), gpu(1)), {"answers": False}, {}, {"0": "unhealthy", "1": "unhealthy"}),
    ],
)  # fmt: skip
def test_how_well_each_gpu_and_partition_is(gpus, more, healthy, expected) -> None:
    assert health_of(service(*gpus, healthy=healthy, **more)) == expected


def test_a_partition_is_what_the_kubelet_knows_it_by_with_its_pods() -> None:
    held = (holding("a", BUS, resource="amd.com/gpu"), holding("b", "amdgpu_xcp_1", resource="amd.com/gpu"))
    found = service(gpu(0, 2, "dpx_nps1"), holdings=held).conditions()
    assert [(one.device, one.workloads) for one in found] == [
        (BUS, ("team/a/main",)),
        ("amdgpu_xcp_1", ("team/b/main",)),
    ]


def test_errors_are_pretended_only_where_the_configuration_allows_it() -> None:
    with pytest.raises(ConfigError, match="EnableAPI"):
        service(gpu(0)).pretend("0", {FIELD: 1})
    found = service(gpu(0), config=RocmConfig(debug_api=True))
    found.pretend("0", {FIELD: 1})
    assert health_of(found) == {"0": "unhealthy"}
    found.pretend("0", {FIELD: 0})
    assert health_of(found) == {"0": "healthy"}
    for number, field in (("9", FIELD), ("0", "GPU_ECC_CORRECT_UMC"), ("0", FIELD + "é")):
        with pytest.raises(ConfigError):
            found.pretend(number, {field: 1})


def reader_of() -> FakeReader:
    gpus = (gpu(0), gpu(1))
    reader = FakeReader(Inventory(vendor="amd", driver_version="6.14", accelerators=gpus))
    reader.set_readings(Reading(uuid=one.uuid, values={"power_w": 70.0}) for one in gpus)
    return reader


async def listed(path: Path) -> dict[str, str]:
    try:
        async with RpcClient(path) as client:
            return {row.Device: row.Health for row in (await client.call(LIST, Empty(), timeout=20)).GPUState}
    except KubeletError:
        return {}


async def until(path: Path, expected: dict[str, str]) -> None:
    async with asyncio.timeout(60):
        while await listed(path) != expected:  # noqa: ASYNC110 - another process' socket
            await asyncio.sleep(0.01)


async def test_rocms_plugin_is_answered_while_the_exporter_runs_and_hears_of_verdicts(folder) -> None:
    socket, config, verdicts = folder / "s", folder / "config.json", MemoryVerdicts()
    flags = {"amd_health_socket": str(socket), "amd_config": str(config)}
    second = gpu(1).uuid
    async with serving(reader_of(), FakeUsers(), flags=flags, verdicts=verdicts) as served:
        await until(socket, {BUS: "healthy", second: "healthy"})
        verdicts.put(GpuVerdict(uuid=second, withdraws=True, causes=("ecc",), action="replace", what="rows"))
        await until(socket, {BUS: "healthy", second: "unhealthy"})
        verdicts.put()
        await until(socket, {BUS: "healthy", second: "healthy"})
        async with RpcClient(socket) as client:
            with pytest.raises(KubeletError, match="EnableAPI"):
                await client.call(SET_ERROR, pb.GPUErrorRequest(ID="0", Fields=[FIELD], Counts=[1]), timeout=20)
            config.write_text(json.dumps({"CommonConfig": {"Debug": {"EnableAPI": True}}}))
            async with asyncio.timeout(60):
                while (await listed(socket))[BUS] == "healthy":
                    try:
                        await client.call(SET_ERROR, pb.GPUErrorRequest(ID="0", Fields=[FIELD], Counts=[1]), timeout=20)
                    except KubeletError:
                        await asyncio.sleep(0.02)
        config.write_text(json.dumps({"CommonConfig": {"HealthService": {"Enable": False}}}))
        await until(socket, {})
        assert not socket.exists()
        config.write_text("{}")
        await until(socket, {BUS: "healthy", second: "healthy"})
        socket.unlink()
        await until(socket, {BUS: "healthy", second: "healthy"})
        assert [one.why for one in served.told("RocmHealthService")] == ["CommonConfig.HealthService.Enable is false"]
    assert not socket.exists()


async def test_amds_own_exporter_keeps_its_socket_and_kgpu_takes_over_when_it_is_gone(folder) -> None:
    socket = folder / "s"

    async def theirs(_request):
        return pb.GPUStateResponse(GPUState=[pb.GPUState(Device="theirs", Health="healthy")])

    server = RpcServer(socket, [Service([LIST], {"List": theirs})])
    await server.start()
    async with serving(reader_of(), FakeUsers(), flags={"amd_health_socket": str(socket)}) as served:
        async with asyncio.timeout(60):
            while not served.told("RocmHealthService"):  # noqa: ASYNC110 - told by a loop
                await asyncio.sleep(0.01)
        assert served.told("RocmHealthService")[0].why == "another program serves it already"
        assert await listed(socket) == {"theirs": "healthy"}
        await server.close()
        await until(socket, {BUS: "healthy", gpu(1).uuid: "healthy"})
        assert len(served.told("RocmHealthService")) == 1


@pytest.mark.parametrize(("path", "words"), [("none/s", "is not there"), ("", "")])
async def test_without_its_folder_it_is_told_once_and_an_empty_path_turns_it_off(folder, path: str, words: str) -> None:
    flags = {"amd_health_socket": str(folder / path) if path else ""}
    async with serving(reader_of(), FakeUsers(), flags=flags) as served:
        await served.until("gpu_power_usage", {"0": 70, "1": 70}, label="gpu_id")
        if words:
            async with asyncio.timeout(60):
                while not served.told("RocmHealthService"):  # noqa: ASYNC110 - told by a loop
                    await asyncio.sleep(0.01)
        assert [words in one.why for one in served.told("RocmHealthService")] == [True] * bool(words)
