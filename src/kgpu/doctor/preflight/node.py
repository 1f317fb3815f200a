"""Checks of the rest of a node: its disk, and who offers its GPUs already."""

from __future__ import annotations

from typing import Final

from kgpu.base.remedy import Remedy
from kgpu.doctor import matching
from kgpu.doctor.host_facts import DiskSpace
from kgpu.doctor.kinds import Pod
from kgpu.doctor.matching import PLUGIN
from kgpu.doctor.model import CERTAIN, LIKELY, Finding, Missing, Subject
from kgpu.doctor.preflight.model import PROBE, Answer, NodePreflight, NodeScene
from kgpu.doctor.preflight.operators import of_kgpu

ROOM: Final = 4 << 30
"""Bytes that the images of a driver and of kgpu take once they are unpacked: an estimate on the safe side."""
KEPT_FREE: Final = 0.10
"""The kubelet evicts pods when less of its disk is free (``nodefs.available<10%``, Kubernetes' default)."""
_MAKE_ROOM: Final = "crictl rmi --prune; df -h /var/lib/containerd /var/lib/kubelet"


def _disk(scene: NodeScene) -> Answer:
    """IMG-02: where the disk is nearly full, the kubelet evicts what the images have made room for."""
    pressure = scene.node.condition("DiskPressure")
    steps = (Remedy("on node {}:", scene.name), Remedy(_MAKE_ROOM))
    if pressure is not None and pressure.status == "True":
        return Finding(
            subject=Subject("Node", scene.name),
            cause="no pod will be started: the kubelet says that the node's disk is full (DiskPressure)",
            evidence=(pressure.cite(),),
            remedy=steps,
            confidence=CERTAIN,
        )
    host = scene.host
    if host is None or not host.disks:
        return None if pressure is not None and not scene.takes_driver else _unmeasured(scene)
    for folder, disk in host.disks.items():
        if _too_full(disk):
            return Finding(
                subject=Subject("Node", scene.name),
                cause=(
                    f"the images will not fit: of {_gib(disk.size)} below {folder} {_gib(disk.free)} are free, the "
                    f"images take up to {_gib(ROOM)}, and with less than {KEPT_FREE:.0%} free the kubelet evicts pods"
                ),
                evidence=(host.cite("disks", f"{folder}: {disk.free} of {disk.size} bytes free"),),
                remedy=steps,
                confidence=LIKELY,
            )
    return None


def _unmeasured(scene: NodeScene) -> Answer:
    return Missing(
        "how much of the nodes' disks is free",
        "the API says only whether the kubelet has run out of it"
        if scene.host is None
        else "no folder of a kubelet or a container engine was found",
        PROBE,
    )


def _too_full(disk: DiskSpace) -> bool:
    return disk.size > 0 and disk.free - ROOM < KEPT_FREE * disk.size


def _gib(amount: int) -> str:
    return f"{amount / (1 << 30):.1f} GiB"


def _others(scene: NodeScene) -> Answer:
    """OPR-20: two device plugins would offer the same GPUs."""
    plugins = matching.pods_of_part(scene.scene.snapshot, PLUGIN, vendor=matching.NVIDIA, node=scene.name)
    foreign = next((pod for pod in plugins if not _is_own(scene, pod)), None)
    if foreign is None:
        return None
    return Finding(
        subject=Subject("Node", scene.name),
        cause=(
            f"another device plugin offers the node's GPUs already: {foreign.owner or 'a pod'} "
            f"in namespace {foreign.namespace}"
        ),
        evidence=(foreign.cite("spec.containers[0].image"), foreign.cite("spec.nodeName")),
        remedy=(
            Remedy("see whose it is:"),
            Remedy("kubectl -n {} get pods -o wide --field-selector spec.nodeName={}", foreign.namespace, scene.name),
            Remedy("take it away before kgpu is installed, or give the chart --set devicePlugin.enabled=false"),
        ),
        confidence=CERTAIN if foreign.ready else LIKELY,
    )


def _is_own(scene: NodeScene, pod: Pod) -> bool:
    """Whether it is kgpu's own, or one of the operator's namespace, which the ClusterPolicy there governs."""
    return of_kgpu(pod) or pod.namespace == scene.scene.intent.namespace


CHECKS: Final = (
    NodePreflight(name="disk", id="IMG-02", look=_disk),
    NodePreflight(name="other device plugins", id="OPR-20", look=_others),
)
