"""What was read of one Gaudi card, as the port's terms, and the only judgement of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from kgpu.base.printable import counted
from kgpu.formats.names import GAUDI
from kgpu.hw.port import Accelerator, HardwareFinding, Problem

MIB: Final = 1 << 20
# PCI device ids
PRODUCTS: Final[Mapping[int, str]] = {
    **dict.fromkeys((0x1000, 0x1001, 0x1010, 0x1011), "Intel Gaudi"),
    **dict.fromkeys((0x1020, 0x1021, 0x1030), "Intel Gaudi 2"),
    **dict.fromkeys((0x1060, 0x1061, 0x1062, 0x1063), "Intel Gaudi 3"),
}
SOUND: Final = "operational"
BUSY: Final = ("reset", "creation")
"""Words of a status that passes by itself."""
_REMEDY: Final = "look at dmesg for habanalabs; end the processes on it and reset it (hl-smi -r), or reboot"
# problem -> what is wrong, what was expected, what to do; {} is about what
WORDS: Final[Mapping[Problem, tuple[str, str, str]]] = {
    Problem.LOST: (
        "it has fallen off the bus{}", "a card that answers on the bus",
        "reboot the machine; if it comes again, look at its power and its baseboard",
    ),
    Problem.HUNG: ("reading its files or asking libhlml did not end in time{}", "an answer within seconds", _REMEDY),
    Problem.MISSING: (
        "the driver does not list it any more{}", "the card that was there before",
        "look at dmesg for habanalabs and at lspci; a reboot finds it again if it is sound",
    ),
    Problem.NEEDS_RESET: ("{}", "a card that its driver calls operational, without such errors", _REMEDY),
    Problem.UNPROVEN: ("its driver says: {}", "Operational", "nothing: it is looked at again by itself"),
    Problem.UNREADABLE: (
        "{} can't be read or understood", "what the driver and libhlml say there",
        "look at dmesg for habanalabs, and whether driver, firmware and libhlml are of one release",
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GaudiFacts:
    """One card. ``values`` are its files and figures of the library, by name; ``unreadable`` names those that can't be
    read or understood. ``lost``: the bus answers for it with all bits set, or the library says so. ``uverbs`` is its
    node of RDMA, "" where it has none.
    """

    bus: str
    lost: bool = False
    minor: int | None = None
    uverbs: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    unreadable: tuple[str, ...] = ()

    def errors(self) -> tuple[int, int] | None:
        """Uncorrectable and correctable errors since the driver was loaded; None: none are counted."""
        if "ecc_uncorrected" not in self.values:
            return None
        return self.values["ecc_uncorrected"], self.values.get("ecc_corrected", 0)


def finding(subject: str, index: int, problem: Problem, about: str = "") -> HardwareFinding:
    """A finding about one card."""
    what, expected, remedy = WORDS[problem]
    return HardwareFinding(
        subject=subject, problem=problem, what=what.format(about), expected=expected, remedy=remedy, gpu=index
    )


def silent(bus: str, index: int, before: Accelerator | None, problem: Problem) -> Accelerator:
    """A card that says nothing now: what was known of it, and why."""
    known = before or Accelerator(vendor=GAUDI, index=index, uuid=bus, name=PRODUCTS[0x1000], pci_bus_id=bus)
    return replace(known, index=index, recovery_action="unknown", findings=(finding(known.uuid, index, problem),))


def product(device: int, family: str) -> str:
    """A card's name by what its driver calls it (``GAUDI3``), else by its PCI id."""
    if family.upper().startswith("GAUDI") and family[5:6].isdigit():
        return f"Intel Gaudi {family[5:6]}"
    return PRODUCTS.get(device, "Intel Gaudi")


def accelerator(index: int, facts: GaudiFacts, before: Accelerator | None) -> Accelerator:
    """One card. What can't be understood now is as it was ``before``."""
    if facts.lost:
        return silent(facts.bus, index, before, Problem.LOST)
    values, bus = facts.values, facts.bus
    uuid = values.get("serial") or (before.uuid if before else bus)
    findings = tuple(_findings(uuid, index, facts))
    device = values.get("device", 0)

    def kept(name: str, attribute: str) -> Any:
        return values.get(name, getattr(before, attribute) if before and name in facts.unreadable else None)

    numa, family = kept("numa_node", "numa_node"), values.get("device_type", "")
    total = values.get("memory_total")
    unnamed = before is not None and "device_type" in facts.unreadable
    return Accelerator(
        vendor=GAUDI,
        index=index,
        uuid=uuid,
        name=before.name if unnamed and before else product(device, family),
        minor=facts.minor or 0,
        serial=values.get("serial") or (before.serial if before else ""),
        pci_bus_id=bus,
        pci_class=values.get("class", 0),
        pci_device_id=device << 16 | 0x1DA3,
        numa_node=numa if numa is not None and numa >= 0 else None,
        memory_mib=total // MIB if total else (before.memory_mib if before else None),
        module_id=kept("module_id", "module_id"),
        recovery_action="reset" if any(row.problem is Problem.NEEDS_RESET for row in findings) else "none",
        device_nodes=_nodes(facts),
        findings=findings,
    )


def _nodes(facts: GaudiFacts) -> tuple[str, ...]:
    if facts.minor is None:
        return ()
    own = (f"/dev/accel/accel{facts.minor}", f"/dev/accel/accel_controlD{facts.minor}")
    return (*own, f"/dev/infiniband/{facts.uverbs}") if facts.uverbs else own


def _findings(uuid: str, index: int, facts: GaudiFacts) -> list[HardwareFinding]:
    found = []
    status = facts.values.get("status", SOUND)
    if any(word in status.lower() for word in BUSY) and "needs" not in status.lower():
        found.append(finding(uuid, index, Problem.UNPROVEN, status))
    elif status.lower() != SOUND:
        found.append(finding(uuid, index, Problem.NEEDS_RESET, f"its driver says: {status}"))
    uncorrected = (facts.errors() or (0, 0))[0]
    if uncorrected:
        text = f"{counted(uncorrected, 'uncorrectable memory error')} since the driver was loaded"
        found.append(finding(uuid, index, Problem.NEEDS_RESET, text))
    if facts.values.get("rows_pending"):
        found.append(finding(uuid, index, Problem.NEEDS_RESET, "rows of its memory wait to be replaced"))
    if facts.unreadable:
        found.append(finding(uuid, index, Problem.UNREADABLE, ", ".join(facts.unreadable)))
    return found
