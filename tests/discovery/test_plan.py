"""The labels of whole nodes: worked examples, golden key sets, strategies, sharing, several models."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kgpu.discovery.model import (
    LabelledResource,
    LabelSettings,
    MigStrategy,
    NodeFacts,
    RdmaFacts,
    SharingInForce,
    SharingStrategy,
    VgpuFacts,
)
from kgpu.discovery.plan import plan
from kgpu.hw.fake_reader import sample_inventory, sample_partitions
from kgpu.hw.port import Accelerator, Inventory, Partition

A100 = "NVIDIA A100-SXM4-40GB"
FACTS = NodeFacts(machine="ProLiant XL675d Gen10 Plus", vgpu_present=False)

COMMON = """
gfd.timestamp cuda.driver.major cuda.driver.minor cuda.driver.rev cuda.runtime.major cuda.runtime.minor
cuda.driver-version.major cuda.driver-version.minor cuda.driver-version.revision cuda.driver-version.full
cuda.runtime-version.major cuda.runtime-version.minor cuda.runtime-version.full gpu.machine gpu.count gpu.replicas
gpu.sharing-strategy gpu.product gpu.memory gpu.family gpu.mode gpu.compute.major gpu.compute.minor mig.capable
mps.capable vgpu.present
"""
COMMON_KEYS = COMMON.split()
MIG = """
product count replicas sharing-strategy memory multiprocessors slices.gi slices.ci engines.copy engines.decoder
engines.encoder engines.jpeg engines.ofa
"""
MIG_KEYS = MIG.split()


def a100_node(count: int = 2) -> Inventory:
    return sample_inventory(count, name=A100, memory_mib=40960, compute_capability=(8, 0))


def slices(gpu: Accelerator, *wanted: tuple[str, int, int, int]) -> tuple[Partition, ...]:
    """(profile, compute slices, multiprocessors, MiB) for each slice, as an A100 40GB reports them."""
    return tuple(
        Partition(
            uuid=f"MIG-{gpu.index}-{position}",
            index=f"{gpu.index}:{position}",
            parent_uuid=gpu.uuid,
            profile=profile,
            gpu_instance=position + 1,
            compute_instance=0,
            memory_mib=memory,
            multiprocessors=processors,
            slices_gi=size,
            slices_ci=size,
            copy_engines=size,
            decoders=size // 2,
        )
        for position, (profile, size, processors, memory) in enumerate(wanted)
    )


ONE_G = ("1g.5gb", 1, 14, 4864)
THREE_G = ("3g.20gb", 3, 42, 19968)


def with_mig(inventory: Inventory, layout: dict[int, tuple[Partition, ...]]) -> Inventory:
    return replace(
        inventory,
        accelerators=tuple(
            replace(gpu, mig_enabled=True, mig_pending=True, partitions=layout[gpu.index])
            if gpu.index in layout
            else gpu
            for gpu in inventory.accelerators
        ),
    )


def labels(
    inventory: Inventory,
    settings: LabelSettings | None = None,
    facts: NodeFacts = FACTS,
    timestamp: int | None = 1700000000,
) -> dict[str, str]:
    """The plan's labels without the nvidia.com/ prefix; other prefixes stay."""
    planned = plan(inventory, settings or LabelSettings(), facts, timestamp=timestamp)
    return {key.removeprefix("nvidia.com/"): value for key, value in planned.labels.items()}


def shared(
    kind: SharingStrategy, *resources: LabelledResource, strategy: MigStrategy = MigStrategy.NONE
) -> LabelSettings:
    return LabelSettings(mig_strategy=strategy, sharing=SharingInForce(kind, resources))


def test_two_a100_time_sliced() -> None:
    settings = shared(SharingStrategy.TIME_SLICING, LabelledResource("nvidia.com/gpu", 4))
    assert labels(a100_node(), settings) == {
        "gpu.product": "NVIDIA-A100-SXM4-40GB-SHARED",
        "gpu.count": "2",
        "gpu.replicas": "4",
        "gpu.sharing-strategy": "time-slicing",
        "gpu.memory": "40960",
        "gpu.family": "ampere",
        "gpu.compute.major": "8",
        "gpu.compute.minor": "0",
        "gpu.machine": "ProLiant-XL675d-Gen10-Plus",
        "gpu.mode": "compute",
        "mig.capable": "true",
        "mps.capable": "false",
        "cuda.driver-version.full": "550.54.15",
        "cuda.driver-version.major": "550",
        "cuda.driver-version.minor": "54",
        "cuda.driver-version.revision": "15",
        "cuda.driver.major": "550",
        "cuda.driver.minor": "54",
        "cuda.driver.rev": "15",
        "cuda.runtime-version.full": "12.4",
        "cuda.runtime-version.major": "12",
        "cuda.runtime-version.minor": "4",
        "cuda.runtime.major": "12",
        "cuda.runtime.minor": "4",
        "vgpu.present": "false",
        "gfd.timestamp": "1700000000",
    }


def test_renamed_shares_keep_the_plain_product_and_keys() -> None:
    found = labels(
        a100_node(), shared(SharingStrategy.TIME_SLICING, LabelledResource("nvidia.com/gpu", 4, renamed=True))
    )
    assert found["gpu.product"] == "NVIDIA-A100-SXM4-40GB"
    assert found["gpu.replicas"] == "4"
    assert found["gpu.sharing-strategy"] == "time-slicing"


def test_single_strategy_describes_slices() -> None:
    seven = {gpu.index: slices(gpu, *[ONE_G] * 7) for gpu in a100_node().accelerators}
    found = labels(with_mig(a100_node(), seven), LabelSettings(mig_strategy=MigStrategy.SINGLE))
    assert {key: value for key, value in found.items() if key.startswith(("gpu.", "mig."))} == {
        "gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb",
        "gpu.count": "14",
        "gpu.replicas": "1",
        "gpu.sharing-strategy": "none",
        "gpu.memory": "4864",
        "gpu.multiprocessors": "14",
        "gpu.slices.gi": "1",
        "gpu.slices.ci": "1",
        "gpu.engines.copy": "1",
        "gpu.engines.decoder": "0",
        "gpu.engines.encoder": "0",
        "gpu.engines.jpeg": "0",
        "gpu.engines.ofa": "0",
        "gpu.family": "ampere",
        "gpu.compute.major": "8",
        "gpu.compute.minor": "0",
        "gpu.machine": "ProLiant-XL675d-Gen10-Plus",
        "gpu.mode": "compute",
        "mig.capable": "true",
        "mig.strategy": "single",
    }


def mixed_node() -> Inventory:
    node = a100_node()
    return with_mig(node, {0: slices(node.accelerators[0], THREE_G, ONE_G, ONE_G)})


def test_mixed_strategy_has_a_group_per_profile() -> None:
    found = labels(mixed_node(), LabelSettings(mig_strategy=MigStrategy.MIXED))
    assert found["gpu.count"] == "2"
    assert found["gpu.replicas"] == "1"
    assert found["gpu.product"] == "NVIDIA-A100-SXM4-40GB"
    assert {key: value for key, value in found.items() if key.startswith("mig-3g.20gb.")} == {
        "mig-3g.20gb.product": "NVIDIA-A100-SXM4-40GB-MIG-3g.20gb",
        "mig-3g.20gb.count": "1",
        "mig-3g.20gb.replicas": "1",
        "mig-3g.20gb.sharing-strategy": "none",
        "mig-3g.20gb.memory": "19968",
        "mig-3g.20gb.multiprocessors": "42",
        "mig-3g.20gb.slices.gi": "3",
        "mig-3g.20gb.slices.ci": "3",
        "mig-3g.20gb.engines.copy": "3",
        "mig-3g.20gb.engines.decoder": "1",
        "mig-3g.20gb.engines.encoder": "0",
        "mig-3g.20gb.engines.jpeg": "0",
        "mig-3g.20gb.engines.ofa": "0",
    }
    assert found["mig-1g.5gb.count"] == "2"


@pytest.mark.parametrize("order", [(0,), (1,)])
def test_full_gpus_speak_for_their_model_wherever_they_are(order: tuple[int, ...]) -> None:
    node = a100_node()
    layout = {index: slices(node.accelerators[index], ONE_G) for index in order}
    found = labels(with_mig(node, layout), LabelSettings(mig_strategy=MigStrategy.MIXED))
    assert (found["gpu.count"], found["gpu.replicas"]) == ("2", "1")


@pytest.mark.parametrize("strategy", [MigStrategy.NONE, MigStrategy.MIXED])
def test_gpus_that_all_have_mig_on_have_no_replicas(strategy: MigStrategy) -> None:
    node = a100_node(1)
    settings = shared(SharingStrategy.TIME_SLICING, LabelledResource("nvidia.com/gpu", 4), strategy=strategy)
    found = labels(with_mig(node, {0: slices(node.accelerators[0], ONE_G)}), settings)
    assert found["gpu.product"] == "NVIDIA-A100-SXM4-40GB"
    assert (found["gpu.count"], found["gpu.replicas"], found["gpu.sharing-strategy"]) == ("1", "0", "none")
    assert ("mig-1g.5gb.count" in found) == (strategy is MigStrategy.MIXED)


@pytest.mark.parametrize(
    ("strategy", "extra"),
    [
        (MigStrategy.NONE, []),
        (MigStrategy.SINGLE, ["mig.strategy", *(f"gpu.{key}" for key in MIG_KEYS)]),
        (MigStrategy.MIXED, ["mig.strategy", *(f"mig-1g.5gb.{key}" for key in MIG_KEYS)]),
    ],
)
def test_golden_key_sets(strategy: MigStrategy, extra: list[str]) -> None:
    node = a100_node()
    layout = {gpu.index: slices(gpu, ONE_G, ONE_G) for gpu in node.accelerators}
    found = labels(with_mig(node, layout), LabelSettings(mig_strategy=strategy))
    assert set(found) == {*COMMON_KEYS, *extra}


def test_vgpu_and_fabric_keys() -> None:
    node = sample_inventory(2)
    attached = tuple(replace(gpu, fabric_cluster="7f-cluster", fabric_clique=3) for gpu in node.accelerators)
    facts = replace(FACTS, vgpu_present=True, vgpu=VgpuFacts("460.16", "r460_00"))
    found = labels(replace(node, accelerators=attached), facts=facts)
    extra = {"gpu.clique": "7f-cluster.3", "vgpu.host-driver-version": "460.16", "vgpu.host-driver-branch": "r460_00"}
    assert set(found) == {*COMMON_KEYS, *extra}
    assert extra.items() <= found.items()
    assert found["vgpu.present"] == "true"


def test_gpus_of_different_cliques_have_no_clique_label_and_it_is_told() -> None:
    node = sample_inventory(2)
    attached = tuple(replace(gpu, fabric_cluster="c", fabric_clique=gpu.index) for gpu in node.accelerators)
    planned = plan(replace(node, accelerators=attached), LabelSettings(), FACTS)
    assert "nvidia.com/gpu.clique" not in planned.labels
    assert [advice.reason for advice in planned.advice] == ["SeveralCliques"]
    zeros = tuple(replace(gpu, fabric_cluster="00000000-0000-0000-0000-000000000000") for gpu in node.accelerators)
    assert "nvidia.com/gpu.clique" not in plan(replace(node, accelerators=zeros), LabelSettings(), FACTS).labels
    # A GPU outside any fabric says nothing about the clique of the others.
    partly = replace(node, accelerators=(attached[0], node.accelerators[1]))
    assert plan(partly, LabelSettings(), FACTS).labels["nvidia.com/gpu.clique"] == "c.0"


def test_without_timestamp_and_single_without_mig() -> None:
    found = labels(a100_node(), LabelSettings(mig_strategy=MigStrategy.SINGLE), timestamp=None)
    assert set(found) == {*COMMON_KEYS, "mig.strategy"} - {"gfd.timestamp"}
    assert found["gpu.product"] == "NVIDIA-A100-SXM4-40GB"


@pytest.mark.parametrize(
    ("layout", "reason"),
    [
        ({0: []}, "at least one MIG device is enabled but empty"),
        ({0: [ONE_G]}, "devices with MIG enabled and disabled detected"),
        ({0: [ONE_G], 1: [THREE_G]}, "more than one MIG device type present on node"),
    ],
)
def test_single_strategy_that_the_layout_does_not_allow(
    layout: dict[int, list[tuple[str, int, int, int]]], reason: str
) -> None:
    node = a100_node()
    cut = {index: slices(node.accelerators[index], *wanted) for index, wanted in layout.items()}
    planned = plan(with_mig(node, cut), LabelSettings(mig_strategy=MigStrategy.SINGLE), FACTS)
    found = {key.removeprefix("nvidia.com/gpu."): value for key, value in planned.labels.items()}
    assert found["product"] == "NVIDIA-A100-SXM4-40GB-MIG-INVALID"
    assert (found["count"], found["replicas"], found["sharing-strategy"], found["memory"]) == ("0", "0", "", "0")
    assert found["family"] == "ampere"
    (advice,) = planned.advice
    assert reason in advice.why


@pytest.mark.parametrize("kind", [SharingStrategy.TIME_SLICING, SharingStrategy.MPS])
def test_sharing_strategies(kind: SharingStrategy) -> None:
    found = labels(a100_node(), shared(kind, LabelledResource("nvidia.com/gpu", 10)))
    assert found["gpu.sharing-strategy"] == kind.value
    assert found["gpu.product"].endswith("-SHARED")
    assert found["mps.capable"] == ("true" if kind is SharingStrategy.MPS else "false")


def test_shared_slices_under_single_and_mixed() -> None:
    node = a100_node()
    seven = with_mig(node, {gpu.index: slices(gpu, ONE_G) for gpu in node.accelerators})
    entry = LabelledResource("nvidia.com/gpu", 3)
    single = labels(seven, shared(SharingStrategy.TIME_SLICING, entry, strategy=MigStrategy.SINGLE))
    assert single["gpu.product"] == "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb-SHARED"
    assert (single["gpu.count"], single["gpu.replicas"]) == ("2", "3")
    entry = LabelledResource("nvidia.com/mig-1g.5gb", 2)
    mixed = labels(seven, shared(SharingStrategy.TIME_SLICING, entry, strategy=MigStrategy.MIXED))
    assert mixed["mig-1g.5gb.product"] == "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb-SHARED"
    assert (mixed["mig-1g.5gb.count"], mixed["mig-1g.5gb.replicas"]) == ("2", "2")


def test_mps_on_a_node_with_mig_keeps_labels_and_says_so() -> None:
    settings = shared(SharingStrategy.MPS, LabelledResource("nvidia.com/gpu", 10), strategy=MigStrategy.SINGLE)
    node = a100_node()
    seven = with_mig(node, {gpu.index: slices(gpu, ONE_G) for gpu in node.accelerators})
    planned = plan(seven, settings, FACTS)
    assert planned.labels["nvidia.com/mps.capable"] == "false"
    assert planned.labels["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"
    assert "MpsWithMig" in [advice.reason for advice in planned.advice]


def test_profiles_with_attributes_and_partial_instances_take_their_label_spelling() -> None:
    node = sample_inventory(1)
    (gpu,) = node.accelerators
    parts = (*sample_partitions(gpu, "1g.10gb+me", 1), *sample_partitions(gpu, "1c.3g.40gb", 2))
    found = labels(with_mig(node, {0: parts}), LabelSettings(mig_strategy=MigStrategy.MIXED))
    assert found["mig-1g.10gb.me.product"] == "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb.me"
    assert found["mig-1c.3g.40gb.count"] == "2"


def test_a_slice_whose_profile_has_no_name_is_left_out_and_told() -> None:
    node = sample_inventory(1)
    parts = (*sample_partitions(node.accelerators[0], "1g.10gb", 1), *sample_partitions(node.accelerators[0], "", 1))
    planned = plan(with_mig(node, {0: parts}), LabelSettings(mig_strategy=MigStrategy.MIXED), FACTS)
    assert planned.labels["nvidia.com/mig-1g.10gb.count"] == "1"
    assert [advice.reason for advice in planned.advice] == ["UnknownMigProfile"]


MODE_CASES = [
    ((0x030000, 0x030000), "graphics"),
    ((0x030200, 0x030200), "compute"),
    ((0x030000, 0x030200), "unknown"),
    ((0x030200, 0), "unknown"),
    ((0x068000, 0x068000), "unknown"),
]


@pytest.mark.parametrize(("classes", "mode"), MODE_CASES)
def test_mode_follows_the_pci_class(classes: tuple[int, int], mode: str) -> None:
    node = sample_inventory(2)
    gpus = tuple(replace(gpu, pci_class=found) for gpu, found in zip(node.accelerators, classes, strict=True))
    assert labels(replace(node, accelerators=gpus))["gpu.mode"] == mode


@pytest.mark.parametrize(
    ("compute", "family"),
    [
        ((1, 3), "tesla"), ((2, 1), "fermi"), ((3, 7), "kepler"), ((4, 0), "undefined"), ((5, 2), "maxwell"),
        ((6, 1), "pascal"), ((7, 0), "volta"), ((7, 4), "volta"), ((7, 5), "turing"), ((8, 0), "ampere"),
        ((8, 8), "ampere"), ((8, 9), "ada-lovelace"), ((9, 0), "hopper"), ((10, 3), "blackwell"),
        ((11, 0), "undefined"), ((12, 1), "blackwell"), ((13, 0), "rubin"), ((14, 0), "undefined"),
    ],
)  # fmt: skip
def test_families(compute: tuple[int, int], family: str) -> None:
    found = labels(sample_inventory(1, compute_capability=compute))
    assert found["gpu.family"] == family
    assert (found["gpu.compute.major"], found["gpu.compute.minor"]) == (str(compute[0]), str(compute[1]))


@pytest.mark.parametrize("compute", [None, (0, 0)])
def test_no_compute_capability_leaves_family_and_compute_out(compute: tuple[int, int] | None) -> None:
    node = sample_inventory(1)
    gpu = replace(node.accelerators[0], compute_capability=compute, memory_mib=0)
    found = labels(replace(node, accelerators=(gpu,)))
    assert not {"gpu.family", "gpu.compute.major", "gpu.compute.minor", "gpu.memory"} & set(found)


def test_driver_versions_of_two_parts_and_odd_ones() -> None:
    two = labels(sample_inventory(1, driver_version="535.129"))
    assert (two["cuda.driver.rev"], two["cuda.driver-version.revision"]) == ("", "")
    assert two["cuda.driver-version.full"] == "535.129"
    planned = plan(sample_inventory(1, driver_version="beta"), LabelSettings(), FACTS)
    assert not [key for key in planned.labels if "cuda.driver" in key]
    assert [advice.reason for advice in planned.advice] == ["OddDriverVersion"]


def test_machine_types() -> None:
    assert labels(a100_node(), facts=NodeFacts(machine=" p4d.24xlarge\n"))["gpu.machine"] == "p4d.24xlarge"
    assert labels(a100_node(), facts=NodeFacts(machine=None))["gpu.machine"] == "unknown"
    assert labels(a100_node(), facts=NodeFacts(machine="(?)"))["gpu.machine"] == "unknown"


def test_no_devices_leaves_only_timestamp_and_vgpu() -> None:
    node = replace(sample_inventory(1), accelerators=())
    assert labels(node) == {"gfd.timestamp": "1700000000", "vgpu.present": "false"}


def test_display_cards_do_not_count() -> None:
    node = sample_inventory(2)
    display = replace(node.accelerators[1], name="NVIDIA DGX Display", pci_class=0x030000)
    found = labels(replace(node, accelerators=(node.accelerators[0], display)))
    assert (found["gpu.count"], found["gpu.mode"]) == ("1", "compute")


def several_models(*models: tuple[str, int, int]) -> Inventory:
    """(name, how many, MiB) in the driver's order."""
    node = sample_inventory(sum(count for _, count, _ in models))
    wanted = [(name, memory) for name, count, memory in models for _ in range(count)]
    return replace(
        node,
        accelerators=tuple(
            replace(gpu, name=name, memory_mib=memory)
            for gpu, (name, memory) in zip(node.accelerators, wanted, strict=True)
        ),
    )


def test_rdma_ports_are_told_where_there_are_some() -> None:
    told = plan(sample_inventory(), LabelSettings(), replace(FACTS, rdma=RdmaFacts("infiniband", 400, 8))).labels
    assert {key: value for key, value in told.items() if key.startswith("kgpu.dev/")} == {
        "kgpu.dev/rdma.link-layer": "infiniband",
        "kgpu.dev/rdma.rate": "400",
        "kgpu.dev/rdma.ports": "8",
    }


def test_several_models_the_most_frequent_describes_the_node() -> None:
    node = several_models(("Tesla T4", 1, 15360), ("NVIDIA L4", 3, 23034), ("NVIDIA L40S", 1, 46068))
    planned = plan(node, LabelSettings(), FACTS)
    assert planned.labels["nvidia.com/gpu.product"] == "NVIDIA-L4"
    assert planned.labels["nvidia.com/gpu.count"] == "3"
    assert {key: value for key, value in planned.labels.items() if key.startswith("kgpu.dev/")} == {
        "kgpu.dev/gpu.models": "3",
        "kgpu.dev/gpu.total": "5",
        "kgpu.dev/gpu.Tesla-T4.count": "1",
        "kgpu.dev/gpu.Tesla-T4.memory": "15360",
        "kgpu.dev/gpu.Tesla-T4.family": "hopper",
        "kgpu.dev/gpu.Tesla-T4.compute.major": "9",
        "kgpu.dev/gpu.Tesla-T4.compute.minor": "0",
        "kgpu.dev/gpu.NVIDIA-L4.count": "3",
        "kgpu.dev/gpu.NVIDIA-L4.memory": "23034",
        "kgpu.dev/gpu.NVIDIA-L4.family": "hopper",
        "kgpu.dev/gpu.NVIDIA-L4.compute.major": "9",
        "kgpu.dev/gpu.NVIDIA-L4.compute.minor": "0",
        "kgpu.dev/gpu.NVIDIA-L40S.count": "1",
        "kgpu.dev/gpu.NVIDIA-L40S.memory": "46068",
        "kgpu.dev/gpu.NVIDIA-L40S.family": "hopper",
        "kgpu.dev/gpu.NVIDIA-L40S.compute.major": "9",
        "kgpu.dev/gpu.NVIDIA-L40S.compute.minor": "0",
    }
    assert [advice.reason for advice in planned.advice] == ["SeveralModels"]


def test_several_models_ties_go_to_the_first_and_full_gpus_before_mig() -> None:
    node = several_models(("NVIDIA L4", 2, 1), ("Tesla T4", 2, 1))
    assert labels(node)["gpu.product"] == "NVIDIA-L4"
    backwards = replace(node, accelerators=tuple(reversed(node.accelerators)))
    assert plan(backwards, LabelSettings(), FACTS) == plan(node, LabelSettings(), FACTS)
    cut = with_mig(node, {0: (), 1: ()})
    assert labels(cut)["gpu.product"] == "Tesla-T4"


def test_long_model_names_keep_their_suffix_and_their_own_keys() -> None:
    long = "NVIDIA " + "RTX PRO 6000 Blackwell " * 4
    node = several_models((long + "Server", 1, 1), (long + "Workstation", 1, 1))
    found = labels(node, shared(SharingStrategy.TIME_SLICING, LabelledResource("nvidia.com/gpu", 2)))
    assert found["gpu.product"].endswith("-SHARED")
    assert len(found["gpu.product"]) <= 63
    counts = [key for key in found if key.startswith("kgpu.dev/gpu.NVIDIA") and key.endswith(".count")]
    assert len(counts) == 2
    assert all(len(key.partition("/")[2]) <= 63 for key in found)
