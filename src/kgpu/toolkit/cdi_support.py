"""Which CDI versions the container engines of this node read, so that no spec says more than the oldest of them knows.

An engine refuses a whole file whose ``cdiVersion`` it does not know. The version is that of the CDI library inside the
engine's program, read from the program's file; nothing is run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kgpu.formats.cdi import VERSIONS
from kgpu.host.go_binary import has_symbols, modules
from kgpu.host.root import Tree

PROGRAMS: Final = ("containerd", "crio", "dockerd", "podman", "k3s")
FOLDERS: Final = (
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/opt/bin",
    "/var/lib/rancher/k3s/data/current/bin",
    "/var/lib/rancher/rke2/data/current/bin",
    "/var/lib/rancher/rke2/bin",
    "/var/lib/k0s/bin",
    "/snap/microk8s/current/bin",
)
# The library was one module until its types became one of their own; it moved from the first name to the second.
_TYPES: Final = "tags.cncf.io/container-device-interface/specs-go"
_LIBRARY: Final = (
    "tags.cncf.io/container-device-interface",
    "github.com/container-orchestrated-devices/container-device-interface",
)
_MENTION: Final = "container-device-interface/"
_FIRST_CHECKED: Final = "0.5.0"
"""The version to assume of a library that is older than the functions that check versions."""
_VERSION: Final = re.compile(r"v(\d+)\.(\d+)\.\d+", re.ASCII)


@dataclass(frozen=True, slots=True)
class EngineSupport:
    """An engine's program on the host, and the newest CDI version that it reads ("" when that is not known)."""

    program: str
    newest: str


def find_engines(tree: Tree) -> tuple[EngineSupport, ...]:
    """Every engine in the usual places that reads CDI specs at all."""
    engines: dict[str, EngineSupport] = {}
    for folder in FOLDERS:
        for name in PROGRAMS:
            path = tree.resolve(f"{folder}/{name}")
            if path is None or path in engines or not tree.local(path).is_file():
                continue
            newest = _newest(tree, path)
            if newest is not None:
                engines[path] = EngineSupport(path, newest)
    return tuple(engines.values())


def oldest_support(engines: Iterable[EngineSupport]) -> str:
    """The newest version that every engine reads; "" when there is none, or one of which it is not known."""
    versions = [engine.newest for engine in engines]
    return min(versions, key=VERSIONS.index) if versions and all(versions) else ""


def _newest(tree: Tree, path: str) -> str | None:
    linked = modules(tree.local(path))
    for module in (_TYPES, *_LIBRARY):
        if module in linked:
            return _at_most(linked[module])
    if len(linked) > 1:
        return None  # it lists its modules, and CDI is not among them
    checks = {f"{_MENTION}{place}.requiresV{version.replace('.', '')}": version
              for version in VERSIONS for place in ("specs-go", "pkg/cdi")}  # fmt: skip
    symbols = has_symbols(tree.local(path), [_MENTION, *checks])
    if not symbols:
        return None
    return max((checks[symbol] for symbol in symbols if symbol in checks), key=VERSIONS.index, default=_FIRST_CHECKED)


def _at_most(version: str) -> str:
    """The newest known specification of a library's version: v0.6.2 reads 0.6.0."""
    match = _VERSION.match(version)
    if match is None:
        return ""
    own = (int(match[1]), int(match[2]))
    known = [known for known in VERSIONS if tuple(int(part) for part in known.split(".")[:2]) <= own]
    return known[-1] if known else VERSIONS[0]
