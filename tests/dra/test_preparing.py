"""Claims are prepared once and whole, and leave nothing behind; no part of a GPU is in two claims."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from kgpu.base.errors import HostError
from kgpu.dra.granted import ClaimRefusedError
from kgpu.dra.preparing import Preparations
from kgpu.dra.records import ClaimRecords
from kgpu.formats import cdi
from kgpu.formats.names import DRA_PARAMETERS
from kgpu.hw.partitioning import PartitionError
from tests.budget import count
from tests.dra.node import Killed, Killer, Node, claim, names, spec_file

LONG = {
    "apiVersion": DRA_PARAMETERS, "kind": "GpuConfig",
    "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}},
}  # fmt: skip
BY_MPS = {"apiVersion": DRA_PARAMETERS, "kind": "GpuConfig", "sharing": {"strategy": "MPS"}}
SLICES_BY_MPS = {"apiVersion": DRA_PARAMETERS, "kind": "MigDeviceConfig", "sharing": {"strategy": "MPS"}}
PARAMETERS = {"0": [BY_MPS, SLICES_BY_MPS], "3": [BY_MPS, SLICES_BY_MPS], "2": [LONG, None], "6": [LONG, None]}
"""By the last digit of a claim's uid: for GPUs, and for slices."""
NOTHING: tuple[dict[str, int], list[tuple[str, int]], dict[str, str]] = ({}, [], {})
SLICE, OTHER, LARGE = "gpu-0-mig-0-0", "gpu-0-mig-0-1", "gpu-0-mig-2-4"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def test_a_whole_gpu_gets_a_spec_of_the_claim(node: Node) -> None:
    made = await node.start()
    (device,) = await made.prepare(claim("a", "gpu-0"))
    assert (device.request, device.pool, device.device) == ("r0", "node-1", "gpu-0")
    assert device.cdi == ("k8s.gpu.nvidia.com/claim=a-gpu-0",)
    spec = cdi.parse_spec((node.folder / "cdi" / spec_file("a")).read_text())
    (entry,) = spec.devices
    assert (spec.kind, entry.name) == ("k8s.gpu.nvidia.com/claim", "a-gpu-0")
    assert [one.path for one in entry.container_edits.device_nodes] == ["/dev/nvidia0", "/dev/nvidiactl"]
    assert set(spec.container_edits.env) == {"NVIDIA_DRIVER=here", "NVIDIA_VISIBLE_DEVICES=void"}
    assert not spec.container_edits.hooks
    await made.unprepare("a")
    assert node.spec_files() == node.record_files() == set()


async def test_slices_are_made_for_a_claim_and_go_with_it(node: Node) -> None:
    made = await node.start()
    first = await made.prepare(claim("a", SLICE, LARGE))
    second = await made.prepare(claim("b", OTHER))
    assert [device.uuid for device in (*first, *second)] == ["MIG-0-0-0", "MIG-0-4-2", "MIG-0-1-0"]
    assert node.slices() == {(first[0].gpu, 0, 0), (first[0].gpu, 2, 4), (first[0].gpu, 0, 1)}
    assert node.modes() == [True, False, False]
    await made.unprepare("a")
    assert node.slices() == {(first[0].gpu, 0, 1)}
    assert node.modes() == [True, False, False]
    await made.unprepare("b")
    assert node.slices() == set()
    assert node.modes() == [False, False, False]


async def test_gpus_are_read_anew_only_where_slices_are_made(node: Node) -> None:
    made = await node.start()
    await made.prepare(claim("a", "gpu-1", "gpu-2"))
    await made.unprepare("a")
    assert node.reads == 0
    await made.prepare(claim("b", SLICE))
    assert node.reads == 1


async def test_a_slice_that_is_there_is_the_claims_at_every_moment(node: Node) -> None:
    """What is published would be another for a moment otherwise, and devices would come and go with each claim."""
    made = await node.start()
    seen = []
    node.driver.meddle = lambda step, _done: seen.append(
        (step, {(one, start) for one, _, start in node.slices()} - made.made)
    )
    await made.prepare(claim("a", SLICE, LARGE))
    await made.unprepare("a")
    assert {step for step, _ in seen} >= {"create-instance", "create-compute", "destroy-instance"}
    assert all(not strange for _, strange in seen)


async def test_it_is_done_once_however_often_it_is_asked_for(node: Node) -> None:
    made = await node.start()
    first = await made.prepare(claim("a", SLICE, "gpu-1"))
    moments = node.killer.moments
    assert await made.prepare(claim("a", SLICE, "gpu-1")) == first
    assert node.killer.moments == moments
    again = await node.start()
    assert await again.prepare(claim("a", SLICE, "gpu-1")) == first
    assert len(node.slices()) == 1
    await again.unprepare("a")
    await again.unprepare("a")
    await again.unprepare("of nobody")


async def test_a_spec_that_is_gone_is_written_again(node: Node) -> None:
    made = await node.start()
    first = await made.prepare(claim("a", "gpu-0", parameters=BY_MPS))
    path = node.folder / "cdi" / spec_file("a")
    before = path.read_text()
    path.unlink()
    assert await made.prepare(claim("a", "gpu-0", parameters=BY_MPS)) == first
    assert path.read_text() == before


@pytest.mark.parametrize(
    ("held", "wanted"),
    [("gpu-0", "gpu-0"), ("gpu-0", SLICE), (SLICE, "gpu-0"), (SLICE, SLICE), ("gpu-0-mig-2-0", OTHER)],
)
async def test_what_another_claim_has_is_refused(node: Node, held: str, wanted: str) -> None:
    made = await node.start()
    await made.prepare(claim("a", held))
    with pytest.raises(ClaimRefusedError, match="claim team/claim-a has") as caught:
        await made.prepare(claim("b", "gpu-1", wanted))
    assert "team/claim-a" in caught.value.remedy
    assert node.spec_files() == {spec_file("a")}
    await made.prepare(claim("c", wanted, admin=True) if wanted == "gpu-0" == held else claim("c", "gpu-1"))
    await made.unprepare("a")
    await made.unprepare("c")
    assert names(await made.prepare(claim("b", "gpu-1", wanted))) == ["gpu-1", wanted]


async def test_a_claim_that_was_allocated_anew_gets_what_it_has_now(node: Node) -> None:
    made = await node.start()
    await made.prepare(claim("a", SLICE))
    assert names(await made.prepare(claim("a", "gpu-1"))) == ["gpu-1"]
    assert node.slices() == set()


async def test_what_is_not_on_the_node_is_refused_before_anything_changes(node: Node) -> None:
    made = await node.start()
    node.missing.add("gpu-1")
    for name in ("gpu-1", "gpu-9", "gpu-2-mig-0-0"):
        with pytest.raises(ClaimRefusedError, match=f"the device {name} is not on this node"):
            await made.prepare(claim("a", SLICE, name))
    assert node.slices() == node.spec_files() == node.record_files() == set()


async def test_parameters_come_into_force_and_are_taken_back(node: Node) -> None:
    made = await node.start()
    (device,) = await made.prepare(claim("a", "gpu-1", parameters=LONG))
    assert node.gpus.intervals == {device.uuid: 3}
    await made.prepare(claim("b", SLICE, parameters=SLICES_BY_MPS))
    assert [daemon.gpus for daemon in node.daemons.serving.values()] == [("MIG-0-0-0",)]
    spec = cdi.parse_spec((node.folder / "cdi" / spec_file("b")).read_text())
    (entry,) = spec.devices
    assert entry.container_edits.env == ("CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps",)
    mounts = {mount.container_path: mount.host_path for mount in entry.container_edits.mounts}
    assert mounts == {"/tmp/nvidia-mps": "/mps/b/0/pipe", "/dev/shm": "/mps/b/shm"}
    await made.unprepare("a")
    await made.unprepare("b")
    assert node.sharing() == NOTHING


@pytest.mark.parametrize(
    ("parameters", "what"),
    [
        ({"apiVersion": DRA_PARAMETERS, "kind": "GpuConfig", "sharing": {}}, "unknown strategy nothing"),
        ({**LONG, "shraing": {}}, 'unknown field "shraing"'),
        ("hostile", "hostile is not an object"),
    ],
)
async def test_parameters_that_are_wrong_change_nothing(node: Node, parameters: Any, what: str) -> None:
    made = await node.start()
    with pytest.raises(ClaimRefusedError, match=what):
        await made.prepare(claim("a", SLICE, parameters=parameters))
    assert node.slices() == node.spec_files() == node.record_files() == set()


async def test_without_its_gate_a_strategy_is_refused(node: Node) -> None:
    made = await node.start(gates=())
    with pytest.raises(ClaimRefusedError, match="TimeSlicing is not enabled"):
        await made.prepare(claim("a", "gpu-0", parameters=LONG))


async def test_what_fails_is_undone_at_every_step(tmp_path: Path) -> None:
    """The 4g slice of a claim that is made after two others of it fails, and so does each step in turn."""
    for step in ("set-mode", "create-instance", "create-compute"):
        node = Node(tmp_path / step)
        made = await node.start()
        seen = 0

        def refuse(name: str, done: bool) -> None:
            nonlocal seen
            if name == step and not done:  # noqa: B023
                seen += 1
                if seen >= (1 if step == "set-mode" else 3):  # noqa: B023
                    raise PartitionError("the driver refuses", "a step", "again")

        node.driver.meddle = refuse
        with pytest.raises(PartitionError):
            await made.prepare(claim("a", SLICE, OTHER, LARGE))
        node.driver.meddle = lambda _step, _done: None
        assert node.slices() == node.spec_files() == node.record_files() == set()
        assert node.modes() == [False, False, False]
        assert len(await made.prepare(claim("a", SLICE, OTHER, LARGE))) == 3


async def test_sharing_that_fails_is_undone(node: Node) -> None:
    made = await node.start()
    node.daemons.problem = HostError("no daemon", "one that starts", "look")
    with pytest.raises(HostError, match="no daemon"):
        await made.prepare(claim("a", SLICE, parameters=SLICES_BY_MPS))
    assert node.slices() == node.spec_files() == node.record_files() == set()


async def test_a_gpu_that_has_no_time_slice_is_free_again(node: Node) -> None:
    """NVIDIA's driver sets one on each GPU, and fails with those that have none (its issues 41 and 81)."""
    made = await node.start()
    uuids = list(node.driver.state)
    node.gpus.unsupported = set(uuids)
    with pytest.raises(HostError, match="it has none that can be set") as caught:
        await made.prepare(claim("a", "gpu-1", parameters=LONG))
    assert "timeSlicingConfig" in caught.value.remedy
    assert node.spec_files() == node.record_files() == set()
    assert names(await made.prepare(claim("a", "gpu-1"))) == ["gpu-1"], "without parameters it is left alone"


async def test_a_setting_that_can_not_be_taken_back_now_is_later(node: Node) -> None:
    made = await node.start()
    await made.prepare(claim("a", "gpu-1", parameters=LONG))
    node.gpus.broken = True
    with pytest.raises(HostError, match="has failed"):
        await made.unprepare("a")
    assert node.record_files() == {"a.json"}
    with pytest.raises(ClaimRefusedError):
        await made.prepare(claim("b", "gpu-1"))
    node.gpus.broken = False
    made = await node.start()
    assert node.sharing() == NOTHING
    assert node.record_files() == set()


async def test_a_gpu_that_fell_off_the_bus_keeps_no_claim(node: Node) -> None:
    made = await node.start()
    (device,) = await made.prepare(claim("a", "gpu-1", parameters=LONG))
    node.gpus.gone.add(device.uuid)
    await made.unprepare("a")
    assert node.record_files() == set()


async def test_who_has_a_device_by_admin_access_may_not_say_how_it_is_shared(node: Node) -> None:
    made = await node.start()
    await made.prepare(claim("a", "gpu-1", parameters=LONG))
    for parameters in (LONG, BY_MPS):
        with pytest.raises(ClaimRefusedError, match="which other claims may have, too"):
            await made.prepare(claim("b", "gpu-1", admin=True, parameters=parameters))
    await made.prepare(claim("b", "gpu-1", admin=True))
    await made.unprepare("b")
    assert list(node.gpus.intervals.values()) == [3]


async def test_no_interval_is_the_usual_one(node: Node) -> None:
    """``timeSlicingConfig: {}`` has made NVIDIA's driver panic."""
    made = await node.start()
    sharing = {"strategy": "TimeSlicing", "timeSlicingConfig": {}}
    await made.prepare(claim("a", "gpu-1", parameters={**LONG, "sharing": sharing}))
    (shared,) = made.records.all["a"].shared
    assert shared.interval == 0


async def test_what_can_not_be_undone_now_is_undone_later(node: Node) -> None:
    made = await node.start()
    (device,) = await made.prepare(claim("a", SLICE))
    node.driver.use(0, next(iter(node.driver.state[device.gpu].instances)).id)
    with pytest.raises(PartitionError, match="In use"):
        await made.unprepare("a")
    assert node.spec_files() == set()
    assert node.record_files() == {"a.json"}
    with pytest.raises(ClaimRefusedError):
        await made.prepare(claim("b", "gpu-0"))
    node.driver.use(0, next(iter(node.driver.state[device.gpu].instances)).id, used=False)
    await made.unprepare("a")
    assert names(await made.prepare(claim("b", "gpu-0"))) == ["gpu-0"]


async def test_a_slice_of_somebody_else_stays(node: Node) -> None:
    uuid = next(iter(node.driver.state))
    await node.driver.set_mode(uuid, True)
    await node.driver.create_instance(uuid, 2, 0)
    made = await node.start()
    with pytest.raises(PartitionError, match="is taken by another one"):
        await made.prepare(claim("a", OTHER))
    await made.prepare(claim("b", LARGE))
    await made.unprepare("b")
    assert node.slices() == {(uuid, 2, 0)}
    assert node.modes()[0]


async def test_a_slice_of_somebody_else_at_the_very_place_stays(node: Node) -> None:
    """It was made after the device was offered: the claim fails, and what it has not made it does not destroy."""
    uuid = next(iter(node.driver.state))
    await node.driver.set_mode(uuid, True)
    await node.driver.create_instance(uuid, 0, 0)
    made = await node.start()
    with pytest.raises(PartitionError, match="is taken by another one"):
        await made.prepare(claim("a", LARGE, SLICE))
    assert node.slices() == {(uuid, 0, 0)}
    assert node.record_files() == set()


async def test_ampere_is_cut_only_where_its_mode_is_on(tmp_path: Path) -> None:
    node = Node(tmp_path, families=("a100-40gb",))
    made = await node.start()
    with pytest.raises(PartitionError, match="its MIG mode is off"):
        await made.prepare(claim("a", SLICE))
    uuid = next(iter(node.driver.state))
    await node.driver.set_mode(uuid, True)
    await node.driver.reset(uuid)
    await made.prepare(claim("a", SLICE))
    await made.unprepare("a")
    assert node.modes() == [True]


async def test_a_kubelet_that_hangs_up_finds_it_done(node: Node) -> None:
    made = await node.start()
    task = asyncio.create_task(made.prepare(claim("a", SLICE)))
    await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert names(await made.prepare(claim("a", SLICE))) == [SLICE]
    assert len(node.slices()) == 1


async def test_after_a_reboot_nothing_is_prepared(tmp_path: Path) -> None:
    node = Node(tmp_path)
    await (await node.start()).prepare(claim("a", SLICE))
    rebooted = Node(tmp_path, boot="boot-2")
    made = await rebooted.start()
    assert node.record_files() == node.spec_files() == set()
    assert names(await made.prepare(claim("b", "gpu-0"))) == ["gpu-0"]
    await made.unprepare("a")


async def test_a_claim_that_changes_no_hardware_is_written_down_once(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its spec, which is written anew where a kill comes between."""
    written: list[tuple[bool, bool]] = []
    put = ClaimRecords.put
    monkeypatch.setattr(
        ClaimRecords,
        "put",
        lambda self, record: (written.append((record.done, bool(node.spec_files()))), put(self, record)),
    )
    made = await node.start()
    await made.prepare(claim("a", "gpu-0", "gpu-1"))
    assert written == [(True, False)]
    await made.unprepare("a")
    assert written == [(True, False)]
    await made.prepare(claim("b", SLICE))
    assert written[1:] == [(False, False), (True, False)]
    await made.unprepare("b")
    assert written[3:] == [(False, True)]


@pytest.mark.parametrize("seed", range(count(4, 20)))
async def test_killed_at_any_moment_nothing_is_held_twice_or_left_behind(tmp_path: Path, seed: int) -> None:
    """Pods come and go; the process is killed at a random moment of each call, started again, and asked again."""
    chance = random.Random(seed)
    node = Node(tmp_path)
    node.gpus.modes = dict.fromkeys(node.driver.state, "EXCLUSIVE_PROCESS")
    alive = await node.start()
    wanted: dict[str, tuple[str, ...]] = {}
    kills = 0
    for number in range(count(40, 100)):
        if wanted and chance.random() < 0.45:
            uid, devices = chance.choice(list(wanted)), ()
        else:
            uid, devices = f"claim-{number}", _free(chance, node, wanted)
            if not devices:
                continue
        node.killer = Killer(at=chance.randint(1, 40))
        for _attempt in range(2):
            try:
                await _call(alive, uid, devices)
                break
            except Killed:
                kills += 1
                node.killer = Killer()
                alive = await node.start()
                _check(node, alive)
        node.killer = Killer()
        if devices:
            wanted[uid] = devices
        else:
            del wanted[uid]
        _check(node, alive)
        assert set(alive.records.all) == set(wanted)
    assert kills > 10
    for uid in wanted:
        await alive.unprepare(uid)
    assert node.slices() == node.spec_files() == node.record_files() == set()
    assert node.modes() == [False, False, False]
    assert node.sharing() == ({}, [], dict.fromkeys(node.driver.state, "EXCLUSIVE_PROCESS"))


async def _call(alive: Preparations, uid: str, devices: tuple[str, ...]) -> None:
    if not devices:
        await alive.unprepare(uid)
    else:
        parameters = PARAMETERS.get(uid[-1], [None, None])["mig" in devices[0]]
        prepared = await alive.prepare(claim(uid, *devices, parameters=parameters))
        assert names(prepared) == list(devices)


def _free(chance: random.Random, node: Node, wanted: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Devices that fit beside those that claims have: MIG slices of one profile each, so that the engines suffice."""
    offered = node.offered()
    held = [offered[name] for devices in wanted.values() for name in devices]
    chosen: list[str] = []
    for name in chance.sample(list(offered), len(offered)):
        device = offered[name]
        mine = {device.gpu: range(device.start, device.start + device.size)} if device.size else None
        if device.profile not in (None, 0, 1, 2):
            continue
        clash = any(
            other.gpu == device.gpu
            and (
                mine is None
                or not other.size
                or set(mine[device.gpu]) & set(range(other.start, other.start + other.size))
            )
            for other in held
        )
        compute = {0: 1, 1: 2, 2: 3}
        taken = sum(compute[other.profile] for other in held if other.gpu == device.gpu and other.profile is not None)
        if clash or (device.profile is not None and taken + compute[device.profile] > 7):
            continue
        chosen.append(name)
        held.append(device)
        if len(chosen) == chance.randint(1, 3):
            break
    return tuple(chosen)


def _check(node: Node, alive: Preparations) -> None:
    """The driver and the folders have what records say, and no part of a GPU is in two of them."""
    records = alive.records.all
    assert all(record.done for record in records.values())
    assert node.slices() == {(one.gpu, one.profile, one.start) for record in records.values() for one in record.made}
    assert node.spec_files() == {spec_file(uid) for uid in records}
    everything = [device for record in records.values() for device in record.devices]
    for number, device in enumerate(everything):
        assert not any(device.overlaps(other) for other in everything[number + 1 :])
    shared = [one for record in records.values() for one in record.shared]
    uuids = {one.uuid for one in shared if one.interval is not None}
    modes = {uuid: "EXCLUSIVE_PROCESS" for uuid in node.driver.state if uuid not in uuids}
    daemons = {(uid, one.daemon) for uid, record in records.items() for one in record.shared if one.daemon is not None}
    intervals = {one.uuid: one.interval for one in shared if one.interval}
    assert node.sharing() == (intervals, sorted(daemons), modes)


async def test_a_gpu_that_a_pod_has_by_a_counted_resource_is_in_no_claim(node: Node) -> None:
    made = await node.start()
    gpu = next(iter(node.driver.state))
    node.taken = {gpu: "pod team/train has it by nvidia.com/gpu"}
    for device in ("gpu-0", SLICE):
        with pytest.raises(ClaimRefusedError, match=f"{device} is not free: pod team/train has it by nvidia.com/gpu"):
            await made.prepare(claim("a", "gpu-1", device))
    assert node.record_files() == node.spec_files() == node.slices() == set()
    await made.prepare(claim("looks", "gpu-0", admin=True))
    node.taken = {}
    await made.prepare(claim("a", "gpu-1", "gpu-0"))


async def test_a_node_that_gives_out_no_more_takes_back_what_it_has_given(node: Node) -> None:
    made = await node.start()
    first = await made.prepare(claim("a", SLICE))
    node.off = 'the node label kgpu.dev/allocation is "device-plugin"'
    assert await made.prepare(claim("a", SLICE)) == first, "the kubelet asks again after its start"
    with pytest.raises(ClaimRefusedError, match="gives out no devices by claims any more: the node label") as refused:
        await made.prepare(claim("b", "gpu-1"))
    assert "delete the pod" in str(refused.value)
    await made.unprepare("a")
    assert node.record_files() == node.slices() == set()
