"""Rows HW: what the kernel's log, the driver and the bus say of the devices themselves.

What an Xid calls for comes with the facts (the catalogue of ``kgpu xid``): no rule here recommends a reset or a reboot
for what is an application's error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from kgpu.base.remedy import Remedy
from kgpu.base.times import stamp_of
from kgpu.doctor import remedies
from kgpu.doctor.acts import is_outdated, is_xid_outdated
from kgpu.doctor.agent_reports import UnwellGpu, as_told, is_of, is_over, is_watched, is_well, told, unread
from kgpu.doctor.host_facts import HostFacts, Xid
from kgpu.doctor.model import CERTAIN, LIKELY, POSSIBLE, Evidence, Finding, Level, Place, Subject
from kgpu.doctor.rule import rule
from kgpu.doctor.rules.kernel.devices import gpus_of
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.vendor_gpus import is_of_nvidia, troubled, unlisted
from kgpu.hw.port import Problem

_LOST: Final = 79
_ECC: Final = frozenset({48, 63, 64, 94, 95})
CONTAINED: Final = 94
"""The Xid of a memory error that has hurt one program and nothing else."""
_UNCONTAINED: Final = frozenset({64, 95})
RESTART_PROGRAM: Final = Remedy(
    "restart the program that used the GPU; no reset, no drain: other programs are not hurt"
)
_NVLINK: Final = frozenset({74, *range(144, 151)})
_GSP: Final = frozenset({119, 120})
_APPLICATION: Final = frozenset({13, 31, 43, 45})
KNOWN: Final = frozenset({_LOST, *_ECC - {63}, *_NVLINK, *_GSP, *_APPLICATION})
"""The numbers of which a rule here tells."""
_NOTHING: Final = frozenset({"", "ignore", "none"})
_BEFORE: Final = "; that is from before: now the driver can't be read at all"
_ABOVE: Final = ("SCH-03", "DPL-*", "MET-15")
"""Pods that wait are a consequence of SCH-03, where it is proven that they would fit with the GPU back."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """An Xid, as the kernel's log of the node shows it or as the agent reports it.

    ``but``: what suggests that it is over, "" for nothing; ``sure``: how sure it is that it still counts.
    """

    node: str
    gpu: str
    xid: Xid
    evidence: tuple[Evidence, ...]
    sure: float = CERTAIN
    but: str = ""


def _finding(error: _Seen, cause: str, *, reboot: bool = False) -> Finding:
    drain = (remedies.drain(error.node),) if reboot else ()
    return Finding(
        subject=Subject("Node", error.node),
        cause=cause + error.but,
        evidence=error.evidence,
        remedy=(
            *drain,
            Remedy(error.xid.advice) if error.xid.advice else Remedy("see what the table says:"),
            remedies.explain_xid(error.xid.code),
        ),
        confidence=error.sure,
        since=error.xid.first,
        nodes=(error.node,),
    )


def _line(host: HostFacts, xid: Xid) -> Evidence:
    """The line in the kernel's log where that was read, else the Xid as parsed."""
    position = host.line_of(xid)
    if position >= 0:
        return host.cite_log(position)
    times = f", {xid.count} times" if xid.count > 1 else ""
    return host.cite("xids", f"{xid.kind} {xid.code} on {xid.pci}{times}: {xid.text}")


def _since(host: HostFacts, xid: Xid) -> str:
    """When it was first logged, as a time of day; a kernel timestamp, which counts from the boot, is not one."""
    at = host.said_at(host.line_of(xid, first=True))
    if at is not None:
        return stamp_of(at)
    return xid.first if any(map(str.isalpha, xid.first)) else ""


def _sureness(snapshot: Snapshot, host: HostFacts, xid: Xid) -> tuple[float, str, tuple[Evidence, ...]]:
    """How sure it is that a log line still counts, what suggests otherwise in words, and the evidence for that."""
    later = host.loaded_after(host.line_of(xid))
    if later >= 0:
        return POSSIBLE, "; but the driver was loaded anew after that", (host.cite_log(later),)
    gone = unread(snapshot).get(host.node)
    if gone is not None and gone.absent:
        return POSSIBLE, _BEFORE, gone.evidence
    if host.told_by and not is_watched(snapshot, host.node):
        return LIKELY, "", ()
    return CERTAIN, "", ()


def _open(snapshot: Snapshot) -> Iterator[_Seen]:
    """The Xids that still count: from the nodes' kernel logs, then those that only the agents report."""
    known: set[tuple[UnwellGpu, int]] = set()
    for host in snapshot.hosts.values():
        for xid in host.xids:
            if is_xid_outdated(snapshot, host, xid):
                continue
            if xid.kind == "xid" and not xid.over and not is_over(snapshot, host, xid):
                same = [
                    unwell for unwell in told(snapshot) if unwell.node.name == host.node and is_of(unwell, host, xid)
                ]
                known |= {(unwell, xid.code) for unwell in same}
                began = _since(host, xid) or next((unwell.since for unwell in same), "")
                sure, but, more = _sureness(snapshot, host, xid)
                timed = msgspec.structs.replace(xid, first=began)
                yield _Seen(host.node, f"GPU {xid.pci}", timed, (_line(host, xid), *more), sure, but)
    for unwell in told(snapshot):
        for code in unwell.xids:
            if (unwell, code) not in known:
                # The verdict's remedy belongs to its first Xid, which decided it.
                action = "" if code in _APPLICATION else "told"
                xid = Xid(
                    code=code, action=action, first=unwell.since, advice=unwell.remedy if code == unwell.xids[0] else ""
                )
                but = _BEFORE if unwell.sure < LIKELY else ""
                yield _Seen(unwell.node.name, unwell.gpu, xid, unwell.evidence, unwell.sure, but)


def is_lost(unwell: UnwellGpu) -> bool:
    """Whether the driver says that it can't reach a GPU."""
    return "driver:lost" in unwell.facts


@rule(
    "HW-01",
    "A GPU has fallen off the bus",
    Place.HARDWARE,
    explains=(*_ABOVE, "HW-09"),
    rests_on=("leptonai/gpud 4a8de33, source",),
)
def lost(snapshot: Snapshot) -> Iterator[Finding]:
    """Xid 79, or a configuration space that reads as ones: power, heat, the PCIe link or a riser.
    Cordon, drain, reboot; more than three times in a month on one node: replace the card.
    """
    numbered: Counter[str] = Counter()
    for error in _open(snapshot):
        if error.xid.code == _LOST:
            numbered[error.node] += 1
            yield _finding(error, f"{error.gpu} of node {error.node} has fallen off the bus (Xid 79)", reboot=True)
    for host in snapshot.hosts.values():
        for gpu in host.gpus or ():
            if gpu.lost and is_of_nvidia(gpu) and not numbered[host.node] and not host.told_by:
                yield Finding(
                    subject=Subject("Node", host.node),
                    cause=f"GPU {gpu.pci or gpu.index} of node {host.node} can't be reached by its driver: {gpu.lost}",
                    evidence=(host.cite("gpus", f"GPU {gpu.pci or gpu.index}: lost: {gpu.lost}"),),
                    remedy=(
                        Remedy("see on node {} which error it was:", host.node),
                        Remedy("dmesg | grep -E 'Xid|NVRM'"),
                        Remedy("what it means, with its number in place of NUMBER:"),
                        Remedy("kgpu xid NUMBER"),
                        *remedies.reboot(host.node, "reseat the card if it comes back"),
                    ),
                    confidence=LIKELY,
                    nodes=(host.node,),
                )
    yield from troubled(snapshot, Problem.LOST)
    silent = sorted(
        (unwell for unwell in told(snapshot) if is_lost(unwell) and not unwell.works),
        key=lambda unwell: _LOST not in unwell.xids,
    )
    for unwell in silent:
        # GPUs with an Xid 79 are reported above, whether or not the agent still names it.
        numbered[unwell.node.name] -= 1
        if numbered[unwell.node.name] < 0 and _LOST not in unwell.xids:
            yield as_told(
                unwell,
                f"{unwell.gpu} of node {unwell.node.name} has fallen off the bus: the driver says that it is lost",
                drain=True,
            )


@rule(
    "HW-02",
    "The GPU's memory has errors",
    Place.HARDWARE,
    explains=_ABOVE,
    rests_on=("leptonai/gpud 4a8de33, source", "NVIDIA Xid catalogue"),
)
def memory_errors(snapshot: Snapshot) -> Iterator[Finding]:
    """Xid 48 with 63 or 64, 94 (contained: restart the program) or 95 (uncontained: reset the GPU)."""
    # Errors of the GPU's memory; the strongest of the codes on one device decides.
    by_device: dict[tuple[str, str], list[_Seen]] = {}
    for error in _open(snapshot):
        if error.xid.code in _ECC:
            by_device.setdefault((error.node, error.gpu), []).append(error)
    for rows in by_device.values():
        codes = sorted({error.xid.code for error in rows})
        if codes == [63]:
            continue
        worst = max(rows, key=lambda row: (row.xid.code in _UNCONTAINED, row.xid.code))
        finding = _finding(
            worst, f"the memory of {worst.gpu} of node {worst.node} has errors (Xid {', '.join(map(str, codes))})"
        )
        if CONTAINED in codes and _UNCONTAINED.isdisjoint(codes):
            # What the GPU itself needs, such as a reset when it is idle, says nothing of the program.
            finding = replace(finding, remedy=tuple(dict.fromkeys((RESTART_PROGRAM, *finding.remedy))))
        yield finding


@rule(
    "HW-06",
    "An NVLink has failed",
    Place.HARDWARE,
    explains=_ABOVE,
    rests_on=("leptonai/gpud 4a8de33, source", "NVIDIA/NVSentinel#1481"),
)
def link_errors(snapshot: Snapshot) -> Iterator[Finding]:
    """Xid 74 and 144 to 150; the text of the line decides what to do."""
    for seen in _open(snapshot):
        if seen.xid.code in _NVLINK and seen.xid.action not in _NOTHING:
            yield _finding(seen, f"an NVLink of {seen.gpu} of node {seen.node} has failed (Xid {seen.xid.code})")


@rule(
    "HW-07",
    "The GPU's firmware does not answer",
    Place.HARDWARE,
    explains=_ABOVE,
    rests_on=("leptonai/gpud 4a8de33, source",),
)
def firmware(snapshot: Snapshot) -> Iterator[Finding]:
    """Xid 119 or 120: nvidia-smi hangs too. Drain and reset the GPU; a newer driver often helps."""
    for seen in _open(snapshot):
        if seen.xid.code in _GSP:
            yield _finding(
                seen, f"the firmware of {seen.gpu} of node {seen.node} does not answer (Xid {seen.xid.code})"
            )


@rule(
    "HW-08",
    "An application's error",
    Place.HARDWARE,
    rests_on=("leptonai/gpud 4a8de33, source", "NVIDIA/k8s-device-plugin v0.20.0, source"),
)
def application(snapshot: Snapshot) -> Iterator[Finding]:
    """Xid 13, 31, 43 and 45 say what a program did. No reset and no reboot."""
    for error in _open(snapshot):
        if error.xid.code not in _APPLICATION:
            continue
        who = f", process {error.xid.process}" if error.xid.process else ""
        yield Finding(
            subject=Subject("Node", error.node),
            cause=(
                f"a program on {error.gpu} of node {error.node} has made an error (Xid {error.xid.code}{who}); "
                "the GPU is well"
            ),
            evidence=error.evidence,
            remedy=(
                Remedy("give it to whoever runs the program; no reset, no drain"),
                remedies.explain_xid(error.xid.code),
            ),
            confidence=LIKELY,
            level=Level.NOTE,
            since=error.xid.first,
            nodes=(error.node,),
        )


@rule(
    "HW-09",
    "Fewer GPUs than the machine has",
    Place.HARDWARE,
    explains=_ABOVE,
    rests_on=("leptonai/gpud 4a8de33, source",),
)
def missing_gpu(snapshot: Snapshot) -> Iterator[Finding]:
    """One card is on the bus and the driver does not show it."""
    yield from unlisted(snapshot)
    for host in snapshot.hosts.values():
        if host.gpus is None or host.pci is None or not host.gpus or is_outdated(snapshot, host):
            continue
        on_bus = {device.address.lower() for device in gpus_of(host)}
        shown = {gpu.pci.lower() for gpu in host.gpus if gpu.pci and is_of_nvidia(gpu)}
        gone = sorted(on_bus - shown)
        if not shown or not gone or not shown <= on_bus:
            continue
        yield Finding(
            subject=Subject("Node", host.node),
            cause=(
                f"node {host.node} has {len(on_bus)} GPUs on its bus, and the driver shows {len(shown)}: "
                f"{', '.join(gone)} is missing"
            ),
            evidence=(host.cite("pci", ", ".join(sorted(on_bus))), host.cite("gpus", ", ".join(sorted(shown)))),
            remedy=(
                Remedy("dmesg | grep -i {}", gone[0]),
                *remedies.reboot(host.node, "reseat the card if it stays away"),
            ),
            confidence=CERTAIN,
            nodes=(host.node,),
        )


@rule(
    "HW-14",
    "The driver asks for an action",
    Place.HARDWARE,
    explains=_ABOVE,
    rests_on=("leptonai/gpud 4a8de33, source", "NVIDIA Xid catalogue"),
)
def verdict(snapshot: Snapshot) -> Iterator[Finding]:
    """The driver's own verdict (Xid 154, NVML recovery action) comes before any table. Of other vendors' GPUs it
    is what their files say: uncorrectable memory errors since the driver was loaded, or a state that is not
    operational.
    """
    yield from troubled(snapshot, Problem.NEEDS_RESET)
    for host in snapshot.hosts.values():
        for gpu in () if is_well(snapshot, host) else host.gpus or ():
            if is_outdated(snapshot, host, gpu.uuid) or not is_of_nvidia(gpu):
                continue
            if gpu.recovery in ("none", "unknown", "") or any(
                unwell.is_gpu(gpu.uuid) for unwell in told(snapshot) if unwell.node.name == host.node
            ):  # the agent says it too, with its reasons: HW-00, or the row of the Xid behind it
                continue
            yield Finding(
                subject=Subject("Node", host.node),
                cause=f"the driver asks for {gpu.recovery} of GPU {gpu.index} ({gpu.uuid}) of node {host.node}",
                evidence=(host.cite("gpus", f"GPU {gpu.index}: recovery action {gpu.recovery}"),),
                remedy=_RECOVERY.get(gpu.recovery, (Remedy("do as it says: {}", gpu.recovery),)),
                confidence=CERTAIN,
                nodes=(host.node,),
            )


_RESET: Final = (
    Remedy("let the pods on that GPU end, then with its number in place of GPU:"),
    Remedy("nvidia-smi -r -i GPU"),
)
_RECOVERY: Final = {
    "reset": _RESET,
    "reboot": (Remedy("drain the node, then reboot it"),),
    "drain": (Remedy("let the programs that use NVLink between GPUs end, then look again"),),
    "drain-reset": _RESET,
    "imex": (Remedy("look at nvidia-imex on all nodes of its domain"),),
}
