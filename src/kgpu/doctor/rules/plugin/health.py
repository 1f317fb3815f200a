"""Rows DPL about health: devices that are withdrawn wrongly, or not at all."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

from kgpu.base.remedy import Remedy
from kgpu.doctor import matching, remedies
from kgpu.doctor.host_facts import HostFacts
from kgpu.doctor.kinds import Node, Pod
from kgpu.doctor.matching import PLUGIN
from kgpu.doctor.messages import Hit
from kgpu.doctor.model import CERTAIN, LIKELY, Evidence, Finding, Level, Place, Subject
from kgpu.doctor.rule import rule
from kgpu.doctor.signs import LOG, Sign, rules_of
from kgpu.doctor.snapshot import Snapshot
from kgpu.formats import names

_OFF: Final = names.ENV_DISABLE_HEALTHCHECKS
_ALL: Final = frozenset({"all", "xids"})
_HANGS: Final = ("nvidia-device-p", "nvidia-device-plugin", "device-plugin")
# Errors of the application by NVIDIA's catalogue that the replaced plugin takes for errors of the device.
_APPLICATION: Final = frozenset({8, 11, 25, 32, 60, 69, 70, 71, 72, 94, *range(39, 42), *range(96, 106)})
_RESET: Final = frozenset({"reset-gpu", "reboot", "drain"})
_IGNORED: Final = 109
_XID_LINE: Final = re.compile(r"Xid=?:? ?\d+ on (?:Device|GPU)|XidCriticalError", re.IGNORECASE)
_REGISTERED: Final = "Registered device plugin for"
_MARKED: Final = "marked unhealthy"


def _withdrawn(node: Node) -> list[str]:
    """Resources of which a node allows fewer than it has."""
    return [
        name
        for name in sorted(node.resources())
        if matching.is_accelerator(name) and (node.allocatable(name) or 0) < (node.capacity(name) or 0)
    ]


def _plugins(snapshot: Snapshot, node: str) -> list[Pod]:
    return matching.pods_of_part(snapshot, PLUGIN, vendor=matching.NVIDIA, node=node)


@rule(
    "DPL-05",
    "Withdrawn for good",
    Place.PLUGIN,
    explains=("SCH-03", "SCH-01"),
    rests_on=(
        "NVIDIA/k8s-device-plugin#1014",
        "NVIDIA/k8s-device-plugin#234",
        "NVIDIA/k8s-device-plugin#189",
        "NVIDIA/k8s-device-plugin#111",
        "Project-HAMi/HAMi#2200",
    ),
)
def never_back(snapshot: Snapshot) -> Iterator[Finding]:
    """The replaced plugin has no way back from unhealthy; it takes a new start."""
    for node in matching.gpu_nodes(snapshot, matching.NVIDIA):
        host, gone = snapshot.hosts.get(node.name), _withdrawn(node)
        if not gone or host is None or not _all_well(host):
            continue
        for pod in _plugins(snapshot, node.name):
            line = next(
                (
                    (log, at)
                    for log in snapshot.logs_of(pod)
                    for at in range(len(log.lines) - 1, -1, -1)
                    if _MARKED in log.lines[at]
                ),
                None,
            )
            if line is None or not pod.ready:
                continue
            yield Finding(
                subject=pod.subject,
                cause=(
                    f"{pod} keeps {gone[0]} of node {node.name} withdrawn, although the driver finds all "
                    f"{len(host.gpus or ())} GPUs well: it never takes one back"
                ),
                evidence=(
                    line[0].cite(line[1]),
                    node.cite(f"status.allocatable[{gone[0]}]"),
                    host.cite("gpus", f"{len(host.gpus or ())} GPUs, none with a problem"),
                ),
                remedy=(
                    remedies.delete_pod(pod.namespace, pod.name).why("it looks at all devices anew"),
                    Remedy("kgpu's own plugin takes a GPU back by itself when it is well"),
                ),
                confidence=LIKELY,
                nodes=(node.name,),
                pods=(pod.path,),
            )


def _all_well(host: HostFacts) -> bool:
    gpus = host.gpus or ()
    bad = any(gpu.problems or gpu.lost or gpu.recovery not in ("none", "") for gpu in gpus)
    return bool(gpus) and not bad and not any(xid.action in _RESET and not xid.over for xid in host.xids)


@rule(
    "DPL-06",
    "One share of an ill GPU withdrawn",
    Place.PLUGIN,
    explains=("SCH-03",),
    rests_on=("NVIDIA/k8s-device-plugin#1929", "NVIDIA/k8s-device-plugin#1930", "Project-HAMi/HAMi#3018"),
)
def one_of_many(snapshot: Snapshot) -> Iterator[Finding]:
    """Older plugins keep one device for each physical GPU in their health map: of its shares only one goes."""
    for node in matching.gpu_nodes(snapshot, matching.NVIDIA):
        label = node.labels.get(names.LABEL_GPU_REPLICAS, "")
        replicas = int(label) if label.isdecimal() and len(label) < 6 else 1
        for name in _withdrawn(node):
            less = (node.capacity(name) or 0) - (node.allocatable(name) or 0)
            if replicas < 2 or matching.is_mig(name) or not node.allocatable(name) or less % replicas == 0:
                continue
            yield Finding(
                subject=node.subject,
                cause=(
                    f"{less} of {node.capacity(name)} {name} of node {node.name} are withdrawn, and each GPU has "
                    f"{replicas} shares: a GPU that is ill is still handed out through its other shares"
                ),
                evidence=(
                    node.cite(f"status.capacity[{name}]"),
                    node.cite(f"status.allocatable[{name}]"),
                    node.cite("metadata.labels[nvidia.com/gpu.replicas]"),
                ),
                remedy=(
                    Remedy("until the GPU is mended:"),
                    remedies.cordon(node.name),
                    Remedy("upgrade the device plugin: newer ones withdraw all shares of a GPU"),
                ),
                confidence=LIKELY,
                nodes=(node.name,),
            )


@rule(
    "DPL-08",
    "Health checks are off",
    Place.PLUGIN,
    rests_on=("NVIDIA/k8s-device-plugin#1974",),
)
def checks_off(snapshot: Snapshot) -> Iterator[Finding]:
    """DP_DISABLE_HEALTHCHECKS=all (or xids), and Xid 109 on the plugin's own list, keep GPUs on offer that need a
    reset.
    """
    for pod in matching.pods_of_part(snapshot, PLUGIN, vendor=matching.NVIDIA):
        node, host = snapshot.nodes.get(pod.node), snapshot.hosts.get(pod.node)
        off = next(
            (container for container in pod.containers if container.env.get(_OFF, "").strip().lower() in _ALL), None
        )
        if node is None or _withdrawn(node):
            continue
        bad = [
            xid
            for xid in (host.xids if host else ())
            if not xid.over and (xid.action in _RESET or xid.code == _IGNORED)
        ]
        ignored = [xid for xid in bad if xid.code == _IGNORED]
        if not (off and (bad or host is None or not host.xids)) and not ignored:
            continue
        xid = next(iter((*ignored, *bad)), None)
        main = off or next((container for container in pod.containers if not container.init), None)
        why = f"{_OFF}={off.env[_OFF]}" if off else f"Xid {_IGNORED} is on its list of errors to ignore"
        although = f", although the kernel's log has Xid {xid.code} on {xid.pci}" if xid else ""
        yield Finding(
            subject=pod.subject,
            cause=f"{pod} does not withdraw GPUs that are ill{although}: {why}",
            evidence=(
                *((matching.cite_env(pod, main, _OFF),) if main else ()),
                *((host.cite("xids", f"xid {xid.code} on {xid.pci}: {xid.text}"),) if host and xid else ()),
            ),
            remedy=(
                Remedy("take {} out of spec.devicePlugin.env of the ClusterPolicy", _OFF)
                if off
                else Remedy("set DP_ENABLE_HEALTHCHECKS=109 in spec.devicePlugin.env of the ClusterPolicy"),
                *(
                    (
                        remedies.cordon(node.name),
                        Remedy("end the pods of that GPU, then follow:"),
                        remedies.explain_xid(xid.code),
                    )
                    if xid
                    else ()
                ),
            ),
            confidence=CERTAIN if xid else LIKELY,
            level=Level.PROBLEM if xid else Level.NOTE,
            nodes=(node.name,),
        )


@rule(
    "DPL-15",
    "The plugin hangs",
    Place.DRIVER,
    explains=("SCH-02", "SCH-03", "DPL-03", "HW-12"),
    rests_on=("NVIDIA/k8s-device-plugin#301",),
)
def stuck_plugin(snapshot: Snapshot) -> Iterator[Finding]:
    """NVML waits for a GPU or its GSP that does not answer; the process is in state D."""
    for host in snapshot.hosts.values():
        hung = next(
            (
                process
                for process in host.processes or ()
                if process.state == "D" and process.name.lower().startswith(_HANGS)
            ),
            None,
        )
        if hung is None:
            continue
        xid = next((xid for xid in host.xids if xid.code in (119, 120) and not xid.over), None)
        pods = _plugins(snapshot, host.node)
        yield Finding(
            subject=pods[0].subject if pods else Subject("Node", host.node),
            cause=f"the device plugin of node {host.node} (pid {hung.pid}) hangs in the driver and answers nobody"
            + (f", since Xid {xid.code}" if xid else ""),
            evidence=(
                host.cite("processes", f"{hung.pid} {hung.name} {hung.state}"),
                *((host.cite("xids", f"xid {xid.code}: {xid.text}"),) if xid else ()),
            ),
            remedy=(
                remedies.cordon(host.node),
                Remedy("find the GPU that hangs; a process in state D ends only when the driver lets it go:"),
                remedies.ask_doctor(host.node),
            ),
            confidence=CERTAIN if xid else LIKELY,
            nodes=(host.node,),
        )


def _withdrawn_now(snapshot: Snapshot, hit: Hit) -> tuple[Evidence, ...] | None:
    """Evidence that devices of the plugin's node are withdrawn now."""
    node = snapshot.nodes.get(hit.node)
    gone = _withdrawn(node) if node else []
    return (node.cite(f"status.allocatable[{gone[0]}]"),) if node and gone else None


def _of_application(snapshot: Snapshot, hit: Hit) -> tuple[Evidence, ...] | None:
    return _withdrawn_now(snapshot, hit) if int(hit.match["xid"]) in _APPLICATION else None


_WITHDRAWS: Final = ("SCH-03", "SCH-01", "DPL-05")


@rule(
    "DPL-22",
    "Every event several times",
    Place.PLUGIN,
    rests_on=("NVIDIA/k8s-device-plugin#2052",),
)
def twice_told(snapshot: Snapshot) -> Iterator[Finding]:
    """The replaced plugin registers for the driver's events once for each resource and each new registration."""
    for pod in matching.pods_of_part(snapshot, PLUGIN, vendor=matching.NVIDIA):
        for log in snapshot.logs_of(pod):
            lines = Counter(line for line in log.lines if _XID_LINE.search(line))
            line, count = next(iter(lines.most_common(1)), ("", 0))
            if count < 2 or sum(_REGISTERED in each for each in log.lines) < 2:
                continue
            yield Finding(
                subject=pod.subject,
                cause=(
                    f"{pod} handles each event of a GPU {count} times: "
                    "it watches anew for every registration with the kubelet"
                ),
                evidence=(
                    log.cite(log.lines.index(line)),
                    log.cite(next(at for at, each in enumerate(log.lines) if _REGISTERED in each)),
                ),
                remedy=(
                    Remedy("upgrade the device plugin; kgpu's has one watcher for each node"),
                    remedies.delete_pod(pod.namespace, pod.name),
                ),
                confidence=LIKELY,
                level=Level.NOTE,
                nodes=(pod.node,) if pod.node else (),
                pods=(pod.path,),
            )
            break


RULES: Final = rules_of(
    Sign(
        id="DPL-07",
        title="Withdrawn for an application's error",
        place=Place.PLUGIN,
        where=(LOG,),
        parts=(PLUGIN,),
        always=True,
        pattern=r"XidCriticalError: Xid=(?P<xid>\d{1,4})\b",
        words="XidCriticalError",
        proof=_of_application,
        cause="{who} has withdrawn a GPU for Xid {xid}, which is the application's error: the GPU is well",
        remedy=(
            "set DP_DISABLE_HEALTHCHECKS={xid} in spec.devicePlugin.env of the ClusterPolicy",
            remedies.DELETE_POD + "  # takes the GPU back",
            remedies.XID,
        ),
        explain=(
            "NVIDIA's catalogue says to restart the application for these Xids (94 among them); "
            "the plugin's list of errors to ignore lacks them."
        ),
        confidence=CERTAIN,
        explains=_WITHDRAWS,
        rests_on=("NVIDIA/k8s-device-plugin#1974",),
    ),
    Sign(
        id="DPL-09",
        title="All GPUs withdrawn at once",
        place=Place.PLUGIN,
        where=(LOG,),
        parts=(PLUGIN,),
        always=True,
        pattern=r"Error waiting for event: (?P<said>[^;]+); [Mm]arking all devices as unhealthy",
        words="Error waiting for event",
        proof=_withdrawn_now,
        cause=(
            "{who} has withdrawn every GPU of its node, because waiting for the driver's events failed ({said}): the "
            "driver was reloaded, or a GPU was lost"
        ),
        remedy=(
            "see what happened to the driver then, on node {node}:",
            "journalctl -k | grep NVRM",
            "when the driver is well:",
            remedies.DELETE_POD,
        ),
        explain="When NVML's event call fails the plugin marks all devices, and does not look again.",
        confidence=CERTAIN,
        explains=(*_WITHDRAWS, "DPL-03"),
        rests_on=("NVIDIA/k8s-device-plugin v0.20.0, source",),
    ),
)
