"""Rows KRN: headers, nouveau, Secure Boot, and which flavour of the module fits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kgpu.base.remedy import Remedy
from kgpu.doctor import remedies
from kgpu.doctor.matching import DRIVER
from kgpu.doctor.model import CERTAIN, LIKELY, Finding, Place, Subject
from kgpu.doctor.signs import KERNEL, LOG, Sign, rules_of
from kgpu.doctor.snapshot import Snapshot

_ABOVE: Final = ("DRV-*", "DPL-*", "SCH-02", "SCH-03", "RUN-01", "OPR-15", "KRN-09")
_NVIDIA: Final = "10de"
_REBUILD: Final = (Remedy("apt install linux-headers-$(uname -r)"), Remedy("dkms autoinstall && modprobe nvidia"))


def nouveau_owns(snapshot: Snapshot) -> Iterator[Finding]:
    """KRN-03 by the host's facts: the device is bound to nouveau."""
    for host in snapshot.hosts.values():
        bound = [device for device in host.pci or () if device.vendor == _NVIDIA and device.driver == "nouveau"]
        if not bound and "nouveau" not in (host.modules or {}):
            continue
        if not bound and "nvidia" in (host.modules or {}):
            continue
        binding = (
            host.cite("pci", f"{bound[0].address} driver {bound[0].driver}")
            if bound
            else host.cite("modules", "nouveau")
        )
        yield Finding(
            subject=Subject("Node", host.node),
            cause=f"on node {host.node} the kernel's own driver nouveau has taken the GPU, so that NVIDIA's can't",
            evidence=(binding,),
            remedy=BLACKLIST,
            confidence=CERTAIN if bound else LIKELY,
            nodes=(host.node,),
        )


BLACKLIST: Final = (
    Remedy("printf 'blacklist nouveau\\noptions nouveau modeset=0\\n' > /etc/modprobe.d/blacklist-nouveau.conf"),
    Remedy("update-initramfs -u"),
    Remedy("then drain and reboot the node"),
)
"""What takes nouveau away from a node's GPUs."""


def no_headers(snapshot: Snapshot) -> Iterator[Finding]:
    """KRN-02 by the host's facts: DKMS is there, but not for the kernel that runs."""
    for host in snapshot.hosts.values():
        if "nvidia" in (host.modules or {}) or host.dkms is None or not host.kernel:
            continue
        versions = [row for row in host.dkms if row.startswith("nvidia")]
        if not versions or any(row.endswith(f"/{host.kernel}") for row in versions):
            continue
        yield Finding(
            subject=Subject("Node", host.node),
            cause=(
                f"node {host.node} runs kernel {host.kernel}, for which DKMS has not built the NVIDIA module"
                + ("; the kernel's headers are missing" if host.headers is False else "")
            ),
            evidence=(
                host.cite("kernel"), host.cite("dkms", ", ".join(versions)),
                host.cite("headers", "missing" if host.headers is False else "there"),
            ),
            remedy=_REBUILD,
            confidence=CERTAIN,
            nodes=(host.node,),
        )  # fmt: skip


HEADERS: Final = (
    remedies.filled(remedies.NODE_FIELD, field="status.nodeInfo.kernelVersion"),
    "install that kernel's headers on the node, run a kernel that the repositories have, or use precompiled drivers",
    (
        "on Red Hat's systems: an entitlement that has the repositories of this release (EUS); on OpenShift 4.8 and "
        "later the driver toolkit"
    ),
)
"""The templates of what helps where no headers are found, with a place for ``node``."""
SIGNED: Final = (
    "on node {node}:",
    "mokutil --sb-state",
    "enrol the key that signs the module (mokutil --import), use signed precompiled modules, or switch Secure Boot off",
)
"""The templates of what helps where the kernel takes signed modules alone, with a place for ``node``."""


RULES: Final = rules_of(
    Sign(
        id="KRN-01",
        title="No headers for this kernel",
        place=Place.KERNEL,
        pattern=(
            r"Could not resolve Linux kernel version|Unable to (?:locate package|find a match:) "
            r"(?:linux-headers|kernel-(?:headers|devel|core))-(?P<kernel>\S+)"
            r"|(?:No match for argument:|No package) kernel-(?:headers|devel|core)-\S+"
            r"|package 'kernel-\w+-devel[^']*' not found"
        ),
        words="",
        where=(LOG,),
        parts=(DRIVER,),
        cause="{who} finds no headers for the kernel of the node in its repositories",
        remedy=HEADERS,
        explain=(
            "The driver is built against linux-headers of the running kernel; too new, old or custom kernels have none."
        ),
        explains=_ABOVE,
        rests_on=("NVIDIA/gpu-operator#85", "NVIDIA/gpu-operator#155"),
    ),
    Sign(
        id="KRN-02",
        title="The module was not rebuilt for the new kernel",
        place=Place.KERNEL,
        pattern=r"Your kernel headers for kernel (?P<kernel>\S+) cannot be found",
        words="kernel headers for kernel",
        where=(LOG, KERNEL),
        cause="{who}: the headers of kernel {kernel} are missing, so that DKMS could not rebuild the module",
        remedy=_REBUILD,
        explain=(
            "After an OS patch and a reboot the kernel is newer than the built module; "
            "without headers DKMS does nothing."
        ),
        explains=_ABOVE,
        besides=no_headers,
    ),
    Sign(
        id="KRN-03",
        title="nouveau has the GPU",
        place=Place.KERNEL,
        pattern=r"nouveau, rivafb, nvidiafb or rivatv|Failed to enable MSI-X|nouveau kernel driver is currently in use",
        words="",
        where=(KERNEL, LOG),
        parts=(DRIVER,),
        cause="{who}: the kernel's own driver nouveau has taken the GPU, so that NVIDIA's can't",
        remedy=BLACKLIST,
        explain="nouveau binds the device at boot. Proof: /sys/bus/pci/devices/*/driver points to nouveau.",
        explains=_ABOVE,
        besides=nouveau_owns,
        confidence=CERTAIN,
        rests_on=("NVIDIA GPU Operator documentation: troubleshooting, release notes",),
    ),
    Sign(
        id="KRN-04",
        title="Secure Boot refuses the module",
        place=Place.KERNEL,
        pattern=(
            r"Key was rejected by service|Required key not available|module verification failed.*nvidia.*Lockdown"
            r"|not signed by a key that is trusted by the kernel"
            r"|Loading of (?:unsigned )?module(?: with unavailable key)? is rejected"
            r"|Lockdown: \S+: unsigned module loading is restricted"
        ),
        words="",
        where=(LOG, KERNEL),
        cause="{who}: Secure Boot is on and the NVIDIA module is not signed with a key that the machine knows",
        remedy=SIGNED,
        explain="With Secure Boot the kernel loads only modules signed with an enrolled key.",
        explains=_ABOVE,
        confidence=CERTAIN,
        rests_on=("NVIDIA GPU Operator documentation: troubleshooting, release notes",),
    ),
    Sign(
        id="KRN-07",
        title="The open module does not support this GPU",
        place=Place.KERNEL,
        pattern=r"is not supported by open nvidia\.ko",
        words="not supported by open",
        where=(KERNEL, LOG),
        cause="{who}: the open kernel module is loaded, which does not support this GPU (older than Turing)",
        remedy=(
            remedies.policy_row({"driver": {"kernelModuleType": "proprietary"}}),
            "with a driver of the host: install its proprietary flavour",
        ),
        explain="The open module needs the GPU's system processor (GSP), which Pascal and Volta do not have.",
        explains=_ABOVE,
        confidence=CERTAIN,
        rests_on=("NVIDIA/open-gpu-kernel-modules#587", "NVIDIA/open-gpu-kernel-modules, osapi.c"),
    ),
)
