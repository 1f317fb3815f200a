"""Checks of a node's kernel: headers to build against, nouveau, Secure Boot."""

from __future__ import annotations

import re
from typing import Final

from kgpu.base.remedy import Remedy
from kgpu.doctor.model import CERTAIN, LIKELY, Finding, Missing, Subject
from kgpu.doctor.preflight.model import PROBE, Answer, NodePreflight, NodeScene
from kgpu.doctor.rules.kernel.modules import BLACKLIST, HEADERS, SIGNED

_BUILT_BY_HAND: Final = re.compile(r"\+$|-dirty|-rc\d+|-microsoft-standard")
"""Kernels for which no distribution's repositories have headers: built from sources as they were, and WSL's."""
_SECURE_BOOT: Final = "Secure Boot's state"
_DEBIAN: Final = frozenset({"ubuntu", "debian"})
_RED_HAT: Final = frozenset({"rhel", "rocky", "ol", "centos", "fedora"})
_SIGNED_BY_SYSTEM: Final = "ubuntu"
"""Precompiled drivers of Ubuntu's images have modules that Canonical has signed."""


def _package(scene: NodeScene) -> str:
    system = re.match(r"[a-z-]+", scene.driver.os_tag)
    name = system[0] if system else ""
    if name in _DEBIAN:
        return f"linux-headers-{scene.kernel}"
    return f"kernel-devel-{scene.kernel}" if name in _RED_HAT else f"the headers of kernel {scene.kernel}"


def _headers(scene: NodeScene) -> Answer:
    """KRN-01: the container takes the headers of the running kernel from the system's repositories."""
    host = scene.host
    if not scene.compiles or (host is not None and (host.headers or host.headers_offered)):
        return None
    package = _package(scene)
    by_hand = _BUILT_BY_HAND.search(scene.kernel)
    if by_hand or (host is not None and host.headers_offered is False):
        why = "which no repository has headers for" if by_hand else f"and the lists of its packages have no {package}"
        evidence = [scene.node.cite("status.nodeInfo.kernelVersion", scene.kernel)]
        if host is not None:
            evidence += [host.cite("headers", "missing"), host.cite("headers_offered", "not in the lists")]
        return Finding(
            subject=Subject("Node", scene.name),
            cause=f"the driver container can't build its modules: the kernel is {scene.kernel}, {why}",
            evidence=tuple(evidence),
            remedy=tuple(Remedy(step, node=scene.name) for step in HEADERS),
            confidence=LIKELY,
        )
    if host is None:
        return Missing("whether there are kernel headers to build the driver with", "the API does not say it", PROBE)
    return Missing(
        f"whether the repositories have {package}",
        "it is not installed, and there are no lists of packages that could be read",
        "on the node: apt-cache policy linux-headers-$(uname -r), or dnf list kernel-devel-$(uname -r)",
    )


def _nouveau(scene: NodeScene) -> Answer:
    """KRN-03: the driver manager unloads nouveau, which fails while anything uses it."""
    if not scene.takes_driver:
        return None
    host = scene.host
    if host is None or (host.modules is None and host.pci is None):
        return Missing("whether the kernel's own driver nouveau is in use", _why(scene), PROBE)
    users = (host.modules or {}).get("nouveau")
    bound = [device for device in host.pci or () if device.vendor == "10de" and device.driver == "nouveau"]
    if users == 0 or (users is None and (host.modules is not None or not bound)):
        return None
    evidence = [host.cite("pci", f"{device.address} driver nouveau") for device in bound[:1]]
    evidence += [host.cite("modules", f"nouveau, reference count {users}")] if users else []
    return Finding(
        subject=Subject("Node", scene.name),
        cause="the driver can't be loaded: the kernel's own driver nouveau has the GPU and is in use",
        evidence=tuple(evidence),
        remedy=BLACKLIST,
        confidence=CERTAIN if users else LIKELY,
    )


def _secure_boot(scene: NodeScene) -> Answer:
    """KRN-04: what a container has built itself is signed by nobody."""
    if not scene.takes_driver:
        return None
    host = scene.host
    if host is None or _SECURE_BOOT in host.missing:
        return Missing("whether Secure Boot is on", _why(scene, _SECURE_BOOT), PROBE)
    if not host.secure_boot:
        return None
    if scene.driver.precompiled:
        if scene.driver.os_tag.startswith(_SIGNED_BY_SYSTEM):
            return None
        return Missing(
            "whether the modules of the precompiled driver are signed with an enrolled key",
            "Secure Boot is on, and an image does not tell who has signed what is in it",
            "ask who has built the image, and on the node: mokutil --list-enrolled",
        )
    return Finding(
        subject=Subject("Node", scene.name),
        cause="the driver's modules will be refused: Secure Boot is on, and a container does not sign what it builds",
        evidence=(host.cite("secure_boot"),),
        remedy=tuple(Remedy(step, node=scene.name) for step in SIGNED),
        confidence=CERTAIN,
    )


def _why(scene: NodeScene, what: str = "") -> str:
    """Why nobody has looked."""
    said = scene.host.missing.get(what, "") if scene.host is not None else ""
    return said or ("the API does not say it" if scene.host is None else "it could not be looked at")


CHECKS: Final = (
    NodePreflight(name="kernel headers", id="KRN-01", look=_headers),
    NodePreflight(name="nouveau", id="KRN-03", look=_nouveau),
    NodePreflight(name="Secure Boot", id="KRN-04", look=_secure_boot),
)
