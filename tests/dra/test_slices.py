"""Slices of every kind of node are what Kubernetes takes: its published schema, its rules, the embedded API server."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import kubernetes_validate
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.dra.api import DraApi, bare, problems
from kgpu.dra.devices import node_devices
from kgpu.dra.model import PublishedNode, PublishRules
from kgpu.dra.plan import dropped, plan
from kgpu.dra.slices import InvalidSlicesError, PoolOwner, pool_slices, slice_name
from kgpu.formats.mig_geometry import geometry_of
from kgpu.hw.port import Accelerator, HardwareFinding, Inventory, Partition, Problem
from kgpu.hw.verdicts import GpuVerdict
from kgpu.kube.port import NODES, Object, name_of
from tests.budget import count, sample, tries
from tests.dra.samples import APIS, NODE, OWNER, a100, cut, gaudi, h100, many, mi300x, models, node_of
from tests.lab.embedded.support import whole

DRIVER = "gpu.nvidia.com"
V35 = DraApi(kubernetes=(1, 35))
V34 = DraApi(kubernetes=(1, 34))


def sick(inventory: Inventory) -> dict[str, GpuVerdict]:
    """Every taint that there is, spread over the GPUs; the last has no verdict."""
    kinds = (
        {"withdraws": True, "causes": ("xid:79", "driver:lost"), "facts": ("xid:79", "xid:13")},
        {"withdraws": True, "causes": ("ecc:sram",), "facts": ("xid:31",), "reason": "EccErrors"},
        {"facts": ("xid:43",)},
        {},
    )
    gpus = inventory.accelerators[:-1] if len(inventory.accelerators) > 1 else inventory.accelerators
    return {gpu.uuid: GpuVerdict(uuid=gpu.uuid, **kinds[at % len(kinds)]) for at, gpu in enumerate(gpus)}  # type: ignore[arg-type]


def partly_cut(inventory: Inventory) -> Inventory:
    """Every second GPU cut into as many of the smallest slices as fit, where it can be cut."""
    gpus = []
    for at, gpu in enumerate(inventory.accelerators):
        geometry = geometry_of(gpu.name) if gpu.mig_capable and at % 2 else None
        gpus.append(cut(gpu, [geometry.smallest] * geometry.smallest.count) if geometry is not None else gpu)
    return replace(inventory, accelerators=tuple(gpus))


def nodes() -> Iterator[tuple[str, PublishedNode]]:
    """Every model with 8 and 16 GPUs, whole and partly cut, with and without gate, well and sick."""
    for name, inventory in models().items():
        for number in (8, 16):
            several = many(inventory, number)
            for form, found in (("whole", several), ("cut", partly_cut(several))):
                for dynamic in (False, True):
                    for verdicts in (None, sick(found)):
                        rules = PublishRules(dynamic=dynamic, monitored=not dynamic)
                        said = "well" if verdicts is None else "sick"
                        yield f"{number} {name} {form} {dynamic} {said}", node_devices(found, rules, verdicts)


CASES = dict(nodes())


def broken(inventory: Inventory) -> Inventory:
    """The node whose first accelerator is lost."""
    first, *others = inventory.accelerators
    lost = HardwareFinding(subject=first.uuid, problem=Problem.LOST, what="w", expected="e", remedy="r")
    return replace(inventory, accelerators=(replace(first, findings=(lost,)), *others))


OTHERS = [mi300x(8), mi300x(8, parts=8), gaudi(8)]
"""Nodes of other vendors, with the most devices that they have."""


def checked(node: PublishedNode, api: DraApi, owner: PoolOwner = OWNER) -> tuple[Object, ...]:
    slices = pool_slices(node, owner, api)
    assert problems(slices, api) == []
    published = [device["name"] for one in slices for device in one["spec"].get("devices") or ()]
    assert len(set(published)) == len(published)
    return slices


def test_every_case_keeps_the_rules_of_every_version() -> None:
    for what in sample(sorted(CASES), "rules")[: count(60, 1000)]:
        node = CASES[what]
        for api in APIS:
            slices = checked(node, api)
            assert sum(len(one["spec"].get("devices") or ()) for one in slices) == len(node.devices)


def test_every_case_is_valid_by_the_published_schema() -> None:
    for what in sample(sorted(CASES), "schema")[: count(8, 1000)]:
        for api in APIS:
            if api.kubernetes == (1, 35):
                for one in checked(CASES[what], api)[:: count(6, 1)]:
                    kubernetes_validate.validate(one, "1.35", strict=True)


@pytest.mark.parametrize("inventory", [*OTHERS, *map(broken, OTHERS)])
def test_other_vendors_slices_are_valid(inventory: Inventory) -> None:
    node = node_devices(inventory, PublishRules(monitored=True), {})
    for api in APIS:
        slices = checked(node, api)
        assert {one["spec"]["driver"] for one in slices} == {node.driver}
        if api.kubernetes == (1, 35):
            for one in slices:
                kubernetes_validate.validate(one, "1.35", strict=True)


def test_the_schema_refuses_what_is_wrong() -> None:
    (one,) = checked(node_devices(h100(), PublishRules()), V35)
    one["spec"]["devices"][0]["nonsense"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(one, "1.35", strict=True)


async def test_the_embedded_api_server_takes_them_and_they_are_there_as_wanted(tmp_path: Path) -> None:
    async with whole(tmp_path, "none") as cluster:
        node = await cluster.api.create(NODES, {"metadata": {"name": NODE}})
        owner = PoolOwner(name=NODE, uid=node["metadata"]["uid"])
        for what in sample(sorted(CASES), "embedded")[: count(25, 1000)]:
            wanted = checked(CASES[what], V35, owner)  # it is of 1.35, and serves v1 alone
            observed = (await cluster.api.list(V35.resource)).items
            writes = plan(wanted, observed, driver=DRIVER, node=NODE)
            for one in (*writes.updates, *writes.creates):
                assert dropped(one, await cluster.api.apply(V35.resource, one, manager="kgpu-dra")) == frozenset()
            for one in writes.deletes:
                await cluster.api.delete(V35.resource, name_of(one), uid=one["metadata"]["uid"])
            observed = (await cluster.api.list(V35.resource)).items
            assert plan(wanted, observed, driver=DRIVER, node=NODE).count == 0, what


def test_counters_have_slices_of_their_own_since_1_35() -> None:
    node = node_devices(h100(10), PublishRules(dynamic=True))
    slices = pool_slices(node, OWNER, V35)
    assert [len(one["spec"].get("sharedCounters") or ()) for one in slices] == [8, 2] + [0] * 10
    assert [len(one["spec"].get("devices") or ()) for one in slices] == [0, 0] + [26] * 10
    assert {one["spec"]["pool"]["resourceSliceCount"] for one in slices} == {12}


def test_counters_are_with_their_devices_before() -> None:
    node = node_devices(h100(10), PublishRules(dynamic=True))
    slices = pool_slices(node, OWNER, V34)
    assert [len(one["spec"]["sharedCounters"]) for one in slices] == [1] * 10
    assert [len(one["spec"]["devices"]) for one in slices] == [26] * 10


def test_gpus_without_counters_are_together() -> None:
    assert len(pool_slices(node_devices(h100(8), PublishRules()), OWNER, V35)) == 1
    assert pool_slices(node_devices(node_of(), PublishRules()), OWNER, V35) == ()
    mixed = node_of(*h100(2).accelerators, *(replace(one, minor=7) for one in a100().accelerators))
    slices = pool_slices(node_devices(mixed, PublishRules(dynamic=True)), OWNER, V35)
    assert [[device["name"] for device in one["spec"].get("devices") or ()][:1] for one in slices] == [
        [], ["gpu-0"], ["gpu-1"], ["gpu-7"],
    ]  # fmt: skip


@pytest.mark.parametrize(("tainted", "sizes"), [(False, [112]), (True, [64, 48])])
def test_more_devices_than_a_slice_takes_are_split(tainted: bool, sizes: list[int]) -> None:
    gpus = many(h100(), 16).accelerators
    cut_all = node_of(*(cut(gpu, [geometry.smallest] * 7) for gpu in gpus if (geometry := geometry_of(gpu.name))))
    verdicts = {gpus[0].uuid: GpuVerdict(uuid=gpus[0].uuid, withdraws=True, causes=("xid:79",))} if tainted else None
    slices = pool_slices(node_devices(cut_all, PublishRules(), verdicts), OWNER, V35)
    assert [len(one["spec"]["devices"]) for one in slices] == sizes


def test_v1beta1_has_the_facts_in_basic() -> None:
    node = node_devices(h100(), PublishRules(dynamic=True))
    (old,) = pool_slices(node, OWNER, DraApi(version="v1beta1", kubernetes=(1, 34)))
    (new,) = pool_slices(node, OWNER, V34)
    assert [set(device) for device in old["spec"]["devices"]] == [{"name", "basic"}] * 26
    assert [bare(device) for device in old["spec"]["devices"]] == [
        {key: value for key, value in device.items() if key != "name"} for device in new["spec"]["devices"]
    ]


def test_names_are_stable_and_tell_a_later_node_of_that_name() -> None:
    one, other = OWNER, replace(OWNER, uid="another")
    assert slice_name(10, DRIVER, one).startswith("a-gpu.nvidia.com-gpu-1-")
    assert slice_name(10, DRIVER, one) == slice_name(10, DRIVER, one)
    assert slice_name(10, DRIVER, one) != slice_name(10, DRIVER, other)
    long = PoolOwner(name=".".join(["a" * 60] * 4)[:253], uid="u")
    assert len(slice_name(300, DRIVER, long)) <= 253
    checked(node_devices(h100(), PublishRules()), V35, long)


def test_slices_belong_to_their_node() -> None:
    (one,) = pool_slices(node_devices(h100(), PublishRules()), OWNER, V35)
    assert one["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": OWNER.uid, "controller": True}
    ]
    assert one["spec"]["nodeName"] == one["spec"]["pool"]["name"] == NODE


def test_a_name_that_no_node_has_is_refused_before_the_server_does() -> None:
    with pytest.raises(InvalidSlicesError) as caught:
        pool_slices(node_devices(h100(), PublishRules()), PoolOwner(name="Node_1"), V35)
    assert "Node_1" in caught.value.what


def test_without_counters_nothing_can_be_given_twice() -> None:
    blind = replace(V35, counters=False)
    (one,) = pool_slices(node_devices(h100(), PublishRules(dynamic=True)), OWNER, blind)
    assert [device["name"] for device in one["spec"]["devices"]] == ["gpu-0"]
    assert "consumesCounters" not in one["spec"]["devices"][0]
    there = partly_cut(h100(2))
    (one,) = pool_slices(node_devices(there, PublishRules(dynamic=True)), OWNER, blind)
    assert len(one["spec"]["devices"]) == 1 + 7
    (ampere,) = a100().accelerators
    node = node_devices(node_of(replace(ampere, mig_enabled=True)), PublishRules(dynamic=True))
    assert pool_slices(node, OWNER, blind) == ()


def test_without_taints_a_withdrawn_device_is_left_out() -> None:
    blind = replace(V35, taints=False)
    inventory = h100(4)
    node = node_devices(inventory, PublishRules(monitored=True), sick(inventory))
    (one,) = pool_slices(node, OWNER, blind)
    assert [device["name"] for device in one["spec"]["devices"]] == ["gpu-2", "gpu-3"]
    assert not any("taints" in device for device in one["spec"]["devices"])


def test_a_taint_without_effect_is_not_sent_to_a_server_that_does_not_know_it() -> None:
    node = node_devices(h100(), PublishRules(monitored=True))
    (new,), (old,) = pool_slices(node, OWNER, V35), pool_slices(node, OWNER, V34)
    assert [taint["effect"] for taint in new["spec"]["devices"][0]["taints"]] == ["None"]
    assert "taints" not in old["spec"]["devices"][0]


# Whatever a driver says, the slices are valid

TEXTS = st.text(max_size=90)
SMALL = st.integers(-3, 200)
PROFILES = st.one_of(
    TEXTS, st.sampled_from(["1g.10gb", "1g.10gb+me", "1c.3g.40gb", "7g.80gb", "1g.24gb-me", "2g.20gb", "9g.1gb"])
)
PARTITIONS = st.builds(
    Partition, uuid=TEXTS, index=st.just("0:0"), parent_uuid=TEXTS, profile=PROFILES, gpu_instance=st.integers(0, 3),
    compute_instance=st.integers(0, 3), placement_start=st.integers(0, 12), placement_size=st.integers(0, 12),
    memory_mib=st.integers(0, 1 << 30), multiprocessors=st.integers(0, 200),
)  # fmt: skip
GPUS = st.builds(
    Accelerator, vendor=st.just("nvidia"), index=SMALL, uuid=TEXTS,
    name=st.one_of(TEXTS, st.sampled_from(sorted(models()))), minor=st.integers(0, 5), pci_bus_id=TEXTS,
    memory_mib=st.one_of(st.none(), st.integers(0, 1 << 40)),
    compute_capability=st.one_of(st.none(), st.tuples(st.integers(0, 20), st.integers(0, 9))),
    mig_capable=st.booleans(), mig_enabled=st.booleans(), partitions=st.lists(PARTITIONS, max_size=5).map(tuple),
    brand=st.one_of(TEXTS, st.just("tesla")), addressing_mode=TEXTS,
    findings=st.lists(
        st.builds(HardwareFinding, subject=st.just(""), problem=st.sampled_from(Problem), what=st.just(""),
                  expected=st.just(""), remedy=st.just("")), max_size=2).map(tuple),
)  # fmt: skip
CAUSES = st.lists(st.one_of(TEXTS, st.sampled_from(["xid:79", "xid:94@1.0", "driver:lost", "ecc:x"])), max_size=4)
VERDICTS = st.builds(
    GpuVerdict, uuid=st.just(""), withdraws=st.booleans(), causes=CAUSES.map(tuple), facts=CAUSES.map(tuple), reason=TEXTS
)  # fmt: skip


@st.composite
def nodes_of_chance(draw: st.DrawFn) -> tuple[PublishedNode, DraApi]:
    gpus, verdict, text = tuple(draw(st.lists(GPUS, max_size=8))), draw(VERDICTS), draw(TEXTS)
    rules = PublishRules(
        dynamic=draw(st.booleans()), monitored=draw(st.booleans()), pcie_roots={gpu.pci_bus_id: text for gpu in gpus}
    )
    inventory = dataclasses.replace(h100(), accelerators=gpus, driver_version=text)
    verdicts = {gpu.uuid: verdict for gpu in gpus} if draw(st.booleans()) else None
    api = replace(draw(st.sampled_from(APIS)), taints=draw(st.booleans()), counters=draw(st.booleans()))
    return node_devices(inventory, rules, verdicts), api


@tries(400)
@given(nodes_of_chance())
def test_any_inventory_gives_valid_slices(case: tuple[PublishedNode, DraApi]) -> None:
    checked(*case)
