"""The features ``kernel.*``: version, configuration, modules, SELinux, KVM."""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from kgpu.discovery.features.host_tree import MAX_TEXT, HostTree, text
from kgpu.discovery.features.model import FeatureSet

_VERSION: Final = re.compile(r"(?P<major>\d+)(\.(?P<minor>\d+))?(\.(?P<revision>\d+))?", re.ASCII)
_CONFIGS: Final = (
    "usr/src/linux-{0}/.config", "usr/src/linux/.config", "usr/lib/modules/{0}/config",
    "usr/lib/ostree-boot/config-{0}", "usr/lib/kernel/config-{0}", "usr/src/linux-headers-{0}/.config",
    "lib/modules/{0}/build/.config", "boot/config-{0}",
)  # fmt: skip
MAX_VALUE: Final = 63


def kernel_features(host: HostTree, config_file: str = "") -> FeatureSet:
    """All of them. ``config_file`` is looked for before the usual places of the kernel's configuration."""
    release = host.proc_text("sys/kernel/osrelease")
    loaded = frozenset(line.split(" ", 1)[0] for line in host.proc_text("modules").splitlines())
    enforced = host.text("sys/fs/selinux/enforce")
    kvm = os.path.exists(host.root / "sys/devices/virtual/misc/kvm")
    attributes: Mapping[str, Mapping[str, str]] = {
        "kernel.version": dict(_version(release)),
        "kernel.config": _config(host, release, config_file),
        "kernel.selinux": {"enabled": "true" if enforced.startswith("1") else "false"} if enforced else {},
        "kernel.kvm": {"enabled": "true"} if kvm else {},
    }
    modules = {"kernel.loadedmodule": loaded, "kernel.enabledmodule": loaded | _built_in(host, release)}
    return FeatureSet(
        flags=modules if (host.proc / "modules").exists() else {},
        attributes={name: values for name, values in attributes.items() if values},
    )


def _version(release: str) -> Iterator[tuple[str, str]]:
    full = re.sub(r"[^A-Za-z0-9_.-]", "_", release)[:MAX_VALUE].strip("-_.")
    if full:
        yield "full", full
    numbers = _VERSION.match(release)
    if numbers is not None:
        yield from ((part, found[:MAX_VALUE]) for part, found in numbers.groupdict().items() if found)


def _built_in(host: HostTree, release: str) -> frozenset[str]:
    if not _is_name(release):
        return frozenset()
    lines = host.text(f"lib/modules/{release}/modules.builtin").splitlines()
    return frozenset(os.path.basename(line).partition(".")[0].replace("-", "_") for line in lines if line)


def _config(host: HostTree, release: str, config_file: str) -> Mapping[str, str]:
    """The options with their values; of several configurations the first that can be read."""
    usual = [host.root / name.format(release) for name in _CONFIGS] if _is_name(release) else []
    own = [host.root / config_file.lstrip("/")] if config_file else []
    for path in (*own, *([host.proc / "config.gz"] if usual else []), *usual):
        content = _config_text(path)
        if content:
            return dict(_options(content))
    return {}


def _options(content: str) -> Iterator[tuple[str, str]]:
    for line in content.splitlines():
        option, sign, value = line.partition("=")
        if sign and option.startswith("CONFIG_"):
            yield option.removeprefix("CONFIG_"), value.strip().strip('"')


def _config_text(path: Path) -> str:
    if path.suffix != ".gz":
        return text(path)
    try:
        with gzip.open(path, "rt", encoding="utf-8", errors="replace") as file:
            return file.read(MAX_TEXT)
    except (OSError, EOFError, ValueError):
        return ""


def _is_name(release: str) -> bool:
    return bool(release) and "/" not in release and "\0" not in release
