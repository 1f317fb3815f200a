"""Rows AMD-17 and AMD-20: what of a node lets programs fail that have their GPU, its files' groups and the IOMMU."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from kgpu.base.plain import items
from kgpu.base.remedy import Remedy
from kgpu.doctor import matching, messages, remedies
from kgpu.doctor.host_facts import DeviceAccess, HostFacts
from kgpu.doctor.kinds import Container, Pod
from kgpu.doctor.messages import Hit
from kgpu.doctor.model import LIKELY, Evidence, Finding, Level, Place
from kgpu.doctor.objects import at
from kgpu.doctor.rule import rule
from kgpu.doctor.signs import LOG, STATUS, Sign, rules_of
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.vendor_drivers import AMD, cards_of
from kgpu.formats import names

_FILES: Final = ("/dev/kfd", "/dev/dri/")
_TRANSLATES: Final = "DMA"
"""Begins the kinds of a device's domain in which the IOMMU translates."""
_WARNED: Final = re.compile(r'Missing "iommu=pt" from kernel command line')


def _gpus(pod: Pod) -> int:
    """How many AMD GPUs, or partitions of such, a pod asks for."""
    asked = matching.accelerators(pod).items()
    return sum(amount for name, amount in asked if name.startswith(names.AMD_RESOURCE_PREFIX))


def _no_right(snapshot: Snapshot, hit: Hit) -> tuple[Evidence, ...] | None:
    """Evidence that the pod has an AMD GPU and that its user may not open its files: who may, where the node has been
    looked at; else that it has no groups at all.
    """
    pod = hit.pod
    if pod is None or not _gpus(pod):
        return None
    host = snapshot.hosts.get(pod.node)
    files = [one for one in host.device_access if one.path.startswith(_FILES)] if host else []
    if host is None or not files:
        none = not items(pod.at("spec.securityContext.supplementalGroups"))
        return (pod.cite("spec.securityContext"),) if none else None
    main = [container for container in pod.containers if not container.init]
    if all(_may_open(pod, container, files) for container in main):
        return None
    return (pod.cite("spec.securityContext"), host.cite("device_access", "; ".join(one.shown for one in files)))


def _may_open(pod: Pod, container: Container, files: Iterable[DeviceAccess]) -> bool:
    """Whether a container's user may open all these files, as far as its pod says who that is: the user of an image
    may be any.
    """
    own, pods = "securityContext.{}", "spec.securityContext.{}"

    def number(field: str) -> int | None:
        found = at(container.spec, own.format(field))
        found = pod.at(pods.format(field)) if found is None else found
        return found if isinstance(found, int) else None

    if number("runAsUser") == 0:
        return True
    group = number("runAsGroup")
    more = (*items(pod.at(pods.format("supplementalGroups"))), pod.at(pods.format("fsGroup")))
    groups = {group or 0, *(one for one in more if isinstance(one, int))}
    return all(one.lets(groups) for one in files)


@rule(
    "AMD-20",
    "The IOMMU translates between GPUs",
    Place.KERNEL,
    rests_on=("ROCm/rccl, source", "AMD ROCm documentation"),
)
def translated(snapshot: Snapshot) -> Iterator[Finding]:
    """GPUs that exchange data go through the IOMMU unless the kernel was started with iommu=pt: work on several hangs,
    with the GPUs busy and cool. RCCL warns of it. The node's files say what the IOMMU does with each GPU.
    """
    for hit in messages.in_logs(snapshot, _WARNED, "iommu=pt"):
        pod = hit.pod
        if pod is None or _gpus(pod) < 2 or pod.phase == "Succeeded" or matching.superseded(snapshot, pod):
            continue
        host = snapshot.hosts.get(pod.node)
        proof = _translation(host) if host else ()
        if proof is None or (pod.ready and not proof):
            continue
        yield Finding(
            subject=pod.subject,
            cause=(
                f"{pod} on node {pod.node} works on several GPUs whose accesses to each other the IOMMU translates: "
                "that may hang"
            ),
            evidence=(hit.evidence, *proof),
            remedy=(
                Remedy("on {}:", pod.node),
                Remedy("add iommu=pt to GRUB_CMDLINE_LINUX_DEFAULT in /etc/default/grub, then:"),
                Remedy("update-grub"),
                *remedies.reboot(pod.node),
            ),
            level=Level.NOTE if pod.ready else Level.PROBLEM,
            confidence=LIKELY,
            nodes=(pod.node,),
            pods=(pod.path,),
        )


def _translation(host: HostFacts) -> tuple[Evidence, ...] | None:
    """Evidence that the IOMMU translates for GPUs of a node; none where that is not known; None where it does not."""
    kinds = {card.address: card.iommu for card in cards_of(host, AMD) if card.iommu}
    behind = [f"{address} {kind}" for address, kind in kinds.items() if kind.startswith(_TRANSLATES)]
    if (kinds and not behind) or "iommu=pt" in host.command_line.split():
        return None
    shown = (host.cite("command_line"),) if host.command_line else ()
    return (host.cite("pci", "IOMMU: " + ", ".join(behind)), *shown) if behind else ()


RULES: Final = rules_of(
    Sign(
        id="AMD-17",
        title="No right to open the GPU",
        place=Place.RUNTIME,
        pattern=(
            r"hipErrorNoDevice|[Uu]nable to open /dev/kfd|/dev/kfd.*[Pp]ermission denied"
            r"|[Pp]ermission denied.*/dev/(?:kfd|dri)"
        ),
        words="",
        where=(LOG, STATUS),
        proof=_no_right,
        cause="{who} has an AMD GPU and may not open its device files: its user is in none of the groups that may",
        remedy=(
            "on the node:",
            "stat -c %g /dev/kfd /dev/dri/renderD128",
            "spec.securityContext.supplementalGroups: [those numbers, usually 44 and 109 (video, render)]",
        ),
        explain=(
            "The device files belong to the groups video and render of the host, whose numbers differ between "
            "machines; a user other than root needs those of its node."
        ),
    ),
)
