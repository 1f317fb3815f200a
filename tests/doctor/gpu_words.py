"""What kgpu's agent says of a node's GPUs, on a Node of a test."""

from __future__ import annotations

from typing import Any

from kgpu.base.errors import DriverFault
from kgpu.formats import names, validation_report
from kgpu.formats.gpu_remedies import REBOOT
from kgpu.formats.gpu_report import ReportedGpu, encode, rendered, report
from kgpu.formats.validation_report import CheckTrouble, UnpassedCheck, UnpassedDevice
from kgpu.formats.xid.action import Action

THIRD = "GPU-3a0ebfaa-a4fe-5a60-97a1-aa9ebb0cfa0f"
FIFTH = "GPU-c348da00-6ae1-5941-b833-3256b81eff95"
XID_79 = ReportedGpu(
    uuid=THIRD, index=3, action=Action.REBOOT, reason="GPUNeedsReboot", what="Xid 79: GPU has fallen off the bus",
    remedy_key=REBOOT, facts=("xid:79",),
)  # fmt: skip


def gpus_said(
    *gpus: ReportedGpu, count: int = 8, unreadable: str = "", fault: DriverFault | None = None, **more: str
) -> dict[str, Any]:
    """The condition, with the Node's annotations that it comes with; ``more`` are fields of the condition."""
    said = report(gpus, count=count, unreadable=unreadable, fault=fault)
    shown = rendered(said)
    return {
        "type": names.GPUS_HEALTHY_CONDITION, "status": shown.status, "reason": shown.reason, "message": shown.message,
        "lastHeartbeatTime": "2026-01-01T11:58:00Z", "annotations": {names.GPUS_ANNOTATION: encode(said)}, **more,
    }  # fmt: skip


def checks_said(check: str, *devices: UnpassedDevice, trouble: CheckTrouble | None = None) -> dict[str, Any]:
    """The same of a check of the validator that fails."""
    failed = UnpassedCheck(check=check, status="failed", trouble=trouble, devices=devices)
    data = validation_report.encode(validation_report.report((failed,)))
    troubles = [trouble] if trouble is not None else [one.trouble for one in devices]
    return {
        "type": names.VALIDATED_CONDITION, "status": "False", "reason": f"{check.capitalize()}Failed",
        "message": f"{check}: {'; '.join(one.said() for one in troubles)}",
        "annotations": {names.VALIDATION_ANNOTATION: data},
    }  # fmt: skip


def with_said(node: dict[str, Any], *conditions: dict[str, Any]) -> dict[str, Any]:
    """The Node with these conditions, and their annotations where they belong."""
    metadata, status = node["metadata"], node["status"]
    annotations = dict(metadata.get("annotations", {}))
    for one in conditions:
        annotations |= one.get("annotations", {})
    rows = [{key: value for key, value in one.items() if key != "annotations"} for one in conditions]
    return node | {
        "metadata": metadata | ({"annotations": annotations} if annotations else {}),
        "status": status | {"conditions": [*status["conditions"], *rows]},
    }


def saying(
    node: dict[str, Any], *gpus: ReportedGpu, count: int = 8, unreadable: str = "", **more: str
) -> dict[str, Any]:
    """The Node with what its agent says of its GPUs."""
    return with_said(node, gpus_said(*gpus, count=count, unreadable=unreadable, **more))
