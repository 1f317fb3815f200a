"""Which operations may begin: slots, room, groups, order."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from kgpu.base.times import stamp_of
from kgpu.formats import names
from kgpu.formats.crd.nodeoperation import DrainProgress, NodeOperationSpec, NodeOperationStatus, WaitingPod
from kgpu.operations.admission import admit
from kgpu.operations.config import GroupCap, OperationBudget, Share
from kgpu.operations.model import Operation, TargetNode
from kgpu.operations.windows import read_windows
from tests.operations.sim_mig import spec as mig

NOW = 1_700_000_000.0


def nodes(count: int, **changes: TargetNode) -> dict[str, TargetNode]:
    known = {f"n{number}": TargetNode(name=f"n{number}", uid=f"u{number}", has_gpus=True) for number in range(count)}
    return {**known, **changes}


def operation(node: str, phase: str = "Pending", *, created: float = NOW, **spec: object) -> Operation:
    return Operation(
        name=f"m-{node}", uid=f"op-{node}", version="1", created=created,
        spec=msgspec.convert({"nodeName": node, "type": "Maintenance", **spec}, NodeOperationSpec),
        status=NodeOperationStatus(phase=phase),  # type: ignore[arg-type]
    )  # fmt: skip


def verdicts(operations: list[Operation], known: dict[str, TargetNode], budget: OperationBudget) -> dict[str, str]:
    """By node: admitted, or the reason."""
    answers = admit(operations, known, budget, NOW)
    return {
        row.node: "admitted" if answers[row.uid].admitted else answers[row.uid].reason
        for row in operations
        if row.uid in answers
    }


@pytest.mark.parametrize(
    ("text", "total", "expected"),
    [
        ("25%", 1, 1),
        ("25%", 3, 1),
        ("25%", 4, 1),
        ("25%", 8, 2),
        ("99%", 3, 2),
        ("100%", 3, 3),
        ("0%", 9, 0),
        ("2", 1, 2),
    ],
)
def test_a_share_is_rounded_down_and_at_least_one(text: str, total: int, expected: int) -> None:
    share = Share(percent=int(text[:-1])) if text.endswith("%") else Share(int(text))
    assert share.of(total) == expected


def test_slots_go_to_the_oldest() -> None:
    rows = [operation("n0", created=NOW + 2), operation("n1", created=NOW + 1), operation("n2", created=NOW)]
    budget = OperationBudget(max_parallel=2, max_unavailable=Share(percent=100))
    assert verdicts(rows, nodes(3), budget) == {"n0": "WaitsForBudget", "n1": "admitted", "n2": "admitted"}


def test_a_node_that_is_down_for_another_reason_takes_room() -> None:
    rows = [operation("n0"), operation("n1")]
    budget = OperationBudget(max_parallel=9, max_unavailable=Share(2))
    for down in (
        TargetNode(name="n3", uid="u3", has_gpus=True, ready=False),
        TargetNode(name="n3", uid="u3", has_gpus=True, unschedulable=True),
    ):
        assert verdicts(rows, nodes(4, n3=down), budget) == {"n0": "admitted", "n1": "WaitsForBudget"}


def test_a_node_that_is_down_already_takes_a_slot_and_no_room() -> None:
    down = TargetNode(name="n0", uid="u0", has_gpus=True, ready=False)
    budget = OperationBudget(max_parallel=2, max_unavailable=Share(1))
    assert verdicts([operation("n0")], nodes(4, n0=down), budget) == {"n0": "admitted"}
    rows = [operation("n0", "Acting"), operation("n1")]
    assert verdicts(rows, nodes(4, n0=down), budget) == {"n1": "WaitsForBudget"}


def test_nodes_without_gpus_are_not_counted_but_may_be_worked_on() -> None:
    plain = TargetNode(name="cpu", uid="c", ready=False)
    budget = OperationBudget(max_parallel=9, max_unavailable=Share(1))
    assert verdicts([operation("n0"), operation("cpu")], nodes(2, cpu=plain), budget) == {
        "n0": "WaitsForBudget",
        "cpu": "admitted",
    }


@pytest.mark.parametrize(
    "budget",
    [
        OperationBudget(max_parallel=0),
        OperationBudget(max_parallel=9, max_unavailable=Share(0)),
        OperationBudget(max_parallel=9, max_unavailable=Share(percent=0)),
    ],
)
def test_a_budget_of_zero_pauses_and_says_so(budget: OperationBudget) -> None:
    assert verdicts([operation("n0")], nodes(4), budget) == {"n0": "Paused"}


def test_a_group_has_a_cap_of_its_own() -> None:
    racks = {
        f"n{number}": TargetNode(name=f"n{number}", uid=str(number), has_gpus=True, labels={"rack": f"r{number % 2}"})
        for number in range(6)
    }
    rows = [operation(name) for name in racks]
    budget = OperationBudget(
        max_parallel=9, max_unavailable=Share(percent=100), groups=(GroupCap(label="rack", max_unavailable=1),)
    )
    answers = verdicts(rows, racks, budget)
    assert sorted(answers.values()) == ["WaitsForBudget"] * 4 + ["admitted"] * 2
    assert {answers["n0"], answers["n1"]} == {"admitted"}


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"approved": False}, "WaitsForApproval"),
        ({"notBefore": "2033-11-14T22:13:20Z"}, "WaitsForItsTime"),
        ({"notBefore": "2013-11-14T22:13:20Z"}, "admitted"),
        ({"notBefore": "2013-11-14T22:13:20"}, "admitted"),
    ],
)
def test_what_an_operation_itself_waits_for(spec: dict[str, object], reason: str) -> None:
    assert verdicts([operation("n0", **spec)], nodes(1), OperationBudget()) == {"n0": reason}


@pytest.mark.parametrize("spec", [{}, {"type": "GpuReset", "gpus": ["GPU-1"]}, mig()])
@pytest.mark.parametrize("gone", [0, 1])
def test_one_that_waits_for_pods_keeps_its_slot(spec: dict[str, object], gone: int) -> None:
    """Also a change of slices of which no pod has gone: its GPUs are withdrawn, and its next eviction may succeed."""
    waits = operation("n0", "Draining", **spec)
    drain = DrainProgress(total=2, gone=gone, waiting=(WaitingPod(namespace="ns", name="held", why="a budget"),))
    waits = dataclasses.replace(waits, status=msgspec.structs.replace(waits.status, drain=drain))
    budget = OperationBudget(max_parallel=1, max_unavailable=Share(percent=100))
    assert verdicts([waits, operation("n1")], nodes(4), budget) == {"n1": "WaitsForBudget"}


def test_an_operation_that_can_not_be_read_keeps_its_node_and_a_slot() -> None:
    answers = admit([operation("n0"), operation("n1")], nodes(8), OperationBudget(), NOW, {"n0": "later"})
    assert answers["op-n0"].why == "it waits for later, which this version of kgpu can't read"
    assert answers["op-n1"].reason == "WaitsForBudget"


def test_a_cluster_without_gpu_nodes_can_be_worked_on() -> None:
    plain = {"cpu": TargetNode(name="cpu", uid="c")}
    assert verdicts([operation("cpu")], plain, OperationBudget()) == {"cpu": "admitted"}


def test_two_caps_of_one_label_count_a_node_once() -> None:
    rack = {
        f"n{number}": TargetNode(name=f"n{number}", uid=str(number), has_gpus=True, labels={"rack": "r"})
        for number in range(4)
    }
    caps = (GroupCap(label="rack", max_unavailable=2), GroupCap(label="rack", max_unavailable=3))
    budget = OperationBudget(max_parallel=9, max_unavailable=Share(percent=100), groups=caps)
    assert (
        sorted(verdicts([operation(name) for name in rack], rack, budget).values())
        == ["WaitsForBudget"] * 2 + ["admitted"] * 2
    )


def test_operations_that_are_over_take_nothing() -> None:
    rows = [operation("n0", "Failed"), operation("n1", "Complete"), operation("n2")]
    assert verdicts(rows, nodes(3), OperationBudget()) == {"n2": "admitted"}


def ours(node: str, *, created: float = NOW) -> Operation:
    return operation(node, created=created, requestedBy=names.REMEDIATION_REQUESTER)


def over(node: str, *, started: float) -> Operation:
    status = NodeOperationStatus(phase="Complete", result="Succeeded", started_at=stamp_of(started))
    return dataclasses.replace(operation(node), status=status)


def test_people_come_before_verdicts() -> None:
    rows = [ours("n0", created=NOW - 100), operation("n1", created=NOW)]
    assert verdicts(rows, nodes(4), OperationBudget(max_parallel=1)) == {"n0": "WaitsForBudget", "n1": "admitted"}


def test_new_mig_slices_come_last() -> None:
    """After people, repairs and upgrades, however long they have waited."""
    rollout = {"rollout": {"name": "r", "maxParallel": 0}}
    rows = [
        operation("n0", created=NOW - 90, **mig()),
        operation("n1", created=NOW, **rollout),
        operation("n2", created=NOW, requestedBy=names.REMEDIATION_REQUESTER),
        operation("n3", created=NOW),
    ]
    known = nodes(4)
    for begun in ("n3", "n2", "n1", "n0"):
        found = verdicts(rows, known, OperationBudget(max_parallel=1, max_unavailable=Share(percent=100)))
        assert [node for node, word in found.items() if word == "admitted"] == [begun]
        rows = [row for row in rows if row.node != begun]


def test_windows_hold_back_verdicts_alone() -> None:
    (closed,) = read_windows([{"start": "23:00", "end": "23:30"}], "w")  # NOW is 22:13
    budget = OperationBudget(max_parallel=9, max_unavailable=Share(9), windows=(closed,))
    rows = [ours("n0"), operation("n1")]
    assert verdicts(rows, nodes(4), budget) == {"n0": "WaitsForWindow", "n1": "admitted"}
    (answer,) = (verdict for verdict in admit(rows, nodes(4), budget, NOW).values() if not verdict.admitted)
    assert answer.why == "it waits for a window in operations.windows; the next one opens at 2023-11-14T23:00:00Z"
    (later,) = admit(rows[:1], nodes(4), budget, NOW + 47 * 60).values()
    assert later.admitted


def test_so_many_begin_within_an_hour() -> None:
    budget = OperationBudget(max_parallel=9, max_unavailable=Share(9), max_per_hour=2)
    begun = over("n3", started=NOW - 3000)
    rows = [operation("n0"), operation("n1"), begun]
    assert verdicts(rows, nodes(4), budget) == {"n0": "admitted", "n1": "WaitsForRate"}
    earlier = over("n3", started=NOW - 3700)
    assert verdicts([*rows[:2], earlier], nodes(4), budget) == {"n0": "admitted", "n1": "admitted"}
    assert verdicts(rows[:1], nodes(4), OperationBudget(max_parallel=9, max_per_hour=0)) == {"n0": "WaitsForRate"}


def test_what_a_verdict_called_for_does_not_begin_while_the_gpus_are_well() -> None:
    """A person may have approved it after the verdict went; it is kept for a while, as verdicts flap."""
    budget = OperationBudget(max_parallel=9, max_unavailable=Share(9))
    rows = [operation("n0", requestedBy=names.REMEDIATION_REQUESTER), operation("n1")]
    well = {f"n{number}": TargetNode(name=f"n{number}", uid="u", has_gpus=True, gpus_healthy=True) for number in (0, 1)}
    assert verdicts(rows, well, budget) == {"n0": "WaitsForVerdict", "n1": "admitted"}
    assert verdicts(rows, nodes(2), budget) == {"n0": "admitted", "n1": "admitted"}


def test_one_whose_node_is_not_there_keeps_no_slot_from_others() -> None:
    budget = OperationBudget(max_parallel=1, max_unavailable=Share(1))
    gone, another = operation("n9", created=NOW - 9), operation("n1", created=NOW - 8, nodeUID="of-before")
    rows = [gone, another, operation("n0")]
    assert verdicts(rows, nodes(2), budget) == {"n9": "WaitsForNode", "n1": "WaitsForNode", "n0": "admitted"}
