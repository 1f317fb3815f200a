"""The worker's config file of node feature discovery: which features are looked for, and which become labels.

Keys are as there, in any capitals. One that kgpu does not know, or that changes nothing here, is told of.
"""

from __future__ import annotations

import math
from typing import Any, Final

from kgpu.base.errors import ConfigError
from kgpu.discovery.features.worker_settings import ALL, SOURCES, WorkerSettings
from kgpu.formats import strict, yaml
from kgpu.formats.duration import INFINITE, parse_duration
from kgpu.formats.yaml import Path


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
        "unpublished": core.get("noPublishFeatures"),
        "interval": core.get("sleepInterval"),
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


def _seconds(problems: strict.Problems, path: Path, value: Any) -> float | None:
    """An interval as there: less than a second is a second, and 0 is no reading without a cause."""
    try:
        nanoseconds = parse_duration(value if isinstance(value, str) else str(value))
    except ConfigError as error:
        problems.add(path, error.what, error.expected, error.remedy)
        return None
    return max(1.0, nanoseconds / 1e9) if 0 < nanoseconds < INFINITE else math.inf


_PUBLISHING: Final = _without_effect("the chart's value nfd.enabled")
_OWNERS: Final = _without_effect("that nobody owns a NodeFeature, which goes with its Node")
_LOGGING: Final = _without_effect("the agent's own --log-level and --log-format")
_CHOICE: Final = _of(ALL, *SOURCES)
_TABLE: Final[strict.Table] = {
    "core": {
        "labelWhiteList": strict.text,
        "featureSources": _CHOICE,
        "labelSources": _CHOICE,
        "sources": _without_effect("labelSources"),
        "noPublish": _PUBLISHING,
        "noOwnerRefs": _OWNERS,
        "ownerRefs": _OWNERS,
        "noPublishFeatures": _texts,
        "sleepInterval": _seconds,
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
