"""What was read, as the port's terms, and the only judgement of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from kgpu.base.printable import counted
from kgpu.formats.names import AMD
from kgpu.hw.amd.gather import AmdGpuFacts
from kgpu.hw.amd.kfd import KfdNode, NodeScan
from kgpu.hw.amd.product_names import family, product_name
from kgpu.hw.port import Accelerator, HardwareFinding, Partition, Problem

MIB: Final = 1 << 20
WHOLE: Final = "spx"
"""The mode of a GPU that is not cut."""
# problem -> what is wrong, what was expected, what to do; {} is about what
WORDS: Final[Mapping[Problem, tuple[str, str, str]]] = {
    Problem.LOST: (
        "it has fallen off the bus: its configuration space reads as all ones", "a GPU that answers on the bus",
        "reboot the machine; if it comes again, look at its power, riser and slot",
    ),
    Problem.HUNG: (
        "reading {} did not end in time", "an answer of its firmware within seconds",
        "look at dmesg for amdgpu; end the processes on it and reset it (amd-smi reset --gpureset), or reboot",
    ),
    Problem.MISSING: (
        "the driver does not list it any more", "the GPU that was there before",
        "look at dmesg for amdgpu and at lspci; a reboot finds it again if it is sound",
    ),
    Problem.NEEDS_RESET: (
        "{} since the driver was loaded", "none",
        "end the processes on it and reset it (amd-smi reset --gpureset), or reboot; if they come again, replace it",
    ),
    Problem.UNREADABLE: (
        "{} can't be read or understood", "what the driver writes there", "look at dmesg for amdgpu",
    ),
    Problem.UNPROVEN: (
        "the KFD does not list it, so programs can't compute on it",
        "a node of it in /sys/class/kfd/kfd/topology/nodes",
        "see whether ROCm supports this GPU, and dmesg for kfd",
    ),
}  # fmt: skip


def finding(bus: str, index: int, problem: Problem, about: str = "") -> HardwareFinding:
    """A finding about one GPU."""
    what, expected, remedy = WORDS[problem]
    return HardwareFinding(
        subject=bus, problem=problem, what=what.format(about), expected=expected, remedy=remedy, gpu=index
    )


def silent(bus: str, index: int, before: Accelerator | None, problem: Problem, about: str = "") -> Accelerator:
    """A GPU that says nothing now: what was known of it, and why."""
    known = before or Accelerator(vendor=AMD, index=index, uuid=bus, name=product_name(0), pci_bus_id=bus)
    return replace(known, index=index, recovery_action="unknown", findings=(finding(bus, index, problem, about),))


def accelerator(index: int, facts: AmdGpuFacts, scan: NodeScan, before: Accelerator | None) -> Accelerator:
    """One GPU. What can't be understood now is as it was ``before``."""
    if facts.lost:
        return silent(facts.bus, index, before, Problem.LOST)
    values = facts.values
    nodes = nodes_of(facts, scan)
    mode = before.mode if before and _unreadable(facts, "partition") else _mode(facts)
    name = values.get("product_name") or product_name(values.get("device", 0))
    numa = values.get("numa_node", before.numa_node if before and "numa_node" in facts.unreadable else None)
    vram = values.get("mem_info_vram_total")
    findings = _findings(index, facts, nodes)
    target = max((node.target for node in nodes), default=0)
    return Accelerator(
        vendor=AMD,
        index=index,
        uuid=facts.bus,
        name=name,
        minor=facts.drm.card if facts.drm else 0,
        serial=values.get("serial_number") or values.get("unique_id", ""),
        pci_bus_id=facts.bus,
        pci_class=values.get("class", 0),
        pci_device_id=values.get("device", 0) << 16 | 0x1002,
        numa_node=numa if numa is not None and numa >= 0 else None,
        memory_mib=None if vram is None else vram // MIB,
        mode=mode,
        compute_units=sum(node.simds // node.simds_per_cu for node in nodes if node.simds_per_cu),
        simds=sum(node.simds for node in nodes),
        target=target,
        family=family(target),
        partitions=_partitions(index, facts, scan, nodes, mode),
        recovery_action="reset" if any(row.problem is Problem.NEEDS_RESET for row in findings) else "none",
        device_nodes=facts.drm.device_nodes if facts.drm else (),
        findings=findings,
    )


def _unreadable(facts: AmdGpuFacts, word: str) -> bool:
    return any(word in name for name in facts.unreadable)


def _mode(facts: AmdGpuFacts) -> str:
    """``cpx_nps4``; "" for a GPU that can't be cut."""
    compute = facts.values.get("current_compute_partition", "").lower()
    memory = facts.values.get("current_memory_partition", "").lower()
    return f"{compute}_{memory}" if compute and memory else compute


def nodes_of(facts: AmdGpuFacts, scan: NodeScan) -> tuple[KfdNode, ...]:
    """The KFD's nodes of a GPU: its own first, then those of its other parts."""
    own = facts.drm.render if facts.drm else 0
    address = facts.bus.rsplit(".", 1)[0]
    mine = [node for node in scan.nodes if node.render == own]
    others = [node for node in scan.nodes if node.render != own and node.render in scan.parts and node.bus == address]
    return (*mine, *sorted(others, key=lambda node: (node.part, node.render)))


def _partitions(
    index: int, facts: AmdGpuFacts, scan: NodeScan, nodes: Sequence[KfdNode], mode: str
) -> tuple[Partition, ...]:
    if not mode or mode.startswith(WHOLE) or facts.drm is None:
        return ()
    own = facts.drm
    parts = [scan.parts.get(node.render, own) for node in nodes]
    return tuple(
        Partition(
            uuid=numbers.name or facts.bus,
            index=f"{index}:{position}",
            parent_uuid=facts.bus,
            profile=mode,
            gpu_instance=position,
            compute_instance=0,
            placement_start=position,
            placement_size=1,
            memory_mib=node.memory_bytes // MIB,
            multiprocessors=node.simds // node.simds_per_cu if node.simds_per_cu else 0,
            slices_gi=1,
            slices_ci=1,
            device_nodes=numbers.device_nodes,
        )
        for position, (node, numbers) in enumerate(zip(nodes, parts, strict=True))
    )


def _findings(index: int, facts: AmdGpuFacts, nodes: Sequence[KfdNode]) -> tuple[HardwareFinding, ...]:
    found: list[HardwareFinding] = []
    if not any(node.target > 0 for node in nodes):
        found.append(finding(facts.bus, index, Problem.UNPROVEN))
    uncorrected = (facts.errors() or (0, 0))[0]
    if uncorrected:
        found.append(finding(facts.bus, index, Problem.NEEDS_RESET, counted(uncorrected, "uncorrectable memory error")))
    if facts.unreadable:
        found.append(finding(facts.bus, index, Problem.UNREADABLE, ", ".join(facts.unreadable)))
    return tuple(found)
