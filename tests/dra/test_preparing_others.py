"""Claims of AMD's GPUs and of Gaudi accelerators: what a spec has, GPUs that are parted anew under claims, and kills."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from kgpu.agent.claim_variables import ClaimVariables
from kgpu.dra.devices import node_devices
from kgpu.dra.granted import ClaimRefusedError, GrantedClaim
from kgpu.dra.model import DraDevice, PublishRules
from kgpu.dra.preparing import Preparations
from kgpu.formats import cdi
from kgpu.formats.names import (
    AMD,
    DRA_AMD_DRIVER,
    DRA_AMD_PARAMETERS,
    DRA_GAUDI_DRIVER,
    GAUDI,
    GAUDI_NETWORK_FILE,
)
from kgpu.host.root import DriverRoot
from kgpu.hw.port import Inventory
from tests.budget import count
from tests.dra.node import Killed, Killer, Node, claim, names
from tests.dra.samples import gaudi, mi300x

WHOLE, PARTED = mi300x(4), mi300x(4, parts=2)
EMPTY = {"apiVersion": DRA_AMD_PARAMETERS, "kind": "GpuConfig"}


@dataclass
class OtherNode(Node):
    """A node with the accelerators of an inventory, which may become another one."""

    inventory: Inventory = WHOLE
    vendor: str = AMD

    async def known(self) -> Inventory:
        self.killer.tick()
        return self.inventory

    def offered(self) -> dict[str, DraDevice]:
        return {device.name: device for device in node_devices(self.inventory, PublishRules()).devices}


def variables(node: OtherNode) -> ClaimVariables:
    return ClaimVariables(DriverRoot.at(node.folder / "root", dev="/"), lambda: node.inventory)


async def begun(node: OtherNode) -> Preparations:
    """A process whose specs have what the vendor's containers get."""
    made = await node.start()
    edits = variables(node)
    object.__setattr__(made.specs, "node", edits.node)
    object.__setattr__(made.specs, "common", edits.common)
    return made


def spec(node: OtherNode, name: str) -> cdi.Spec:
    return cdi.parse_spec((node.folder / "cdi" / name).read_text())


def of(granted: GrantedClaim, driver: str) -> GrantedClaim:
    return replace(granted, driver=driver)


async def test_a_claim_of_amds_has_its_nodes_and_the_kfd_alone(tmp_path: Path) -> None:
    node = OtherNode(tmp_path)
    made = await begun(node)
    devices = await made.prepare(of(claim("a", "gpu-0-128", "gpu-8-136", parameters=EMPTY), DRA_AMD_DRIVER))
    assert [device.cdi for device in devices] == [
        ("k8s.gpu.amd.com/gpu=a-gpu-0-128",), ("k8s.gpu.amd.com/gpu=a-gpu-8-136",),
    ]  # fmt: skip
    found = spec(node, "k8s.gpu.amd.com-gpu_a.yaml")
    assert [node.path for node in found.container_edits.device_nodes] == ["/dev/kfd"]
    assert (found.container_edits.env, found.container_edits.hooks) == ((), ())
    assert [[one.path for one in entry.container_edits.device_nodes] for entry in found.devices] == [
        ["/dev/dri/card0", "/dev/dri/renderD128"], ["/dev/dri/card8", "/dev/dri/renderD136"],
    ]  # fmt: skip
    await made.unprepare("a")
    assert node.spec_files() == node.record_files() == set()


@pytest.mark.parametrize(("count_of", "modules"), [(1, "0"), (2, "0,1")])
async def test_a_claim_of_gaudi_tells_its_containers_which_cards(tmp_path: Path, count_of: int, modules: str) -> None:
    node = OtherNode(tmp_path, inventory=gaudi(), vendor=GAUDI)
    made = await begun(node)
    cards = [device.name for device in node.offered().values()][:count_of]
    devices = await made.prepare(of(claim("a", *cards), DRA_GAUDI_DRIVER))
    assert [device.cdi for device in devices] == [(f"intel.com/gaudi=a-{card}",) for card in cards]
    found = spec(node, "intel.com-gaudi_a.yaml")
    numbers = range(count_of)
    assert set(found.container_edits.env) == {
        f"HABANA_VISIBLE_DEVICES={','.join(map(str, numbers))}",
        f"HL_VISIBLE_DEVICES={','.join(f'/dev/accel/accel{number}' for number in numbers)}",
        f"HL_VISIBLE_DEVICES_UUID={','.join(f'AN0000{number}' for number in numbers)}",
        f"HABANA_VISIBLE_MODULES={modules}",
    }
    assert sorted([one.path for one in entry.container_edits.device_nodes] for entry in found.devices) == [
        [f"/dev/accel/accel{n}", f"/dev/accel/accel_controlD{n}", f"/dev/infiniband/uverbs{n}"] for n in numbers
    ]
    assert not found.container_edits.hooks


async def test_a_claim_of_gaudi_has_the_networks_file_where_the_host_has_one(tmp_path: Path) -> None:
    node = OtherNode(tmp_path, inventory=gaudi(), vendor=GAUDI)
    made = await begun(node)
    (card, other) = (device.name for device in node.offered().values())
    await made.prepare(of(claim("before", card), DRA_GAUDI_DRIVER))
    file = node.folder / "root" / GAUDI_NETWORK_FILE.lstrip("/")
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    await made.prepare(of(claim("after", other), DRA_GAUDI_DRIVER))
    assert not spec(node, "intel.com-gaudi_before.yaml").container_edits.mounts
    (mount,) = spec(node, "intel.com-gaudi_after.yaml").container_edits.mounts
    assert (mount.container_path, mount.host_path) == (GAUDI_NETWORK_FILE, str(file))
    assert "ro" in mount.options


@pytest.mark.parametrize(
    ("vendor", "parameters", "words"),
    [
        (AMD, EMPTY | {"sharing": {}}, 'unknown field "sharing"'),
        (AMD, EMPTY | {"apiVersion": "resource.nvidia.com/v1beta1"}, "unknown version"),
        (AMD, EMPTY | {"kind": "MigDeviceConfig"}, "unknown kind"),
        (AMD, [], "not an object"),
        (GAUDI, EMPTY, "the driver takes no parameters"),
        (GAUDI, {}, "the driver takes no parameters"),
    ],
)
async def test_parameters_that_are_none_of_the_drivers_are_refused(
    tmp_path: Path, vendor: str, parameters: object, words: str
) -> None:
    node = OtherNode(tmp_path, inventory=WHOLE if vendor == AMD else gaudi(), vendor=vendor)
    made = await node.start()
    driver = DRA_AMD_DRIVER if vendor == AMD else DRA_GAUDI_DRIVER
    with pytest.raises(ClaimRefusedError, match=words):
        await made.prepare(of(claim("a", next(iter(node.offered())), parameters=parameters), driver))
    assert node.spec_files() == node.record_files() == set()


async def test_a_gpu_that_is_parted_under_a_claim_stays_the_claims(tmp_path: Path) -> None:
    node = OtherNode(tmp_path)
    made = await node.start()
    first = await made.prepare(of(claim("a", "gpu-0-128"), DRA_AMD_DRIVER))
    node.inventory = PARTED
    assert await made.prepare(of(claim("a", "gpu-0-128"), DRA_AMD_DRIVER)) == first
    for name in ("gpu-0-128", "gpu-1-129"):
        with pytest.raises(ClaimRefusedError, match="claim team/claim-a has"):
            await made.prepare(of(claim("b", name), DRA_AMD_DRIVER))
    await made.unprepare("a")
    assert names(await made.prepare(of(claim("b", "gpu-1-129"), DRA_AMD_DRIVER))) == ["gpu-1-129"]


async def test_a_partition_that_is_gone_is_refused_and_what_has_it_is_kept(tmp_path: Path) -> None:
    node = OtherNode(tmp_path, inventory=PARTED)
    made = await node.start()
    await made.prepare(of(claim("a", "gpu-1-129"), DRA_AMD_DRIVER))
    node.inventory = WHOLE
    with pytest.raises(ClaimRefusedError, match="gpu-1-129 is not on this node"):
        await made.prepare(of(claim("b", "gpu-1-129"), DRA_AMD_DRIVER))
    with pytest.raises(ClaimRefusedError, match="claim team/claim-a has gpu-1-129"):
        await made.prepare(of(claim("b", "gpu-0-128"), DRA_AMD_DRIVER))
    await made.unprepare("a")
    await made.prepare(of(claim("b", "gpu-0-128"), DRA_AMD_DRIVER))


@pytest.mark.parametrize("seed", range(3))
async def test_killed_at_any_moment_while_modes_change_nothing_is_held_twice_or_left_behind(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    node = OtherNode(tmp_path)
    alive = await node.start()
    wanted: set[str] = set()
    kills = refused = 0
    for number in range(count(100, 300)):
        node.inventory = chance.choice((WHOLE, PARTED))
        drop = bool(wanted) and chance.random() < 0.5
        uid = chance.choice(sorted(wanted)) if drop else f"c{number}"
        devices = chance.sample(sorted(node.offered()), chance.randint(1, 2))
        node.killer = Killer(at=chance.randint(1, 5))
        for _attempt in range(2):
            try:
                if drop:
                    await alive.unprepare(uid)
                    wanted.discard(uid)
                else:
                    await alive.prepare(of(claim(uid, *devices), DRA_AMD_DRIVER))
                    wanted.add(uid)
                break
            except ClaimRefusedError:
                refused += 1
                break
            except Killed:
                kills += 1
                node.killer = Killer()
                alive = await node.start()
        node.killer = Killer()
        assert set(alive.records.all) == wanted
        assert node.spec_files() == {f"k8s.gpu.amd.com-gpu_{one}.yaml" for one in wanted}
        held = [device for record in alive.records.all.values() for device in record.devices]
        assert not [pair for pair in itertools.combinations(held, 2) if pair[0].overlaps(pair[1])]
    assert kills > 5
    assert refused > 5
    for uid in sorted(wanted):
        await alive.unprepare(uid)
    assert node.spec_files() == node.record_files() == set()
