"""Rows SCH: why no node is found for a pod, by the reasons that ``fit`` gives and the changes that it proves."""

from __future__ import annotations

from collections.abc import Iterator

from kgpu.base.remedy import Remedy
from kgpu.doctor import commands, edits, idle_daemons, matching, remedies, smallest_change
from kgpu.doctor.agent_reports import ill, ill_by
from kgpu.doctor.kinds import Node
from kgpu.doctor.model import CERTAIN, LIKELY, Evidence, Finding, Place
from kgpu.doctor.node_operations import holding
from kgpu.doctor.rule import rule
from kgpu.doctor.rules.plugin.registering import is_closed, left_to_claims
from kgpu.doctor.scheduler import silent_scheduler
from kgpu.doctor.smallest_change import named
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.untapped import DEFAULT_SCHEDULER, runs
from kgpu.doctor.waiting import AFFINITY, RESOURCES, UNSCHEDULABLE_FILTER, Waiting, waiting
from kgpu.fit.resources import say
from kgpu.formats import names


def _many(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def _changes(pending: Waiting, *kinds: str) -> tuple[Remedy, ...]:
    """The proven changes of these kinds as steps; where there is none, the smallest change of any kind."""
    changes = [change for change in pending.changes if change.kind in kinds][:2] or list(pending.changes[:1])
    return tuple(step for change in changes for step in commands.steps(pending, change))


@rule(
    "SCH-02",
    "GPUs that nothing offers",
    Place.CLUSTER,
    rests_on=("NVIDIA/k8s-device-plugin#33", "NVIDIA/k8s-device-plugin#159", "NVIDIA/k8s-device-plugin#585"),
)
def not_offered(snapshot: Snapshot) -> Iterator[Finding]:
    """The nodes have devices on the PCI bus, but no resource in status.capacity: the device plugin is missing, not
    scheduled there, or found no driver. Walk up: driver, runtime, plugin.
    """
    yield from idle_daemons.unlabelled(snapshot, by_discovery=False)
    for pending in waiting(snapshot):
        if not pending.resource or matching.is_mig(pending.resource) or matching.is_shared(pending.resource):
            continue
        vendor = matching.vendor_of(pending.resource)
        nodes = matching.gpu_nodes(snapshot, vendor)
        if not nodes or any(name for node in nodes for name in node.resources() if matching.is_accelerator(name)):
            continue
        label = matching.pci_label(nodes[0], vendor)
        pci_label = nodes[0].cite(f"metadata.labels[{label}]") if label else nodes[0].cite("metadata.labels")
        yield Finding(
            cause=(
                f"{pending.who} waits: {_many(len(nodes), 'node')} with {vendor} devices, and none offers "
                f"{pending.resource}: no device plugin has registered it"
            ),
            evidence=(pending.asked(), pci_label, nodes[0].cite("status.allocatable"), *pending.said()),
            remedy=(Remedy("kgpu status"), remedies.ask_doctor(nodes[0].name)),
            confidence=LIKELY,
            **pending.shared(nodes=tuple(node.name for node in nodes)),
        )


@rule(
    "SCH-03",
    "A GPU is withdrawn",
    Place.CLUSTER,
    explains=("SCH-01", "SCH-07"),
    rests_on=("NVIDIA/k8s-device-plugin#1014", "NVIDIA GPU Operator documentation: troubleshooting, release notes"),
)
def unhealthy(snapshot: Snapshot) -> Iterator[Finding]:
    """The kubelet lowers allocatable, not capacity, when a device plugin reports a device unhealthy. Capacity minus
    allocatable is what is withdrawn. All of them at once without a plugin that is ready is DPL-03. Pods that wait
    follow from it only where they would fit with all devices back.
    """
    waits: dict[str, list[Waiting]] = {}
    for pending in waiting(snapshot):
        for node_name in pending.reasons:
            if pending.fits_with_all(node_name):
                waits.setdefault(node_name, []).append(pending)
    for node in matching.gpu_nodes(snapshot):
        for resource in sorted(node.resources()):
            have, can = node.capacity(resource) or 0, node.allocatable(resource)
            if not matching.is_accelerator(resource) or can is None or not 0 <= can < have:
                continue
            if can == 0 and node.ready is False:
                continue
            if left_to_claims(snapshot, node, resource):
                continue
            if is_closed(snapshot, node, resource):
                continue  # all at once: DPL-03 reports that their plugin is missing
            hurt = [pending for pending in waits.get(node.name, ()) if pending.resource == resource]
            yield Finding(
                subject=node.subject,
                cause=(
                    f"Node {node.name} has {have} {resource}, of which only {can} can be used: "
                    f"{have - can} withdrawn as unhealthy"
                ),
                evidence=(node.cite(f"status.capacity[{resource}]"), node.cite(f"status.allocatable[{resource}]")),
                remedy=(remedies.ask_doctor(node.name), *_why(resource)),
                confidence=CERTAIN,
                nodes=(node.name,),
                pods=tuple(pod.path for pending in hurt for pod in pending.pods),
            )


def _why(resource: str) -> tuple[Remedy, ...]:
    """Where the reason can be read: only NVIDIA's drivers log Xids."""
    if matching.vendor_of(resource) != matching.NVIDIA:
        return (Remedy("what the kernel says of the device, on the node:"), Remedy("journalctl -k --since -1h"))
    return (
        Remedy(
            "look for the Xid of the GPU in the kernel's log (kgpu doctor --host on the node); what each one means:"
        ),
        Remedy("kgpu xid"),
    )


@rule(
    "SCH-08",
    "No node has the label's value",
    Place.CLUSTER,
    also=("TS-08",),
    by_hand=True,
    rests_on=("NVIDIA/gpu-operator#1065", "NVIDIA/k8s-device-plugin v0.20.0, documentation"),
)
def no_such_label(snapshot: Snapshot) -> Iterator[Finding]:
    """A nodeSelector or a required node affinity names a value that no node has, often a product name without its
    NVIDIA- prefix, or without the suffix that sharing adds (-SHARED) or MIG (-MIG-1g.10gb).
    """
    for pending in waiting(snapshot):
        for key, value, path in _wanted_labels(pending):
            known = smallest_change.values_of(snapshot.fit, key)
            if value in known:
                continue
            near = smallest_change.nearest(value, known)
            existing = f"the nodes have {', '.join(known[:4])}" if known else "no node has that label at all"
            yield Finding(
                cause=f"{pending.who} wants nodes with {key}={value}, and there is none: {existing}",
                evidence=(
                    pending.pod.cite(path),
                    *(node.cite(f"metadata.labels[{key}]") for node in _having(snapshot, key)[:3]),
                    *pending.said(),
                ),
                remedy=_other_value(pending, key, value, near) if near else _changes(pending, smallest_change.SELECTOR),
                confidence=CERTAIN,
                **pending.shared(nodes=()),  # the fault is the pod's, whatever the nodes have
            )


def _other_value(pending: Waiting, key: str, value: str, near: str) -> tuple[Remedy, ...]:
    """Steps to the value that was probably meant, with the proof where that change alone is enough."""
    change = next(
        (c for c in pending.changes if c.kind == smallest_change.SELECTOR and c.subject == key and c.value == near),
        None,
    )
    if change is not None:
        return commands.steps(pending, change)
    words = f"change {key} from {value} to {near}"
    proof = f"{words}; what else keeps it from a node then, stands above"
    return commands.patched(pending, (edits.relabel(key, value, near),), proof, words=words)


def _having(snapshot: Snapshot, key: str) -> list[Node]:
    return [node for node in snapshot.nodes.values() if key in node.labels]


def _wanted_labels(pending: Waiting) -> Iterator[tuple[str, str, str]]:
    """Label values that a node must have, as key, value and path in the pod; not where one of several is enough."""
    for key, value in pending.view.node_selector:
        yield key, value, f"spec.nodeSelector[{key}]"
    terms = pending.view.node_terms or ()
    if len(terms) != 1 or terms[0].error:
        return
    base = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"
    known = pending.snapshot.fit
    for position, wanted in enumerate(terms[0].expressions):
        if wanted.operator == "In" and not set(wanted.values) & set(smallest_change.values_of(known, wanted.key)):
            yield wanted.key, wanted.values[0], f"{base}.matchExpressions[{position}]"


@rule(
    "SCH-09",
    "The bound is not passed",
    Place.CLUSTER,
    by_hand=True,
    rests_on=("NVIDIA/k8s-device-plugin v0.20.0, documentation",),
)
def strict_bound(snapshot: Snapshot) -> Iterator[Finding]:
    """Gt and Lt are strict, and nvidia.com/gpu.memory is in MiB of what is offered: 81559 on an H100 with 80 GB."""
    for pending in waiting(snapshot):
        for position, term in enumerate(pending.view.node_terms or ()):
            for row, wanted in enumerate(term.expressions):
                if (
                    wanted.operator not in ("Gt", "Lt")
                    or term.error
                    or any(wanted.matches(node.labels) for node in snapshot.nodes.values())
                ):
                    continue
                having = _having(snapshot, wanted.key)
                if not having:
                    continue
                change = next(
                    (
                        c
                        for c in pending.changes
                        if c.kind == smallest_change.SELECTOR and c.subject == wanted.key and c.value
                    ),
                    None,
                )
                known = sorted({node.labels[wanted.key] for node in having})
                yield Finding(
                    cause=(
                        f"{pending.who} wants {wanted.key} {wanted.operator} {wanted.values[0]}, which is strict, and "
                        f"the nodes have {', '.join(known[:4])}"
                    ),
                    evidence=(
                        pending.pod.cite(
                            "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution."
                            f"nodeSelectorTerms[{position}].matchExpressions[{row}]"
                        ),
                        having[0].cite(f"metadata.labels[{wanted.key}]"),
                    ),
                    remedy=commands.steps(pending, change) if change else _changes(pending, smallest_change.SELECTOR),
                    confidence=CERTAIN,
                    **pending.shared(nodes=()),
                )


@rule(
    "SCH-12",
    "The GPU nodes are cordoned",
    Place.CLUSTER,
    rests_on=(
        "NVIDIA/gpu-operator v26.7.0, source",
        "NVIDIA GPU Operator documentation: troubleshooting, release notes",
    ),
)
def cordoned(snapshot: Snapshot) -> Iterator[Finding]:
    """A driver upgrade, a MIG change or a person has cordoned the node and nobody has uncordoned it."""
    for pending in waiting(snapshot):
        held = holding(snapshot)  # of these NOP-02 tells
        candidates = tuple(name for name in pending.only(UNSCHEDULABLE_FILTER) if name not in held)
        if not candidates or pending.fits:
            continue
        nodes = tuple(name for name in candidates if name not in ill(snapshot))
        if not nodes:
            yield _ill(pending, candidates)
            continue
        node = snapshot.nodes[nodes[0]]
        state, upgrade = _upgrade(node)
        shown = (node.cite(f"metadata.labels[{names.DRIVER_UPGRADE_STATE_LABEL}]"),) if state else ()
        first = (Remedy("let the driver upgrade end, or mend what holds it up; then:"),) if upgrade else ()
        yield Finding(
            cause=f"{pending.who} waits: {named(nodes)} would do, but is cordoned{upgrade}",
            evidence=(node.cite("spec.unschedulable"), *shown, *pending.said()),
            remedy=(*first, *(remedies.uncordon(name) for name in nodes[:3])),
            confidence=CERTAIN,
            **pending.shared(nodes=nodes),
        )


def _upgrade(node: Node) -> tuple[str, str]:
    """The state of the driver upgrade on a node, and a phrase about it while it is under way."""
    state = node.labels.get(names.DRIVER_UPGRADE_STATE_LABEL, "")
    return state, f"; its driver upgrade is at {state}" if state and state != "upgrade-done" else ""


def _ill(pending: Waiting, nodes: tuple[str, ...]) -> Finding:
    """A less certain finding than those about the nodes' GPUs, so that it comes after them."""
    node = pending.snapshot.nodes[nodes[0]]
    many = len(nodes) > 1
    return Finding(
        cause=(
            f"{pending.who} waits: {named(nodes)} would do, but {'are' if many else 'is'} cordoned, and what is told "
            f"of {'their' if many else 'its'} GPUs is to be mended first{_upgrade(node)[1]}"
        ),
        evidence=(node.cite("spec.unschedulable"), *ill_by(pending.snapshot, node.name), *pending.said()),
        remedy=(
            *(remedies.describe_node(name) for name in nodes[:3]),
            Remedy(
                "mend what is told of {}, and only then uncordon {}", "them" if many else "it", "them" if many else "it"
            ),
        ),
        confidence=LIKELY,
        **pending.shared(nodes=nodes),
    )


@rule(
    "SCH-13",
    "GPUs are free, processors or memory are not",
    Place.CLUSTER,
    rests_on=("StatCan/jupyter-apis#57",),
)
def stranded(snapshot: Snapshot) -> Iterator[Finding]:
    """Pods without GPUs fill the node's processors or memory, so that its GPUs are stranded."""
    for pending in waiting(snapshot):
        if pending.fits:
            continue
        for what in ("cpu", "memory"):
            nodes = pending.only(RESOURCES, what)
            if not nodes or not pending.resource:
                continue
            node = snapshot.nodes[nodes[0]]
            state = snapshot.fit.nodes[node.name]
            wanted = pending.view.requests.get(what, 0)
            using = [pod for pod in state.pods.values() if pod.used.get(what, 0) > 0]
            holders = sorted(using, key=lambda pod: -pod.used[what])[:3]
            held = ", ".join(f"{pod} ({say(what, pod.used[what])})" for pod in holders)
            never = wanted > state.view.allocatable.get(what, 0)
            at_fault = {str(pod) for pod in holders}
            others = any(
                pod.path in at_fault and not matching.uses_accelerators(pod) and not pod.owner.startswith("DaemonSet/")
                for pod in snapshot.pods_by_node.get(node.name, ())
            )
            yield Finding(
                cause=(
                    f"{pending.who} waits for {what}, not for GPUs: node {node.name} has {pending.free(node.name)} "
                    f"{pending.resource} free, but only {say(what, max(state.free(what), 0))} of the "
                    f"{say(what, wanted)} {what} asked for"
                    + (
                        "; empty it would not have as much either"
                        if never
                        else f"; most is held by {held}"
                        if held
                        else ""
                    )
                ),
                evidence=(
                    pending.pod.cite("spec.containers[0].resources"),
                    node.cite(f"status.allocatable[{what}]"),
                    *pending.said(),
                ),
                remedy=(
                    *_less(pending, what, max(state.free(what), 0)),
                    *(_apart(node.name) if others and not never else ()),
                ),
                confidence=CERTAIN,
                **pending.shared(nodes=nodes),
            )
            break


def _apart(node: str) -> tuple[Remedy, ...]:
    return (
        Remedy("or keep pods without GPUs off GPU nodes:"),
        remedies.taint(node, f"{names.GPU_RESOURCE}=present:NoSchedule"),
    )


def _less(pending: Waiting, what: str, free: int) -> tuple[Remedy, ...]:
    change = next((c for c in pending.changes if c.kind == smallest_change.COUNT and c.subject == what), None)
    return commands.steps(pending, change) if change else (Remedy("ask for {} {} or less", say(what, free), what),)


@rule("SCH-14", "Label on one node, room on another", Place.CLUSTER)
def contradictory(snapshot: Snapshot) -> Iterator[Finding]:
    """No node meets all conditions at once: one lacks the label, the other the room."""
    for pending in waiting(snapshot):
        if pending.fits or len(pending.reasons) < 2:
            continue
        kinds = {name: {reason.filter for reason in reasons} for name, reasons in pending.reasons.items()}
        by_label = [name for name, filters in kinds.items() if filters == {AFFINITY}]
        by_room = [name for name, filters in kinds.items() if filters == {RESOURCES}]
        if not by_label or not by_room:
            continue
        label = pending.reasons[by_label[0]][0]
        room = pending.reasons[by_room[0]][0]
        yield Finding(
            cause=(
                f"{pending.who} fits no node: {named(tuple(by_room))} has the labels and no room, "
                f"{named(tuple(by_label))} has room and not the labels"
            ),
            evidence=(
                Evidence(object=f"Node {by_label[0]}", field=label.subject, value=label.sentence),
                Evidence(object=f"Node {by_room[0]}", field=room.subject, value=room.sentence),
            ),
            remedy=_changes(pending, smallest_change.SELECTOR, smallest_change.ROOM),
            confidence=LIKELY,
            **pending.shared(),
        )


@rule("SCH-15", "Nobody schedules the pod", Place.CLUSTER, by_hand=True)
def no_scheduler(snapshot: Snapshot) -> Iterator[Finding]:
    """spec.schedulerName names a scheduler that does not run: the pod has no events at all. Or the cluster's own
    scheduler has reported nothing about pods that fit, neither by a condition nor by an event, for five minutes: it
    reports on every pod within seconds.
    """
    yield from silent_scheduler(snapshot)
    for pending in waiting(snapshot):
        name = pending.pod.scheduler
        if name == DEFAULT_SCHEDULER or runs(snapshot, pending.pod):
            continue
        yield Finding(
            cause=f"{pending.who} names the scheduler {name}, and nothing by that name runs here",
            evidence=(
                pending.pod.cite("spec.schedulerName"),
                Evidence(object=str(pending.pod), field="events", value="none at all"),
            ),
            remedy=(
                Remedy("install {}, or take spec.schedulerName out of the manifest", name),
                Remedy("kubectl get pods -A | grep -i scheduler"),
            ),
            confidence=LIKELY,
            **pending.shared(),
        )
