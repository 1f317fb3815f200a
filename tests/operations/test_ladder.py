"""From a repair that did not help to the next stronger one: what climbs, what does not, and what may begin by itself."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from kgpu.base.times import stamp_of
from kgpu.formats import names
from kgpu.formats.crd.nodeoperation import NodeAct, NodeOperationSpec, NodeOperationStatus, OperationType
from kgpu.formats.gpu_report import GpuReport, ReportedGpu
from kgpu.formats.xid.action import Action
from kgpu.operations.config import RemediationPolicy, Strongest
from kgpu.operations.ladder import DAY, name_of, rung
from kgpu.operations.model import Operation, TargetNode
from kgpu.operations.remediation import KEPT, SETTLE, RemediationMemory, RemediationPlan, WantedOperation, remediate

NOW = 1_700_000_000.0
LOST = ReportedGpu(uuid="GPU-3", index=3, action=Action.REBOOT, what="Xid 79")
ILL = ReportedGpu(uuid="GPU-5", index=5, action=Action.RESET_GPU, what="Xid 48")


def node(name: str = "n1", *gpus: ReportedGpu, boot: str = "b3", **more: Any) -> TargetNode:
    report = GpuReport(version=1, boot=boot, count=8, gpus=gpus or (LOST,))
    return TargetNode(
        **{"name": name, "uid": f"uid-{name}", "boot_id": boot, "has_gpus": True, "report": report, **more}
    )


def reboot(
    ago: float, *, boot: str, result: str = "Succeeded", reason: str = "Rebooted", by: str = names.REMEDIATION_REQUESTER,
    uid: str = "uid-n1", acted: bool = True,
) -> Operation:  # fmt: skip
    """A reboot of that boot of n1 that has ended."""
    status = NodeOperationStatus(
        phase="Failed" if "Failure" in result else "Complete", result=result, reason=reason, node_uid=uid,  # type: ignore[arg-type]
        completed_at=stamp_of(NOW - ago), act=NodeAct(id="u-1", boot_id=boot) if acted else None,
    )  # fmt: skip
    spec = NodeOperationSpec(node_name="n1", node_uid=uid, type="Reboot", requested_by=by)
    name = name_of(OperationType.REBOOT, TargetNode(name="n1", uid=uid, boot_id=boot))
    return Operation(name=name, uid=name, version="1", created=NOW - ago - 60, spec=spec, status=status)


TWICE = (reboot(2 * SETTLE, boot="b2"), reboot(4 * SETTLE, boot="b1"))


def plan(
    *operations: Operation, policy: Strongest = Strongest.REPLACE, of: TargetNode | None = None
) -> RemediationPlan:
    known = of or node()
    return remediate({known.name: known}, operations, RemediationPolicy(strongest=policy), NOW)


def replacement(policy: Strongest = Strongest.REPLACE) -> WantedOperation:
    (one,) = plan(*TWICE, policy=policy).create
    return one


def made(one: WantedOperation, **status: Any) -> Operation:
    return Operation(
        name=one.name, uid="r", version="1", created=NOW - 30, spec=one.spec, status=NodeOperationStatus(**status)
    )  # fmt: skip


def test_reboots_that_did_not_help_lead_to_a_replacement() -> None:
    one = replacement()
    assert (one.spec.type, one.spec.node_uid, one.spec.approved) == ("Replace", "uid-n1", True)
    assert one.spec.reason == "GPU 3 (GPU-3): Xid 79"
    assert one.name.startswith("replace-n1-")
    assert not plan(*TWICE).given_up


@pytest.mark.parametrize("policy", [Strongest.SUGGEST, Strongest.RESET, Strongest.REBOOT])
def test_a_milder_policy_suggests_it(policy: Strongest) -> None:
    assert not replacement(policy).spec.approved


def test_a_policy_that_gets_stronger_approves_it() -> None:
    suggested = made(replacement(Strongest.REBOOT))
    assert plan(*TWICE, suggested, policy=Strongest.REPLACE).approve == (suggested,)
    assert plan(*TWICE, suggested, policy=Strongest.REBOOT).approve == ()


@pytest.mark.parametrize(
    "operations",
    [
        (),
        TWICE[:1],
        (TWICE[0], reboot(DAY + 1, boot="b1")),
        tuple(reboot(row * SETTLE, boot=f"b{row}", reason="DrainTimeout", result="TransientFailure", acted=False)
              for row in (2, 4)),
        tuple(reboot(row * SETTLE, boot=f"b{row}", reason="RebootRefused", result="PermanentFailure") for row in (2, 4)),
        tuple(reboot(row * SETTLE, boot=f"b{row}", reason="Cancelled", result="Cancelled") for row in (2, 4)),
        tuple(reboot(row * SETTLE, boot=f"b{row}", by="jane") for row in (2, 4)),
        tuple(reboot(row * SETTLE, boot=f"b{row}", uid="of the machine before") for row in (2, 4)),
    ],
    ids=["nothing", "one of two", "one was yesterday", "pods stayed", "the machine refused", "cancelled", "a person's",
         "of the machine before"],
)  # fmt: skip
def test_nothing_else_leads_to_it(operations: tuple[Operation, ...]) -> None:
    assert all(one.spec.type != "Replace" for one in plan(*operations).create)


def test_a_machine_with_the_name_of_a_replaced_one_has_its_own_reboots() -> None:
    (one,) = plan(*TWICE, of=node(uid="another")).create
    assert one.spec.type == "Reboot"


def test_a_reboot_that_never_ended_the_boot_leads_to_it_at_once() -> None:
    """No other reboot of the same boot is made, so that nothing milder is left."""
    late = reboot(2 * SETTLE, boot="b3", result="TransientFailure", reason="RebootTimeout")
    (one,) = plan(late).create
    assert one.spec.type == "Replace"


def test_without_any_attempt_allowed_nothing_was_tried() -> None:
    assert rung(node(), (LOST,), (), 0, NOW) is OperationType.REBOOT


def test_a_gpu_that_needs_a_reset_still_gets_one_first() -> None:
    assert rung(node("n1", ILL), (ILL,), TWICE, 2, NOW) is OperationType.GPU_RESET
    assert rung(node("n1", ILL, LOST), (ILL, LOST), TWICE, 2, NOW) is OperationType.REPLACE


def test_what_a_boot_has_climbed_to_it_stays_at() -> None:
    """A day later reboots are allowed again, and a suggestion would give way to one that does not help either."""
    suggested = made(replacement(Strongest.REBOOT))
    old = tuple(dataclasses.replace(row, status=reboot(DAY + 60, boot="b").status) for row in TWICE)
    found = plan(*old, suggested, policy=Strongest.REBOOT)
    assert (found.create, found.withdraw) == ((), ())


def test_a_person_who_ends_it_is_not_asked_again_in_this_boot() -> None:
    over = {"phase": "Complete", "result": "Succeeded", "reason": "Resumed", "completed_at": stamp_of(NOW - 2 * SETTLE)}
    found = plan(*TWICE, made(replacement(), **over))
    assert (found.create, found.given_up) == ((), {})


def test_one_that_has_failed_is_a_persons_turn() -> None:
    over = {
        "phase": "Failed", "result": "TransientFailure", "reason": "DrainTimeout", "message": "web-1 stays",
        "completed_at": stamp_of(NOW - 2 * SETTLE),
    }  # fmt: skip
    one = replacement()
    assert plan(*TWICE, made(one, **over)).given_up == {"n1": f"{one.name} has failed: web-1 stays"}


@pytest.mark.parametrize(
    "now",
    [
        node(boot="b4"),
        TargetNode(name="n1", uid="uid-n1", boot_id="b3", has_gpus=True, gpus_healthy=True),
        node(labels={names.REMEDIATION_LABEL: "disabled"}),
    ],
    ids=["another boot", "healthy again", "a person's"],
)
def test_a_suggestion_that_nothing_calls_for_any_more_is_withdrawn(now: TargetNode) -> None:
    suggested = made(replacement(Strongest.SUGGEST))
    memory = RemediationMemory(well_since={"n1": NOW - KEPT})
    suggests = RemediationPolicy(strongest=Strongest.SUGGEST)
    assert remediate({"n1": now}, [suggested], suggests, NOW, memory).withdraw == (suggested,)


def test_nodes_that_wait_for_machines_do_not_open_the_breaker() -> None:
    """They call for a repair for days."""
    nodes = [node(f"n{number}") for number in range(1, 6)]
    held = [
        dataclasses.replace(
            made(replacement(), phase="Acting"), name=f"r{number}", created=NOW - DAY,
            spec=NodeOperationSpec(node_name=f"n{number}", type="Replace", requested_by=names.REMEDIATION_REQUESTER),
        )
        for number in range(1, 5)
    ]  # fmt: skip
    found = remediate({each.name: each for each in nodes}, held, RemediationPolicy(strongest=Strongest.REPLACE), NOW)
    assert not found.breaker
    assert [one.spec.node_name for one in found.create] == ["n5"]
