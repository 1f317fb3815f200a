"""What is known of a node without any driver. Values only; "" and empty collections are what could not be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class PciFunction:
    """One PCI function. ``pci_class`` is the class's first four hexadecimal digits, ``vendor`` four, without ``0x``."""

    pci_class: str
    vendor: str
    sriov: bool = False
    """It can be split into virtual functions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuFacts:
    """The first processor, as ``/proc/cpuinfo`` has it, and what ``/sys/devices/system/cpu`` says of all of them.

    ``vendor`` is the raw vendor id (``GenuineIntel``) or the implementer of an ARM core (``0x41``). ``pstate`` has
    ``status``, ``turbo`` and ``scaling_governor`` where the intel_pstate driver works.
    """

    vendor: str = ""
    family: str = ""
    model: str = ""
    flags: frozenset[str] = frozenset()
    multithreading: bool | None = None
    pstate: Mapping[str, str] = field(default_factory=dict)
    cstate: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureFacts:
    """All of it. ``kernel`` is the release (``uname -r``), ``os_release`` the file's keys, ``modules`` loaded ones,
    ``kernel_options`` those of the kernel's build that are on.
    """

    pci: tuple[PciFunction, ...] = ()
    kernel: str = ""
    kernel_options: frozenset[str] = frozenset()
    selinux: bool = False
    os_release: Mapping[str, str] = field(default_factory=dict)
    cpu: CpuFacts = CpuFacts()
    modules: frozenset[str] = frozenset()
    numa_nodes: int = 0
    swap: bool = False
    solid_state: bool = False
    """A block device does not rotate."""
    sriov_capable: bool = False
    sriov_configured: bool = False
    """Of network devices."""
