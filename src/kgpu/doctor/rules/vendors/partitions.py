"""AMD-21: what has become of the partition profile that a node's label names, by the report of kgpu's agent there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from kgpu.base.printable import one_line
from kgpu.base.remedy import Remedy
from kgpu.doctor import remedies
from kgpu.doctor.kinds import Node
from kgpu.doctor.model import CERTAIN, Evidence, Finding, Level, Place
from kgpu.doctor.node_operations import failures
from kgpu.doctor.rule import rule
from kgpu.doctor.snapshot import Snapshot
from kgpu.formats import mig_request, names
from kgpu.formats.mig_request import MigLabelState, MigReport

_LABEL: Final = names.AMD_PROFILE_LABEL
_ROOM: Final = 400
_Steps = Callable[[str, str], tuple[Remedy, ...]]
"""The commands for a node and its profile."""


def _nothing(_node: str, _profile: str) -> tuple[Remedy, ...]:
    return ()


def _another(node: str, _profile: str) -> tuple[Remedy, ...]:
    return (remedies.label(node, _LABEL, "PROFILE", anew=True),)


def _again(node: str, profile: str) -> tuple[Remedy, ...]:
    return (remedies.relabel(node, _LABEL, profile),)


_ANOTHER: Final = "take a profile that the node's GPUs can have, in place of PROFILE:"
_AFTER: Final[Mapping[str, tuple[str, _Steps]]] = {
    "PartitionConfigRefused": (_ANOTHER, _another),
    "PartitionLayoutRefused": (_ANOTHER, _another),
    "PartitionGpusInUse": ("end what it names; the GPUs are parted by themselves then", _nothing),
    "PartitionChangeFailed": ("see what the driver says on the node (dmesg), mend that, and ask again:", _again),
    "PartitionOperationFailed": ("see what the operation says, mend that, and ask again:", _again),
    "PartitionDriverUnreadable": ("see what is told of the node's driver; it is tried again by itself", _nothing),
    "PartitionLayoutBroken": (
        "have the node rebooted: its GPUs are whole then, and are parted anew",
        lambda node, _: remedies.reboot(node),
    ),
    "PartitionVendorUnsupported": (
        "take the label away, as it is about AMD GPUs:",
        lambda node, _: (remedies.unlabel(node, _LABEL),),
    ),
}
"""What to do about a failure, by the agent's word for it."""
_OTHERWISE: Final[tuple[str, _Steps]] = ("mend what it names, and ask again:", _again)


@rule(
    "AMD-21",
    "What has become of a partition profile",
    Place.PLUGIN,
    explains=("SCH-00", "SCH-01", "SCH-02", "SCH-05", "SCH-06"),
    rests_on=("kgpu/mig, source",),
)
def profiles(snapshot: Snapshot) -> Iterator[Finding]:
    """The label dcm.amd.com/gpu-config-profile names the partition modes of a node's GPUs, and the annotation
    kgpu.dev/partition-report says what has come of it: a profile that can't be had, GPUs in use, an operation that
    waits for pods, a change that failed and was undone. Modes that somebody sets by hand afterwards stay; pods that
    hold parts that are gone by that have to be ended.
    """
    for node in snapshot.nodes.values():
        report = mig_request.read_report(node.annotations, names.PARTITION_REPORT_ANNOTATION)
        if report is None or report.config != node.labels.get(_LABEL, ""):
            continue
        if report.state is MigLabelState.FAILED and not _is_told_by_its_operation(snapshot, node, report):
            yield _failed(node, report)
        elif report.state is MigLabelState.PENDING:
            yield _pending(node, report)
        elif report.pods:
            yield _stranded(snapshot, node, report)


def _said(node: Node, report: MigReport) -> tuple[str, tuple[Evidence, ...]]:
    """What the report says, and where it stands."""
    state = names.AMD_PROFILE_STATE_LABEL
    shown = (
        node.cite(f"metadata.annotations[{names.PARTITION_REPORT_ANNOTATION}]"),
        node.cite(f"metadata.labels[{state}]"),
    )
    return one_line(report.message, _ROOM) or report.reason or "nobody says why", shown


def _failed(node: Node, report: MigReport) -> Finding:
    why, evidence = _said(node, report)
    return Finding(
        subject=node.subject,
        cause=f"the GPUs of node {node.name} are not parted as its partition profile {report.config} asks: {why}",
        evidence=evidence,
        remedy=_steps(node, report),
        confidence=CERTAIN,
        nodes=(node.name,),
    )


def _steps(node: Node, report: MigReport) -> tuple[Remedy, ...]:
    step, commands = _AFTER.get(report.reason, _OTHERWISE)
    return (Remedy(step), *commands(node.name, report.config))


def _is_told_by_its_operation(snapshot: Snapshot, node: Node, report: MigReport) -> bool:
    """Whether NOP-04 says the same."""
    record = failures(snapshot).get(node.name)
    return record is not None and record.spec.mig is not None and record.spec.mig.config == report.config


def _pending(node: Node, report: MigReport) -> Finding:
    why, evidence = _said(node, report)
    under_way = mig_request.read_progress(node.annotations)
    shown = (remedies.show_operation(under_way.operation),) if under_way is not None and under_way.operation else ()
    return Finding(
        subject=node.subject,
        cause=f"the GPUs of node {node.name} are to be parted as its partition profile {report.config} asks: {why}",
        evidence=evidence,
        remedy=shown or (remedies.node_field(node.name, "metadata.annotations"),),
        level=Level.WAIT,
        expected="until the pods on these GPUs have gone and the GPUs were read anew",
        confidence=CERTAIN,
        nodes=(node.name,),
    )


def _stranded(snapshot: Snapshot, node: Node, report: MigReport) -> Finding:
    _, evidence = _said(node, report)
    held = [pod for path in report.pods if (pod := snapshot.pods.get(tuple(path.split("/", 1)))) is not None]  # type: ignore[arg-type]
    shown = ", ".join(report.pods[:5]) + (f" and {len(report.pods) - 5} more" if len(report.pods) > 5 else "")
    return Finding(
        subject=node.subject,
        cause=(
            f"somebody has changed partition modes of GPUs of node {node.name} by hand, and pods hold parts that are "
            f"gone by that: {shown}"
        ),
        evidence=evidence,
        remedy=(
            *(remedies.delete_pod(pod.namespace, pod.name) for pod in held[:5]),
            Remedy("then have the profile set again, if it is still wanted:"),
            remedies.relabel(node.name, _LABEL, report.config),
        ),
        confidence=CERTAIN,
        nodes=(node.name,),
        pods=tuple(pod.path for pod in held),
    )
