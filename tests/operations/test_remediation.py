"""From verdicts to operations: what leads to one, what never does, and when it is enough."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kgpu.formats import names
from kgpu.formats.crd.nodeoperation import NodeOperationSpec, NodeOperationStatus
from kgpu.formats.gpu_report import GpuReport, ReportedGpu
from kgpu.formats.xid.action import Action
from kgpu.operations.config import RemediationPolicy, Strongest
from kgpu.operations.model import Operation, TargetNode, stamp_of
from kgpu.operations.remediation import (
    BREAKER_WINDOW,
    DAY,
    SETTLE,
    WantedOperation,
    remediate,
)

NOW = 1_700_000_000.0
LOST = ReportedGpu(uuid="GPU-3", index=3, action=Action.REBOOT, what="Xid 79")
REBOOT = RemediationPolicy(strongest=Strongest.REBOOT)


def node(name: str = "n1", *gpus: ReportedGpu, boot: str = "b1", **more: Any) -> TargetNode:
    report = GpuReport(version=1, boot=boot, count=8, gpus=gpus or (LOST,), unreadable=more.pop("unreadable", ""))
    return TargetNode(
        **{"name": name, "uid": f"uid-{name}", "boot_id": "b1", "has_gpus": True, "report": report, **more}
    )


def wanted(*nodes: TargetNode, policy: RemediationPolicy = REBOOT, operations: tuple[Operation, ...] = ()) -> list[str]:
    plan = remediate(nodes, operations, policy, NOW)
    assert not plan.breaker
    return [one.spec.node_name for one in plan.create]


def past(
    name: str = "n1",
    *,
    ago: float,
    phase: str = "Complete",
    by: str = names.REMEDIATION_REQUESTER,
    kind: Any = "Reboot",
) -> Operation:
    status = NodeOperationStatus(phase=phase, result="Succeeded", completed_at=stamp_of(NOW - ago))  # type: ignore[arg-type]
    spec = NodeOperationSpec(node_name=name, type=kind, requested_by=by)
    return Operation(name=f"{name}-{ago}", uid=str(ago), version="1", created=NOW - ago - 60, spec=spec, status=status)


def test_a_lost_gpu_leads_to_a_reboot() -> None:
    (one,) = remediate([node()], (), REBOOT, NOW).create
    assert (one.spec.type, one.spec.node_uid, one.spec.approved) == ("Reboot", "uid-n1", True)
    assert one.spec.reason == "GPU 3 (GPU-3): Xid 79"
    assert one.name.startswith("reboot-n1-")


def test_a_suggestion_waits_for_a_person() -> None:
    (one,) = remediate([node()], (), RemediationPolicy(), NOW).create
    assert not one.spec.approved
    assert wanted(node(), policy=RemediationPolicy(strongest=Strongest.OFF)) == []


def test_one_boot_has_one_operation_and_the_next_another() -> None:
    def name(**more: Any) -> str:
        (one,) = remediate([node(**more)], (), REBOOT, NOW).create
        assert isinstance(one, WantedOperation)
        return one.name

    assert name() == name()
    assert name() != name(boot="b2", boot_id="b2")
    assert name() != name(uid="another")


def suggestion(of: TargetNode, **more: Any) -> Operation:
    (wanted,) = remediate([of], (), RemediationPolicy(), NOW).create
    status = NodeOperationStatus(phase=more.pop("phase", "Pending"))
    return Operation(
        name=wanted.name, uid="s", version="1", created=NOW - 5, spec=msgspec.structs.replace(wanted.spec, **more),
        status=status,
    )  # fmt: skip


@pytest.mark.parametrize("policy", [RemediationPolicy(), REBOOT, RemediationPolicy(strongest=Strongest.OFF)])
@pytest.mark.parametrize("approved", [True, False])
@pytest.mark.parametrize(
    "now",
    [
        node(boot="b2", boot_id="b2"),
        node(boot="b1", boot_id="b2"),  # the agent has not reported yet
        node(uid="another"),
        TargetNode(name="n1", uid="uid-n1", boot_id="b1", has_gpus=True, gpus_healthy=True),
    ],
    ids=["another boot", "another boot, no report yet", "another node", "healthy again"],
)
def test_what_nothing_calls_for_any_more_is_withdrawn(
    now: TargetNode, approved: bool, policy: RemediationPolicy
) -> None:
    """A suggestion that a person approves after the repair would reboot a healthy node."""
    made = suggestion(node(), approved=approved)
    assert remediate([now], [made], policy, NOW).withdraw == (made,)


@pytest.mark.parametrize(
    ("now", "made"),
    [
        (node(), suggestion(node())),
        (node(ready=False, boot_id="b2"), suggestion(node())),  # it is not known what it will be
        (node(boot="b2", boot_id="b2"), suggestion(node(), phase="Draining")),
        (node(boot="b2", boot_id="b2"), suggestion(node(), requested_by="jane")),
        (TargetNode(name="n1", uid="uid-n1", boot_id="b1", has_gpus=True), suggestion(node())),
    ],
    ids=["as it was", "not ready", "begun", "a person's", "no word of the agent"],
)
def test_what_may_still_be_wanted_stays(now: TargetNode, made: Operation) -> None:
    assert remediate([now], [made], RemediationPolicy(), NOW).withdraw == ()


@pytest.mark.parametrize(
    "well",
    [
        node(boot="an earlier one"),
        node(boot="", boot_id=""),
        node(ready=False),
        node(has_gpus=False),
        node(report=None),
        node(unreadable="no driver"),
        node(labels={names.REMEDIATION_LABEL: "disabled"}),
        node(labels={names.TAINT_CONTROL_PLANE: ""}),
        node("n1", msgspec.structs.replace(LOST, works=True)),
        node("n1", msgspec.structs.replace(LOST, muted="by the admin")),
        *(
            node("n1", msgspec.structs.replace(LOST, action=action))
            for action in (Action.IGNORE, Action.RESTART_APP, Action.INSPECT, Action.DRAIN, Action.REPLACE)
        ),
    ],
)
def test_what_leads_to_nothing(well: TargetNode) -> None:
    assert wanted(well) == []


@pytest.mark.parametrize(
    ("operations", "due"),
    [
        ((past(ago=0, phase="Acting"),), False),
        ((past(ago=0, phase="Pending", by="jo", kind="Maintenance"),), False),
        ((past(ago=SETTLE - 1, by="jo", kind="Maintenance"),), False),
        ((past(ago=SETTLE + 1),), True),
        ((past(ago=2 * SETTLE), past(ago=3 * SETTLE)), False),
        ((past(ago=2 * SETTLE), past(ago=3 * SETTLE, by="jo")), True),
        ((past(ago=2 * SETTLE), past(ago=DAY + 1)), True),
        ((past("n2", ago=0, phase="Acting"),), True),
    ],
)
def test_not_twice_not_at_once_and_not_for_ever(operations: tuple[Operation, ...], due: bool) -> None:
    assert wanted(node(), operations=operations) == (["n1"] if due else [])


@pytest.mark.parametrize(("total", "most"), [(1, 1), (2, 2), (3, 2), (15, 3), (100, 20)])
def test_many_at_once_open_the_breaker(total: int, most: int) -> None:
    """Three nodes, or more than a fifth where that is more."""
    well = [node(f"n{number}", report=None) for number in range(total)]
    for ill in range(total + 1):
        nodes = [node(f"n{number}") for number in range(ill)] + well[ill:]
        plan = remediate(nodes, (), REBOOT, NOW)
        assert (len(plan.create), bool(plan.breaker)) == ((ill, False) if ill <= most else (0, True)), ill


def test_one_after_the_other_opens_it_too() -> None:
    lately = tuple(past(f"n{number}", ago=BREAKER_WINDOW - 120) for number in (2, 3))
    plan = remediate([node()], lately, REBOOT, NOW)
    assert plan.breaker.startswith("3 of 1 nodes with GPUs call for a reboot within 10 minutes (n1, n2, n3)")
    assert remediate([node()], tuple(past(f"n{number}", ago=BREAKER_WINDOW) for number in (2, 3)), REBOOT, NOW).create
