"""GPU nodes that offer none of their devices, and Jobs for GPUs that nobody starts, where no other rule says why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kgpu.base.remedy import Remedy
from kgpu.doctor import matching, remedies
from kgpu.doctor.idle_daemons import idle_plugins
from kgpu.doctor.kinds import Node, Pod
from kgpu.doctor.model import CERTAIN, LIKELY, POSSIBLE, Evidence, Finding, Level, Place
from kgpu.doctor.rule import rule
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.stack_config import plugin_off
from kgpu.doctor.untapped import nodes_with_slices
from kgpu.doctor.waiting import Waiting, waiting
from kgpu.formats import names

_BY_BUS: Final = frozenset({matching.NVIDIA, matching.AMD, matching.GAUDI, matching.INTEL})
_FOR_WORK: Final = frozenset({matching.NVIDIA, matching.GAUDI})
"""Whose devices are there to compute on; others put graphics into processors, with the same class on the bus."""
_JOINS: Final = 900.0
"""Seconds in which a node that has joined may still be getting its driver and its plugin."""


@rule(
    "DPL-00",
    "A GPU node offers none of its devices",
    Place.PLUGIN,
    explains=("SCH-00", "SCH-02"),
    last_resort=True,
    rests_on=("Kubernetes documentation, Device Plugins: a node has a resource once a plugin has registered it",),
)
def unoffered(snapshot: Snapshot) -> Iterator[Finding]:
    """By its labels or its bus a node has devices, and no resource counts them: no device plugin runs there, or it has
    registered nothing. Reported only where no other rule knows why.
    """
    if not snapshot.knows("Pod") and not snapshot.pods:
        return  # which plugins run is not known
    explained = snapshot.once(_explained_nodes)
    for node in matching.gpu_nodes(snapshot):
        if not _offers_nothing(snapshot, node):
            continue
        for vendor in sorted(matching.vendors_of(node, snapshot)):
            if (vendor, node.name) in explained:
                continue
            pods = matching.pods_of_part(snapshot, matching.PLUGIN, vendor=vendor, node=node.name)
            running = [pod for pod in pods if not pod.ended]
            ready = [pod for pod in running if pod.ready]
            # A plugin that is not ready has a finding of its own.
            if bool(running) is bool(ready) and _should_offer(snapshot, node, vendor):
                yield _finding(snapshot, node, vendor, ready)


def _explained_nodes(snapshot: Snapshot) -> frozenset[tuple[str, str]]:
    """The vendors and nodes of which others tell that nothing is offered: pods wait for devices of a vendor that no
    node offers at all, or its plugin matches no node and none runs. Whatever else pods wait for says nothing of a node.
    """
    waits = {
        matching.vendor_of(pending.resource)
        for pending in waiting(snapshot)
        if not pending.fits and _names_nodes(pending)
    }
    idle = {matching.parts_of(plugin.daemons)[0].vendor for plugin in idle_plugins(snapshot)}
    explained: set[tuple[str, str]] = set()
    for vendor in (waits | idle) - {""}:
        nodes = matching.gpu_nodes(snapshot, vendor)
        offered = any(matching.is_accelerator(name) for node in nodes for name in node.resources())
        runs = vendor in idle and matching.pods_of_part(snapshot, matching.PLUGIN, vendor=vendor)
        if (vendor in waits and not offered) or (vendor in idle and not runs):
            explained |= {(vendor, node.name) for node in nodes}
    return frozenset(explained)


def _names_nodes(pending: Waiting) -> bool:
    """Whether its finding names the nodes that offer nothing: always for whole devices, else where that is why."""
    parts = matching.is_mig(pending.resource) or matching.is_shared(pending.resource)
    return not parts or not pending.anywhere


def _offers_nothing(snapshot: Snapshot, node: Node) -> bool:
    """Whether a node offers no resource although containers should get its devices that way, and it had the time to."""
    if any(matching.is_accelerator(name) for name in node.resources()):
        return False
    if node.ready is False or node.name in plugin_off(snapshot) or node.name in snapshot.once(nodes_with_slices):
        return False
    age = snapshot.age(node.created)
    return not _is_for_machines(node) and (age is None or age >= _JOINS)


def _should_offer(snapshot: Snapshot, node: Node, vendor: str) -> bool:
    """Whether a vendor's devices on a node are meant for computing."""
    return not _is_by_hand(snapshot, node, vendor) and (vendor in _FOR_WORK or _brought(snapshot, vendor))


def _is_by_hand(snapshot: Snapshot, node: Node, vendor: str) -> bool:
    """Whether only a label claims devices, while discovery has looked at the node and found none."""
    host = snapshot.hosts.get(node.name)
    looked = any(key.startswith(f"{names.NFD_PREFIX}pci-") for key in node.labels) or (host and host.pci is not None)
    label = matching.pci_label(node, vendor) if vendor in _BY_BUS else ""
    return bool(looked) and not label and not (host and host.pci)


def _finding(snapshot: Snapshot, node: Node, vendor: str, ready: list[Pod]) -> Finding:
    everywhere = _brought(snapshot, vendor)
    if ready:
        why, steps = f"{ready[0]} is Ready there and has registered none", _log(ready[0])
    elif everywhere:
        why = "no device plugin runs there"
        brings = matching.daemon_sets_of_part(snapshot, matching.PLUGIN, vendor=vendor)[:1]
        steps = tuple(remedies.describe(daemon_set.namespace, "daemonset", daemon_set.name) for daemon_set in brings)
    else:
        why = "no device plugin is installed in this cluster"
        steps = (Remedy("install one (kgpu's chart, or the vendor's operator), if pods are to use them"),)
    evidence: tuple[Evidence, ...] = (node.cite("status.allocatable"), _cited_device(node, vendor))
    return Finding(
        subject=node.subject,
        cause=f"node {node.name} has {vendor} devices and offers none of them: {why}",
        evidence=(*evidence, *(pod.cite("status.phase") for pod in ready[:1])),
        remedy=(*steps, remedies.describe_node(node.name)),
        confidence=LIKELY if everywhere else POSSIBLE,
        level=Level.PROBLEM if everywhere else Level.NOTE,
        nodes=(node.name,),
    )


def _brought(snapshot: Snapshot, vendor: str) -> bool:
    """Whether a device plugin for such devices is installed."""
    return bool(
        matching.daemon_sets_of_part(snapshot, matching.PLUGIN, vendor=vendor)
        or matching.pods_of_part(snapshot, matching.PLUGIN, vendor=vendor)
    )


def _log(pod: Pod) -> tuple[Remedy, ...]:
    return (remedies.logs(pod.namespace, pod.name, "--all-containers", "--tail=50"),)


def _cited_device(node: Node, vendor: str) -> Evidence:
    label = matching.pci_label(node, vendor) if vendor in _BY_BUS else ""
    return node.cite(f"metadata.labels[{label}]") if label else node.cite("metadata.labels")


def _is_for_machines(node: Node) -> bool:
    return node.labels.get(names.LABEL_WORKLOAD_CONFIG, "").startswith("vm-")


@rule(
    "JOB-00",
    "A Job for GPUs is suspended",
    Place.CLUSTER,
    last_resort=True,
    rests_on=("KEP-2232 Suspend Job, stable in Kubernetes 1.24",),
)
def suspended(snapshot: Snapshot) -> Iterator[Finding]:
    """A suspended Job has no pods, so nothing waits and nothing fails. Queues such as Kueue suspend Jobs until there is
    room for them.
    """
    for job in snapshot.all("Job"):
        if job.at("spec.suspend") is not True or job.deleting or not matching.makes_accelerator_pods(job):
            continue
        queue = job.labels.get("kueue.x-k8s.io/queue-name", "")
        who = f"until Kueue admits it (queue {queue})" if queue else "until it is resumed"
        steps = (
            (Remedy("kubectl -n {} get workloads.kueue.x-k8s.io", job.namespace),)
            if queue
            else (remedies.patch(job.namespace, "job", job.name, {"spec": {"suspend": False}}),)
        )
        yield Finding(
            subject=job.subject,
            cause=f"{job} is suspended and has no pods {who}",
            evidence=(job.cite("spec.suspend"),),
            remedy=steps,
            confidence=CERTAIN,
            level=Level.NOTE,
        )
