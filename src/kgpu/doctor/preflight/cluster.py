"""Checks of what is no node's own: Pod Security, one driver for several systems, settings that exclude each other."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kgpu.base.plain import mapping
from kgpu.base.remedy import Remedy
from kgpu.doctor import cluster_policy, remedies
from kgpu.doctor.model import CERTAIN, Evidence, Finding, Level, Subject
from kgpu.doctor.preflight import operators
from kgpu.doctor.preflight.model import Answer, ClusterPreflight, PreflightScene
from kgpu.doctor.rules.driver.versions import ONE_RELEASE, not_together, overlapping
from kgpu.doctor.rules.operator.sentences import PSA, allow_privileged
from kgpu.doctor.snapshot import Snapshot
from kgpu.formats.support import KUBERNETES, dotted

_COMPILED: Final = Remedy("give the chart --set driver.usePrecompiled=false")
_OPEN: Final = Remedy("give the chart --set driver.kernelModuleType=open")
_LEVELS: Final = frozenset({"baseline", "restricted"})


def _pod_security(scene: PreflightScene) -> Answer:
    """OPR-02: agents and drivers are privileged pods."""
    namespace = scene.intent.namespace
    place = scene.snapshot.get("Namespace", namespace)
    level = place.labels.get(PSA, "") if place is not None else ""
    if not scene.refused and level not in _LEVELS:
        return None
    evidence = (place.cite(f"metadata.labels[{PSA}]"),) if place is not None and level else ()
    said = Evidence(object=f"Namespace {namespace}", field="the probe's pod", value=scene.refused)
    return Finding(
        subject=Subject("Namespace", namespace),
        cause=(
            f"the privileged pods of agents and drivers will be refused: namespace {namespace} takes pods of the level "
            f"{level or 'that its cluster sets'} alone"
        ),
        evidence=(*evidence, *((said,) if scene.refused else ())),
        remedy=(allow_privileged(namespace),),
        confidence=CERTAIN,
    )


def _one_system(scene: PreflightScene) -> Answer:
    """DRV-29: an image by digest is of one system."""
    systems: dict[str, dict[str, str]] = {}
    for node, driver in scene.intent.drivers.items():
        if driver.enabled and driver.os_tag and "@sha256:" in driver.image:
            systems.setdefault(driver.image, {}).setdefault(driver.os_tag, node)
    for image, nodes in systems.items():
        if len(nodes) > 1:
            listed = ", ".join(f"{tag} ({node})" for tag, node in sorted(nodes.items()))
            return Finding(
                subject=Subject("Cluster"),
                cause=f"the driver's image is given by digest, so that nodes of several systems get the same: {listed}",
                evidence=(Evidence(object=scene.intent.source, field="driver image", value=image),),
                remedy=ONE_RELEASE,
                confidence=CERTAIN,
            )
    return None


def _drivers(scene: PreflightScene) -> Answer:
    """DRV-10, by the doctor's own rule: NVIDIADrivers that select the same node; they do nothing while they are off."""
    return next(iter(overlapping(scene.snapshot)), None) if scene.intent.by_objects else None


def _together(scene: PreflightScene) -> Answer:
    """DRV-26, by the doctor's own rule, of what is to be installed."""
    intent = scene.intent
    drivers = [one.data for one in scene.snapshot.all("NVIDIADriver")]
    policy = [intent.policy] if intent.policy else []
    found = next(iter(not_together(Snapshot.of(drivers if intent.by_objects else policy))), None)
    if found is None or intent.by_objects or cluster_policy.in_force(scene.snapshot) is not None:
        return found
    precompiled = mapping(mapping(intent.policy.get("spec")).get("driver")).get("usePrecompiled") is True
    return replace(found, remedy=(_COMPILED if precompiled else _OPEN,))


def _kubernetes(scene: PreflightScene) -> Answer:
    """OPR-06: outside of the matrix it may work, and nobody tests it."""
    version = scene.snapshot.version
    if version is None or KUBERNETES.has(version):
        return None
    return Finding(
        subject=Subject("Cluster"),
        cause=f"Kubernetes {dotted(version)} is tested by nobody: {KUBERNETES.words}",
        evidence=(Evidence(object="API server", field="version", value=dotted(version)),),
        remedy=(Remedy(KUBERNETES.remedy),),
        confidence=CERTAIN,
        level=Level.NOTE,
    )


def _operators(scene: PreflightScene) -> Answer:
    """OPR-20: where another GPU operator works, kgpu keeps its hands off, and nothing of its is harmed."""
    deployment = operators.foreign(scene.snapshot)
    if deployment is None:
        return None
    return Finding(
        subject=deployment.subject,
        cause=f"kgpu will do nothing while another GPU operator works in this cluster ({deployment})",
        evidence=(deployment.cite("status.readyReplicas"),),
        remedy=(
            Remedy("to take over without touching workloads, stop it once kgpu is installed:"),
            remedies.scale(deployment.namespace, "deployment", deployment.name, 0),
        ),
        confidence=CERTAIN,
        level=Level.NOTE,
    )


CHECKS: Final = (
    ClusterPreflight(name="Kubernetes' version", id="OPR-06", look=_kubernetes),
    ClusterPreflight(name="Pod Security", id="OPR-02", look=_pod_security),
    ClusterPreflight(name="one system per driver image", id="DRV-29", look=_one_system),
    ClusterPreflight(name="NVIDIADrivers", id="DRV-10", look=_drivers),
    ClusterPreflight(name="GDS and GDRCopy", id="DRV-26", look=_together),
    ClusterPreflight(name="other GPU operators", id="OPR-20", look=_operators),
)
