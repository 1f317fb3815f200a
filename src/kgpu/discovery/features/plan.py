"""Turns a node's features into its labels. Pure.

Names and defaults are node feature discovery's, so that selectors written for it keep working. PCI devices get both
forms that are in use: ``pci-<class>_<vendor>`` (its own default) and ``pci-<vendor>`` (the GPU operator's chart),
unless the settings name one. Those by which kgpu finds accelerators are made whatever the settings say of labels, so
that a config made for one vendor's operator hides no other vendor's devices. Every value is legal; a label whose
source could not be read is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeAlias

from kgpu.discovery.features.model import FeatureSet
from kgpu.discovery.features.worker_settings import WorkerSettings
from kgpu.formats.names import (
    AMD_PCI_ID,
    AMD_VIRTUAL_BOARDS,
    NFD_PCI_AMD,
    NFD_PCI_GAUDI,
    NFD_PCI_INTEL,
    NFD_PCI_NVIDIA,
    NFD_PREFIX,
)

OS_KEYS: Final = ("ID", "VERSION_ID", "VERSION_ID.major", "VERSION_ID.minor", "OSTREE_VERSION", "RHEL_VERSION")
MELLANOX: Final = "15b3"
RDMA_MODULES: Final = frozenset({"ib_uverbs", "rdma_ucm"})
# In the order in which they stand in a label, whatever the order of the settings.
PCI_ORDER: Final = ("class", "vendor", "device", "subsystem_vendor", "subsystem_device")
USB_ORDER: Final = ("class", "vendor", "device", "serial")
_COMPUTING: Final = ("03", "12")
"""PCI classes of display controllers and of processing accelerators."""
_AMD_PRODUCTS: Final = {"740f": "mi210", "74a1": "mi300x"}
_BOTH: Final = (("class", "vendor"), ("vendor",))
ACCELERATORS: Final = frozenset({*NFD_PCI_NVIDIA, *NFD_PCI_AMD, *NFD_PCI_GAUDI, *NFD_PCI_INTEL})
"""The labels by which kgpu finds accelerators."""
_FEATURE_ONLY: Final = frozenset({"sgx.epc", "tdx.total_keys", "sev.asids", "sev.encrypted_state_ids"})

_LEGAL_VALUE: Final = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
_LEGAL_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_TRUE: Final = "true"
Rows: TypeAlias = "Iterator[tuple[str, str]]"


def plan(features: FeatureSet, settings: WorkerSettings | None = None) -> dict[str, str]:
    """The labels of all sources but feature files and rules, sorted by key, with their prefix."""
    chosen = settings or WorkerSettings()
    labels = {
        name: value
        for source, rows in SOURCES.items()
        if chosen.labels(source)
        for name, value in rows(features, chosen)
    }
    labels |= _accelerators(features)
    return {NFD_PREFIX + name: value for name, value in sorted(labels.items()) if is_legal(name, value)}


def is_legal(name: str, value: str) -> bool:
    """Whether a label's name without its domain, and its value, are what an API server takes."""
    return bool(_LEGAL_NAME.fullmatch(name) and _LEGAL_VALUE.fullmatch(value))


def _pci(features: FeatureSet, settings: WorkerSettings) -> Rows:
    wanted = _ordered(settings.pci_fields, PCI_ORDER)
    forms = (wanted,) if wanted else _BOTH
    for device in features.instances.get("pci.device", ()):
        if device.get("class", "").startswith(settings.pci_classes):
            for form in forms:
                key = f"pci-{'_'.join(device.get(field, '') for field in form)}"
                yield f"{key}.present", _TRUE
                if _number(device.get("sriov_totalvfs", "")) > 0:
                    yield f"{key}.sriov.capable", _TRUE


def _accelerators(features: FeatureSet) -> dict[str, str]:
    keys = {
        f"pci-{'_'.join(device.get(field, '') for field in form)}.present"
        for device in features.instances.get("pci.device", ())
        if device.get("class", "").startswith(_COMPUTING)
        for form in _BOTH
    }
    return {key: _TRUE for key in keys if NFD_PREFIX + key in ACCELERATORS}


def _usb(features: FeatureSet, settings: WorkerSettings) -> Rows:
    form = _ordered(settings.usb_fields, USB_ORDER) or USB_ORDER[:3]
    for device in features.instances.get("usb.device", ()):
        if device.get("class", "") in settings.usb_classes:
            yield f"usb-{'_'.join(device.get(field, '') for field in form)}.present", _TRUE


def _ordered(fields: tuple[str, ...] | None, order: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(field for field in order if field in (fields or ()))


def _custom(features: FeatureSet, _settings: WorkerSettings) -> Rows:
    """The two rules that node feature discovery has built in, and those that AMD's operator ships for it."""
    yield from _amd(features)
    if any(device.get("vendor") == MELLANOX for device in features.instances.get("pci.device", ())):
        yield "rdma.capable", _TRUE
    if features.flags.get("kernel.loadedmodule", frozenset()) >= RDMA_MODULES:
        yield "rdma.available", _TRUE


def _amd(features: FeatureSet) -> Rows:
    """AMD's rules know boards by lists of ids, and new ones by none. Here every board counts that is a display
    controller or an accelerator; ids only tell virtual functions from whole GPUs, and name two products.
    """
    for device in features.instances.get("pci.device", ()):
        if device.get("vendor") == AMD_PCI_ID and device.get("class", "").startswith(_COMPUTING):
            board = device.get("device", "")
            yield "amd-vgpu" if board in AMD_VIRTUAL_BOARDS else "amd-gpu", _TRUE
            if board in _AMD_PRODUCTS:
                yield f"amd-gpu-{_AMD_PRODUCTS[board]}", _TRUE


def _kernel(features: FeatureSet, settings: WorkerSettings) -> Rows:
    yield from _each(features, "kernel.version", "kernel-version")
    if features.values("kernel.selinux").get("enabled") == _TRUE:
        yield "kernel-selinux.enabled", _TRUE
    config = features.values("kernel.config")
    yield from ((f"kernel-config.{name}", _TRUE) for name in settings.kernel_options if config.get(name) in {"y", "m"})


def _system(features: FeatureSet, _settings: WorkerSettings) -> Rows:
    release = features.values("system.osrelease")
    yield from ((f"system-os_release.{key}", release[key]) for key in OS_KEYS if release.get(key))


def _cpu(features: FeatureSet, settings: WorkerSettings) -> Rows:
    for feature, prefix in (
        ("cpu.model", "cpu-model"), ("cpu.pstate", "cpu-pstate"), ("cpu.cstate", "cpu-cstate"),
        ("cpu.sst", "cpu-power.sst"), ("cpu.coprocessor", "cpu-coprocessor"),
    ):  # fmt: skip
        joined = "_" if feature == "cpu.sst" else "."
        yield from ((f"{prefix}{joined}{key}", value) for key, value in features.values(feature).items())
    known = dict.fromkeys(features.flags.get("cpu.cpuid", ()), _TRUE) | dict(features.values("cpu.cpuid"))
    for name, value in sorted(known.items()):
        if name in settings.cpuid_allowed or (not settings.cpuid_allowed and name not in settings.cpuid_denied):
            yield f"cpu-cpuid.{name}", value
    threads = features.values("cpu.topology").get("hardware_multithreading")
    if threads:
        yield "cpu-hardware_multithreading", threads
    security = features.values("cpu.security")
    yield from ((f"cpu-security.{key}", value) for key, value in security.items() if key not in _FEATURE_ONLY)


def _memory(features: FeatureSet, _settings: WorkerSettings) -> Rows:
    if features.values("memory.numa").get("is_numa") == _TRUE:
        yield "memory-numa", _TRUE
    if features.values("memory.swap").get("enabled") == _TRUE:
        yield "memory-swap", _TRUE
    kept = features.instances.get("memory.nv", ())
    if kept:
        yield "memory-nv.present", _TRUE
    if any(one.get("devtype") == "nd_dax" for one in kept):
        yield "memory-nv.dax", _TRUE


def _storage(features: FeatureSet, _settings: WorkerSettings) -> Rows:
    if any(disk.get("rotational") == "0" for disk in features.instances.get("storage.block", ())):
        yield "storage-nonrotationaldisk", _TRUE


def _network(features: FeatureSet, _settings: WorkerSettings) -> Rows:
    devices = features.instances.get("network.device", ())
    for key, field in (("capable", "sriov_totalvfs"), ("configured", "sriov_numvfs")):
        if any(_number(device.get(field, "")) > 0 for device in devices):
            yield f"network-sriov.{key}", _TRUE


def _fake(features: FeatureSet, _settings: WorkerSettings) -> Rows:
    if features.has("fake.flag"):
        yield from ((f"fake-fakefeature{number}", _TRUE) for number in (1, 2, 3))


def _each(features: FeatureSet, feature: str, prefix: str) -> Rows:
    return ((f"{prefix}.{key}", value) for key, value in features.values(feature).items())


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0


SOURCES: Final[Mapping[str, Callable[[FeatureSet, WorkerSettings], Rows]]] = {
    "pci": _pci, "usb": _usb, "custom": _custom, "kernel": _kernel, "system": _system, "cpu": _cpu, "memory": _memory,
    "storage": _storage, "network": _network, "fake": _fake,
}  # fmt: skip
