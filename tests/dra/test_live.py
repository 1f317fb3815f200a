"""The loop against the embedded API server, over the clock of the machine."""

from __future__ import annotations

from pathlib import Path

from kgpu.dra.api import DraApi
from kgpu.hw.verdicts import GpuVerdict
from kgpu.kube.port import NODES, Object, name_of
from kgpu.kubelet.model import DeviceCondition
from tests.dra.live import live
from tests.dra.samples import NODE, h100
from tests.lab.embedded.support import whole


async def test_the_embedded_cluster_has_the_nodes_devices(tmp_path: Path) -> None:
    async with whole(tmp_path, "none") as cluster:
        await cluster.api.create(NODES, {"metadata": {"name": NODE}})
        async with live(cluster.api, DraApi(), NODE, h100(10), dynamic=True) as it:
            assert len(await it.until(lambda found: len(found) == 260)) == 260
            uuid = h100(10).accelerators[3].uuid
            it.verdicts.put(GpuVerdict(uuid=uuid, withdraws=True, causes=("xid:79",)))
            found = await it.until(lambda found: any(found.values()))
            assert {name.split("-mig")[0] for name, taints in found.items() if taints} == {"gpu-3"}
            ill = {name for name, condition in it.health.items() if condition is DeviceCondition.UNHEALTHY}
            assert ill == {name for name, taints in found.items() if taints}
            assert len(it.health) == 260
            slices: list[Object] = await it.slices()
            await cluster.api.delete(DraApi().resource, name_of(slices[4]))
            it.verdicts.put()
            await it.until(lambda found: len(found) == 260 and not any(found.values()))
            assert it.told == []
        assert len(await it.slices()) == 12  # they stay when the process ends
