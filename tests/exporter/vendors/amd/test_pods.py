"""Who holds AMD GPUs and partitions, from a kubelet's answer to the labels of both families."""

from __future__ import annotations

from kgpu.exporter.config import resolve
from kgpu.exporter.plan import plan
from kgpu.exporter.users.open import open_users
from kgpu.hw.fake_reader import FakeReader
from kgpu.hw.port import Inventory
from tests.exporter.made import series
from tests.exporter.users.test_served import kubelet, socket  # noqa: F401 - fixtures
from tests.exporter.vendors.amd.made import BUS, gpu, look, page
from tests.exporter.vendors.amd.made import series as by_labels


async def test_pods_are_on_the_series_of_their_gpus_and_partitions(socket, kubelet) -> None:  # noqa: F811
    gpus = (gpu(0, 2, "dpx_nps1"), gpu(1))
    kubelet.holds("first", BUS, resource="amd.com/dpx_nps1")
    kubelet.holds("second", "amdgpu_xcp_1", resource="amd.com/dpx_nps1")
    kubelet.holds("whole", gpus[1].uuid, resource="amd.com/gpu")
    given = resolve({"kubernetes": "true", "pod_resources": str(socket)})
    reader = FakeReader(Inventory(vendor="amd", driver_version="6.14", accelerators=gpus))
    served = open_users(given, reader, tell=lambda _: None)
    users = await served.current()
    await served.close()
    assert users.missing == {}
    seen = look(*gpus, more={"holdings": users.holdings}, power_w=70.0, part_1_xcc_0_busy_percent=3.0)
    settings = given.settings(hostname="n")
    text = page(seen, settings=settings)
    assert by_labels(text, "gpu_power_usage", "gpu_id", "pod") == {("0", "first"): 70, ("2", "whole"): 70}
    assert by_labels(text, "gpu_gfx_busy_instantaneous", "gpu_id", "pod") == {("1", "second"): 3}
    dcgm = series(plan(seen, settings), "DCGM_FI_DEV_POWER_USAGE")
    assert ("1", "whole") in {(labels["gpu"], labels.get("pod")) for labels, _ in dcgm}
