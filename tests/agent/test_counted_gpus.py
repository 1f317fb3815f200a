"""No claim gets a GPU that a pod has by a counted resource."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from kgpu.agent.counted_gpus import CountedGpus, counted
from kgpu.agent.ordered import OrderedGpus
from kgpu.base.clock import VirtualClock
from kgpu.base.errors import KubeletError
from kgpu.formats.names import DRA_GPU_DRIVER
from kgpu.hw.fake_reader import sample_inventory, sample_partitions
from kgpu.hw.port import Inventory
from kgpu.kubelet.pod_resources import FakeHoldings, Holding

PLAIN = sample_inventory(3)
FIRST, SECOND, THIRD = PLAIN.accelerators
CUT = replace(FIRST, mig_enabled=True, partitions=sample_partitions(FIRST))
NODE = replace(PLAIN, accelerators=(CUT, SECOND, THIRD))


@pytest.mark.parametrize(
    ("resource", "device", "gpu"),
    [
        ("nvidia.com/gpu", FIRST.uuid, FIRST.uuid),
        ("nvidia.com/gpu.shared", f"{SECOND.uuid}::3", SECOND.uuid),
        ("nvidia.com/gpu", "nvidia2", THIRD.uuid),
        ("nvidia.com/mig-1g.10gb", CUT.partitions[3].uuid, FIRST.uuid),
        ("nvidia.com/mig-1g.10gb", f"MIG-{SECOND.uuid}/7/0", SECOND.uuid),
        ("team.dev/renamed", SECOND.uuid, SECOND.uuid),
        ("example.com/nic", "2", ""),
        ("nvidia.com/gpu", "GPU-of-another-node", ""),
        (DRA_GPU_DRIVER, "gpu-1", ""),
    ],
)
def test_which_gpu_a_pod_has(resource: str, device: str, gpu: str) -> None:
    held = Holding(namespace="team", pod="train", container="c", resource=resource, devices=(device,))
    wanted = {gpu: f"pod team/train has it by {resource}"} if gpu else {}
    assert counted([held], NODE) == wanted


async def test_the_driver_gives_away_nothing_before_it_knows_and_keeps_what_it_knew() -> None:
    holdings, ordered, clock, off = FakeHoldings(), OrderedGpus(), VirtualClock(), [""]
    holdings.problem = KubeletError("no answer", "one", "wait")
    changes: list[dict[str, str]] = []

    async def inventory() -> Inventory:
        return NODE

    ledger = CountedGpus(holdings, inventory, ordered=ordered, off=lambda: off[0], clock=clock)
    task = asyncio.create_task(ledger.run(lambda: changes.append(dict(ledger.not_to_give(NODE)))))
    try:
        await clock.advance(5.0)
        assert not ledger.known.is_set()
        holdings.problem = None
        holdings.now = (
            Holding(namespace="team", pod="train", container="c", resource="nvidia.com/gpu", devices=(SECOND.uuid,)),
        )
        await clock.advance(2.0)
        assert ledger.known.is_set()
        has = {SECOND.uuid: "pod team/train has it by nvidia.com/gpu"}
        assert ledger.taken == changes[-1] == has
        holdings.problem = KubeletError("no answer", "one", "wait")
        await clock.advance(5.0)
        assert ledger.taken == has
        ordered.set({THIRD.uuid: "withdrawn: a reset"})
        await clock.advance(1.0)
        assert changes[-1] == {**has, THIRD.uuid: "withdrawn: a reset"}
        ordered.set()
        holdings.problem, holdings.now = None, ()
        await clock.advance(3.0)
        assert ledger.taken == changes[-1] == {}
        off[0] = "the node label says so"
        await clock.advance(1.0)
        assert set(changes[-1]) == {gpu.uuid for gpu in NODE.accelerators}
        assert "no claim gets it any more: the node label says so" in changes[-1].values()
        assert ledger.taken == {}, "what claims have can still be prepared again"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
