"""From what the hardware child read to the port's terms: pure, and the place where a reading becomes a judgement.

Profile names follow go-nvlib's rule (GI profile's memory against the GPU's reported total). A device that can't be used
keeps its last known facts and carries one typed finding that says why.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from kgpu.formats.mig_profile import profile_name_of_kinds
from kgpu.formats.names import NVIDIA
from kgpu.hw.nvidia.codes import GPU_IS_LOST, RESET_REQUIRED
from kgpu.hw.nvidia.wire import (
    DeviceActivity,
    DriverEvent,
    GpuLinks,
    GpuReply,
    MigFacts,
    Processes,
    Pulse,
    Readings,
    Trouble,
)
from kgpu.hw.port import (
    Accelerator,
    Activity,
    EventKind,
    HardwareEvent,
    HardwareFinding,
    Link,
    Partition,
    Problem,
    Process,
    ProcessKind,
    Reading,
    TopologyLevel,
)
from kgpu.hw.recovery import RECOVERY_ACTIONS

MIB: Final = 1 << 20
PEERS: Final = "p2p_status"
# NVML_BRAND_*, in the words of images' requirements.
BRANDS: Final = (
    "unknown", "quadro", "tesla", "nvs", "grid", "geforce", "titan", "vapps", "vpc", "vcs", "vws", "cloudgaming",
    "quadrortx", "nvidiartx", "nvidia", "geforcertx", "titanrtx",
)  # fmt: skip
ADDRESSING_MODES: Final[Mapping[int, str]] = {0: "None", 1: "HMM", 2: "ATS"}  # NVML_DEVICE_ADDRESSING_MODE_*
_TROUBLES: Final[Mapping[int, Problem]] = {GPU_IS_LOST: Problem.LOST, RESET_REQUIRED: Problem.NEEDS_RESET}
# Work on the GPU fails until it was reset. What waits for other GPUs or the IMEX domain is no reset.
_RESETS: Final = frozenset({"reset", "reboot", "drain-reset"})
_EVENTS: Final[Mapping[int, EventKind]] = {
    0x1: EventKind.SINGLE_BIT_ECC,
    0x2: EventKind.DOUBLE_BIT_ECC,
    0x8: EventKind.XID,
    0x100: EventKind.MIG_CHANGE,
    0x8000: EventKind.RECOVERY_ACTION,
}
_REMEDIES: Final[Mapping[Problem, str]] = {
    Problem.LOST: "reset the GPU or reboot the node; the kernel log's Xid lines say why it fell off the bus",
    Problem.HUNG: "look for Xid lines and blocked tasks in the kernel log, then reset the GPU or reboot the node",
    Problem.CRASHED: "check that the driver library matches the kernel module, then report the crash to the vendor",
    Problem.UNREADABLE: "compare with `nvidia-smi -q`; if it persists, reset the GPU or update the driver",
    Problem.NEEDS_RESET: "move the work off this GPU, then reset it (`nvidia-smi --gpu-reset -i INDEX`) or reboot",
    Problem.MISSING: "check the kernel log and `lspci` for this device; it may have been unbound, removed or isolated",
}
_MIG_NAME: Final = re.compile(r"MIG (\S+)$")


def finding(subject: str, problem: Problem, what: str, expected: str, gpu: int | None = None) -> HardwareFinding:
    """A finding with the standing advice for its kind of problem."""
    return HardwareFinding(
        subject=subject, problem=problem, what=what, expected=expected, remedy=_REMEDIES[problem], gpu=gpu
    )


def trouble_finding(subject: str, index: int, trouble: Trouble) -> HardwareFinding:
    """The finding behind an NVML error that stopped the reading of a whole GPU."""
    call, code, text = trouble
    problem = _TROUBLES.get(code, Problem.UNREADABLE)
    return finding(subject, problem, f"{call}: {text} (NVML error {code})", "the GPU answers NVML", index)


def accelerator(facts: GpuReply) -> Accelerator:
    """One GPU in the port's terms."""
    pulse = facts.pulse
    uuid = pulse.uuid
    node = f"/dev/nvidia{facts.minor if facts.minor is not None else facts.index}"
    # A driver that has no such reading does not say that nothing needs to be done.
    action = "unknown" if pulse.recovery is None else RECOVERY_ACTIONS.get(pulse.recovery, "unknown")
    findings = []
    for call, code, text in facts.errors:
        what = f"{call}: {text} (NVML error {code})"
        findings.append(finding(uuid, Problem.UNREADABLE, what, "the reading succeeds", facts.index))
    if action in _RESETS:
        what = f"the driver asks for recovery action {action}"
        findings.append(finding(uuid, Problem.NEEDS_RESET, what, "recovery action none", facts.index))
    elif pulse.recovery and action == "unknown":
        what = f"the driver asks for recovery action {pulse.recovery}, which is not known here"
        findings.append(finding(uuid, Problem.UNREADABLE, what, "recovery action none", facts.index))
    findings += [_missing_cap(uuid, facts, mig) for mig in facts.migs if None in mig.caps]
    cluster, clique, _ = facts.fabric or ("", 0, 0)
    return Accelerator(
        vendor=NVIDIA,
        index=facts.index,
        uuid=uuid,
        name=facts.name,
        minor=facts.minor if facts.minor is not None else facts.index,
        serial=facts.serial,
        pci_bus_id=facts.bus_id,
        pci_class=facts.pci_class,
        pci_device_id=facts.pci_device_id,
        numa_node=facts.numa_node,
        memory_mib=None if facts.memory_bytes is None else facts.memory_bytes // MIB,
        compute_capability=facts.compute_capability,
        mig_capable=pulse.mig_capable,
        mig_enabled=pulse.mig,
        mig_pending=pulse.mig_pending,
        partitions=tuple(_partition(facts, mig, node) for mig in facts.migs),
        fabric_cluster=cluster,
        fabric_clique=clique,
        recovery_action=action,
        addressing_mode=ADDRESSING_MODES.get(facts.addressing, "") if facts.addressing is not None else "",
        coherent=facts.coherent,
        brand=BRANDS[facts.brand] if facts.brand is not None and 0 <= facts.brand < len(BRANDS) else "",
        device_nodes=(node,),
        findings=tuple(findings),
    )


def unreachable(known: Accelerator, index: int, reason: HardwareFinding) -> Accelerator:
    """The last known facts of a GPU that can't be read now, with the reason in place of older findings.

    What the driver asks for is no such fact: an old "none" would say that a reset is done.
    """
    return replace(known, index=index, recovery_action="unknown", findings=(reason,))


def from_procfs(index: int, entry: tuple[str, str, str, str]) -> Accelerator | None:
    """What procfs says about a GPU that NVML never answered for; None when it has no usable uuid."""
    bus_id, uuid, model, minor = entry
    if not uuid.startswith("GPU-") or "?" in uuid:
        return None
    number = int(minor) if minor.isdigit() else index
    return Accelerator(
        vendor=NVIDIA,
        index=index,
        uuid=uuid,
        name=model,
        minor=number,
        pci_bus_id=bus_id,
        device_nodes=(f"/dev/nvidia{number}",),
    )


def identify(
    index: int,
    answering: Iterable[str],
    known: Iterable[Accelerator],
    procfs: tuple[tuple[str, str, str, str], ...],
) -> Accelerator | None:
    """Which GPU stands at an index that doesn't answer: what was last there, else procfs in bus order (NVML's order).

    ``answering`` are the uuids that did answer, so that a shifted numbering can't blame a healthy GPU.
    """
    answered = set(answering)
    for candidate in known:
        if candidate.index == index and candidate.uuid not in answered:
            return candidate
    if index < len(procfs):
        accelerator = from_procfs(index, procfs[index])
        if accelerator is not None and accelerator.uuid not in answered:
            return accelerator
    return None


def event(raw: DriverEvent) -> HardwareEvent | None:
    """The port's event, None for a kind that the port doesn't have."""
    kind = _EVENTS.get(raw.type)
    if kind is None:
        return None
    code = raw.data if kind is EventKind.XID else 0
    return HardwareEvent(kind=kind, uuid=raw.uuid, code=code, gpu_instance=raw.gi, compute_instance=raw.ci)


def links(gpus: Mapping[int, Accelerator], answers: Mapping[int, GpuLinks | Trouble]) -> tuple[Link, ...]:
    """Levels and live NVLinks between each two of these GPUs."""
    by_bus = {gpu.pci_bus_id: index for index, gpu in gpus.items()}
    lanes: dict[tuple[int, int], int] = {}
    levels: dict[tuple[int, int], int] = {}
    for a, answer in answers.items():
        if not isinstance(answer, GpuLinks):
            continue
        for b, level in answer.levels.items():
            if level is not None:
                levels[a, b] = level
        for bus_id, count in answer.lanes.items():
            if (peer := by_bus.get(bus_id)) is not None and peer != a:
                pair = (min(a, peer), max(a, peer))
                lanes[pair] = max(lanes.get(pair, 0), count)
    known = {level.value for level in TopologyLevel}
    return tuple(
        Link(a=gpus[a].uuid, b=gpus[b].uuid, level=TopologyLevel(level), lanes=lanes.get((a, b), 0))
        for (a, b), level in sorted(levels.items())
        if a in gpus and b in gpus and a < b and level in known
    )


def readings(raw: Readings, peers: str | Trouble | None = None) -> tuple[Reading, ...]:
    """The GPU's own reading, its instances', its links'. ``peers``: how it reaches other GPUs, where asked."""
    values = {**raw.values, PEERS: peers} if isinstance(peers, str) and peers else raw.values
    whole = Reading(uuid=raw.uuid, values=values, failures=raw.failures)
    parts = (*raw.instances, *raw.links)
    return (
        whole,
        *(
            Reading(
                uuid=raw.uuid,
                values=part.values,
                failures=part.failures,
                gpu_instance=part.gpu_instance,
                link=part.link,
            )
            for part in parts
        ),
    )


def processes(raw: Processes) -> tuple[Process, ...]:
    """Who uses one GPU."""
    return tuple(
        Process(
            uuid=raw.uuid,
            pid=row.pid,
            kind=ProcessKind(row.kind),
            memory_mib=row.memory_mib,
            gpu_instance=row.gpu_instance,
            compute_instance=row.compute_instance,
            sm_percent=row.sm_percent,
            memory_percent=row.memory_percent,
            encoder_percent=row.encoder_percent,
            decoder_percent=row.decoder_percent,
        )
        for row in raw.processes
    )


def activity(raw: DeviceActivity) -> tuple[Activity, ...]:
    """The GPU's own, then its instances'."""
    processes = None if raw.processes is None else dict(raw.processes)
    return tuple(
        Activity(
            uuid=raw.uuid,
            gpu_instance=unit.gpu_instance,
            values=unit.values,
            sampled_seconds=unit.seconds,
            peak_percent=unit.peak,
            processes=processes if unit.gpu_instance is None else None,
        )
        for unit in raw.units
    )


def signature(pulse: Pulse | Trouble) -> tuple[object, ...]:
    """Differs exactly when a consumer should read the inventory again."""
    if isinstance(pulse, Pulse):
        return (pulse.uuid, pulse.mig, pulse.mig_pending, pulse.instances, pulse.recovery)
    return ("error", pulse[1])


def _partition(facts: GpuReply, mig: MigFacts, node: str) -> Partition:
    copy, decoder, encoder, jpeg, ofa = mig.engines
    caps = tuple(f"/dev/nvidia-caps/nvidia-cap{minor}" for minor in mig.caps if minor is not None)
    return Partition(
        uuid=mig.uuid,
        index=f"{facts.index}:{mig.position}",
        parent_uuid=facts.pulse.uuid,
        profile=_profile(facts, mig),
        gpu_instance=mig.gi,
        compute_instance=mig.ci,
        placement_start=mig.start,
        placement_size=mig.size,
        memory_mib=mig.memory_mib,
        multiprocessors=mig.multiprocessors,
        slices_gi=mig.slices[0],
        slices_ci=mig.slices[1],
        copy_engines=copy,
        decoders=decoder,
        encoders=encoder,
        jpeg_engines=jpeg,
        ofa_engines=ofa,
        device_nodes=(node, *caps),
    )


def _profile(facts: GpuReply, mig: MigFacts) -> str:
    if mig.gi_kind is not None and mig.ci_kind is not None and mig.gi_memory_mib is not None and facts.memory_bytes:
        try:
            return profile_name_of_kinds(
                gi_kind=mig.gi_kind,
                ci_kind=mig.ci_kind,
                memory_mib=mig.gi_memory_mib,
                total_bytes=facts.memory_bytes,
            )
        except KeyError:
            pass
    # A profile newer than the tables: the driver's own device name ends in "MIG <profile>".
    match = _MIG_NAME.search(mig.name)
    return match[1] if match else ""


def _missing_cap(uuid: str, facts: GpuReply, mig: MigFacts) -> HardwareFinding:
    what = (
        f"missing MIG GPU instance capability path: gpu{facts.minor}/gi{mig.gi}/ci{mig.ci}/access "
        "is not in /proc/driver/nvidia-caps/mig-minors"
    )
    return HardwareFinding(
        subject=uuid,
        problem=Problem.UNREADABLE,
        what=what,
        expected="a capability minor for each MIG device",
        remedy="load the nvidia-caps part of the driver (`nvidia-modprobe -f` makes its nodes), then look again",
        gpu=facts.index,
    )
