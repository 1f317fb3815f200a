"""What is looked for on a node and what becomes a label, as plain data; the defaults are node feature discovery's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from kgpu.base.errors import UserError
from kgpu.formats.names import NFD_FOLDER

FILE: Final = f"{NFD_FOLDER}/nfd-worker.conf".lstrip("/")
MAX_FILE: Final = 1 << 20
SOURCES: Final = ("cpu", "kernel", "pci", "usb", "storage", "network", "memory", "system", "local", "custom", "fake")
ALL: Final = "all"
PCI_CLASSES: Final = ("02", "03", "0b40", "12")
"""Display controllers, co-processors and accelerators as in node feature discovery; network ones for GPU operators."""
CPUID_DENIED: Final = (
    "AVX10", "BMI1", "BMI2", "CLMUL", "CMOV", "CX16", "ERMS", "F16C", "HTT", "LZCNT", "MMX", "MMXEXT", "NX", "POPCNT",
    "RDRAND", "RDSEED", "RDTSCP", "SGX", "SGXLC", "SSE", "SSE2", "SSE3", "SSE4", "SSE42", "SSSE3", "TDX_GUEST",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What a worker's config says. ``pci_fields`` None: both forms of labels, by class and vendor and by vendor.

    ``unpublished`` are features that are looked for, for labels, and kept from NodeFeatures; one that ends in ``*`` is
    all that begin so. ``interval`` is in seconds, infinite for no reading without a cause, None for the usual one.
    """

    feature_sources: tuple[str, ...] = (ALL,)
    label_sources: tuple[str, ...] = (ALL,)
    label_pattern: str = ""
    cpuid_denied: tuple[str, ...] = CPUID_DENIED
    cpuid_allowed: tuple[str, ...] = ()
    kernel_config_file: str = ""
    kernel_options: tuple[str, ...] = ("NO_HZ", "NO_HZ_IDLE", "NO_HZ_FULL", "PREEMPT")
    pci_classes: tuple[str, ...] = PCI_CLASSES
    pci_fields: tuple[str, ...] | None = None
    usb_classes: tuple[str, ...] = ("0e", "ef", "fe", "ff")
    usb_fields: tuple[str, ...] = ("class", "vendor", "device")
    custom: tuple[Any, ...] = ()
    unpublished: tuple[str, ...] = ()
    interval: float | None = None
    notes: tuple[UserError, ...] = ()

    def finds(self, source: str) -> bool:
        """Whether the source's features are looked for."""
        return _chosen(source, self.feature_sources)

    def labels(self, source: str) -> bool:
        """Whether the source's labels are made."""
        return _chosen(source, self.label_sources)

    def publishes(self, feature: str) -> bool:
        """Whether a feature is for NodeFeatures."""
        return not any(
            feature.startswith(one[:-1]) if one.endswith("*") else feature == one for one in self.unpublished
        )


def _chosen(source: str, chosen: Sequence[str]) -> bool:
    """``all`` but what has a minus before it; made-up features only by name."""
    if f"-{source}" in chosen:
        return False
    return source in chosen or (ALL in chosen and source != "fake")
