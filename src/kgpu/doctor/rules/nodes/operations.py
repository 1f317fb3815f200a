"""Rows NOP about operations that hold no node: suggestions, failures, the breaker, and what this version can't read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from kgpu.base.printable import one_line
from kgpu.base.remedy import Remedy
from kgpu.doctor import config_maps, matching, remedies
from kgpu.doctor.agent_reports import ill, ill_by
from kgpu.doctor.model import CERTAIN, CLUSTER, LIKELY, Finding, Place
from kgpu.doctor.node_operations import CRD, KnownOperation, failures, operations, unreadable
from kgpu.doctor.rule import rule
from kgpu.doctor.snapshot import Snapshot
from kgpu.formats import names
from kgpu.formats.partition_mode import label_of

_OWN: Final = ("kgpu/operations, source",)
_MAX_WHY: Final = 300
_DOES_NOT_GO: Final = (
    "agree with the owners of these pods, or let them go: spec.drain of the operation has force and deleteEmptyDirData"
)
_AFTER_MIG: Final[Mapping[str, str]] = {
    "DrainTimeout": "see what keeps these pods; more time is the value operations.mig.eviction.timeoutSeconds",
    "NotWell": "see what is told of the node's GPUs; the slices are made",
    "AgentRefused": "see what the node's agent says of these GPUs",
    "ChangeFailed": "mend what its message names, or take another MIG config; the GPUs have their former layout",
    "ChangeTimeout": "see the log of the node's MIG manager",
    "LayoutLost": "have the node rebooted: its GPUs then have no slices, and can be cut anew",
}
"""The same of a change of MIG slices."""
_AFTER: Final[Mapping[str, str]] = {
    "DrainRefused": _DOES_NOT_GO,
    "EvictionRefused": "let the budgets of these pods allow a disruption, then make the operation anew",
    "DrainTimeout": "see what keeps these pods; more time is spec.drain.timeoutSeconds of a new operation",
    "NotCordoned": "see in the log of kgpu's operator what refused the change of the Node",
    "RebootTimeout": "see the machine's console; more time is spec.actTimeoutSeconds of a new operation",
    "RebootRefused": "the machine does not let kgpu reboot it; have its admin do that, in a maintenance of the node",
    "NotWell": "the reboot has not helped: see what is told of the node; its GPUs may have to be replaced",
    "NotHeld": "see in the log of kgpu's operator what refused the change of the Node",
    "AgentSilent": "see that the node's agent runs, in this version of kgpu",
    "AgentRefused": "have the node rebooted, which resets its GPUs too",
    "DriverFailed": "mend what its message names and have the driver exchanged again, or ask for another one",
    "ResetRefused": "end the program that has the GPU open, or have the node rebooted",
    "ResetFailed": "have the node rebooted, which resets its GPUs too",
    "ResetHangs": "have the node rebooted: the driver does not come back from the reset",
    "ResetTimeout": "have the node rebooted, which resets its GPUs too",
    "ResetDidNotHelp": "have the node rebooted; if the GPU is not well after that, it may have to be replaced",
    "NoSuchNode": "make the operation anew for a node that is there",
    "DeadlinePassed": "make it anew with a later deadline, or a larger budget (operations.maxParallel, maxUnavailable)",
}
"""What to do about a failure, by the engine's word for it."""


@rule("NOP-03", "A repair waits for approval", Place.CLUSTER, rests_on=_OWN)
def unapproved(snapshot: Snapshot) -> Iterator[Finding]:
    """A GPU of the node takes no work, and kgpu has suggested what brings it back. With the chart's
    operations.remediation.policy=Suggest a person has to let it begin. A suggestion is withdrawn once the GPUs are
    healthy again.
    """
    for record in operations(snapshot):
        if not record.unapproved or record.node not in ill(snapshot):
            continue
        yield Finding(
            subject=record.obj.subject,
            cause=f"{record.who} waits for approval, while what is said of the GPUs of node {record.node} calls for it",
            evidence=(record.obj.cite("spec.approved", "false"), *ill_by(snapshot, record.node)[:2]),
            remedy=(
                remedies.plan_operation(record.name).why("see which pods would go"),
                remedies.approve_operation(record.name).why("let it begin"),
                remedies.cancel_operation(record.name).why("or refuse it: it does not come again in this boot"),
            ),
            confidence=CERTAIN,
            since=record.obj.created,
            nodes=(record.node,),
        )


@rule("NOP-04", "An operation on a node has failed", Place.CLUSTER, rests_on=_OWN)
def failed(snapshot: Snapshot) -> Iterator[Finding]:
    """The status of the NodeOperation says why; its node was given back as it was. It is told for a day, or until a
    later operation on the node succeeds.
    """
    for record in failures(snapshot).values():
        why = one_line(record.status.message, _MAX_WHY) or record.status.reason or "nobody has said why"
        yield Finding(
            subject=record.obj.subject,
            cause=f"{record.who} on node {record.node} has failed: {why}",
            evidence=(
                record.obj.cite("status.result"), record.obj.cite("status.reason"), record.obj.cite("status.message"),
            ),
            remedy=(*_after(record), remedies.show_operation(record.name)),
            confidence=CERTAIN,
            since=record.status.completed_at or "",
            nodes=(record.node,) if record.node in snapshot.nodes else (),
        )  # fmt: skip


def _after(record: KnownOperation) -> tuple[Remedy, ...]:
    """What to do about a failure; a change of MIG slices is asked for by the node's label."""
    reason, mig = record.status.reason, record.spec.mig
    step = _AFTER.get(reason) if mig is None else _AFTER_MIG.get(reason, _AFTER.get(reason))
    first = (Remedy(step),) if step else ()
    if mig is None:
        return first
    again = remedies.relabel(record.node, label_of(mig.layouts), mig.config)
    return (*first, again.why("then ask for it again"))


@rule("NOP-06", "kgpu repairs nothing on its own any more", Place.CLUSTER, rests_on=_OWN)
def stopped(snapshot: Snapshot) -> Iterator[Finding]:
    """Many nodes called for a repair at once, so that the GPUs are hardly the cause. kgpu makes no more operations
    until somebody has looked and deletes the ConfigMap kgpu-remediation. What has begun goes on.
    """
    for obj in config_maps.open_breakers(snapshot):
        why = one_line(obj.text("data.open"), _MAX_WHY) or "it was stopped by hand"
        yield Finding(
            subject=obj.subject,
            cause=f"kgpu does nothing more about GPUs that are not well: {why}",
            evidence=(obj.cite("data.open"), obj.cite("data.since")),
            remedy=(
                Remedy(
                    "look for what these nodes have in common, such as a driver, a rack, or a change of the same hour"
                ),
                remedies.delete(obj.namespace, "configmap", obj.name).why("then let kgpu go on"),
            ),
            confidence=CERTAIN,
            since=obj.text("data.since"),
        )


@rule("NOP-07", "The kind NodeOperation is missing", Place.CLUSTER, rests_on=_OWN)
def no_kind(snapshot: Snapshot) -> Iterator[Finding]:
    """kgpu's operator has operations on nodes switched on, and the cluster does not know the kind NodeOperation: helm
    upgrade installs no definitions unless operator.upgradeCRD is true. Everything else works.
    """
    if not snapshot.knows("CustomResourceDefinition") or snapshot.get("CustomResourceDefinition", CRD) is not None:
        return
    for pod in matching.pods_of_part(snapshot, matching.OPERATOR, vendor=matching.NVIDIA):
        container = next((one for one in pod.containers if one.env.get(names.ENV_OPERATIONS) == "true"), None)
        if container is None or pod.ended:
            continue
        yield Finding(
            subject=CLUSTER,
            cause=f"{pod} has operations on nodes switched on, and the cluster has no kind NodeOperation",
            evidence=(container.cite("env"),),
            remedy=(
                Remedy("kgpu crds apply"),
                Remedy("or switch them off: operations.enabled=false in the chart's values"),
            ),
            confidence=CERTAIN,
        )
        return


@rule("NOP-08", "An operation of another version", Place.CLUSTER, rests_on=_OWN)
def of_another_version(snapshot: Snapshot) -> Iterator[Finding]:
    """A NodeOperation has a type, a phase or a field that this version of kgpu does not know. An operator of this
    version touches neither it nor its node, and lets no other operation begin there.
    """
    for unknown in unreadable(snapshot):
        node = unknown.obj.text("spec.nodeName")
        yield Finding(
            subject=unknown.obj.subject,
            cause=f"{unknown.obj} can't be read by this version of kgpu: {unknown.problem}",
            evidence=(unknown.obj.cite("spec.type"), unknown.obj.cite("status.phase")),
            remedy=(
                Remedy("kgpu version").why("use the kgpu of the operator's version; where that is older, upgrade it"),
                Remedy("kubectl delete nodeoperation {}", unknown.obj.name).why(
                    "or give it up: its node is given back"
                ),
            ),
            confidence=LIKELY,
            nodes=(node,) if node in snapshot.nodes else (),
        )
