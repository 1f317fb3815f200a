"""Rows KRN: builds that fail, and devices that the module can't start or that another driver holds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from kgpu.base.remedy import Remedy
from kgpu.doctor import cluster_policy, matching, remedies
from kgpu.doctor.agent_reports import is_over
from kgpu.doctor.host_facts import HostFacts, PciDevice
from kgpu.doctor.matching import DRIVER
from kgpu.doctor.messages import Hit
from kgpu.doctor.model import CERTAIN, Evidence, Finding, Place, Subject
from kgpu.doctor.rule import rule
from kgpu.doctor.signs import KERNEL, LOG, STATUS, Sign, rules_of
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.vendor_drivers import FOR_MACHINES
from kgpu.doctor.vendor_gpus import not_started
from kgpu.doctor.waiting import waiting
from kgpu.formats import names

_ABOVE: Final = ("DRV-01", "DRV-02", "DRV-03", "DPL-*", "SCH-02", "SCH-03", "RUN-01", "OPR-15")
_NO_START: Final = (*_ABOVE, "KRN-09", "HW-09")
_LOST: Final = 79
_POWER: Final = 54
_BLACKWELL: Final = re.compile(r"29[0-9a-f]{2}|2[bcdef][0-9a-f]{2}")
"""Device ids of GPUs that only the open module drives."""
OTHER_RELEASE: Final = Remedy("set driver.version to a release that lists the GPU (older cards: a legacy branch)")
_OPEN: Final = Remedy("with a driver of the host: install its open flavour (nvidia-driver-VERSION-open)")


def gpus_of(host: HostFacts) -> list[PciDevice]:
    """NVIDIA's GPUs on the bus of a host."""
    return [device for device in host.pci or () if device.vendor == "10de" and device.pci_class[:4] in ("0300", "0302")]


def closed_module(snapshot: Snapshot) -> Iterator[Finding]:
    """KRN-08 by the host's facts: Blackwell with the proprietary module."""
    for host in snapshot.hosts.values():
        cards = [device for device in gpus_of(host) if _BLACKWELL.fullmatch(device.device)]
        if not cards or host.driver_open is not False or host.gpus:
            continue
        yield Finding(
            subject=Subject("Node", host.node),
            cause=(
                f"node {host.node} has a GPU that only the open kernel module drives ({cards[0].address}, device "
                f"{cards[0].device}), and the proprietary one is loaded"
            ),
            evidence=(
                host.cite("driver_open"),
                host.cite("pci", f"{cards[0].address} {cards[0].vendor}:{cards[0].device}"),
            ),
            remedy=(cluster_policy.change(snapshot, {"driver": {"kernelModuleType": "open"}}), _OPEN),
            confidence=CERTAIN,
            nodes=(host.node,),
        )


_UNSUPPORTED: Final = re.compile(r"NVRM: installed in this system is not supported by the(?: (?P<version>\d[\d.]*\d))?")
_WHICH: Final = re.compile(r"NVRM: The NVIDIA GPU (?P<gpu>[\w:.]+) \(PCI ID: (?P<device>[\w:]+)\)")
_RELEASE: Final = re.compile(r"NVRM: NVIDIA (?P<version>\d[\d.]+) driver release")
_AROUND: Final = 3


def _version_in(line: str) -> str:
    """The driver's version as older drivers say it: in the line that says that a GPU is not supported."""
    hit = _UNSUPPORTED.search(line)
    return (hit["version"] or "") if hit else ""


def unsupported(snapshot: Snapshot) -> Iterator[Finding]:
    """KRN-09: the module knows no such device. Its message is wrapped over lines of the kernel's log."""
    for host in snapshot.hosts.values():
        lines = host.kernel_log or ()
        at = next((at for at in range(len(lines) - 1, -1, -1) if _UNSUPPORTED.search(lines[at])), None)
        if at is None or host.gpus:
            continue
        near = range(max(at - _AROUND, 0), min(at + _AROUND, len(lines)))
        which = next((hit for index in near if (hit := _WHICH.search(lines[index]))), None)
        release = next((hit for index in near if (hit := _RELEASE.search(lines[index]))), None)
        version = release["version"] if release else _version_in(lines[at])
        shown = [index for index in near if _WHICH.search(lines[index]) or index == at or _RELEASE.search(lines[index])]
        yield Finding(
            subject=Subject("Node", host.node),
            cause=(
                f"the GPU {which['gpu'] + ' (' + which['device'] + ') ' if which else ''}of node {host.node} is not "
                f"supported by this driver{version and f' {version}'}: it is newer or older than "
                "the driver's list, or a virtual GPU, which needs NVIDIA's vGPU guest driver"
            ),
            evidence=tuple(host.cite_log(index) for index in shown),
            remedy=(
                Remedy("on node {}:", host.node),
                Remedy("lspci -nn -d 10de: ; systemd-detect-virt"),
                Remedy(
                    "in a virtual machine with a vGPU: driver.repository and driver.image of the vGPU guest driver, "
                    "with its licence; or pass the whole GPU through"
                ),
                Remedy("otherwise {}", OTHER_RELEASE),
            ),
            confidence=CERTAIN,
            nodes=(host.node,),
        )


_TAG_SYSTEM: Final = re.compile(r"-(?P<system>ubuntu|rhel|rhcos|rocky|sles)(?P<release>\d+(?:\.\d+)?)$")
_OS_WORDS: Final = {
    "ubuntu": "ubuntu",
    "rhel": "red hat enterprise linux",
    "rhcos": "coreos",
    "rocky": "rocky",
    "sles": "suse",
}


def other_system(snapshot: Snapshot, hit: Hit) -> tuple[Evidence, ...] | None:
    """The image and the node's system where they do not match; None where the driver works by now."""
    host, node = snapshot.hosts.get(hit.node), snapshot.nodes.get(hit.node)
    if hit.pod is None and host is not None and host.gpus:
        return None
    if hit.pod is None or node is None:
        return ()
    evidence: list[Evidence] = []
    system = node.text("status.nodeInfo.osImage")
    for container in hit.pod.containers:
        tag = _TAG_SYSTEM.search(container.image)
        if (
            tag
            and not container.init
            and (_OS_WORDS[tag["system"]] not in system.lower() or tag["release"] not in system)
        ):
            evidence += [container.cite("image"), node.cite("status.nodeInfo.osImage")]
    return tuple(evidence)


def no_power(snapshot: Snapshot) -> Iterator[Finding]:
    """KRN-10 by its Xid."""
    for host in snapshot.hosts.values():
        for xid in host.xids:
            if xid.kind == "xid" and xid.code == _POWER and not xid.over and not is_over(snapshot, host, xid):
                yield Finding(
                    subject=Subject("Node", host.node),
                    cause=f"GPU {xid.pci} of node {host.node} has no auxiliary power (Xid {_POWER})",
                    evidence=(host.cite("xids", f"xid {xid.code} on {xid.pci}: {xid.text}"),),
                    remedy=_CABLES,
                    confidence=CERTAIN,
                    since=xid.first,
                    nodes=(host.node,),
                )


_CABLES: Final = (Remedy("switch the machine off and attach the GPU's power cables"),)


@rule(
    "KRN-12",
    "A GPU does not answer on the bus",
    Place.HARDWARE,
    explains=_NO_START,
    rests_on=("leptonai/gpud 4a8de33, source",),
)
def fallen_off(snapshot: Snapshot) -> Iterator[Finding]:
    """The device is listed, and reading its registers gives ones: it fell off the bus before the driver came."""
    # A device on the bus whose registers read as ones, without the Xid that would say more.
    for host in snapshot.hosts.values():
        if any(xid.code == _LOST and not xid.over for xid in host.xids):
            continue
        for device in host.pci or ():
            if device.vendor == "10de" and device.lost:
                yield Finding(
                    subject=Subject("Node", host.node),
                    cause=(
                        f"the GPU at {device.address} of node {host.node} is on the bus and does not answer (lspci: "
                        "rev ff)"
                    ),
                    evidence=(host.cite("pci", f"{device.address}: its config space reads as ones"),),
                    remedy=(
                        remedies.drain(host.node),
                        Remedy(
                            "switch the machine off and on (a reboot may not be enough); reseat the card if it stays so"
                        ),
                    ),
                    confidence=CERTAIN,
                    nodes=(host.node,),
                )


@rule(
    "KRN-13",
    "The GPUs are held for virtual machines",
    Place.KERNEL,
    explains=("SCH-*", "DPL-*", "DRV-01", "HW-09", "TNT-*"),
    rests_on=("NVIDIA/gpu-operator v26.7.0, source",),
)
def passed_through(snapshot: Snapshot) -> Iterator[Finding]:
    """nvidia.com/gpu.workload.config=vm-passthrough (or vm-vgpu) binds the GPUs to vfio-pci; containers
    need container.
    """
    wanted = [pending for pending in waiting(snapshot) if matching.vendor_of(pending.resource) == matching.NVIDIA]
    for node in snapshot.nodes.values():
        host = snapshot.hosts.get(node.name)
        held = [device for device in (gpus_of(host) if host else ()) if device.driver == FOR_MACHINES]
        mode = node.labels.get(names.LABEL_WORKLOAD_CONFIG, "")
        for_machines = mode.startswith("vm-")
        offered = any(
            matching.vendor_of(name) == matching.NVIDIA and node.allocatable(name) for name in node.resources()
        )
        # On purpose where the label says so, unless containers wait for just these.
        if offered or not (held or for_machines) or (for_machines and not wanted):
            continue
        label = f"metadata.labels[{names.LABEL_WORKLOAD_CONFIG}]"
        yield Finding(
            subject=node.subject,
            cause=f"the GPUs of node {node.name} are held for virtual machines"
            + (f" ({held[0].address} is bound to vfio-pci)" if held else f" ({mode})")
            + ": containers get none of them",
            evidence=(
                node.cite(label),
                *((host.cite("pci", f"{held[0].address} driver vfio-pci"),) if host and held else ()),
            ),
            remedy=(remedies.label(node.name, names.LABEL_WORKLOAD_CONFIG, "container", anew=True),),
            confidence=CERTAIN,
            nodes=(node.name,),
            pods=tuple(
                pod.path
                for pending in wanted
                for pod in pending.pods
                if node.name in pending.reasons or not pending.reasons
            ),
        )


RULES: Final = rules_of(
    Sign(
        id="KRN-05",
        title="This driver does not build for this kernel",
        place=Place.KERNEL,
        pattern=r"GPL-incompatible module nvidia\S* uses GPL-only symbol '(?P<symbol>\w+)'",
        words="GPL-incompatible module",
        where=(LOG, KERNEL),
        cause=(
            "{who}: this driver is too old for the node's kernel: it uses the kernel's symbol {symbol}, "
            "which is closed to it now"
        ),
        remedy=(
            "set driver.version to a newer release of the branch (535.183.08 or later has the fix), or a newer branch",
            "or run the kernel that worked before:",
            "apt-mark hold linux-image-generic linux-headers-generic",
        ),
        explain="Kernels move symbols behind the GPL; drivers follow with fixes.",
        confidence=CERTAIN,
        explains=_ABOVE,
        rests_on=("NVIDIA/gpu-operator#751",),
    ),
    Sign(
        id="KRN-06",
        title="Built with another compiler or other headers than the kernel's",
        place=Place.KERNEL,
        pattern=(
            r"(?:Compiler version|[Cc]c version) check failed|unrecognized command[- ]line option '-"
            r"|\bnvidia(?![_-]uvm)\S*: (?:disagrees about version of symbol|version magic '[^']*' should be)"
            r"|nvidia[\w-]*\.ko[^\n]*(?:Invalid module format|Exec format error)"
            r"|could not insert '?nvidia[\w-]*'?: (?:Exec format error|Invalid module format)"
        ),
        words="",
        where=(LOG, KERNEL),
        parts=(DRIVER,),
        proof=other_system,
        cause=(
            "{who} builds the driver with another compiler, or against other headers, "
            "than the node's kernel was built with"
        ),
        remedy=(
            "on node {node}:",
            "cat /proc/version",
            (
                "use a driver image of the node's system (driver.version with an image for it), or install that "
                "version of gcc; or precompiled drivers"
            ),
        ),
        explain=(
            "Modules must be built with the major version of gcc that built the kernel, and against its own headers: "
            "the kernel compares the versions of symbols when it loads them."
        ),
        explains=_ABOVE,
        rests_on=("NVIDIA/gpu-operator#302",),
    ),
    Sign(
        id="KRN-08",
        title="This GPU needs the open module",
        place=Place.KERNEL,
        pattern=r"requires use of the NVIDIA open kernel modules",
        words="requires use of the NVIDIA open",
        where=(KERNEL, LOG),
        cause="{who}: the proprietary kernel module is loaded; this GPU works with the open one alone",
        remedy=(
            remedies.policy_row({"driver": {"kernelModuleType": "open"}}),
            _OPEN,
        ),
        explain="From Blackwell on GPUs are driven by the open module alone; nvidia-smi says: No devices were found.",
        confidence=CERTAIN,
        explains=_NO_START,
        besides=closed_module,
        rests_on=("NVIDIA/gpu-operator v26.7.0, source",),
    ),
    Sign(
        id="KRN-09",
        title="The module can't start the GPU",
        place=Place.KERNEL,
        besides=lambda snapshot: (*unsupported(snapshot), *not_started(snapshot)),
        pattern=r"RmInitAdapter failed! \((?P<code>[^)]*)\)",
        words="RmInitAdapter failed",
        where=(KERNEL, LOG),
        cause=(
            "{who}: the kernel module could not start a GPU (RmInitAdapter {code}): its firmware, "
            "its memory window or its power"
        ),
        remedy=(
            "on node {node}:",
            "dmesg | grep -E 'NVRM|BAR'; ls /lib/firmware/nvidia",
            (
                "install the firmware of the driver's version; pci=realloc on the kernel's command line where a BAR "
                "has no room; check power cables"
            ),
        ),
        explain=(
            "The lines before it in the kernel's log say which: GSP firmware not found, BAR of size 0, no power, "
            "or passthrough. Other vendors' drivers give a card up by a line of their own: firmware that is missing, "
            "no room for its memory window, a kernel that is older than the card."
        ),
        explains=(*_ABOVE, "HW-09"),
        rests_on=(
            "leptonai/gpud 4a8de33, source",
            "ROCm/legacy-rocm-build#1357",
            "ROCm/legacy-rocm-build#6281",
            "HabanaAI/Setup_and_Install#1",
            "intel/intel-device-plugins-for-kubernetes#1514",
        ),
    ),
    Sign(
        id="KRN-10",
        title="A GPU without power",
        place=Place.HARDWARE,
        pattern=(
            r"does not have the necessary power cables connected"
            r"|power cables? (?:is|are) not (?:properly )?(?:attached|connected)"
        ),
        words="power cable",
        where=(KERNEL, LOG),
        cause="{who}: a GPU has no auxiliary power",
        remedy=_CABLES,
        explain="The card has its slot's power only; nvidia-smi ends with 8.",
        confidence=CERTAIN,
        explains=_NO_START,
        besides=no_power,
        rests_on=("NVIDIA nvidia-smi documentation",),
    ),
    Sign(
        id="KRN-11",
        title="A module that the driver needs is missing",
        place=Place.KERNEL,
        pattern=r"Unknown symbol (?P<symbol>ipmi_\w+|i2c_\w+)|Module (?P<module>ipmi_msghandler|i2c_core) not found",
        words="",
        where=(LOG, KERNEL, STATUS),
        cause="{who}: the NVIDIA module can't be loaded without {module}{symbol}",
        remedy=(
            "on node {node}:",
            "modprobe -a i2c_core ipmi_msghandler",
            "install the kernel's extra modules where they are not there (linux-modules-extra-$(uname -r))",
        ),
        explain="The module uses symbols of i2c_core and ipmi_msghandler, which slim kernels leave out.",
        confidence=CERTAIN,
        explains=_ABOVE,
        rests_on=("NVIDIA GPU Operator documentation: troubleshooting, release notes",),
    ),
)
