"""Turns facts into a node's feature labels. Pure.

Names and defaults are node feature discovery's, so that selectors written for it keep working. PCI devices get both
forms that are in use: ``pci-<class>_<vendor>`` (its own default) and ``pci-<vendor>`` (the GPU operator's chart). Every
value is legal; a label whose source could not be read is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from kgpu.discovery.features.cpu import cpuid_names, vendor_name
from kgpu.discovery.features.model import FeatureFacts
from kgpu.formats.names import NFD_PREFIX

# Prefixes of the PCI classes that are labelled: display controllers, co-processors and accelerators (the default), and
# network controllers (the GPU operator's chart).
PCI_CLASSES: Final = ("02", "03", "0b40", "12")
OS_KEYS: Final = ("ID", "VERSION_ID", "OSTREE_VERSION", "RHEL_VERSION")
KERNEL_OPTIONS: Final = ("NO_HZ", "NO_HZ_IDLE", "NO_HZ_FULL", "PREEMPT")
MELLANOX: Final = "15b3"
RDMA_MODULES: Final = frozenset({"ib_uverbs", "rdma_ucm"})
MAX_VALUE: Final = 63

_LEGAL_VALUE: Final = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
_LEGAL_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_KERNEL: Final = re.compile(r"(?P<major>\d+)(\.(?P<minor>\d+))?(\.(?P<revision>\d+))?")
_VERSION: Final = re.compile(r"(?P<major>[^.]+)(\.(?P<minor>[^.]+))?")
_TRUE: Final = "true"


def plan(facts: FeatureFacts) -> dict[str, str]:
    """The labels, sorted by key, with their prefix."""
    labels = {name: value for rows in SOURCES for name, value in rows(facts)}
    return {
        NFD_PREFIX + name: value
        for name, value in sorted(labels.items())
        if _LEGAL_NAME.fullmatch(name) and _LEGAL_VALUE.fullmatch(value)
    }


def _pci(facts: FeatureFacts) -> Iterator[tuple[str, str]]:
    for device in facts.pci:
        if device.pci_class.startswith(PCI_CLASSES):
            for key in (f"pci-{device.pci_class}_{device.vendor}", f"pci-{device.vendor}"):
                yield f"{key}.present", _TRUE
                if device.sriov:
                    yield f"{key}.sriov.capable", _TRUE


def _rdma(facts: FeatureFacts) -> Iterator[tuple[str, str]]:
    if any(device.vendor == MELLANOX for device in facts.pci):
        yield "rdma.capable", _TRUE
    if facts.modules >= RDMA_MODULES:
        yield "rdma.available", _TRUE


def _kernel(facts: FeatureFacts) -> Iterator[tuple[str, str]]:
    full = re.sub(r"[^A-Za-z0-9_.-]", "_", facts.kernel)[:MAX_VALUE].strip("-_.")
    if full:
        yield "kernel-version.full", full
    numbers = _KERNEL.match(facts.kernel)
    if numbers is not None:
        yield from ((f"kernel-version.{part}", text) for part, text in numbers.groupdict().items() if text)
    if facts.selinux:
        yield "kernel-selinux.enabled", _TRUE
    yield from ((f"kernel-config.{name}", _TRUE) for name in KERNEL_OPTIONS if name in facts.kernel_options)


def _system(facts: FeatureFacts) -> Iterator[tuple[str, str]]:
    for key in OS_KEYS:
        if facts.os_release.get(key):
            yield f"system-os_release.{key}", facts.os_release[key]
    version = _VERSION.match(facts.os_release.get("VERSION_ID", ""))
    if version is not None:
        parts = ((part, text) for part, text in version.groupdict().items() if text)
        yield from ((f"system-os_release.VERSION_ID.{part}", text) for part, text in parts)


def _cpu(facts: FeatureFacts) -> Iterator[tuple[str, str]]:
    cpu = facts.cpu
    model = {"vendor_id": vendor_name(cpu.vendor), "family": cpu.family, "id": cpu.model}
    yield from ((f"cpu-model.{part}", text) for part, text in model.items() if text)
    yield from ((f"cpu-cpuid.{name}", _TRUE) for name in sorted(cpuid_names(cpu.flags)))
    yield from ((f"cpu-pstate.{part}", text) for part, text in cpu.pstate.items())
    switches = {"cpu-hardware_multithreading": cpu.multithreading, "cpu-cstate.enabled": cpu.cstate}
    yield from ((name, str(value).lower()) for name, value in switches.items() if value is not None)


def _flags(facts: FeatureFacts) -> Iterator[tuple[str, str]]:
    switches: Mapping[str, bool] = {
        "memory-numa": facts.numa_nodes > 1,
        "memory-swap": facts.swap,
        "storage-nonrotationaldisk": facts.solid_state,
        "network-sriov.capable": facts.sriov_capable,
        "network-sriov.configured": facts.sriov_configured,
    }
    yield from ((name, _TRUE) for name, value in switches.items() if value)


SOURCES: Final[tuple[Callable[[FeatureFacts], Iterator[tuple[str, str]]], ...]] = (
    _pci, _rdma, _kernel, _system, _cpu, _flags,
)  # fmt: skip
