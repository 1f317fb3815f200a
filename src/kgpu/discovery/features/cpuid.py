"""What only the instruction CPUID tells, as the kernel's device ``/dev/cpu/0/cpuid`` gives it: AVX10, the hypervisor.

The device is there with the kernel's module ``cpuid``, for root alone. Where it can't be read, nothing is said of
AVX10, and of the hypervisor only that there is none. On s390x ``/proc/sysinfo`` names it.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from kgpu.discovery.features.host_tree import HostTree, pairs

DEVICE: Final = "dev/cpu/0/cpuid"
NONE: Final = "none"
UNKNOWN: Final = "unknown"
AVX10: Final = "AVX10"
VERSION: Final = "AVX10_VERSION"
HYPERVISORS: Final[Mapping[str, str]] = {
    "KVMKVMKVM": "kvm", "Linux KVM Hv": "kvm", "TCGTCGTCGTCG": "qemu", "Microsoft Hv": "msvm", "VMwareVMware": "vmware",
    "XenVMMXenVMM": "xenhvm", "bhyve bhyve": "bhyve", "QNXQVMBSQG": "qnx", "ACRNACRNACRN": "acrn",
    "SRESRESRESRE": "sre", "Apple VZ": "apple",
}  # fmt: skip
"""What a hypervisor calls itself, and what node feature discovery calls it. Another one keeps its own name."""
_HYPERVISOR_LEAF: Final = 0x4000_0000
_FEATURES: Final = (7, 1)
_AVX10_BIT: Final = 1 << 19
_AVX10_LEAF: Final = 0x24
_ILLEGAL: Final = re.compile(r"[^-A-Za-z0-9_.]+")

Leaf: TypeAlias = "Callable[[int, int], tuple[int, int, int, int] | None]"
"""The registers EAX, EBX, ECX and EDX of a leaf and its part; None if they can't be read."""


def leaves(host: HostTree) -> Leaf:
    """Reads the node's device."""

    def read(leaf: int, part: int) -> tuple[int, int, int, int] | None:
        try:
            device = os.open(host.root / DEVICE, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            found = struct.unpack("<4I", os.pread(device, 16, leaf | part << 32))
        except (OSError, struct.error):
            return None
        finally:
            os.close(device)
        return found[0], found[1], found[2], found[3]

    return read


def avx10_version(read: Leaf) -> int:
    """The version of AVX10, 0 for a processor without, or one that can't be asked."""
    features, version = read(*_FEATURES), read(_AVX10_LEAF, 0)
    if features is None or version is None or not features[3] & _AVX10_BIT:
        return 0
    return version[1] & 0xFF


def hypervisor(host: HostTree, flags: frozenset[str], read: Leaf) -> str:
    """The hypervisor's name, ``none`` on bare metal, ``unknown`` for one without a name, "" if it can't be asked."""
    control = pairs(host.proc_text("sysinfo"), ":")
    program = next((value for key, value in control.items() if key.endswith("Control Program")), "")
    if program:
        return _ILLEGAL.sub("_", program)
    if not flags:
        return ""
    if "hypervisor" not in flags:
        return NONE
    found = read(_HYPERVISOR_LEAF, 0)
    if found is None:
        return ""
    name = struct.pack("<3I", *found[1:]).decode("latin-1").strip("\0 ")
    return HYPERVISORS.get(name) or _ILLEGAL.sub("_", name).strip("_-.") or UNKNOWN
