"""Facts about a node that need no driver, as plain data; "" and empty collections stand for what could not be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class PciFunction:
    """One PCI function. ``pci_class`` is the class's first four hexadecimal digits, ``vendor`` four, without ``0x``."""

    pci_class: str
    vendor: str
    sriov: bool = False
    """Whether it can be split into virtual functions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuFacts:
    """The first processor in ``/proc/cpuinfo``, and facts about all of them from ``/sys/devices/system/cpu``.

    ``vendor`` is the raw vendor ID (``GenuineIntel``) or the implementer of an ARM core (``0x41``). ``pstate`` has
    ``status``, ``turbo`` and ``scaling_governor`` if the intel_pstate driver is in use.
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
    """All facts. ``kernel`` is the release (``uname -r``), ``os_release`` has the file's keys, ``modules`` are the
    loaded ones, ``kernel_options`` the enabled options of the kernel's build.
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
    """Whether any block device is non-rotational."""
    sriov_capable: bool = False
    sriov_configured: bool = False
    """Whether any network device has virtual functions; the field above is whether any can have them."""
