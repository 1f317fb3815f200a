"""What the doctor says of partition profiles: each word of the agent's report, and what it is silent about."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kgpu.doctor.model import Finding, Level
from kgpu.doctor.plan import diagnose
from kgpu.doctor.snapshot import Snapshot
from kgpu.formats import mig_request, names
from kgpu.formats.mig_request import MigLabelState
from tests.doctor.example import base
from tests.doctor.small import TAKEN, pod
from tests.doctor.test_node_operations import operation
from tests.operations.sim_mig import spec as cut

PROFILE = "cpx_nps4_all"
AGAIN = f"kubectl label node amd-1 {names.AMD_PROFILE_LABEL}- && kubectl label node amd-1 {names.AMD_PROFILE_LABEL}={PROFILE}"
Object = dict[str, Any]


def told(
    state: MigLabelState, reason: str, message: str = "why", *, pods: tuple[str, ...] = (), label: str | None = PROFILE,
    objects: tuple[Object, ...] = (), **annotations: str,
) -> Finding | None:  # fmt: skip
    """What AMD-21 says of the node whose agent reports this."""
    report = mig_request.report(config=PROFILE, state=state, reason=reason, message=message, pods=pods)
    made = json.loads(json.dumps(base("amd")))
    amd = next(one for one in made if one["kind"] == "Node")
    amd["metadata"]["labels"] |= {names.AMD_PROFILE_LABEL: label} if label is not None else {}
    amd["metadata"]["annotations"] = {names.PARTITION_REPORT_ANNOTATION: mig_request.encode(report), **annotations}
    found = diagnose(Snapshot.of([*made, *objects], taken=TAKEN), strict=True)
    return next((each for root in found.findings for each in root.all() if each.id == "AMD-21"), None)


@pytest.mark.parametrize(
    ("reason", "step"),
    [
        ("PartitionConfigRefused", f"kubectl label node amd-1 {names.AMD_PROFILE_LABEL}=PROFILE --overwrite"),
        ("PartitionLayoutRefused", f"kubectl label node amd-1 {names.AMD_PROFILE_LABEL}=PROFILE --overwrite"),
        ("PartitionGpusInUse", "end what it names"),
        ("PartitionChangeFailed", AGAIN),
        ("PartitionOperationFailed", AGAIN),
        ("PartitionDriverUnreadable", "it is tried again by itself"),
        ("PartitionLayoutBroken", "kubectl drain amd-1"),
        ("PartitionVendorUnsupported", f"kubectl label node amd-1 {names.AMD_PROFILE_LABEL}-"),
        ("AWordOfALaterVersion", AGAIN),
        ("", AGAIN),
    ],
)
def test_a_failure_is_told_with_what_to_do(reason: str, step: str) -> None:
    found = told(MigLabelState.FAILED, reason)
    assert found is not None
    assert (found.level, found.nodes) == (Level.PROBLEM, ("amd-1",))
    assert f"profile {PROFILE} asks: why" in found.cause
    assert any(step in line for line in found.remedy), found.remedy


def test_an_agent_that_waits_says_for_whom() -> None:
    progress = mig_request.progress(key="k", operation="mig-amd-1-1", phase="Draining")
    found = told(
        MigLabelState.PENDING, "PartitionChanging", "operation mig-amd-1-1 (Draining): PodDisruptionBudget ml/never",
        **{names.MIG_OPERATION_ANNOTATION: mig_request.encode(progress)},
    )  # fmt: skip
    assert found is not None
    assert found.level is Level.WAIT
    assert "ml/never" in found.cause
    assert "kgpu operations show mig-amd-1-1" in " ".join(found.remedy)
    without = told(MigLabelState.PENDING, "PartitionRequested", "waits for the operator to begin the change")
    assert without is not None
    assert without.remedy


def test_pods_whose_parts_are_gone_are_named_and_those_that_are_there_ended() -> None:
    pods = tuple(f"ml/train-{number}" for number in range(7))
    held = pod("train-0", on="amd-1")
    found = told(MigLabelState.SUCCESS, "PartitionChangedByHand", pods=(*pods, "no-namespace"), objects=(held,))
    assert found is not None
    assert found.level is Level.PROBLEM
    assert "ml/train-4 and 3 more" in found.cause
    assert found.pods == ("ml/train-0",)
    assert len([line for line in found.remedy if "delete pod" in line]) == 1
    assert AGAIN in found.remedy


def test_what_is_in_force_or_not_asked_for_any_more_is_no_finding() -> None:
    assert told(MigLabelState.SUCCESS, "PartitionApplied") is None
    assert told(MigLabelState.SUCCESS, "PartitionChangedByHand") is None, "nobody is hurt"
    assert told(MigLabelState.FAILED, "PartitionConfigRefused", label="another") is None
    assert told(MigLabelState.FAILED, "PartitionConfigRefused", label=None) is None


def test_what_an_operation_has_failed_at_is_told_once() -> None:
    status = {"result": "TransientFailure", "reason": "ChangeFailed", "message": "why"}
    failed = operation(on="amd-1", phase="Failed", completedAt="2026-01-01T10:00:00Z", **status)
    failed["spec"] |= cut()
    failed["spec"]["mig"]["config"] = PROFILE
    assert told(MigLabelState.FAILED, "PartitionOperationFailed", objects=(failed,)) is None, "NOP-04 says it"
    failed["spec"]["mig"]["config"] = "another"
    assert told(MigLabelState.FAILED, "PartitionOperationFailed", objects=(failed,)) is not None
    failed["spec"]["mig"]["config"] = PROFILE
    failed["status"]["completedAt"] = "2025-12-30T10:00:00Z"
    assert told(MigLabelState.FAILED, "PartitionOperationFailed", objects=(failed,)) is not None, "and nobody else does"
