"""What a spec offers: full GPUs, slices, names by strategy; what is left out and why; which names resolve."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import ConfigError
from kgpu.formats.cdi import CdiDeviceNode, ContainerEdits
from kgpu.hw.fake_reader import FakeReader, sample_inventory, sample_partitions
from kgpu.hw.port import Accelerator, HardwareFinding, Inventory, Problem
from kgpu.toolkit.config import GenerateConfig
from kgpu.toolkit.model import Generated, ListedSpec
from kgpu.toolkit.plan import plan_devices, plan_spec, resolve_names

COMMON = ContainerEdits(env=("NVIDIA_VISIBLE_DEVICES=void",))


def plan(inventory: Inventory, *strategies: str, missing: tuple[str, ...] = ()) -> Generated:
    config = GenerateConfig(kind="nvidia.com/gpu", strategies=strategies or ("index",))
    return plan_spec(
        inventory, COMMON, config, node=lambda path: CdiDeviceNode(path=path), has_node=lambda path: path not in missing
    )


def names(generated: Generated) -> list[str]:
    return [device.name for device in generated.spec.devices]


def paths(generated: Generated, name: str) -> list[str]:
    (device,) = [device for device in generated.spec.devices if device.name == name]
    return [node.path for node in device.container_edits.device_nodes]


def sliced(count: int = 2) -> Inventory:
    inventory = sample_inventory(2)
    first = inventory.accelerators[0]
    gpu = replace(first, mig_enabled=True, partitions=sample_partitions(first, count=count))
    return replace(inventory, accelerators=(gpu, inventory.accelerators[1]))


def test_names_by_strategy() -> None:
    inventory = sample_inventory(2)
    uuids = sorted(gpu.uuid for gpu in inventory.accelerators)
    assert names(plan(inventory)) == ["0", "1", "all"]
    assert names(plan(inventory, "type-index")) == ["all", "gpu0", "gpu1"]
    assert sorted(names(plan(inventory, "index", "uuid"))) == sorted(["0", "1", "all", *uuids])


def test_gpu_in_mig_mode_is_offered_as_its_slices() -> None:
    generated = plan(sliced(), "index")
    assert names(generated) == ["0:0", "0:1", "1", "all"]
    assert paths(generated, "0:1") == ["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap75", "/dev/nvidia-caps/nvidia-cap76"]
    assert "/dev/nvidia1" in paths(generated, "all")
    assert len(paths(generated, "all")) == 6


def test_mig_names_by_type_index() -> None:
    assert names(plan(sliced(1), "type-index")) == ["all", "gpu1", "mig0:0"]


def test_mig_mode_without_slices_offers_nothing_and_says_so() -> None:
    generated = plan(sliced(0))
    assert names(generated) == ["1", "all"]
    assert any("without slices" in note for note in generated.notes)


def test_incomplete_slice_is_left_out_with_a_note() -> None:
    generated = plan(sliced(), missing=("/dev/nvidia-caps/nvidia-cap75",))
    assert names(generated) == ["0:0", "1", "all"]
    assert any("0:1 is left out: /dev/nvidia-caps/nvidia-cap75" in note for note in generated.notes)


def test_slice_with_unknown_capabilities_is_left_out() -> None:
    inventory = sliced(1)
    gpu = inventory.accelerators[0]
    part = replace(gpu.partitions[0], device_nodes=gpu.device_nodes)
    gpu = replace(gpu, partitions=(part,))
    generated = plan(replace(inventory, accelerators=(gpu, inventory.accelerators[1])))
    assert names(generated) == ["1", "all"]
    assert any("capability nodes are not known" in note for note in generated.notes)


@pytest.mark.parametrize("problem", [Problem.LOST, Problem.HUNG, Problem.NEEDS_RESET])
async def test_broken_gpu_keeps_its_name_but_is_no_part_of_all(problem: Problem) -> None:
    reader = FakeReader(sample_inventory(2))
    reader.fail((await reader.inventory()).accelerators[0].uuid, problem, "broken")
    generated = plan(await reader.inventory())
    assert names(generated) == ["0", "1", "all"]
    assert paths(generated, "all") == ["/dev/nvidia1"]
    assert "broken" in generated.notes


async def test_missing_gpu_is_not_offered() -> None:
    reader = FakeReader(sample_inventory(2))
    reader.fail((await reader.inventory()).accelerators[0].uuid, Problem.MISSING, "gone")
    assert names(plan(await reader.inventory())) == ["1", "all"]


def test_nothing_to_offer_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no devices"):
        plan(replace(sample_inventory(1), accelerators=()))


def test_higher_folder_wins_and_equal_ones_make_a_name_unresolvable() -> None:
    listing = resolve_names(
        [
            ListedSpec("/etc/cdi/a.yaml", 0, ("x/y=0", "x/y=1")),
            ListedSpec("/var/run/cdi/b.yaml", 1, ("x/y=0", "x/y=2")),
            ListedSpec("/var/run/cdi/c.yaml", 1, ("x/y=2",)),
        ]
    )
    assert listing.names == ("x/y=0", "x/y=1")
    assert any("x/y=2 can't be resolved" in warning for warning in listing.warnings)
    assert any("x/y=0 is in" in warning for warning in listing.warnings)


def chosen(inventory: Inventory, *ids: str) -> Generated:
    config = GenerateConfig(kind="nvidia.com/gpu", strategies=("index",), device_ids=ids, all_device=False)
    return plan_spec(inventory, COMMON, config, node=lambda path: CdiDeviceNode(path=path), has_node=lambda _path: True)


def test_devices_by_index_slice_and_uuid_each_once() -> None:
    inventory = sliced()
    first, second = inventory.accelerators
    assert names(chosen(inventory, "1", "0:1")) == ["0:1", "1"]
    assert names(chosen(inventory, first.partitions[0].uuid, second.uuid, "1", "0:0")) == ["0:0", "1"]
    assert names(chosen(inventory, "all", "1")) == ["0:0", "0:1", "1"]
    assert names(chosen(inventory, "1", "none")) == ["1", "none"]


def test_gpu_in_mig_mode_is_whole_when_it_is_asked_for_by_name() -> None:
    generated = chosen(sliced(), "0")
    assert paths(generated, "0") == ["/dev/nvidia0"]
    assert any("GPU 0 is in MIG mode" in note for note in generated.notes)


@pytest.mark.parametrize("wanted", ["7", "0:9", "GPU-none", "mig", "All"])
def test_device_that_nothing_is_gets_a_list_of_what_there_is(wanted: str) -> None:
    with pytest.raises(ConfigError, match="there is no device") as caught:
        chosen(sliced(), wanted)
    assert "0:1" in caught.value.expected


def test_near_miss_of_a_uuid_is_named() -> None:
    inventory = sample_inventory(1)
    uuid = inventory.accelerators[0].uuid
    with pytest.raises(ConfigError, match=f'did you mean "{uuid}"'):
        chosen(inventory, uuid[:-1])


@st.composite
def inventories(draw: st.DrawFn) -> tuple[Inventory, frozenset[str]]:
    """GPUs whole, in slices, or in MIG mode without any; some of their nodes are not there; some don't work."""
    inventory = sample_inventory(draw(st.integers(1, 4)))
    gpus: list[Accelerator] = []
    for gpu in inventory.accelerators:
        count = draw(st.sampled_from([None, 0, 1, 3, 7]))
        lost = HardwareFinding(subject=gpu.uuid, problem=Problem.LOST, what="lost", expected="", remedy="")
        changed = replace(gpu, findings=(lost,) if draw(st.booleans()) else ())
        if count is not None:
            changed = replace(changed, mig_enabled=True, partitions=sample_partitions(gpu, count=count))
        gpus.append(changed)
    nodes = {path for gpu in gpus for path in gpu.device_nodes}
    nodes |= {path for gpu in gpus for partition in gpu.partitions for path in partition.device_nodes}
    return replace(inventory, accelerators=tuple(gpus)), draw(st.frozensets(st.sampled_from(sorted(nodes)), max_size=4))


@given(inventories(), st.lists(st.sampled_from(["index", "uuid", "type-index"]), min_size=1, max_size=3, unique=True))
def test_whatever_the_node_is_like_nothing_incomplete_is_offered_and_nothing_is_lost(
    node: tuple[Inventory, frozenset[str]], strategies: list[str]
) -> None:
    inventory, missing = node
    config = GenerateConfig(kind="nvidia.com/gpu", strategies=tuple(strategies))
    found = plan_devices(
        inventory, config, node=lambda path: CdiDeviceNode(path=path), has_node=lambda path: path not in missing
    )
    offered = [one for gpu in inventory.accelerators for one in (gpu.partitions if gpu.mig_enabled else (gpu,))]
    whole = [one for one in offered if missing.isdisjoint(one.device_nodes)]
    assert [tuple(node.path for node in device.nodes) for device in found.devices] == [
        one.device_nodes for one in whole
    ]
    assert len(found.gaps) == len(offered) - len(whole)
    every = [name for device in found.devices for name in device.names]
    assert len(every) == len(set(every)) == len(whole) * len(strategies)
    working = {gpu.uuid for gpu in inventory.accelerators if gpu.usable}
    parents = [getattr(one, "parent_uuid", one.uuid) for one in whole]
    assert [device.in_all for device in found.devices] == [parent in working for parent in parents]
