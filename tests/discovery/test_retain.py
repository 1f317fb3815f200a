"""What stays when something can't be read: everything on a failed reading, single values on a partial one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kgpu.base.errors import HwError
from kgpu.discovery.model import (
    LabelledResource,
    LabelSettings,
    MigStrategy,
    NodeFacts,
    SharingInForce,
    SharingStrategy,
)
from kgpu.discovery.plan import plan
from kgpu.hw.fake_reader import sample_inventory, sample_partitions
from kgpu.hw.port import HardwareFinding, Inventory, Problem

FACTS = NodeFacts(machine="DGX H100", vgpu_present=False)
SETTINGS = LabelSettings()
NO_DRIVER = HwError("the driver is not loaded", "a loaded driver", "load it")


def finding(problem: Problem, subject: str = "") -> HardwareFinding:
    return HardwareFinding(
        subject=subject, problem=problem, what=f"{problem} happened", expected="health", remedy="wait"
    )


def changed(inventory: Inventory, index: int, **fields: object) -> Inventory:
    gpus = [replace(gpu, **fields) if gpu.index == index else gpu for gpu in inventory.accelerators]  # type: ignore[arg-type]
    return replace(inventory, accelerators=tuple(gpus))


def before(inventory: Inventory, settings: LabelSettings = SETTINGS) -> dict[str, str]:
    return dict(plan(inventory, settings, FACTS, timestamp=1).labels)


def test_a_failed_reading_changes_nothing_and_says_why() -> None:
    last = before(sample_inventory())
    planned = plan(None, SETTINGS, FACTS, timestamp=2, previous=last, error=NO_DRIVER)
    assert planned.labels == last
    assert not planned.fresh
    (advice,) = planned.advice
    assert NO_DRIVER.what in advice.why
    assert advice.remedy == NO_DRIVER.remedy


def test_a_failed_first_reading_has_nothing_to_say() -> None:
    planned = plan(None, SETTINGS, FACTS, error=NO_DRIVER)
    assert (planned.labels, planned.fresh) == ({}, False)


def test_an_empty_but_faulty_reading_counts_as_failed() -> None:
    last = before(sample_inventory())
    empty = replace(sample_inventory(), accelerators=(), findings=(finding(Problem.UNREADABLE),))
    planned = plan(empty, SETTINGS, FACTS, previous=last)
    assert (planned.labels, planned.fresh) == (last, False)


def test_a_good_reading_without_devices_takes_labels_away() -> None:
    last = before(sample_inventory())
    planned = plan(replace(sample_inventory(), accelerators=()), SETTINGS, FACTS, timestamp=1, previous=last)
    assert set(planned.labels) == {"nvidia.com/gfd.timestamp", "nvidia.com/vgpu.present"}


@pytest.mark.parametrize("problem", [Problem.LOST, Problem.HUNG, Problem.MISSING, Problem.NEEDS_RESET])
def test_a_broken_gpu_with_its_last_facts_changes_no_label(problem: Problem) -> None:
    node = sample_inventory()
    last = before(node)
    broken = changed(node, 3, findings=(finding(problem),))
    assert plan(broken, SETTINGS, FACTS, timestamp=1, previous=last).labels == last


def test_single_values_that_can_not_be_read_stay() -> None:
    node = sample_inventory(1)
    last = before(node)
    partly = changed(node, 0, memory_mib=None, compute_capability=None, findings=(finding(Problem.UNREADABLE),))
    partly = replace(partly, cuda_version=None, driver_version="")
    planned = plan(partly, SETTINGS, NodeFacts(), timestamp=1, previous=last)
    assert planned.labels == last
    kept = next(advice for advice in planned.advice if advice.reason == "LabelsKept")
    assert "nvidia.com/gpu.memory" in kept.what
    assert "unreadable happened" in kept.evidence


def test_values_of_another_product_do_not_stay() -> None:
    last = before(sample_inventory(1))
    other = sample_inventory(1, name="NVIDIA Odd Card")
    partly = changed(other, 0, memory_mib=None, compute_capability=None, findings=(finding(Problem.UNREADABLE),))
    found = plan(partly, SETTINGS, FACTS, timestamp=1, previous=last).labels
    assert found["nvidia.com/gpu.product"] == "NVIDIA-Odd-Card"
    assert "nvidia.com/gpu.memory" not in found


def test_a_value_that_a_healthy_gpu_does_not_have_goes() -> None:
    node = sample_inventory(1)
    last = before(node)
    assert (
        "nvidia.com/gpu.memory"
        not in plan(changed(node, 0, memory_mib=None), SETTINGS, FACTS, timestamp=1, previous=last).labels
    )


@pytest.mark.parametrize(
    "trouble",
    [
        {"name": ""},
        {"name": "", "findings": (finding(Problem.LOST),)},
        {"memory_mib": None, "compute_capability": None, "mig_enabled": False, "partitions": (),
         "findings": (finding(Problem.HUNG),)},
        {"partitions": (), "findings": (finding(Problem.UNREADABLE),)},
    ],
)  # fmt: skip
def test_counts_stay_while_one_gpu_is_unknown(trouble: dict[str, object]) -> None:
    settings = LabelSettings(mig_strategy=MigStrategy.SINGLE)
    node = sample_inventory(2)
    for gpu in node.accelerators:
        node = changed(node, gpu.index, mig_enabled=True, partitions=sample_partitions(gpu))
    last = before(node, settings)
    assert last["nvidia.com/gpu.count"] == "14"
    assert plan(changed(node, 1, **trouble), settings, FACTS, timestamp=1, previous=last).labels == last


def test_counts_stay_while_one_gpu_does_not_even_have_a_uuid() -> None:
    node = sample_inventory(8)
    last = before(node)
    seven = replace(node, accelerators=node.accelerators[:7], findings=(finding(Problem.LOST),))
    assert plan(seven, SETTINGS, FACTS, timestamp=1, previous=last).labels == last
    assert plan(seven, SETTINGS, FACTS, timestamp=1).labels["nvidia.com/gpu.count"] == "7"


def test_a_gpu_that_never_answered_does_not_make_the_layout_invalid() -> None:
    settings = LabelSettings(mig_strategy=MigStrategy.SINGLE)
    node = sample_inventory(2)
    node = changed(node, 0, mig_enabled=True, partitions=sample_partitions(node.accelerators[0]))
    node = changed(node, 1, memory_mib=None, compute_capability=None, findings=(finding(Problem.LOST),))
    found = plan(node, settings, FACTS, timestamp=1).labels
    assert found["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb"
    assert found["nvidia.com/gpu.memory"] == "9856"


def test_profiles_that_are_gone_go_even_while_another_gpu_is_broken() -> None:
    settings = LabelSettings(mig_strategy=MigStrategy.MIXED)
    node = sample_inventory(2)
    node = changed(node, 0, mig_enabled=True, partitions=sample_partitions(node.accelerators[0]))
    last = before(node, settings)
    assert "nvidia.com/mig-1g.10gb.count" in last
    now = changed(node, 0, mig_enabled=False, partitions=())
    now = changed(now, 1, findings=(finding(Problem.LOST),))
    assert not [key for key in plan(now, settings, FACTS, previous=last).labels if "mig-1g" in key]


def test_configuration_takes_its_own_labels_away_at_once() -> None:
    node = changed(sample_inventory(2), 1, findings=(finding(Problem.LOST),))
    settings = LabelSettings(
        mig_strategy=MigStrategy.MIXED,
        sharing=SharingInForce(SharingStrategy.TIME_SLICING, (LabelledResource("nvidia.com/gpu", 2),)),
    )
    last = before(node, settings)
    found = plan(node, SETTINGS, FACTS, timestamp=None, previous=last).labels
    assert not {"nvidia.com/mig.strategy", "nvidia.com/gfd.timestamp"} & set(found)
    assert (found["nvidia.com/gpu.replicas"], found["nvidia.com/gpu.product"]) == ("1", "NVIDIA-H100-80GB-HBM3")


def test_closed_pci_configuration_keeps_vgpu_labels_and_open_one_decides() -> None:
    node = sample_inventory(1)
    last = before(node) | {"nvidia.com/vgpu.present": "true", "nvidia.com/vgpu.host-driver-version": "460.16"}
    closed = plan(node, SETTINGS, NodeFacts(machine="m"), timestamp=1, previous=last).labels
    assert closed["nvidia.com/vgpu.present"] == "true"
    assert closed["nvidia.com/vgpu.host-driver-version"] == "460.16"
    opened = plan(node, SETTINGS, FACTS, timestamp=1, previous=last).labels
    assert opened["nvidia.com/vgpu.present"] == "false"
    assert "nvidia.com/vgpu.host-driver-version" not in opened
