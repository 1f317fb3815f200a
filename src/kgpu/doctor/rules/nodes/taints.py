"""Rows TNT: taints, labels and what discovers them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from kgpu.base.plain import text
from kgpu.base.remedy import Remedy
from kgpu.doctor import cluster_policy, commands, idle_daemons, matching, remedies, smallest_change, untapped
from kgpu.doctor.kinds import Node, Pod
from kgpu.doctor.model import CERTAIN, LIKELY, Evidence, Finding, Level, Place, Subject
from kgpu.doctor.objects import Obj
from kgpu.doctor.rule import rule
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.stack_config import PLUGIN_SWITCHES, plugin_off
from kgpu.doctor.waiting import TAINTS, Waiting, waiting
from kgpu.fit.model import Reason
from kgpu.fit.read import node_terms
from kgpu.fit.selectors import PodToleration, Taint, tolerated
from kgpu.formats import names

_OWN: Final = "node.kubernetes.io/"
_DESCRIBE: Final = (remedies.DESCRIBE_NODE,)
_LIFECYCLE: Final = tuple(
    (re.compile(pattern), cause, steps, level)
    for pattern, cause, steps, level in (
        (
            r"ToBeDeletedByClusterAutoscaler|DeletionCandidateOf",
            "is about to be removed by the autoscaler",
            ("wait for another node:", "kubectl get nodes -w"),
            Level.WAIT,
        ),
        (
            r"karpenter\.sh/disrupt",
            "is about to be replaced by Karpenter",
            ("wait for another node:", "kubectl get nodes -w"),
            Level.WAIT,
        ),
        (
            r"node\.cloudprovider\.kubernetes\.io/uninitialized",
            "is not initialised yet by the cloud controller manager",
            ("look at it:", "kubectl -n kube-system get pods | grep -i cloud-controller"),
            Level.WAIT,
        ),
        (
            r"[^=:]*/agent-not-ready",
            "has no network agent that is ready",
            (remedies.PODS_ON,),
            Level.WAIT,
        ),
        (
            r"[^=:]*startup",
            "is still being set up",
            (remedies.PODS_ON,),
            Level.WAIT,
        ),
        (r"node\.kubernetes\.io/not-ready", "is not Ready", _DESCRIBE, Level.PROBLEM),
        (r"node\.kubernetes\.io/unreachable", "can't be reached", _DESCRIBE, Level.PROBLEM),
        (r"node\.kubernetes\.io/[a-z]+-pressure", "is short of disk, memory or processes", _DESCRIBE, Level.PROBLEM),
    )
)


def _taint_cite(node: Node, subject: str) -> Evidence:
    for position, taint in enumerate(node.taints):
        if str(Taint(*(text(taint.get(key)) for key in ("key", "value", "effect")))) == subject:
            return node.cite(f"spec.taints[{position}]", subject)
    return node.cite("spec.taints")


def _tainted(snapshot: Snapshot, *, near_miss: bool) -> Iterator[Finding]:
    for pending in waiting(snapshot):
        if pending.fits:
            continue
        groups: dict[tuple[str, ...], dict[str, Reason]] = {}
        others = [change for change in pending.changes if change.kind != smallest_change.BOTH]
        for subject, reason in {reason.subject: reason for reason in pending.against(TAINTS)}.items():
            passing = _lifecycle(subject)
            if not passing and subject.startswith(_OWN):
                continue
            change = next(
                (
                    toleration for toleration in pending.changes
                    if toleration.kind == smallest_change.TOLERATION and toleration.subject == subject
                ), None,
            )  # fmt: skip
            if passing:
                if _names_key(pending, reason) is near_miss and (change or not others):
                    finding = _not_tolerated(pending, {subject: reason}, _tolerating(pending, {subject: reason}))
                    yield _passing(finding, subject, reason.node)
                continue
            # Taints of the same nodes have the same remedy, unless one of them alone is enough.
            nodes = dict.fromkeys(refusal.node for refusal in pending.against(TAINTS, subject))
            groups.setdefault((*nodes, "", subject) if change else tuple(nodes), {})[subject] = reason
        for taints in groups.values():
            if all(_names_key(pending, reason) for reason in taints.values()) is not near_miss:
                continue
            change = _tolerating(pending, taints)
            if others and not (change.fits and change.cost <= min(other.cost for other in others)):
                continue  # something smaller helps, on nodes without that taint
            yield _not_tolerated(pending, taints, change)


def _tolerating(pending: Waiting, reasons: Mapping[str, Reason]) -> smallest_change.FittingChange:
    """The change that adds tolerations, computed once for all pods with the same requests."""
    known = pending.snapshot.once(_tolerated_before)
    key = (id(pending.judged), tuple(reasons))
    if key not in known:
        known[key] = smallest_change.tolerating(pending.view, _taints(reasons), pending.snapshot.fit)
    return known[key]


def _tolerated_before(snapshot: Snapshot) -> dict[tuple[int, tuple[str, ...]], smallest_change.FittingChange]:
    del snapshot
    return {}


def _lifecycle(subject: str) -> tuple[str, tuple[str, ...], Level] | None:
    return next(((cause, steps, level) for pattern, cause, steps, level in _LIFECYCLE if pattern.match(subject)), None)


def _passing(finding: Finding, subject: str, node: str) -> Finding:
    """The finding for a taint that a controller sets and removes: it explains the taint and advises no toleration."""
    cause, steps, level = _lifecycle(subject) or ("", (), finding.level)
    return replace(
        finding,
        cause=f"Pod {finding.subject.namespace}/{finding.subject.name} waits: node {node} {cause} (taint {subject})",
        remedy=(
            *(Remedy(step, node=node) for step in steps),
            Remedy("do not tolerate or remove the taint: its controller does that"),
        ),
        level=level,
        expected="some minutes" if level is Level.WAIT else "",
    )


def _names_key(pending: Waiting, reason: Reason) -> bool:
    taint = reason.taint
    return taint is not None and any(toleration.key == taint.key for toleration in pending.view.tolerations)


def _taints(reasons: Mapping[str, Reason]) -> list[Taint]:
    return [reason.taint for reason in reasons.values() if reason.taint is not None]


def _not_tolerated(pending: Waiting, reasons: Mapping[str, Reason], change: smallest_change.FittingChange) -> Finding:
    taints = _taints(reasons)
    first = next(iter(reasons.values()))
    node = pending.snapshot.nodes[first.node]
    nodes = tuple(dict.fromkeys(refusal.node for subject in reasons for refusal in pending.against(TAINTS, subject)))
    keys = {taint.key for taint in taints}
    tolerations = [
        row for row in pending.pod.list("spec.tolerations") if isinstance(row, dict) and text(row.get("key")) in keys
    ]
    away = [f"{taint.key}:{taint.effect}-" for taint in taints]
    steps = (
        commands.steps(pending, change)
        if change.fits
        else commands.patched(pending, change.edits, f"{change.what}; see what else is against it", words=change.what)
    )
    return Finding(
        cause=(
            f"{pending.who} does not tolerate the taint{'s' if len(taints) > 1 else ''} {' and '.join(reasons)} of "
            f"{len(nodes)} of the nodes that would do: {'; '.join(reason.sentence for reason in reasons.values())}"
        ),
        evidence=(
            *(_taint_cite(node, subject) for subject in reasons),
            pending.pod.cite("spec.tolerations", tolerations or pending.pod.at("spec.tolerations")),
            *pending.said(),
        ),
        remedy=(
            *steps,
            remedies.taint(node.name, *away).why(
                f"or take the taint{'s' if len(taints) > 1 else ''} away, for all pods"
            ),
        ),
        confidence=CERTAIN if change.fits else LIKELY,
        **pending.shared(nodes=nodes),
    )


@rule("TNT-01", "A taint that the pod does not tolerate", Place.CLUSTER)
def untolerated(snapshot: Snapshot) -> Iterator[Finding]:
    """GPU nodes carry a taint so that only GPU pods come; the pod needs a toleration for it. Newer schedulers do not
    name the taint: the doctor derives it from spec.taints and spec.tolerations.
    """
    yield from _tainted(snapshot, near_miss=False)


@rule("TNT-02", "The toleration is not quite for the taint", Place.CLUSTER)
def near_toleration(snapshot: Snapshot) -> Iterator[Finding]:
    """A toleration with operator Equal compares the value, and one with an effect only that effect. Exists without a
    value fits all.
    """
    yield from _tainted(snapshot, near_miss=True)


@rule(
    "TNT-04",
    "Taints keep the GPU stack off its nodes",
    Place.PLUGIN,
    explains=("SCH-02", "SCH-03", "DPL-*", "DRV-02"),
    rests_on=("NVIDIA GPU Operator documentation: troubleshooting, release notes",),
)
def operands_kept_off(snapshot: Snapshot) -> Iterator[Finding]:
    """The operands' DaemonSets tolerate the usual taints of their vendors' nodes, such as nvidia.com/gpu:NoSchedule;
    any other has to be in spec.daemonsets.tolerations of the ClusterPolicy.
    """
    for obj in snapshot.all("DaemonSet"):
        parts = matching.believed(snapshot, obj)
        if not parts or parts[0].name.startswith("nfd"):
            continue
        bears = tuple(_toleration(row) for row in obj.maps("spec.template.spec.tolerations"))
        kept: list[tuple[Node, Taint]] = []
        running_on = {pod.node for pod in snapshot.pods_of(obj) if not pod.ended and not pod.deleting}
        for node in matching.gpu_nodes(snapshot, parts[0].vendor):
            if not _selected(obj, node):
                continue
            for row in node.taints:
                taint = Taint(*(text(row.get(key)) for key in ("key", "value", "effect")))
                if taint.hard and not taint.key.startswith(_OWN) and not tolerated(taint, bears):
                    kept.append((node, taint))
        if not kept:
            continue
        lacking = [row for row in kept if row[0].name not in running_on]
        node, taint = (lacking or kept)[0]
        nodes = tuple(dict.fromkeys(node.name for node, _ in lacking or kept))
        taints = list(dict.fromkeys(taint for tainted_node, taint in lacking or kept if tainted_node is node))
        away = [f"{taint.key}:{taint.effect}-" for taint in taints]
        yield Finding(
            subject=obj.subject,
            cause=(
                f"{obj} has no pod on {len(nodes)} GPU nodes: it does not tolerate their taint {taint}"
                if lacking
                else (
                    f"{obj} still runs on {len(nodes)} GPU nodes, and would not come back: "
                    f"it does not tolerate their taint {taint}"
                )
            ),
            evidence=(
                _taint_cite(node, str(taint)),
                obj.cite("spec.template.spec.tolerations"),
                obj.cite("status.desiredNumberScheduled"),
            ),
            remedy=(
                _tolerating_operands(snapshot, taints),
                remedies.taint(node.name, *away).why("or take the taint away, for all pods"),
            ),
            confidence=CERTAIN,
            level=Level.PROBLEM if lacking else Level.NOTE,
            nodes=nodes,
        )


def _tolerating_operands(snapshot: Snapshot, taints: list[Taint]) -> Remedy:
    """The command that adds tolerations for these taints to those that all operands have."""
    policy = cluster_policy.in_force(snapshot)
    usual = [{"key": names.GPU_RESOURCE, "operator": "Exists", "effect": "NoSchedule"}]
    tolerations = policy.list("spec.daemonsets.tolerations") if policy is not None else []
    rows = [
        *(tolerations or usual),
        *({"key": key, "operator": "Exists"} for key in dict.fromkeys(taint.key for taint in taints)),
    ]
    return cluster_policy.change(snapshot, {"daemonsets": {"tolerations": rows}})


def _toleration(row: object) -> PodToleration:
    fields = row if isinstance(row, dict) else {}
    return PodToleration(*(text(fields.get(key)) for key in ("key", "operator", "value", "effect")))


def _selected(obj: Obj, node: Node) -> bool:
    """Whether selector and affinity of a DaemonSet allow its pods on this node."""
    wanted = obj.map("spec.template.spec.nodeSelector")
    affinity = obj.map("spec.template.spec.affinity.nodeAffinity")
    terms = node_terms(affinity.get("requiredDuringSchedulingIgnoredDuringExecution"))
    matched = terms is None or any(term.matches(node.labels, node.name) for term in terms)
    return matched and all(node.labels.get(key) == value for key, value in wanted.items())


@rule(
    "TNT-05",
    "No labels of feature discovery",
    Place.PLUGIN,
    explains=("SCH-02", "SCH-08", "TNT-06"),
    rests_on=("NVIDIA/gpu-operator v26.7.0, source", "NVIDIA/gpu-operator#423"),
)
def no_features(snapshot: Snapshot) -> Iterator[Finding]:
    """The operator finds GPU nodes by the PCI labels of node feature discovery. Without them it is Ready and does
    nothing (reason NFDLabelsMissing).
    """
    yield from idle_daemons.unlabelled(snapshot, by_discovery=True)
    unwell, unlabelled = untapped.discovery_unwell(snapshot), untapped.unlabelled_nodes(snapshot)
    waits = [pending for pending in waiting(snapshot) if not pending.fits]
    if unwell and unlabelled and waits:
        yield _unwell(unwell, unlabelled, waits)
        return
    policies = list(snapshot.all("ClusterPolicy"))
    if not policies or not snapshot.nodes:
        return
    if any(key.startswith(names.NFD_PREFIX) for node in snapshot.nodes.values() for key in node.labels):
        return
    policy = policies[0]
    conditions = [condition.cite() for condition in policy.conditions() if condition.reason == "NFDLabelsMissing"]
    workers = matching.daemon_sets_of_part(snapshot, matching.NFD_WORKER)
    node = next(iter(snapshot.nodes.values()))
    yield Finding(
        subject=Subject("Cluster"),
        cause=(
            "no node has labels of node feature discovery, so no GPU node can be found: "
            + (f"{workers[0]} has put no label on any node" if workers else "it is not installed")
        ),
        evidence=(
            node.cite("metadata.labels"),
            *conditions,
            *(daemon_set.cite("status") for daemon_set in workers[:1]),
        ),
        remedy=(
            (Remedy("look at its pods:"), Remedy("kubectl -n {} get pods -o wide", workers[0].namespace))
            if workers
            else (
                Remedy("let the chart bring it: nfd.enabled=true in its values"),
                Remedy("kubectl get nodes --show-labels | grep pci-"),
            )
        ),
        confidence=CERTAIN if conditions else LIKELY,
        nodes=tuple(snapshot.nodes),
    )


def _unwell(pods: list[Pod], unlabelled: list[Node], waits: list[Waiting]) -> Finding:
    """The pods that wait for what no node has follow from it; of others that wait it may be why no node is added."""
    pod, container = pods[0], matching.failing(pods[0])
    hurt = [path.path for pending in waits if not pending.reasons for path in pending.pods]
    return Finding(
        subject=pod.subject,
        cause=(
            f"{pod} of node feature discovery is not ready, and {untapped.named(unlabelled)} has no labels of it: "
            "a GPU node among them is not found, and gets no plugin"
        ),
        evidence=(
            container.cite_status() if container is not None else pod.cite("status.phase"),
            unlabelled[0].cite("metadata.labels"),
        ),
        remedy=(
            remedies.logs(pod.namespace, pod.name, "--all-containers", "--tail=50"),
            remedies.describe(pod.namespace, "pod", pod.name),
        ),
        confidence=LIKELY,
        nodes=tuple(node.name for node in unlabelled),
        pods=(*(daemon.path for daemon in pods), *hurt),
    )


@rule(
    "TNT-06",
    "PCI labels of another shape",
    Place.PLUGIN,
    explains=("SCH-02",),
    also=("TNT-15",),
    rests_on=("NVIDIA/gpu-operator#1469", "kubernetes-sigs/node-feature-discovery, documentation"),
)
def odd_features(snapshot: Snapshot) -> Iterator[Finding]:
    """The operator knows pci-10de, pci-0302_10de and pci-0300_10de; other deviceLabelFields give other names."""
    odd = [
        (node, key)
        for node in snapshot.nodes.values()
        for key in node.labels
        if key.startswith(f"{names.NFD_PREFIX}pci-") and "10de" in key and key not in names.NFD_PCI_NVIDIA
    ]
    usual = any(key in node.labels for node in snapshot.nodes.values() for key in names.NFD_PCI_NVIDIA)
    if not odd or usual:
        return
    node, key = odd[0]
    conditions = [
        condition.cite()
        for policy in snapshot.all("ClusterPolicy")
        for condition in policy.conditions()
        if condition.reason == "NoGPUNodes"
    ]
    yield Finding(
        subject=node.subject,
        cause=f"the label {key} has a shape that operators do not look for, so that no GPU node is found",
        evidence=(node.cite(f"metadata.labels[{key}]"), *conditions),
        remedy=(
            Remedy("set sources.pci.deviceLabelFields: [vendor] in the configuration of nfd-worker, then restart it"),
        ),
        confidence=CERTAIN if conditions else LIKELY,
        nodes=tuple(dict.fromkeys(node.name for node, _ in odd)),
    )


@rule(
    "TNT-12",
    "Operands are switched off",
    Place.PLUGIN,
    explains=("SCH-00", "SCH-01", "SCH-02", "SCH-03", "DPL-03", "DPL-18", "OPR-15"),
    rests_on=("NVIDIA/gpu-operator v26.7.0, source",),
)
def opted_out(snapshot: Snapshot) -> Iterator[Finding]:
    """nvidia.com/gpu.deploy.operands=false, or nvidia.com/gpu.deploy.NAME=false, keeps them off a node;
    devicePlugin.enabled=false in the ClusterPolicy keeps the device plugin off all of them.
    """
    # A label keeps operands off a node, or the ClusterPolicy the device plugin off all of them.
    yield from _without_plugin(snapshot)
    for node in matching.gpu_nodes(snapshot, matching.NVIDIA):
        keys = [
            key for key, value in node.labels.items() if key.startswith(names.LABEL_DEPLOY_PREFIX) and value == "false"
        ]
        if not keys or (
            node.labels.get(names.LABEL_DEPLOY_OPERANDS) == "false" and (node.allocatable(names.GPU_RESOURCE) or 0)
        ):
            continue
        kept = ", ".join(key.removeprefix(names.LABEL_DEPLOY_PREFIX) for key in sorted(keys))
        yield Finding(
            subject=node.subject,
            cause=f"labels of node {node.name} keep these from running on it: {kept}",
            evidence=tuple(node.cite(f"metadata.labels[{key}]") for key in sorted(keys)),
            remedy=tuple(remedies.unlabel(node.name, key) for key in sorted(keys)),
            confidence=CERTAIN,
            level=_off_level(snapshot, [node.name]) if set(keys) <= PLUGIN_SWITCHES else Level.PROBLEM,
            nodes=(node.name,),
        )


def _without_plugin(snapshot: Snapshot) -> Iterator[Finding]:
    by_policy: dict[Subject, tuple[Obj, list[str]]] = {}
    for name, switch in plugin_off(snapshot).items():
        if switch.kind == "ClusterPolicy":
            by_policy.setdefault(switch.subject, (switch, []))[1].append(name)
    for policy, off in by_policy.values():
        level = _off_level(snapshot, off)
        if level is Level.NOTE and set(off) <= snapshot.once(_by_claim):
            continue  # resource claims give them out instead, on purpose
        yield Finding(
            subject=policy.subject,
            cause=(
                f"the device plugin is switched off in {policy}, so that {_nodes(off)} with NVIDIA's GPUs "
                f"offer{'s' if len(off) == 1 else ''} none of them"
            ),
            evidence=(
                policy.cite("spec.devicePlugin.enabled"),
                *(snapshot.nodes[name].cite(f"status.allocatable[{names.GPU_RESOURCE}]") for name in off[:2]),
            ),
            remedy=(
                remedies.patch_policy(policy.name, {"spec": {"devicePlugin": {"enabled": True}}}),
                Remedy("and where a chart brings the policy, devicePlugin.enabled=true in its values"),
            ),
            confidence=CERTAIN,
            level=level,
            nodes=tuple(off),
            pods=tuple(
                pod.path for pending, nodes in snapshot.once(_asking) if nodes <= set(off) for pod in pending.pods
            ),
        )


def _nodes(node_names: list[str]) -> str:
    return f"node {node_names[0]}" if len(node_names) == 1 else f"{len(node_names)} nodes"


def _off_level(snapshot: Snapshot, off: list[str]) -> Level:
    """PROBLEM where pods wait for the plugin's devices, or where the nodes offered some before; else NOTE."""
    had = any(
        snapshot.nodes[name].capacity(resource)
        for name in off
        for resource in snapshot.nodes[name].resources()
        if matching.vendor_of(resource) == matching.NVIDIA
    )
    wanted = any(not nodes.isdisjoint(off) for _, nodes in snapshot.once(_asking))
    return Level.PROBLEM if had or wanted else Level.NOTE


def _asking(snapshot: Snapshot) -> list[tuple[Waiting, frozenset[str]]]:
    """The pods that wait for NVIDIA's devices, each with the nodes that lack them."""
    ours = (pending for pending in waiting(snapshot) if matching.vendor_of(pending.resource) == matching.NVIDIA)
    return [(pending, frozenset(pending.blamed)) for pending in ours if pending.blamed]


def _by_claim(snapshot: Snapshot) -> frozenset[str]:
    """The nodes whose GPUs a DRA driver publishes."""
    slices = (
        resource_slice
        for resource_slice in snapshot.all("ResourceSlice")
        if resource_slice.text("spec.driver") == names.DRA_GPU_DRIVER
    )
    return frozenset(resource_slice.text("spec.nodeName") for resource_slice in slices)
