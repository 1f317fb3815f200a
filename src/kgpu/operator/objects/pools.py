"""Finds the driver images that a fleet needs: groups nodes by operating system, by kernel for precompiled drivers, and
on OpenShift by version of RHCOS.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kgpu.formats import names
from kgpu.operator.labels import DRIVER, is_gpu, opted_out
from kgpu.operator.model import ClusterNode
from kgpu.operator.nodes import MAJOR_ONLY, RHCOS, os_tag

MAX_NAME: Final = 63
"""The most characters of a label's value, as a DaemonSet's name is also a label of its pods."""

_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Nodes that use the same driver image. ``selector`` has the labels that only these nodes share.

    ``kernel`` is "" unless drivers are precompiled; ``rhcos`` is the version of RHCOS on OpenShift, where drivers are
    built for one version, and else "". ``engine_mounts`` is True if the container runtimes of all nodes mount the
    host's subscription into containers.
    """

    os_id: str
    os_tag: str
    kernel: str = ""
    rhcos: str = ""
    selector: Mapping[str, str]
    engine_mounts: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """What tells pools apart: the operating system, and the kernel or the version of RHCOS."""
        return self.os_tag, self.kernel or self.rhcos


@dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    """Pools in a stable order; ``unlabelled`` are nodes whose labels do not tell the operating system or kernel yet."""

    pools: tuple[Pool, ...] = ()
    unlabelled: tuple[str, ...] = ()


def pools(nodes: Iterable[ClusterNode], *, by_kernel: bool, openshift: bool = False) -> Pools:
    """Group the nodes. Selectors use labels, so a node without the labels is in no pool."""
    groups: dict[tuple[str, str, str, str], list[ClusterNode]] = {}
    unlabelled = []
    for node in nodes:
        by_rhcos = openshift and not by_kernel and is_rhcos(node)
        needed = _os_keys(node.os_id)
        needed += ((names.NFD_KERNEL_FULL,) if by_kernel else ()) + ((names.NFD_OSTREE_VERSION,) if by_rhcos else ())
        if not os_tag(node) or any(not node.labels.get(key) for key in needed):
            unlabelled.append(node.name)
            continue
        kernel = node.labels[names.NFD_KERNEL_FULL] if by_kernel else ""
        rhcos = node.labels[names.NFD_OSTREE_VERSION] if by_rhcos else ""
        groups.setdefault((os_tag(node), node.os_id, kernel, rhcos), []).append(node)
    return Pools(
        pools=tuple(_pool(key, groups[key]) for key in sorted(groups)),
        unlabelled=tuple(sorted(unlabelled)),
    )


def is_rhcos(node: ClusterNode) -> bool:
    """Whether the node has RHCOS, which since OpenShift 4.19 calls itself RHEL."""
    return node.os_id == RHCOS or names.NFD_OSTREE_VERSION in node.labels


def _pool(key: tuple[str, str, str, str], nodes: list[ClusterNode]) -> Pool:
    tag, os_id, kernel, rhcos = key
    first = nodes[0]
    selector = {label: first.labels[label] for label in _os_keys(os_id)}
    if kernel:
        selector[names.NFD_KERNEL_FULL] = kernel
    if rhcos:
        selector[names.NFD_OSTREE_VERSION] = rhcos
    return Pool(
        os_id=os_id,
        os_tag=tag,
        kernel=kernel,
        rhcos=rhcos,
        selector=selector,
        engine_mounts=all(node.runtime == "cri-o" for node in nodes),
    )


def _os_keys(os_id: str) -> tuple[str, ...]:
    return (names.NFD_OS_ID, names.NFD_OS_VERSION_MAJOR if os_id in MAJOR_ONLY else names.NFD_OS_VERSION)


def takes_driver(node: ClusterNode) -> bool:
    """True for a GPU node whose label allows a driver pod, now or after the pause of an upgrade."""
    label = node.labels.get(DRIVER, "")
    wanted = label in {"", "true"} or label.endswith(names.PAUSED_FOR_DRIVER_UPGRADE)
    return is_gpu(node) and wanted and not opted_out(node)


_KERNEL_NOISE: Final = re.compile(r"\.x86_64|\.aarch64|[_+]64k")


def kernel_name(kernel: str) -> str:
    """The kernel's version as part of an object's name, in lower case without architecture and page size.

    ``5.14.0-427.37.1.el9_4.aarch64_64k`` becomes ``5.14.0-427.37.1.el9.4``.
    """
    text = _KERNEL_NOISE.sub("", kernel).replace("_", ".").lower()
    return re.sub(r"[^a-z0-9.-]", "-", text).strip(".-")


def rhcos_name(version: str) -> str:
    """The version of RHCOS as part of an object's name; one that can't be is made so, and a hash keeps it unique."""
    name = kernel_name(version)
    return name if name == version else f"{name}-{hashed(version)}"


def hashed(text: str) -> str:
    """The replaced operator's short name of a text: FNV-32a as decimal digits, each put into an alphabet without
    vowels and without digits that look like letters.
    """
    return "".join(_ALPHABET[ord(digit) % len(_ALPHABET)] for digit in str(fnv32a(text.encode())))


def fnv32a(data: bytes) -> int:
    """The 32-bit FNV-1a hash."""
    value = 0x811C9DC5
    for byte in data:
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def short_name(name: str) -> str:
    """A name that fits a label's value: a longer one is cut, and a hash keeps it unique."""
    if len(name) <= MAX_NAME:
        return name
    return f"{name[: MAX_NAME - 9].rstrip('.-')}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
