"""From verdicts to operations: what leads to one, what never does, and when it is enough."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from kgpu.base.times import stamp_of
from kgpu.formats import names
from kgpu.formats.crd.nodeoperation import NodeAct, NodeOperationSpec, NodeOperationStatus
from kgpu.formats.crd.status import StatusCondition
from kgpu.formats.gpu_report import GpuReport, ReportedGpu
from kgpu.formats.xid.action import Action
from kgpu.operations.config import RemediationPolicy, Strongest
from kgpu.operations.ladder import DAY
from kgpu.operations.model import Operation, Record, TargetNode
from kgpu.operations.plan import step
from kgpu.operations.remediation import (
    BREAKER_WINDOW,
    KEPT,
    SETTLE,
    RemediationMemory,
    WantedOperation,
    remediate,
)
from kgpu.operations.world import World

NOW = 1_700_000_000.0
LOST = ReportedGpu(uuid="GPU-3", index=3, action=Action.REBOOT, what="Xid 79")
REBOOT = RemediationPolicy(strongest=Strongest.REBOOT)


def node(name: str = "n1", *gpus: ReportedGpu, boot: str = "b1", **more: Any) -> TargetNode:
    report = GpuReport(version=1, boot=boot, count=8, gpus=gpus or (LOST,), unreadable=more.pop("unreadable", ""))
    return TargetNode(
        **{"name": name, "uid": f"uid-{name}", "boot_id": "b1", "has_gpus": True, "report": report, **more}
    )


def by_name(*nodes: TargetNode) -> dict[str, TargetNode]:
    return {each.name: each for each in nodes}


def wanted(*nodes: TargetNode, policy: RemediationPolicy = REBOOT, operations: tuple[Operation, ...] = ()) -> list[str]:
    """The nodes that would be reset or rebooted."""
    plan = remediate(by_name(*nodes), operations, policy, NOW)
    assert not plan.breaker
    return [one.spec.node_name for one in plan.create if one.spec.type != "Replace"]


def past(
    name: str = "n1",
    *,
    ago: float,
    phase: str = "Complete",
    by: str = names.REMEDIATION_REQUESTER,
    kind: Any = "Reboot",
    reason: str = "",
) -> Operation:
    """One that has succeeded, or, with a ``reason``, failed before its act."""
    result = "TransientFailure" if reason else "Succeeded"
    status = NodeOperationStatus(phase=phase, result=result, reason=reason, completed_at=stamp_of(NOW - ago))  # type: ignore[arg-type]
    spec = NodeOperationSpec(node_name=name, type=kind, requested_by=by)
    return Operation(name=f"{name}-{ago}", uid=str(ago), version="1", created=NOW - ago - 60, spec=spec, status=status)


def test_a_lost_gpu_leads_to_a_reboot() -> None:
    (one,) = remediate(by_name(node()), (), REBOOT, NOW).create
    assert (one.spec.type, one.spec.node_uid, one.spec.approved) == ("Reboot", "uid-n1", True)
    assert one.spec.reason == "GPU 3 (GPU-3): Xid 79"
    assert one.name.startswith("reboot-n1-")


def test_a_suggestion_waits_for_a_person() -> None:
    (one,) = remediate(by_name(node()), (), RemediationPolicy(), NOW).create
    assert not one.spec.approved
    assert wanted(node(), policy=RemediationPolicy(strongest=Strongest.OFF)) == []


def test_one_boot_has_one_operation_and_the_next_another() -> None:
    def name(**more: Any) -> str:
        (one,) = remediate(by_name(node(**more)), (), REBOOT, NOW).create
        assert isinstance(one, WantedOperation)
        return one.name

    assert name() == name()
    assert name() != name(boot="b2", boot_id="b2")
    assert name() != name(uid="another")


def suggestion(of: TargetNode, **more: Any) -> Operation:
    (wanted,) = remediate(by_name(of), (), RemediationPolicy(), NOW).create
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
        node("n1", msgspec.structs.replace(LOST, muted="in maintenance")),
        node("n1", msgspec.structs.replace(LOST, action=Action.INSPECT)),
    ],
    ids=["another boot", "another boot, no report yet", "another node", "muted", "a person's turn"],
)
def test_what_nothing_calls_for_any_more_is_withdrawn(
    now: TargetNode, approved: bool, policy: RemediationPolicy
) -> None:
    """A suggestion that a person approves after the repair would reboot a healthy node."""
    made = suggestion(node(), approved=approved)
    assert remediate(by_name(now), [made], policy, NOW).withdraw == (made,)


WELL = TargetNode(name="n1", uid="uid-n1", boot_id="b1", has_gpus=True, gpus_healthy=True)


@pytest.mark.parametrize("approved", [True, False])
def test_it_outlives_its_verdict_by_five_minutes(approved: bool) -> None:
    """One that flaps must not be made and withdrawn each time."""
    made = suggestion(node(), approved=approved)
    for well_for, withdrawn in ((0.0, ()), (KEPT - 1, ()), (KEPT, (made,))):
        memory = RemediationMemory(well_since={"n1": NOW - well_for})
        assert remediate(by_name(WELL), [made], REBOOT, NOW, memory).withdraw == withdrawn, well_for
    assert remediate(by_name(WELL), [made], REBOOT, NOW).withdraw == ()
    off = RemediationPolicy(strongest=Strongest.OFF)
    assert remediate(by_name(WELL), [made], off, NOW).withdraw == (made,)


@pytest.mark.parametrize(
    ("now", "made"),
    [
        (node(), suggestion(node())),
        (node(ready=False, boot_id="b2"), suggestion(node())),  # it is not known what it will be
        (node(unreadable="no driver"), suggestion(node())),
        (node(boot="b2", boot_id="b2"), suggestion(node(), phase="Draining")),
        (node(boot="b2", boot_id="b2"), suggestion(node(), requested_by="jane")),
        (TargetNode(name="n1", uid="uid-n1", boot_id="b1", has_gpus=True), suggestion(node())),
    ],
    ids=["as it was", "not ready", "no driver", "begun", "a person's", "no word of the agent"],
)
def test_what_may_still_be_wanted_stays(now: TargetNode, made: Operation) -> None:
    assert remediate(by_name(now), [made], RemediationPolicy(), NOW).withdraw == ()


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
        plan = remediate(by_name(*nodes), (), REBOOT, NOW)
        assert (len(plan.create), bool(plan.breaker)) == ((ill, False) if ill <= most else (0, True)), ill


def test_one_after_the_other_opens_it_too() -> None:
    lately = tuple(past(f"n{number}", ago=BREAKER_WINDOW - 120) for number in (2, 3))
    plan = remediate(by_name(node()), lately, REBOOT, NOW)
    assert plan.breaker.startswith("3 of 1 nodes with GPUs call for a repair within 10 minutes (n1, n2, n3)")
    assert remediate(
        by_name(node()), tuple(past(f"n{number}", ago=BREAKER_WINDOW) for number in (2, 3)), REBOOT, NOW
    ).create


RESET = RemediationPolicy(strongest=Strongest.RESET)
ILL = ReportedGpu(uuid="GPU-5", index=5, action=Action.RESET_GPU, what="Xid 48")
ILL_TOO = ReportedGpu(uuid="GPU-1", index=1, action=Action.RESET_GPU, what="Xid 48")


def calls_for(*gpus: ReportedGpu, policy: RemediationPolicy = REBOOT, operations: tuple[Operation, ...] = ()) -> Any:
    (one,) = remediate(by_name(node("n1", *gpus)), operations, policy, NOW).create
    return one


def reset(
    result: str, reason: str = "", *, gpus: tuple[str, ...] = ("GPU-5",), boot: str = "b1", ago: float = 2 * SETTLE
) -> Operation:
    status = NodeOperationStatus(
        phase="Failed" if "Failure" in result else "Complete", result=result, reason=reason,  # type: ignore[arg-type]
        started_at=stamp_of(NOW - ago - 60), completed_at=stamp_of(NOW - ago), act=NodeAct(id="u-1", boot_id=boot),
    )  # fmt: skip
    spec = NodeOperationSpec(node_name="n1", type="GpuReset", gpus=gpus, requested_by=names.REMEDIATION_REQUESTER)
    return Operation(name=f"r-{ago}", uid=str(ago), version="1", created=NOW - ago - 60, spec=spec, status=status)


@pytest.mark.parametrize("policy", [REBOOT, RESET, RemediationPolicy()])
def test_gpus_that_need_no_more_are_reset_together(policy: RemediationPolicy) -> None:
    one = calls_for(ILL, ILL_TOO, policy=policy)
    assert (one.spec.type, one.spec.gpus) == ("GpuReset", ("GPU-1", "GPU-5"))
    assert one.spec.approved is (policy is not None and policy.strongest is not Strongest.SUGGEST)


def test_one_gpu_that_needs_a_reboot_makes_it_a_reboot() -> None:
    assert calls_for(ILL, LOST).spec.type == "Reboot"
    assert not calls_for(ILL, LOST, policy=RESET).spec.approved, "a suggestion where resets alone are allowed"


def test_a_gpu_that_only_the_kernel_log_names_can_not_be_reset() -> None:
    assert calls_for(msgspec.structs.replace(ILL, uuid="", pci="0000:1b:00.0")).spec.type == "Reboot"


@pytest.mark.parametrize(
    ("result", "reason", "then"),
    [
        ("Succeeded", "Reset", "Reboot"),  # the verdict has returned
        ("TransientFailure", "ResetFailed", "Reboot"),
        ("TransientFailure", "ResetHangs", "Reboot"),
        ("TransientFailure", "ResetDidNotHelp", "Reboot"),
        ("PermanentFailure", "ResetRefused", "Reboot"),
        ("PermanentFailure", "AgentRefused", "Reboot"),
        ("TransientFailure", "DrainTimeout", "GpuReset"),  # nothing was tried
        ("PermanentFailure", "DrainRefused", "GpuReset"),
        ("Cancelled", "Cancelled", "GpuReset"),
    ],
)
def test_it_climbs_only_after_an_act_that_did_not_help(result: str, reason: str, then: str) -> None:
    assert calls_for(ILL, operations=(reset(result, reason),)).spec.type == then


def test_it_does_not_climb_for_what_was_tried_in_another_boot_or_on_another_gpu() -> None:
    assert calls_for(ILL, operations=(reset("TransientFailure", "ResetDidNotHelp", boot="b0"),)).spec.type == "GpuReset"
    assert (
        calls_for(ILL, operations=(reset("TransientFailure", "ResetDidNotHelp", gpus=("GPU-7",)),)).spec.type
        == "GpuReset"
    )


def test_a_reset_that_a_person_ended_does_not_come_again_in_this_boot() -> None:
    ended = dataclasses.replace(reset("Cancelled", "Cancelled"), name=calls_for(ILL).name)
    assert remediate(by_name(node("n1", ILL)), (ended,), REBOOT, NOW).create == ()


def test_a_reset_that_has_not_begun_gives_way_to_what_is_wanted_now() -> None:
    made = suggestion(node("n1", ILL))
    for gpus in ((ILL, ILL_TOO), (ILL, LOST)):
        plan = remediate(by_name(node("n1", *gpus)), [made], RemediationPolicy(), NOW)
        assert plan.withdraw == (made,)
        assert [one.name for one in plan.create] == [calls_for(*gpus).name]
    assert remediate(by_name(node("n1", ILL)), [made], RemediationPolicy(), NOW).withdraw == ()


def test_the_policy_lets_begin_what_it_allows() -> None:
    made = (suggestion(node("n1", ILL)), suggestion(node("n1", LOST)))
    assert remediate(by_name(node("n1", ILL)), made[:1], RESET, NOW).approve == made[:1]
    assert remediate(by_name(node("n1", LOST)), made[1:], RESET, NOW).approve == ()
    assert remediate(by_name(node("n1", LOST)), made[1:], REBOOT, NOW).approve == made[1:]


def failed(name: str, ago: float, result: str = "TransientFailure") -> Operation:
    one = reset(result, "ResetDidNotHelp", ago=ago)
    return dataclasses.replace(one, name=name, spec=msgspec.structs.replace(one.spec, node_name=name))


def test_repairs_that_fail_on_one_node_after_the_other_open_the_breaker() -> None:
    ends = (failed("n2", 1000), failed("n3", 2000), failed("n4", 3000))
    fleet = by_name(*(node(f"n{number}", report=None) for number in range(1, 100)))
    plan = remediate(fleet, ends, REBOOT, NOW)
    assert plan.breaker.startswith("the last 3 repairs have failed, on n2, n3, n4")
    assert plan.calling == ("n2", "n3", "n4")
    assert not remediate(fleet, ends, REBOOT, NOW, RemediationMemory(closed_at=NOW - 1500)).breaker, (
        "a person has looked at two of them"
    )
    assert not remediate(fleet, (*ends, failed("n5", 500, "Succeeded")), REBOOT, NOW).breaker
    assert not remediate(fleet, ends[:2], REBOOT, NOW).breaker
    assert not remediate(fleet, (*ends[:2], failed("n3", 2500)), REBOOT, NOW).breaker, "two nodes are ill"
    assert not remediate(fleet, (*ends[:2], failed("n4", 3700)), REBOOT, NOW).breaker, "that was over an hour ago"


def test_a_node_that_a_person_takes_over_is_left_alone() -> None:
    made = suggestion(node(), approved=True)
    taken = node(labels={names.REMEDIATION_LABEL: "disabled"})
    assert remediate(by_name(taken), [made], REBOOT, NOW).withdraw == (made,)


def test_what_has_not_begun_is_withdrawn_when_it_is_switched_off() -> None:
    off = RemediationPolicy(strongest=Strongest.OFF)
    waiting, begun = suggestion(node(), approved=True), suggestion(node(), phase="Draining")
    assert remediate(by_name(node()), [waiting], off, NOW).withdraw == (waiting,)
    assert remediate(by_name(node()), [begun], off, NOW).withdraw == ()


def test_it_is_said_when_it_is_a_persons_turn() -> None:
    twice = (past(ago=2 * SETTLE, reason="DrainTimeout"), past(ago=3 * SETTLE, reason="DrainTimeout"))
    given_up = remediate(by_name(node()), twice, REBOOT, NOW).given_up
    assert given_up == {"n1": "it was rebooted 2 times within a day (operations.remediation.attempts)"}
    (wanted,) = remediate(by_name(node()), (), REBOOT, NOW).create
    status = NodeOperationStatus(
        phase="Failed", result="TransientFailure", message="no boot", completed_at=stamp_of(NOW - 2 * SETTLE)
    )
    tried = dataclasses.replace(past(ago=2 * SETTLE), name=wanted.name, status=status)
    assert remediate(by_name(node()), (tried,), REBOOT, NOW).given_up == {"n1": f"{wanted.name} has failed: no boot"}
    ended = dataclasses.replace(tried, status=msgspec.structs.replace(status, phase="Complete", result="Cancelled"))
    assert remediate(by_name(node()), (ended,), REBOOT, NOW).given_up == {}, "a person has ended it, and knows"
    assert remediate(by_name(node()), (past(ago=0, phase="Acting"), *twice), REBOOT, NOW).given_up == {}


def test_a_slow_giving_back_does_not_make_it_climb() -> None:
    """The reset was not tried, as pods stayed; that its node was given back late changes nothing."""
    spec = msgspec.structs.replace(reset("").spec, node_uid="uid-n1")
    why = StatusCondition(
        type="Complete",
        status="False",
        reason="DrainTimeout",
        message="pods stayed",
        last_transition_time=stamp_of(NOW),
    )
    status = NodeOperationStatus(
        phase="Restoring", result="TransientFailure", reason="NotRestored", node_uid="uid-n1",
        phase_since=stamp_of(NOW), act=NodeAct(id="u-1", boot_id="b1"), conditions=(why,),
    )  # fmt: skip
    slow = Operation(name="r", uid="r", version="1", created=NOW, spec=spec, status=status)
    (write,) = step(slow, World(now=NOW - 2 * SETTLE, node=node())).writes
    assert isinstance(write, Record)
    ended = dataclasses.replace(slow, status=write.status)
    assert ended.ended
    assert calls_for(ILL, operations=(ended,)).spec.type == "GpuReset"


@pytest.mark.parametrize(
    ("spec", "due"),
    [
        ({"approved": True}, False),
        ({"approved": False}, True),
        ({"not_before": stamp_of(NOW + 3600)}, True),
        ({"not_before": stamp_of(NOW - 3600)}, False),
    ],
    ids=["about to begin", "not approved", "for later", "its time has come"],
)
def test_what_may_never_begin_holds_up_no_repair(spec: dict[str, Any], due: bool) -> None:
    asked = past(ago=0, phase="Pending", by="jo", kind="Maintenance")
    asked = dataclasses.replace(asked, spec=msgspec.structs.replace(asked.spec, **spec))
    assert wanted(node(), operations=(asked,)) == (["n1"] if due else [])
    twice = (past(ago=2 * SETTLE), past(ago=3 * SETTLE))
    climbed = remediate(by_name(node()), (asked, *twice), REBOOT, NOW).create
    assert [one.spec.type for one in climbed] == (["Replace"] if due else [])


@pytest.mark.parametrize("ahead", [-3600, 0, 3600])
def test_the_breaker_counts_by_the_engines_own_clock(ahead: float) -> None:
    """The API server's clock, by which operations are created, may be another."""
    now = NOW + ahead

    def lately(name: str) -> Operation:
        status = NodeOperationStatus(phase="Acting", started_at=stamp_of(now - 60), phase_since=stamp_of(now - 30))
        return dataclasses.replace(past(name, ago=0), created=NOW - 60, status=status)

    waits = dataclasses.replace(
        lately("n3"), status=NodeOperationStatus(phase="Pending", phase_since=stamp_of(now - 60))
    )
    fleet = by_name(*(node(f"n{number}", report=None) for number in range(1, 5)))
    assert remediate(fleet, (lately("n1"), lately("n2"), waits), REBOOT, now).calling == ("n1", "n2", "n3")


def test_the_nodes_that_a_person_knew_of_do_not_open_it_again() -> None:
    fleet = by_name(*(node(f"n{number}") for number in range(1, 6)))
    known = ("n1", "n2", "n3", "n4", "n5")
    plan = remediate(fleet, (), REBOOT, NOW, RemediationMemory(seen=known))
    assert (plan.breaker, len(plan.create)) == ("", 5)
    under_way = tuple(past(name, ago=0, phase="Acting") for name in known)
    assert not remediate(fleet, under_way, REBOOT, NOW, RemediationMemory(seen=known)).breaker
    assert not remediate(fleet, (), REBOOT, NOW, RemediationMemory(seen=known[:3])).breaker, "two are new"
    assert remediate(fleet, (), REBOOT, NOW, RemediationMemory(seen=known[:2])).calling == ("n3", "n4", "n5")
