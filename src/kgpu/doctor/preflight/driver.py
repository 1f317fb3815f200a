"""Checks of the driver that a node would get: its image, the host's own driver, and whether it knows the GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from kgpu.base.advice import Advice
from kgpu.base.remedy import Remedy
from kgpu.doctor.host_facts import PciDevice
from kgpu.doctor.model import CERTAIN, LIKELY, Evidence, Finding, Level, Missing, Subject
from kgpu.doctor.preflight import operators
from kgpu.doctor.preflight.model import PROBE, Answer, NodePreflight, NodeScene
from kgpu.doctor.rules.driver.versions import MADE, not_precompiled, on_the_system
from kgpu.doctor.rules.kernel.devices import OTHER_RELEASE, gpus_of
from kgpu.formats.gpu_generations import GpuGeneration, generation_of
from kgpu.formats.support import NO_DRIVER_SYSTEMS, parse

_NVIDIA: Final = "nvcr.io/nvidia/"
"""Where the systems that images are published for are known."""
_SYSTEM: Final = re.compile(r"[a-z-]+")
_NO_DRIVER: Final = Remedy("where the nodes have a driver of their own, give the chart --set driver.enabled=false")
_COMPILED: Final = Remedy("give the chart --set driver.usePrecompiled=false")
_VERSION: Final = Remedy("set driver.version to a release that has an image for the system")
_NOTES: Final = "NVIDIA's release notes of the driver list the GPUs that it supports"
_CLOSED: Final = Remedy("give the chart --set driver.kernelModuleType=auto")


def _image(scene: NodeScene) -> Answer:
    """DRV-07, DRV-08 and IMG-07: the image for the node's kernel, for its system, or of that version is not there."""
    if not scene.takes_driver:
        return None
    driver = scene.driver
    if driver.problem is not None:
        return _unusable(scene, driver.problem)
    if not driver.image:
        return Missing("the driver's image", "the node's system or kernel is not known", "kubectl get nodes -o wide")
    answer = scene.scene.images.get(driver.image)
    if answer is not None and answer.exists:
        return None
    absent = answer is not None and answer.exists is False
    if absent and driver.precompiled:
        return _no_precompiled(scene)
    if absent or _known_unmade(scene):
        return _no_image(scene, sure=absent)
    why = answer.why if answer is not None else "the registry was not asked"
    return Missing(
        f"whether there is an image {driver.image}", why, f"where the registry can be reached: skopeo inspect docker://{driver.image}"
    )  # fmt: skip


def _unusable(scene: NodeScene, problem: Advice) -> Answer:
    """OBJ-00: what the operator could not make a pod of. Another operator may have images of its own for it."""
    if operators.foreign(scene.scene.snapshot) is not None:
        how = "kgpu preflight --values FILE, with the values that the chart is to be given"
        return Missing("the driver's image", f"the other operator's ClusterPolicy does not tell: {problem.what}", how)
    return Finding(
        id="OBJ-00",
        subject=Subject("Node", scene.name),
        cause=f"no driver container can be made: {problem.statement}",
        evidence=(Evidence(object=scene.driver.owner, field="driver", value=problem.what),),
        remedy=(Remedy("correct what the driver is set to: {}", problem.remedy),) if problem.remedy else (),
        confidence=CERTAIN,
    )


def _known_unmade(scene: NodeScene) -> bool:
    """Whether NVIDIA publishes no image for the system. One that brings a driver of its own has to be looked at."""
    system = _SYSTEM.match(scene.driver.os_tag)
    brings = system is not None and system[0] in NO_DRIVER_SYSTEMS and scene.has_driver is None
    return scene.driver.image.startswith(_NVIDIA) and not MADE.fullmatch(scene.driver.os_tag) and not brings


def _cited(scene: NodeScene, *fields: str) -> tuple[Evidence, ...]:
    image = Evidence(object=scene.driver.owner, field="image", value=scene.driver.image)
    return (image, *(scene.node.cite(f"status.nodeInfo.{field}") for field in fields))


def _no_precompiled(scene: NodeScene) -> Finding:
    return Finding(
        id="DRV-07",
        subject=Subject("Node", scene.name),
        cause=f"there is no image {scene.driver.image}: no precompiled driver is published for kernel {scene.kernel}",
        evidence=_cited(scene, "kernelVersion"),
        remedy=not_precompiled(scene.name, scene.scene.change(_COMPILED, {"driver": {"usePrecompiled": False}})),
        confidence=CERTAIN,
    )


def _no_image(scene: NodeScene, *, sure: bool) -> Finding:
    driver = scene.driver
    made = MADE.fullmatch(driver.os_tag) is not None
    why = (
        f"driver {driver.version} is not published for {driver.os_tag}"
        if made
        else f"no driver container is published for the system {driver.os_tag}"
    )
    off = scene.scene.change(_NO_DRIVER, {"driver": {"enabled": False}})
    return Finding(
        id="IMG-07" if made else "DRV-08",
        subject=Subject("Node", scene.name),
        cause=f"there is no image {driver.image}: {why}",
        evidence=_cited(scene, "osImage"),
        remedy=(_VERSION,) if made else on_the_system(off),
        confidence=CERTAIN if sure else LIKELY,
    )


def _own_driver(scene: NodeScene) -> Answer:
    """DRV-05: a driver of the node itself is used in any case, whatever version is asked for."""
    host = scene.host
    if not scene.driver.enabled or not scene.has_driver or host is None or not host.driver_version:
        return None
    if parse(scene.driver.version) == parse(host.driver_version):
        return None
    return Finding(
        subject=Subject("Node", scene.name),
        cause=(
            f"the node has a driver of its own, {host.driver_version}: it is used, no driver container is started, "
            f"and driver.version ({scene.driver.version or 'not given'}) has no effect there"
        ),
        evidence=(host.cite("driver_version"),),
        remedy=(_NO_DRIVER,),
        confidence=CERTAIN,
        level=Level.NOTE,
    )


def _knows_gpus(scene: NodeScene) -> Answer:
    """KRN-09, KRN-07 and KRN-08: the branch, or the flavour of its module, is not for these GPUs."""
    if not scene.takes_driver:
        return None
    if "@sha256:" in scene.driver.image:
        return Missing("whether the driver knows the node's GPUs", "a digest tells no version", _NOTES)
    branch = parse(scene.driver.version)[:1]
    if not branch:
        return None
    host = scene.host
    if host is None or host.pci is None:
        return Missing("whether the driver knows the node's GPUs", "the API does not say which they are", PROBE)
    cards = gpus_of(host)
    strange = [card for card in cards if generation_of(card.device) is None]
    for card in cards:
        if (row := generation_of(card.device)) and (found := next(_misfits(scene, card, row, branch[0]), None)):
            return found
    if strange:
        return Missing(
            f"whether the driver knows the GPU 10de:{strange[0].device}",
            "kgpu's table does not have it: it is newer than this kgpu, or no GPU for computing",
            _NOTES,
        )
    return None


def _misfits(scene: NodeScene, card: PciDevice, row: GpuGeneration, branch: int) -> Iterator[Finding]:
    if branch < row.first:
        said = f"driver {scene.driver.version} is older than {row.name} GPUs, which need branch {row.first} or later"
        yield _misfit(scene, card, "KRN-09", said, (OTHER_RELEASE,))
    elif row.last and branch > row.last:
        said = f"driver {scene.driver.version} knows {row.name} GPUs no longer: {row.last} is the last branch that does"
        yield _misfit(scene, card, "KRN-09", said, (OTHER_RELEASE,))
    auto = (scene.scene.change(_CLOSED, {"driver": {"kernelModuleType": "auto"}}),)
    if scene.driver.module_type == "open" and not row.open_module:
        yield _misfit(scene, card, "KRN-07", f"the open kernel module does not support {row.name} GPUs", auto)
    elif scene.driver.module_type == "proprietary" and not row.closed_module:
        yield _misfit(scene, card, "KRN-08", f"{row.name} GPUs need the open kernel module", auto)


def _misfit(scene: NodeScene, card: PciDevice, rule: str, said: str, remedy: tuple[Remedy, ...]) -> Finding:
    assert scene.host is not None
    return Finding(
        id=rule,
        subject=Subject("Node", scene.name),
        cause=said,
        evidence=(
            scene.host.cite("pci", f"{card.address} 10de:{card.device}"),
            Evidence(object=scene.driver.owner, field="driver.version", value=scene.driver.version),
        ),
        remedy=remedy,
        confidence=CERTAIN,
    )


CHECKS: Final = (
    NodePreflight(name="driver image", id="DRV-08", look=_image),
    NodePreflight(name="the node's own driver", id="DRV-05", look=_own_driver),
    NodePreflight(name="GPUs of the driver", id="KRN-09", look=_knows_gpus),
)
