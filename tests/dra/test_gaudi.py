"""Gaudi accelerators as devices: names, exact attributes, and what a critical error does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kgpu.dra.devices import node_devices
from kgpu.dra.model import DraDevice, PublishRules
from kgpu.hw.port import Accelerator, HardwareFinding, Problem
from kgpu.hw.verdicts import GpuVerdict
from tests.dra.samples import gaudi

CRITICAL = [("gaudi.intel.com/unhealthy", "CriticalError", "NoExecute")]


def device(card: Accelerator, rules: PublishRules | None = None, verdict: GpuVerdict | None = None) -> DraDevice:
    verdicts = None if verdict is None else {verdict.uuid: verdict}
    (found,) = node_devices(replace(gaudi(), accelerators=(card,)), rules or PublishRules(), verdicts).devices
    return found


def taints(found: DraDevice) -> list[tuple[str, str, str]]:
    return [(one.key, one.value, str(one.effect)) for one in found.taints]


def test_a_card_has_exactly_the_attributes_of_intels_driver() -> None:
    found = device(gaudi().accelerators[0], PublishRules(pcie_roots={"0000:19:00.0": "pci0000:15"}))
    assert found.name == "0000-19-00-0-0x1060"
    assert {name: one.value for name, one in found.attributes.items()} == {
        "model": "Gaudi3", "serial": "AN00000", "healthy": True, "pciRoot": "pci0000:15",
        "resource.kubernetes.io/pcieRoot": "pci0000:15",
    }  # fmt: skip
    assert str(found.attributes["healthy"].kind) == "bool"
    assert (found.capacity, found.taints) == ({}, ())


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("Intel Gaudi", "Gaudi"), ("Intel Gaudi 2", "Gaudi2"), ("Intel Gaudi 3", "Gaudi3"),
        ("Intel Gaudi 9", "Unknown"),
    ],
)  # fmt: skip
def test_models(name: str, model: str) -> None:
    assert device(replace(gaudi().accelerators[0], name=name)).attributes["model"].value == model


@pytest.mark.parametrize(
    ("problem", "wanted"),
    [
        (Problem.LOST, CRITICAL),
        (Problem.NEEDS_RESET, CRITICAL),
        # What passes by itself ends no pod.
        (Problem.UNPROVEN, [("kgpu.dev/gpu-unhealthy", "unproven", "NoSchedule")]),
        (Problem.HUNG, [("kgpu.dev/gpu-unhealthy", "hung", "NoSchedule")]),
        (Problem.MISSING, [("kgpu.dev/gpu-unhealthy", "missing", "NoSchedule")]),
        (Problem.UNREADABLE, []),
    ],
)
def test_what_a_finding_does(problem: Problem, wanted: list[tuple[str, str, str]]) -> None:
    card = gaudi().accelerators[0]
    finding = HardwareFinding(subject=card.uuid, problem=problem, what="w", expected="e", remedy="r")
    found = device(replace(card, findings=(finding,)))
    assert taints(found) == wanted
    assert found.attributes["healthy"].value is not bool(wanted)
    assert found.withdrawn is bool(wanted)


def test_a_verdict_withdraws_and_its_end_brings_the_card_back() -> None:
    card = gaudi().accelerators[0]
    lost = GpuVerdict(uuid=card.uuid, withdraws=True, causes=("driver:lost",), facts=("driver:lost",))
    assert taints(device(card, verdict=lost)) == CRITICAL
    other = GpuVerdict(uuid=card.uuid, withdraws=True, causes=("temperature",), reason="Hot")
    assert taints(device(card, verdict=other)) == [("kgpu.dev/gpu-unhealthy", "Hot", "NoSchedule")]
    well = device(card, verdict=GpuVerdict(uuid=card.uuid))
    assert (taints(well), well.attributes["healthy"].value) == ([], True)


@pytest.mark.parametrize("unknown", [{"pci_device_id": 0}, {"pci_bus_id": ""}])
def test_a_card_without_a_name_is_told(unknown: dict[str, object]) -> None:
    first, second = gaudi().accelerators
    node = node_devices(replace(gaudi(), accelerators=(replace(first, **unknown), second)), PublishRules())  # type: ignore[arg-type]
    assert [found.gpu for found in node.devices] == [second.uuid]
    assert "address and device id" in node.advice[0].why


def test_one_address_is_published_once() -> None:
    first, second = gaudi().accelerators
    node = node_devices(
        replace(gaudi(), accelerators=(first, replace(second, pci_bus_id=first.pci_bus_id))), PublishRules()
    )
    assert [found.gpu for found in node.devices] == [first.uuid]
    assert "PCI address 0000:19:00.0" in node.advice[0].why
