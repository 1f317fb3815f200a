"""Users over a real pod-resources socket: a MIG device, shares of a GPU, a claim; a kubelet that restarts; a big answer."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kgpu.base.clock import VirtualClock
from kgpu.exporter.config import resolve
from kgpu.exporter.model import Users
from kgpu.exporter.plan import plan
from kgpu.exporter.users.kubelet_users import PERIOD, KubeletUsers
from kgpu.exporter.users.open import open_users
from kgpu.hw.fake_reader import FakeReader
from kgpu.kubelet.methods import POD_RESOURCES
from kgpu.kubelet.pb import podresources_v1_pb2 as pb
from kgpu.kubelet.pod_resources import PodResources
from kgpu.kubelet.rpc import RpcServer, Service
from tests.exporter.made import gpu, inventory, look, mig_uuid, partition, series, uuid

pytestmark = pytest.mark.usefixtures("patient")

GPUS = (gpu(0, partition(0, 7)), gpu(1), gpu(2))


@pytest.fixture
def socket() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kgpu") as folder:  # short enough for a socket
        yield Path(folder) / "kubelet.sock"


class Kubelet:
    """Answers List with what ``holds`` has put together."""

    def __init__(self, socket: Path) -> None:
        self.reply = pb.ListPodResourcesResponse()
        self._socket = socket
        self._server = self._made()

    def _made(self) -> RpcServer:
        return RpcServer(self._socket, [Service(POD_RESOURCES, {"List": self._list})])

    async def _list(self, _request: Any) -> Any:
        return self.reply

    def container(self, pod: str, name: str = "main") -> Any:
        return self.reply.pod_resources.add(name=pod, namespace="team").containers.add(name=name)

    def holds(self, pod: str, *ids: str, resource: str = "nvidia.com/gpu") -> None:
        self.container(pod).devices.add(resource_name=resource, device_ids=ids)

    async def start(self) -> None:
        self._server = self._made()
        await self._server.start()

    async def stop(self) -> None:
        await self._server.close()


@pytest.fixture
async def kubelet(socket: Path) -> Any:
    made = Kubelet(socket)
    await made.start()
    yield made
    await made.stop()


def users(socket: Path, clock: VirtualClock | None = None) -> KubeletUsers:
    given = resolve({"kubernetes": "true", "pod_resources": str(socket)})
    made = open_users(given, FakeReader(inventory(*GPUS)), tell=lambda _: None, clock=clock)
    assert isinstance(made._from.holdings, PodResources)
    made._from.holdings._seconds = 60.0  # on a busy machine a large answer takes longer than a kubelet may
    return made


def by_pod(found: Users, name: str = "DCGM_FI_DEV_FB_USED") -> dict[str, tuple[str, str]]:
    asked = look(*GPUS, holdings=found.holdings, claimed=found.claimed)
    rows = series(plan(asked, resolve({"kubernetes": "true"}).settings(hostname="n")), name)
    return {row["pod"]: (row["gpu"], row.get("GPU_I_ID", "")) for row, _ in rows if "pod" in row}


async def test_every_kind_of_holder_is_found(socket: Path, kubelet: Kubelet) -> None:
    kubelet.holds("whole", uuid(1))
    kubelet.holds("slice", mig_uuid(0, 7), resource="nvidia.com/mig-1g.10gb")
    kubelet.holds("share-a", f"{uuid(2)}::0", resource="nvidia.com/gpu.shared")
    kubelet.holds("share-b", f"{uuid(2)}::1", resource="nvidia.com/gpu.shared")
    kubelet.holds("net", "0000:01:00.0", resource="intel.com/sriov")
    kubelet.container("idle")
    claim = kubelet.container("claims").dynamic_resources.add(claim_name="c", claim_namespace="team")
    claim.claim_resources.add(driver_name="gpu.nvidia.com", pool_name="n", device_name="gpu-1")
    served = users(socket)
    found = await served.current()
    await served.close()
    assert by_pod(found) == {"whole": ("1", ""), "slice": ("0", "7"), "share-a": ("2", ""), "share-b": ("2", "")}
    assert found.missing == {("claim", "not-asked"): 1}


async def test_a_kubelet_that_restarts(socket: Path, kubelet: Kubelet) -> None:
    kubelet.holds("whole", uuid(1))
    clock = VirtualClock()
    served = users(socket, clock)
    assert by_pod(await served.current()) == {"whole": ("1", "")}
    await kubelet.stop()
    await clock.advance(PERIOD)
    found = await served.current()
    assert by_pod(found) == {"whole": ("1", "")}
    assert list(found.failures) == ["holdings"]
    kubelet.reply.pod_resources.pop()
    await kubelet.start()
    await clock.advance(PERIOD)
    found = await served.current()
    await served.close()
    assert (by_pod(found), found.failures) == ({}, {})


async def test_an_answer_beyond_four_megabytes(socket: Path, kubelet: Kubelet) -> None:
    for number in range(110):
        kubelet.container(f"big-{number}").devices.add(
            resource_name="example.com/many", device_ids=[f"device-{n:040}" for n in range(1200)]
        )
    kubelet.holds("whole", uuid(1))
    assert kubelet.reply.ByteSize() > 5 << 20
    clock = VirtualClock()  # no time passes for the look, whatever the machine does beside
    served = users(socket, clock)
    while not (found := await served.current()).holdings and not found.failures:
        pass  # a scrape does not wait for a slow kubelet; its answer comes to a later one
    await served.close()
    assert by_pod(found) == {"whole": ("1", "")}
    assert found.failures == {}
    assert [one.pod for one in found.holdings or ()] == ["whole"]  # the others are not kept
