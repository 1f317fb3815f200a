"""DaemonSets of a GPU stack that make no pod at all, and why: their selectors, affinity and tolerations against nodes.

A DaemonSet that no node matches is no error to Kubernetes: it wants 0 pods and has them. So nothing fails, and nothing
offers the GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kgpu.base.plain import mapping, text
from kgpu.base.remedy import Remedy
from kgpu.doctor import matching, remedies
from kgpu.doctor.kinds import Node
from kgpu.doctor.model import CERTAIN, LIKELY, Evidence, Finding
from kgpu.doctor.objects import Obj, plain
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.waiting import waiting
from kgpu.fit.read import node_terms
from kgpu.formats import names

_DISCOVERY: Final = (names.NFD_PREFIX, names.LABEL_GPU_PRESENT)
"""Labels that discovery makes."""


@dataclass(frozen=True, slots=True)
class Idle:
    """A DaemonSet without pods, and the labels that it wants of a node, each with the values that would do."""

    daemons: Obj
    wants: tuple[tuple[str, str], ...]
    field: str

    @property
    def by_discovery(self) -> bool:
        """Whether all that it wants are labels that discovery makes."""
        return bool(self.wants) and all(key.startswith(_DISCOVERY) for key, _ in self.wants)


def idle_plugins(snapshot: Snapshot) -> Iterator[Idle]:
    """Device plugins of any vendor that no node matches."""
    return iter(snapshot.once(_idle))


def _idle(snapshot: Snapshot) -> tuple[Idle, ...]:
    idle = []
    for daemons in matching.daemon_sets_of_part(snapshot, matching.PLUGIN):
        desired = daemons.at("status.desiredNumberScheduled")
        if desired != 0 or not snapshot.nodes or not daemons.at("status.observedGeneration"):
            continue
        spec = daemons.map("spec.template.spec")
        selector = [(key, text(value)) for key, value in mapping(spec.get("nodeSelector")).items()]
        if any(key.startswith(names.LABEL_DEPLOY_PREFIX) for key, _ in selector):
            continue  # an operator's own: other rules tell why it has not set them
        if selector and not any(_has(node, selector) for node in snapshot.nodes.values()):
            idle.append(Idle(daemons, tuple(selector), "spec.template.spec.nodeSelector"))
            continue
        affinity = mapping(mapping(spec.get("affinity")).get("nodeAffinity"))
        terms = node_terms(affinity.get("requiredDuringSchedulingIgnoredDuringExecution")) or ()
        rows = [row for term in terms for row in term.expressions]
        wants = tuple(dict.fromkeys((row.key, row.values[0] if row.values else "") for row in rows))
        if wants and not any(
            term.matches(node.labels, node.name) for node in snapshot.nodes.values() for term in terms
        ):
            idle.append(Idle(daemons, wants, "spec.template.spec.affinity.nodeAffinity"))
    return tuple(idle)


def _has(node: Node, selector: list[tuple[str, str]]) -> bool:
    return all(node.labels.get(key) == value for key, value in selector)


def unlabelled(snapshot: Snapshot, *, by_discovery: bool) -> Iterator[Finding]:
    """A finding for each: TNT-05 where the labels are discovery's, else SCH-02."""
    for idle in idle_plugins(snapshot):
        if idle.by_discovery is not by_discovery:
            continue
        vendor = matching.parts_of(idle.daemons)[0].vendor
        pods = tuple(
            pod.path
            for pending in waiting(snapshot)
            if matching.vendor_of(pending.resource) == vendor
            for pod in pending.pods
        )
        if not pods and not matching.gpu_nodes(snapshot, vendor):
            continue  # a cluster without GPUs: nothing is missing
        yield _finding(snapshot, idle, pods)


def _finding(snapshot: Snapshot, idle: Idle, pods: tuple[str, ...]) -> Finding:
    wanted = " or ".join(f"{key}={value}" if value else key for key, value in idle.wants[:4])
    key, value = idle.wants[-1] if idle.wants else ("", "")
    node = next(iter(matching.gpu_nodes(snapshot)), None)
    name = node.name if node else "NODE"
    discovery = (
        (
            Remedy(
                "or let discovery label nodes: install node feature discovery (the plugin's chart: "
                "--set gfd.enabled=true)"
            ),
        )
        if idle.by_discovery
        else ()
    )
    return Finding(
        subject=idle.daemons.subject,
        cause=(
            f"{idle.daemons} has made no pod, so that no node offers its devices: it wants nodes with {wanted}, "
            "and no node has that label"
        ),
        evidence=(
            idle.daemons.cite("status.desiredNumberScheduled"),
            idle.daemons.cite(idle.field),
            *_labels(snapshot, node),
        ),
        remedy=(remedies.label(plain(name), plain(key), plain(value) or "true"), *discovery),
        confidence=CERTAIN if pods else LIKELY,
        pods=pods,
    )


def _labels(snapshot: Snapshot, node: Node | None) -> tuple[Evidence, ...]:
    shown_node = node or next(iter(snapshot.nodes.values()), None)
    return (shown_node.cite("metadata.labels"),) if shown_node else ()
