"""Rows HW that readings, the bus and processes show: row remapping, slowed clocks, links, switches, debug variables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from kgpu.base.remedy import Remedy
from kgpu.doctor import matching, remedies
from kgpu.doctor.acts import is_outdated
from kgpu.doctor.agent_reports import UnwellGpu, as_told, is_over, is_well_now, told
from kgpu.doctor.host_facts import Gpu, HostFacts
from kgpu.doctor.model import CERTAIN, LIKELY, POSSIBLE, Evidence, Finding, Level, Place, Subject
from kgpu.doctor.rule import rule
from kgpu.doctor.rules.hardware.errors import CONTAINED, RESTART_PROGRAM
from kgpu.doctor.rules.kernel.devices import gpus_of
from kgpu.doctor.secrets import HIDDEN
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.vendor_gpus import hot, is_of_nvidia, troubled
from kgpu.formats.names import LABEL_GPU_PRODUCT
from kgpu.hw.port import Problem

_ABOVE: Final = ("SCH-03", "DPL-*")
HUNG: Final = "driver:hung"
WAITS: Final = "remapped-rows:pending"
"""What kgpu's agent calls it that a bad row of memory waits to be replaced."""
_FATAL: Final = frozenset({48, 95})
"""Xids of memory errors that are not contained in one program."""
_FLOOD: Final = 10
_FALSE: Final = (
    (
        re.compile(r"nvlink", re.IGNORECASE),
        re.compile(r"PCIe|\b(?:T4|L4|L40S?|L20|L2|A2|A10G?|A16|A40|P4|P40|RTX)\b", re.IGNORECASE),
        "the card is one for PCIe slots, whose NVLinks are none or not connected",
    ),
    (
        re.compile(r"SW[ _]?Power[ _]?Cap|software power cap", re.IGNORECASE),
        re.compile(""),
        "the software's power cap is how a busy GPU works, and no fault",
    ),
    (re.compile(r"\bISSM\b", re.IGNORECASE), re.compile(""), "ISSM changes of a network adapter say nothing of GPUs"),
)
"""A watcher's condition, the products for which it means nothing, and why."""
_BUSY: Final = 50.0


def _readings(snapshot: Snapshot) -> Iterator[tuple[HostFacts, Gpu]]:
    for host in snapshot.hosts.values():
        for gpu in host.gpus or ():
            yield host, gpu


def _ill(snapshot: Snapshot) -> Iterator[tuple[HostFacts, Gpu]]:
    """GPUs with their hosts, without those that an agent has found well, or kgpu has reset, since they were read."""
    return (
        (host, gpu)
        for host, gpu in _readings(snapshot)
        if not is_well_now(snapshot, host, gpu.uuid) and not is_outdated(snapshot, host, gpu.uuid)
    )


def number(gpu: Gpu, name: str) -> float | None:
    """A reading as a number, None where there is none."""
    reading = gpu.readings.get(name)
    return reading if isinstance(reading, float | int) else None


def _about(
    host: HostFacts,
    gpu: Gpu,
    cause: str,
    *names: str,
    remedy: tuple[Remedy, ...],
    confidence: float = CERTAIN,
    level: Level = Level.PROBLEM,
) -> Finding:
    shown = ", ".join(f"{name} {gpu.readings[name]}" for name in names if name in gpu.readings)
    return Finding(
        subject=Subject("Node", host.node),
        cause=f"GPU {gpu.index} ({gpu.uuid}) of node {host.node} {cause}",
        evidence=(host.cite("gpus", f"GPU {gpu.index}: {shown}"),),
        remedy=remedy,
        confidence=confidence,
        level=level,
        nodes=(host.node,),
        gpus=(gpu.uuid,),
    )  # fmt: skip


@rule(
    "HW-03",
    "Bad memory that can't be remapped",
    Place.HARDWARE,
    explains=(*_ABOVE, "HW-02", "HW-04"),
    rests_on=("leptonai/gpud 4a8de33, source",),
)
def remap_failed(snapshot: Snapshot) -> Iterator[Finding]:
    """The GPU has used up its spare rows: Remapping Failure Occurred. Replace it."""
    for host, gpu in _ill(snapshot):
        if number(gpu, "remapped_rows_failure") or number(gpu, "memory_unrepairable"):
            yield _about(
                host,
                gpu,
                "has bad memory rows and could not remap them: it must be replaced",
                "remapped_rows_failure",
                "remapped_rows_uncorrectable",
                "memory_unrepairable",
                remedy=(
                    remedies.cordon(host.node),
                    Remedy("nvidia-smi -q -d ROW_REMAPPER -i {}", gpu.index),
                    Remedy("have the card replaced (RMA)"),
                ),
            )


def _has_met(snapshot: Snapshot, host: HostFacts, gpu: Gpu, codes: frozenset[int]) -> bool:
    """Whether one of these Xids of a GPU still counts, whoever tells of it."""
    logged = any(
        xid.kind == "xid" and xid.code in codes and xid.pci and gpu.pci.startswith(xid.pci)
        and not is_over(snapshot, host, xid)
        for xid in host.xids
    )  # fmt: skip
    return logged or any(
        unwell.node.name == host.node and unwell.is_gpu(gpu.uuid) and codes.intersection(unwell.xids)
        for unwell in told(snapshot)
    )


@rule(
    "HW-04",
    "A remapping of memory waits for a reset",
    Place.HARDWARE,
    explains=(*_ABOVE, "HW-02"),
    rests_on=("leptonai/gpud 4a8de33, source",),
)
def remap_pending(snapshot: Snapshot) -> Iterator[Finding]:
    """After an uncorrectable error the row is exchanged at the next reset of the GPU. With Xid 94 beside it the error
    has hurt one program, which is to be started again.
    """
    reported_nodes = set()
    for host, gpu in _ill(snapshot):
        if number(gpu, "remapped_rows_failure") or not (
            number(gpu, "remapped_rows_pending") or number(gpu, "retired_pages_pending")
        ):
            continue
        if _has_met(snapshot, host, gpu, _FATAL):
            continue  # the memory itself is the finding (HW-02), and the row only follows
        program = (RESTART_PROGRAM,) if _has_met(snapshot, host, gpu, frozenset({CONTAINED})) else ()
        reported_nodes.add(host.node)
        yield _about(
            host,
            gpu,
            "has bad memory rows that are remapped at its next reset",
            "remapped_rows_pending",
            "retired_pages_pending",
            "remapped_rows_uncorrectable",
            remedy=(
                *program,
                remedies.cordon(host.node),
                Remedy("when the pods on that GPU have ended:"),
                Remedy("nvidia-smi -r -i {}", gpu.index),
                remedies.uncordon(host.node),
            ),
        )
    for unwell in told(snapshot):
        if WAITS in unwell.facts and unwell.node.name not in reported_nodes and not _FATAL.intersection(unwell.xids):
            waits = as_told(
                unwell,
                f"a bad row of the memory of {unwell.gpu} of node {unwell.node.name} waits for a reset to be replaced",
            )
            program = (RESTART_PROGRAM,) if CONTAINED in unwell.xids else ()
            yield replace(waits, remedy=(*program, *waits.remedy))


_SLOW: Final = (
    (0x40, "its temperature", Remedy("check fans, air flow and room temperature")),
    (0x80, "the power brake", Remedy("check the power supplies and the rack's power limit")),
    (0x8, "its hardware (temperature or power)", Remedy("check cooling and power supplies")),
)
"""Bits of the clock event reasons that are faults. Idle (0x1) and the software's power cap (0x4) are none."""


@rule(
    "HW-05",
    "Clocks are held back by the hardware",
    Place.HARDWARE,
    rests_on=("leptonai/gpud 4a8de33, source",),
)
def slowed(snapshot: Snapshot) -> Iterator[Finding]:
    """Bits 0x8, 0x40 and 0x80 of the clock event reasons. Idle clocks and the software power cap are no faults.
    Of AMD's GPUs and Gaudi it is a temperature that their driver calls critical, or slows them down at.
    """
    yield from hot(snapshot)
    for host, gpu in _ill(snapshot):
        mask = int(number(gpu, "clock_event_reasons") or 0)
        row = next(((why, remedy) for bit, why, remedy in _SLOW if mask & bit), None)
        if row is None:
            continue
        yield _about(
            host, gpu, f"runs slower than it could: its clocks are held back by {row[0]}",
            "clock_event_reasons", "temperature_c", "temperature_margin_c", "power_w", "sm_clock_mhz",
            remedy=(Remedy("nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER -i {}", gpu.index), row[1]),
        )  # fmt: skip


@rule(
    "HW-10",
    "A PCIe link with too few lanes",
    Place.HARDWARE,
    rests_on=("leptonai/gpud 4a8de33, source",),
)
def narrow_link(snapshot: Snapshot) -> Iterator[Finding]:
    """The width does not change with the load; fewer lanes than possible come from a slot, a riser or a bad seat."""
    # A PCIe link with fewer lanes than it could have; slower counts under load alone, idle links slow down.
    for host, gpu in _ill(snapshot):
        width, widest = number(gpu, "pcie_width"), number(gpu, "pcie_max_width")
        speed, fastest = number(gpu, "pcie_generation"), number(gpu, "pcie_max_generation")
        loaded = (number(gpu, "utilization_percent") or 0) >= _BUSY
        if width and widest and width < widest:
            yield _about(
                host,
                gpu,
                f"has a PCIe link of {width:.0f} lanes, and could have {widest:.0f}",
                "pcie_width",
                "pcie_max_width",
                remedy=_reseat(gpu),
                confidence=LIKELY,
            )
        elif speed and fastest and speed < fastest and loaded:
            yield _about(
                host,
                gpu,
                f"has a PCIe link of generation {speed:.0f} under load, and could have {fastest:.0f}",
                "pcie_generation",
                "pcie_max_generation",
                "utilization_percent",
                remedy=_reseat(gpu),
                confidence=LIKELY,
            )
    for host in snapshot.hosts.values():
        if any("pcie_width" in gpu.readings for gpu in host.gpus or ()) or host.hypervisor:
            continue
        for device in gpus_of(host):
            if device.link_width and device.link_width_max and device.link_width < device.link_width_max:
                yield Finding(
                    subject=Subject("Node", host.node),
                    cause=(
                        f"the GPU at {device.address} of node {host.node} has a PCIe link of {device.link_width} "
                        f"lanes, and could have {device.link_width_max}"
                    ),
                    evidence=(
                        host.cite(
                            "pci",
                            (
                                f"{device.address}: current_link_width {device.link_width}, max_link_width "
                                f"{device.link_width_max}"
                            ),
                        ),
                    ),
                    remedy=_RESEAT,
                    confidence=LIKELY,
                    nodes=(host.node,),
                )


_RESEAT: Final = (
    Remedy(
        "nvidia-smi --query-gpu=pci.bus_id,pcie.link.width.current,pcie.link.width.max,pcie.link.gen.current "
        "--format=csv"
    ),
    Remedy("reseat the card or its riser; some slots have fewer lanes by design"),
)


def _reseat(gpu: Gpu) -> tuple[Remedy, ...]:
    return _RESEAT if is_of_nvidia(gpu) else (Remedy("lspci -vv -s {} | grep LnkSta", gpu.pci), _RESEAT[1])


@rule(
    "HW-11",
    "An NVSwitch has an error",
    Place.HARDWARE,
    explains=("HW-06", "DRV-16", *_ABOVE),
    rests_on=("leptonai/gpud 4a8de33, source",),
)
def switch_errors(snapshot: Snapshot) -> Iterator[Finding]:
    """SXid lines of the kernel's log; the table says which are fatal."""
    for host in snapshot.hosts.values():
        for xid in host.xids:
            if xid.kind != "sxid" or xid.over or xid.action in ("", "ignore", "none"):
                continue
            yield Finding(
                subject=Subject("Node", host.node),
                cause=(
                    f"NVSwitch {xid.pci} of node {host.node} has an error (SXid "
                    f"{xid.code}{': ' + xid.what if xid.what else ''})"
                ),
                evidence=(host.cite("xids", f"sxid {xid.code} on {xid.pci}, {xid.count} times: {xid.text}"),),
                remedy=(
                    *(
                        (Remedy(xid.advice),)
                        if xid.advice
                        else (remedies.cordon(host.node), Remedy("then as the table says:"))
                    ),
                    Remedy("kgpu xid {} --sxid", xid.code),
                ),
                confidence=CERTAIN,
                since=xid.first,
                nodes=(host.node,),
            )


_HUNG: Final = re.compile(r"task (?P<task>[\w.:/-]+):(?P<pid>\d+) blocked for more than")


def is_hung(unwell: UnwellGpu) -> bool:
    """Whether the driver does not answer about a GPU."""
    return HUNG in unwell.facts


@rule(
    "HW-12",
    "Processes hang in the driver",
    Place.HARDWARE,
    explains=(*_ABOVE, "MET-*"),
    rests_on=("leptonai/gpud 4a8de33, source",),
)
def hanging(snapshot: Snapshot) -> Iterator[Finding]:
    """State D of nvidia's processes, with the kernel's own words about it: only a reboot ends them. A GPU of another
    vendor hangs where the files of its driver do not answer.
    """
    yield from troubled(snapshot, Problem.HUNG)
    for unwell in told(snapshot):
        if not unwell.works and is_hung(unwell):
            yield as_told(unwell, f"{unwell.gpu} of node {unwell.node.name} hangs: {unwell.said(HUNG)}", drain=True)
    for host in snapshot.hosts.values():
        stuck = [
            process
            for process in host.processes or ()
            if process.state == "D" and process.name.lower().startswith(("nvidia", "nv-", "dcgm"))
        ]
        blocked_at = {
            int(hit["pid"]): at
            for at, line in enumerate(host.kernel_log or ())
            if "blocked for more" in line and (hit := _HUNG.search(line))
        }
        proven = [process for process in stuck if process.pid in blocked_at]
        if not stuck:
            continue
        lines = tuple(host.cite_log(blocked_at[process.pid]) for process in proven[:2])
        yield Finding(
            subject=Subject("Node", host.node),
            cause=(
                f"{', '.join(f'{process.name} ({process.pid})' for process in stuck[:4])} on node {host.node} hang in "
                "the driver and can't be ended"
            ),
            evidence=(
                host.cite(
                    "processes", ", ".join(f"{process.pid} {process.name} {process.state}" for process in stuck[:4])
                ),
                *lines,
            ),
            remedy=(
                Remedy("on the node:"),
                Remedy("dmesg | grep -E 'NVRM|blocked for'"),
                *remedies.reboot(host.node),
            ),
            confidence=CERTAIN if proven else POSSIBLE,
            nodes=(host.node,),
        )


@rule(
    "HW-13",
    "Persistence mode is off",
    Place.HARDWARE,
    rests_on=("leptonai/gpud 4a8de33, source",),
)
def not_persistent(snapshot: Snapshot) -> Iterator[Finding]:
    """Without it the driver starts the GPU anew for each first program."""
    for host, gpu in _readings(snapshot):
        held = any("nvidia-persistenced" in unit for unit in host.units or ())
        if (
            number(gpu, "persistence_mode") == 0
            and not held
            and not host.present.get("/run/nvidia-persistenced/socket")
        ):
            yield _about(
                host,
                gpu,
                "has persistence mode off: the first CUDA call of each program takes seconds",
                "persistence_mode",
                remedy=(
                    Remedy("systemctl enable --now nvidia-persistenced"),
                    Remedy("or until the next boot:"),
                    Remedy("nvidia-smi -pm 1"),
                ),
                level=Level.NOTE,
            )


@rule(
    "HW-15",
    "Many messages that call for nothing",
    Place.HARDWARE,
    rests_on=("leptonai/gpud 4a8de33, source",),
)
def flood(snapshot: Snapshot) -> Iterator[Finding]:
    """Xids that the catalogue says to ignore; count them, do not page anybody."""
    for host in snapshot.hosts.values():
        for xid in host.xids:
            if xid.kind == "xid" and xid.action == "ignore" and not xid.over and xid.count >= _FLOOD:
                yield Finding(
                    subject=Subject("Node", host.node),
                    cause=(
                        f"GPU {xid.pci} of node {host.node} has said Xid {xid.code} {xid.count} times, "
                        "which calls for nothing"
                    ),
                    evidence=(host.cite("xids", f"xid {xid.code} on {xid.pci}, {xid.count} times: {xid.text}"),),
                    remedy=(Remedy("none; leave it out of alerts. kgpu xid {}", xid.code),),
                    confidence=CERTAIN,
                    level=Level.NOTE,
                    since=xid.first,
                    nodes=(host.node,),
                )


_DEBUG: Final = re.compile(
    r"CUDA_PROFILE|COMPUTE_PROFILE|OPENCL_PROFILE|CUDA_INJECTION(?:32|64)_PATH|CUDA_DEBUGGER_\w+|CUDA_LAUNCH_BLOCKING"
)
_OFF: Final = frozenset({"", "0", HIDDEN})


@rule(
    "HW-17",
    "Debugging variables were left in",
    Place.CLUSTER,
    rests_on=("leptonai/gpud 4a8de33, source",),
)
def debugging(snapshot: Snapshot) -> Iterator[Finding]:
    """Profilers and injected libraries cost time on every launch of a kernel."""
    for pod in snapshot.pods.values():
        if (
            pod.ended
            or not any("env" in container for container in pod.maps("spec.containers"))
            or not matching.uses_accelerators(pod)
        ):
            continue
        variables: list[Evidence] = []
        for container in pod.containers:
            variables += [
                matching.cite_env(pod, container, name)
                for name, value in container.env.items()
                if _DEBUG.fullmatch(name) and value not in _OFF
            ]
        if variables:
            yield Finding(
                subject=pod.subject,
                cause=f"{pod} runs with variables that are for debugging and make CUDA programs slow",
                evidence=tuple(variables[:4]),
                remedy=(Remedy("take them out of the manifest of {}", pod.owner or pod),),
                confidence=LIKELY,
                level=Level.NOTE,
                nodes=(pod.node,) if pod.node else (),
                pods=(pod.path,),
            )  # fmt: skip


@rule(
    "HW-16",
    "A false alarm",
    Place.HARDWARE,
    explains=("NODE-00", "SCH-12"),
    rests_on=("NVIDIA/NVSentinel#1481", "NVIDIA/NVSentinel#1663", "NVIDIA/NVSentinel#1447"),
)
def false_alarm(snapshot: Snapshot) -> Iterator[Finding]:
    """Watchers report NVLinks that PCIe cards do not have, and the software power cap, which is no fault."""
    for node in matching.gpu_nodes(snapshot, matching.NVIDIA):
        product = node.labels.get(LABEL_GPU_PRODUCT, "")
        for condition in node.conditions():
            if condition.status != "True" or condition.type.endswith("Ready"):
                continue
            description = f"{condition.type} {condition.reason} {condition.message}"
            why = next(
                (why for pattern, cards, why in _FALSE if pattern.search(description) and cards.search(product)), ""
            )
            if why:
                yield Finding(
                    subject=node.subject,
                    cause=(
                        f"the condition {condition.type} of node {node.name} ({product or 'no product known'}) "
                        f"is a false alarm: {why}"
                    ),
                    evidence=(condition.cite(), node.cite(f"metadata.labels[{LABEL_GPU_PRODUCT}]")),
                    remedy=(
                        Remedy("switch that check off for such nodes, or upgrade the watcher"),
                        Remedy("if it has cordoned the node:"),
                        remedies.uncordon(node.name),
                    ),
                    confidence=LIKELY,
                    nodes=(node.name,),
                )
