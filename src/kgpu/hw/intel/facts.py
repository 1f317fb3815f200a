"""What was read of one Intel GPU, as the port's terms, and the only judgement of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from kgpu.formats.names import INTEL
from kgpu.hw.port import Accelerator, HardwareFinding, Problem

MIB: Final = 1 << 20
# PCI device ids; one may be missing
PRODUCTS: Final[Mapping[int, str]] = {
    0x0BD5: "Data Center GPU Max 1550", 0x0BDA: "Data Center GPU Max 1100", 0x0BD9: "Data Center GPU Max 1100",
    0x56C0: "Data Center GPU Flex 170", 0x56C1: "Data Center GPU Flex 140",
    0x56A0: "Arc A770", 0x56A1: "Arc A750", 0x56A5: "Arc A380", 0x56B1: "Arc Pro A40", 0x56B3: "Arc Pro A60",
    0xE20B: "Arc B580", 0xE20C: "Arc B570", 0xE211: "Arc Pro B60", 0xE212: "Arc Pro B50",
}  # fmt: skip
# problem -> what is wrong, what was expected, what to do; {} is about what
WORDS: Final[Mapping[Problem, tuple[str, str, str]]] = {
    Problem.LOST: (
        "it has fallen off the bus{}", "a GPU that answers on the bus",
        "reboot the machine; if it comes again, look at its power, riser and slot",
    ),
    Problem.HUNG: (
        "reading its files did not end in time{}", "an answer within seconds",
        "look at dmesg for i915 or xe; end the processes on it, or reboot",
    ),
    Problem.MISSING: (
        "its driver does not list it any more{}", "the GPU that was there before",
        "look at dmesg for i915 or xe, and at lspci; a reboot finds it again if it is sound",
    ),
    Problem.UNREADABLE: (
        "{} can't be read or understood", "what the driver writes there", "look at dmesg for i915 or xe",
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class IntelFacts:
    """One GPU. ``values`` are its files, by the name of their row; ``unreadable`` names those that can't be read or
    understood. ``lost``: the bus answers for it with all bits set.
    """

    bus: str
    driver: str = ""
    lost: bool = False
    card: int | None = None
    render: int | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    unreadable: tuple[str, ...] = ()


def product(device: int) -> str:
    """A GPU's name by its id."""
    return f"Intel {PRODUCTS[device]}" if device in PRODUCTS else f"Intel GPU {device:04x}"


def finding(subject: str, index: int, problem: Problem, about: str = "") -> HardwareFinding:
    """A finding about one GPU."""
    what, expected, remedy = WORDS[problem]
    return HardwareFinding(
        subject=subject, problem=problem, what=what.format(about), expected=expected, remedy=remedy, gpu=index
    )


def silent(bus: str, index: int, before: Accelerator | None, problem: Problem) -> Accelerator:
    """A GPU that says nothing now: what was known of it, and why."""
    known = before or Accelerator(vendor=INTEL, index=index, uuid=bus, name="Intel GPU", pci_bus_id=bus)
    return replace(known, index=index, recovery_action="unknown", findings=(finding(bus, index, problem),))


def accelerator(index: int, facts: IntelFacts, before: Accelerator | None) -> Accelerator:
    """One GPU. What can't be understood now is as it was ``before``. Its mode is its driver."""
    if facts.lost:
        return silent(facts.bus, index, before, Problem.LOST)
    values, bus = facts.values, facts.bus
    numa = values.get("numa_node", before.numa_node if before and "numa_node" in facts.unreadable else None)
    device = values.get("device", 0)
    memory = values.get("memory")
    nodes = [(facts.card, "/dev/dri/card{}"), (facts.render, "/dev/dri/renderD{}")]
    return Accelerator(
        vendor=INTEL,
        index=index,
        uuid=bus,
        name=product(device),
        minor=facts.card or 0,
        pci_bus_id=bus,
        pci_class=values.get("class", 0),
        pci_device_id=device << 16 | 0x8086,
        numa_node=numa if numa is not None and numa >= 0 else None,
        memory_mib=memory // MIB if memory else None,
        mode=facts.driver,
        device_nodes=tuple(form.format(number) for number, form in nodes if number is not None),
        findings=(finding(bus, index, Problem.UNREADABLE, ", ".join(facts.unreadable)),) if facts.unreadable else (),
    )
