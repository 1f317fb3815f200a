"""Who holds a node's devices, and by which right, for the role usage."""

from __future__ import annotations

import pytest

from kgpu.agent.shared_reader import SharedReader
from kgpu.agent.usage_holders import MeasuredReader, UsersHolders, found
from kgpu.base.errors import HwError
from kgpu.exporter.model import PodFacts, Unit, Users
from kgpu.exporter.users.kubelet_users import FakeUsers
from kgpu.formats.config_choice import ConfigText
from kgpu.formats.names import GPU_RESOURCE, NVIDIA
from kgpu.formats.usage import HolderSharing
from kgpu.hw.fake_reader import FakeReader, sample_inventory
from kgpu.hw.port import Accelerator, Activity, Inventory, Partition, Process
from kgpu.kubelet.pod_resources import DeviceClaim, Holding

GPU = "GPU-00000000-0000-0000-0000-000000000001"
MIG = "MIG-00000000-0000-0000-0000-000000000002"
NODE = Inventory(
    vendor=NVIDIA, driver_version="1",
    accelerators=(
        Accelerator(
            vendor=NVIDIA, index=0, uuid=GPU, name="x",
            partitions=(Partition(uuid=MIG, index="0:0", parent_uuid=GPU, profile="3g.20gb", gpu_instance=1, compute_instance=0),),
        ),
    ),
)  # fmt: skip
SHARED = """
version: v1
sharing:
  {kind}:
    resources:
    - name: nvidia.com/gpu
      replicas: 4
"""


def held(pod: str, *devices: str, resource: str = GPU_RESOURCE, claim: DeviceClaim | None = None) -> Holding:
    return Holding(namespace="team", pod=pod, container="main", resource=resource, devices=devices, claim=claim)


async def holders(*holdings: Holding, config: str = "", **users: object) -> dict[str, object]:
    source = UsersHolders(
        FakeUsers(Users(holdings=holdings, **users)), lambda: ConfigText(name="x", text=config), ["team"]
    )  # type: ignore[arg-type]
    (found,) = (await source.holders(NODE) or {}).values()
    return {one.pod: one for one in found}


async def test_a_whole_gpu_and_who_its_pod_is() -> None:
    facts = {("team", "a"): PodFacts(uid="u1", owner="Deployment/a", labels={"team": "ml", "secret": "x"})}
    found = await holders(held("a", GPU), pods=facts)
    one = found["a"]
    assert (one.uid, one.owner, one.labels, one.sharing) == ("u1", "Deployment/a", {"team": "ml"}, HolderSharing.WHOLE)  # type: ignore[attr-defined]


async def test_shares_are_the_configurations() -> None:
    for kind, sharing in (("timeSlicing", HolderSharing.TIME_SLICING), ("mps", HolderSharing.MPS)):
        found = await holders(
            held("a", f"{GPU}::0", f"{GPU}::3"), held("b", f"{GPU}::1"), config=SHARED.format(kind=kind)
        )
        assert {name: (one.sharing, one.units, one.replicas) for name, one in found.items()} == {  # type: ignore[attr-defined]
            "a": (sharing, 2, 4), "b": (sharing, 1, 4),
        }  # fmt: skip


async def test_what_its_processes_use_is_a_tenants_own() -> None:
    shares = {(Unit(GPU), ("team", "a", "main")): {"utilization_percent": 40.0, "memory_used_mib": 900.0}}
    found = await holders(
        held("a", f"{GPU}::0"), held("b", f"{GPU}::1"), shares=shares, config=SHARED.format(kind="mps")
    )
    assert [(one.sm, one.memory_mib) for one in found.values()] == [(0.4, 900.0), (None, None)]  # type: ignore[attr-defined]


async def test_a_mig_slice_and_a_claim() -> None:
    claim = DeviceClaim(name="c", pool="n1")
    found = await holders(
        held("a", MIG), held("b", "gpu-0", resource="gpu.nvidia.com", claim=claim),
        claimed={("gpu.nvidia.com", "n1", "gpu-0"): GPU},
    )  # fmt: skip
    assert found["a"].partition == MIG  # type: ignore[attr-defined]
    assert (found["b"].sharing, found["b"].claim, found["b"].partition) == (HolderSharing.CLAIM, "team/c", "")  # type: ignore[attr-defined]


async def test_a_kubelet_that_is_silent_is_not_nobody() -> None:
    source = UsersHolders(FakeUsers(Users(holdings=None)), lambda: None)
    assert await source.holders(NODE) is None


def test_without_an_api_server_the_name_has_to_do() -> None:
    (one,) = found(NODE, Users(holdings=(held("a", GPU),)), None, ())[GPU]
    assert one.uid == "team/a"


async def test_what_a_process_uses_is_what_it_has_used_since_the_last_look() -> None:
    inventory = sample_inventory(2)
    first, second = (gpu.uuid for gpu in inventory.accelerators)
    driver = FakeReader(inventory)
    driver.set_processes(
        [Process(uuid=uuid, pid=pid, sm_percent=70.0) for uuid, pid in ((first, 1), (first, 2), (second, 3))]
    )

    async def opened() -> FakeReader:
        return driver

    reader = MeasuredReader(SharedReader(opened, max_age=-1.0))

    async def used() -> list[float | None]:
        return [one.sm_percent for one in await reader.processes()]

    assert await used() == [70.0, 70.0, 70.0], "nothing else is known yet"
    driver.set_activity([Activity(uuid=first, processes={1: 30.0}), Activity(uuid=second)])
    await reader.activity(())
    assert await used() == [30.0, 0.0, 70.0], "one without a sample has done nothing, the second GPU measures none"
    driver.set_down(HwError("the driver is away", "a driver", "load it"))
    with pytest.raises(HwError):
        await reader.activity(())
    driver.set_down(None)
    assert await used() == [70.0, 70.0, 70.0]
