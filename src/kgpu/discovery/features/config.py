"""The worker's config file of node feature discovery: which features are looked for, and which become labels.

Keys are as there, in any capitals. One that kgpu does not know, or that changes nothing here, is told of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from kgpu.base.errors import ConfigError, UserError
from kgpu.formats import strict, yaml
from kgpu.formats.names import NFD_FOLDER
from kgpu.formats.yaml import Path

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
    """What a worker's config says. ``pci_fields`` None: both forms of labels, by class and vendor and by vendor."""

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
    notes: tuple[UserError, ...] = ()

    def finds(self, source: str) -> bool:
        """Whether the source's features are looked for."""
        return _chosen(source, self.feature_sources)

    def labels(self, source: str) -> bool:
        """Whether the source's labels are made."""
        return _chosen(source, self.label_sources)


def _chosen(source: str, chosen: Sequence[str]) -> bool:
    """``all`` but what has a minus before it; made-up features only by name."""
    if f"-{source}" in chosen:
        return False
    return source in chosen or (ALL in chosen and source != "fake")


def read_worker_config(content: bytes, source: str) -> WorkerSettings:
    """The settings of a file. What is wrong with it is in ``notes``, and the default counts in its place."""
    try:
        document = yaml.load_document(content, source=source)
    except ConfigError as error:
        return WorkerSettings(notes=(error,))
    problems = strict.Problems(source, document, _TABLE)
    read = strict.read_table(problems, (), document.value, _TABLE)
    core, sources = read.get("core", {}), read.get("sources", {})
    given: dict[str, Any] = {
        "feature_sources": core.get("featureSources"),
        "label_sources": core.get("labelSources"),
        "label_pattern": core.get("labelWhiteList"),
        "cpuid_denied": sources.get("cpu", {}).get("cpuid", {}).get("attributeBlacklist"),
        "cpuid_allowed": sources.get("cpu", {}).get("cpuid", {}).get("attributeWhitelist"),
        "kernel_config_file": sources.get("kernel", {}).get("kconfigFile"),
        "kernel_options": sources.get("kernel", {}).get("configOpts"),
        "pci_classes": sources.get("pci", {}).get("deviceClassWhitelist"),
        "pci_fields": sources.get("pci", {}).get("deviceLabelFields"),
        "usb_classes": sources.get("usb", {}).get("deviceClassWhitelist"),
        "usb_fields": sources.get("usb", {}).get("deviceLabelFields"),
        "custom": sources.get("custom"),
    }
    settings = {name: value for name, value in given.items() if value is not None}
    return WorkerSettings(**settings, notes=tuple(problems.found))


def _texts(problems: strict.Problems, path: Path, value: Any) -> tuple[str, ...] | None:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    problems.add(path, f"{strict.raw(value)} is no list of texts", "a list of texts", "put quotes around numbers")
    return None


def _of(*known: str) -> strict.Reader:
    """A list of some of these; a minus before one leaves it out."""

    def read(problems: strict.Problems, path: Path, value: Any) -> tuple[str, ...] | None:
        chosen = _texts(problems, path, value)
        unknown = [item for item in chosen or () if item.removeprefix("-") not in known]
        for item in unknown:
            problems.add(path, f'"{item[:60]}" is not known', f"one of {', '.join(known)}")
        return None if unknown else chosen

    return read


def _anything(_problems: strict.Problems, _path: Path, value: Any) -> tuple[Any, ...] | None:
    return tuple(value) if isinstance(value, list) else ()


def _without_effect(why: str) -> strict.Reader:
    def read(problems: strict.Problems, path: Path, _value: Any) -> None:
        problems.add(path, "changes nothing here", why, "take it out")

    return read


_PUBLISHING: Final = _without_effect("that kgpu writes labels on the Node, and no NodeFeature of them")
_LOGGING: Final = _without_effect("the agent's own --log-level and --log-format")
_RHYTHM: Final = _without_effect("a look every minute, and every five seconds for changed devices or files")
_CHOICE: Final = _of(ALL, *SOURCES)
_TABLE: Final[strict.Table] = {
    "core": {
        "labelWhiteList": strict.text,
        "featureSources": _CHOICE,
        "labelSources": _CHOICE,
        "sources": _without_effect("labelSources"),
        "noPublish": _PUBLISHING,
        "noOwnerRefs": _PUBLISHING,
        "ownerRefs": _PUBLISHING,
        "noPublishFeatures": _PUBLISHING,
        "sleepInterval": _RHYTHM,
        "klog": _LOGGING,
    },
    "sources": {
        "cpu": {"cpuid": {"attributeBlacklist": _texts, "attributeWhitelist": _texts}},
        "kernel": {"kconfigFile": strict.text, "configOpts": _texts},
        "pci": {
            "deviceClassWhitelist": _texts,
            "deviceLabelFields": _of("class", "vendor", "device", "subsystem_vendor", "subsystem_device"),
        },
        "usb": {"deviceClassWhitelist": _texts, "deviceLabelFields": _of("class", "vendor", "device", "serial")},
        "custom": _anything,
        "fake": _without_effect("the made-up features as they are"),
    },
}
