"""A vendor's own exporter beside the plugin: what it calls unhealthy is withdrawn, and what it does else costs nothing."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from kgpu.deviceplugin import run as plugin_run
from kgpu.deviceplugin.exporter_health import ExporterHealth, unhealthy
from kgpu.deviceplugin.health import DeviceHealth, XidRules, on_exporter
from kgpu.formats.names import ROCM_HEALTH_SOCKET
from kgpu.hw.port import Accelerator, Inventory, Partition
from kgpu.hw.vendor import vendors
from kgpu.kubelet.amd_health import LIST, METHODS, AmdHealthServer, GpuCondition
from kgpu.kubelet.pb import amd_metricssvc_pb2 as pb
from kgpu.kubelet.rpc import RpcServer, Service
from tests.deviceplugin.running import Node

BUS = ("0000:05:00.0", "0000:15:00.0")
PARTS = tuple(
    Partition(uuid=uuid, index="1:0", parent_uuid=BUS[1], profile="dpx_nps1", gpu_instance=number, compute_instance=0)
    for number, uuid in enumerate((BUS[1], "amdgpu_xcp_9"))
)
GPUS = (
    Accelerator(vendor="amd", index=0, uuid=BUS[0], name="MI300X", pci_bus_id=BUS[0]),
    Accelerator(vendor="amd", index=1, uuid=BUS[1], name="MI300X", pci_bus_id=BUS[1], partitions=PARTS),
)


class Theirs:
    """AMD's exporter: its messages at a real socket."""

    def __init__(self, path) -> None:
        self.rows: list[tuple[str, str]] = []
        self.server = RpcServer(path, [Service(METHODS, {"List": self._list})])

    async def _list(self, _request):
        return pb.GPUStateResponse(GPUState=[pb.GPUState(Device=device, Health=word) for device, word in self.rows])


@pytest.mark.parametrize(
    ("device", "word", "found"),
    [
        ("0000:05:00.0", "unhealthy", [BUS[0]]),
        ("0000:05:00.0", "healthy", []),
        ("0000:05:00.0", "unknown", []),
        ("0000:05:00.0", "", []),
        ("0000:15:00.0", "unhealthy", [BUS[1]]),
        ("amdgpu_xcp_9", "unhealthy", [BUS[1]]),  # a partition stands for its GPU
        ("0000:15:00.1", "unhealthy", [BUS[1]]),  # as another function of its address does
        ("0000:25:00.0", "unhealthy", []),
        ("", "unhealthy", []),
        ("card0", "unhealthy", []),
    ],
)
def test_which_gpu_is_called_unhealthy(device: str, word: str, found: list[str]) -> None:
    condition = GpuCondition(id="0", uuid="", health=word, device=device)
    assert list(unhealthy([condition], GPUS)) == found


def test_what_it_says_counts_until_it_says_it_no_more_and_is_told_once_each() -> None:
    rules = XidRules()
    health, news = on_exporter(DeviceHealth(), {BUS[0]: "it is unhealthy"}, rules)
    assert [one.reason for one in news] == ["DeviceUnhealthy"]
    again, news = on_exporter(health, {BUS[0]: "it is unhealthy"}, rules)
    assert (again, news) == (health, [])
    over, news = on_exporter(again, {}, rules)
    assert ([one.reason for one in news], over.elsewhere) == (["VerdictOver"], {})
    off, news = on_exporter(DeviceHealth(), {BUS[0]: "it is unhealthy"}, replace(rules, findings=False))
    assert (off.elsewhere, news) == ({}, [])


async def test_an_answer_counts_and_kgpus_own_is_no_other_opinion(folder) -> None:
    told: list = []
    theirs, path = Theirs(folder / "s"), folder / "s"
    asked = ExporterHealth(path, told.append, seconds=60.0)
    assert await asked.ask(GPUS) == {}
    await theirs.server.start()
    theirs.rows = [(BUS[0], "Unhealthy"), (BUS[1], "healthy")]
    assert await asked.ask(GPUS) == {BUS[0]: f"{BUS[0]} is unhealthy"}
    await theirs.server.close()

    class Own:
        def conditions(self):
            return (GpuCondition(id="0", uuid="", health="unhealthy", device=BUS[0]),)

        def pretend(self, gpu, errors) -> None:
            raise NotImplementedError

    own = AmdHealthServer(path, Own())
    await own.start()
    assert await asked.ask(GPUS) == {}
    await own.close()
    assert told == []


async def test_one_that_hangs_or_talks_nonsense_is_told_once_and_the_plugin_judges(folder) -> None:
    told: list = []
    hold = asyncio.Event()

    async def hang(_request):
        await hold.wait()
        return pb.GPUStateResponse()

    asked = ExporterHealth(folder / "s", told.append, seconds=0.1)
    server = RpcServer(folder / "s", [Service([LIST], {"List": hang})])
    await server.start()
    for _ in range(3):
        assert await asked.ask(GPUS) == {}
    hold.set()
    await server.close()
    assert [one.reason for one in told] == ["ExporterHealth"]
    theirs = Theirs(folder / "s")
    theirs.rows = [(BUS[0], "on fire"), (BUS[1], "unhealthy")]
    await theirs.server.start()
    patient = ExporterHealth(folder / "s", told.append, seconds=60.0)
    for _ in range(2):
        assert list(await patient.ask(GPUS)) == [BUS[1]], "what can be understood counts"
    assert [one.why for one in told[1:]] == ["'on fire' is no word for health"]
    await theirs.server.close()


async def test_a_gpu_that_amds_exporter_calls_unhealthy_is_withdrawn_until_it_is_well_or_gone(
    folder, monkeypatch
) -> None:
    monkeypatch.setattr(plugin_run, "EXPORTER_LOOK_SECONDS", 0.02)
    host, node = folder / "host", Node(folder, Inventory(vendor="amd", driver_version="6", accelerators=GPUS[:1]))
    socket = host / ROCM_HEALTH_SOCKET.lstrip("/")
    socket.parent.mkdir(parents=True)
    async with node.kubelet:
        node.start(host_root=host)

        async def offers(count: int) -> None:
            await node.until(lambda: [one.healthy for one in node.kubelet.devices("amd.com/gpu")].count(True) == count)

        await offers(1)
        theirs = Theirs(socket)
        theirs.rows = [(BUS[0], "unhealthy")]
        await theirs.server.start()
        await offers(0)
        theirs.rows = [(BUS[0], "healthy")]
        await offers(1)
        theirs.rows = [(BUS[0], "unhealthy")]
        await offers(0)
        await theirs.server.close()
        await offers(1)
        await node.stop()
        assert not [one for one in node.advice if one.reason == "ExporterHealth"]


def test_only_amd_has_such_an_exporter() -> None:
    assert {name: row.health_socket for name, row in vendors().items() if row.health_socket} == {
        "amd": ROCM_HEALTH_SOCKET
    }
