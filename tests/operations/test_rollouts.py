"""The budget of a rollout, and when it stops."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from kgpu.formats.crd.nodeoperation import ROLLOUT_STOPPED, NodeOperationSpec, NodeOperationStatus
from kgpu.operations.admission import admit
from kgpu.operations.config import OperationBudget, Share
from kgpu.operations.model import Operation, TargetNode
from kgpu.operations.rollouts import WAITS, failed_in_a_row
from tests.operations.sim_drivers import wanted

NOW = 1_700_000_000.0
WIDE = OperationBudget(max_parallel=100, max_unavailable=Share(percent=100))


def operation(number: int, phase: str = "Pending", *, digest: str = "2", **given: Any) -> Operation:
    rollout = {"name": "r", "maxParallel": 0, **given.pop("rollout", {})}
    spec = {"nodeName": f"n{number}", "type": "DriverUpgrade", "driver": wanted(digest), "rollout": rollout}
    status = {
        "phase_since": "2023-11-14T22:13:20Z",
        "node_uid": f"u{number}",
        "message": "no headers",
        **given.pop("status", {}),
    }
    return Operation(
        name=f"m{number}", uid=f"op{number}", version="1", created=NOW + number,
        spec=msgspec.convert({**spec, **given}, NodeOperationSpec),
        status=msgspec.structs.replace(NodeOperationStatus(phase=phase), **status),  # type: ignore[arg-type]
    )  # fmt: skip


def ended(number: int, result: str, **given: Any) -> Operation:
    phase = "Failed" if "Failure" in result else "Complete"
    return operation(
        number,
        phase,
        **given,
        status={
            "result": result,
            "started_at": "2023-11-14T22:13:50Z",
            "completed_at": f"2023-11-14T22:14:{number:02d}Z",
        },
    )


def nodes(count: int, down: int = 0) -> dict[str, TargetNode]:
    return {
        f"n{number}": TargetNode(name=f"n{number}", uid=f"u{number}", has_gpus=True, ready=number >= down)
        for number in range(count)
    }


def begins(operations: list[Operation], known: dict[str, TargetNode]) -> list[str]:
    verdicts = admit(operations, known, WIDE, NOW)
    return [row.name for row in operations if row.uid in verdicts and verdicts[row.uid].admitted]


@pytest.mark.parametrize(
    ("rollout", "count"),
    [({"maxParallel": 1}, 1), ({"maxParallel": 3}, 3), ({"maxParallel": 0}, 8), ({"maxParallel": 0, "maxUnavailable": "25%"}, 2),
     ({"maxParallel": 5, "maxUnavailable": 2}, 2), ({"maxParallel": 0, "maxUnavailable": 0}, 0)],
)  # fmt: skip
def test_no_more_begin_than_the_rollout_allows(rollout: dict[str, Any], count: int) -> None:
    assert len(begins([operation(number, rollout=rollout) for number in range(8)], nodes(8))) == count


def test_nodes_that_are_down_take_room_and_may_be_upgraded_themselves() -> None:
    rollout = {"maxUnavailable": 1}
    rows = [operation(number, rollout=rollout) for number in range(3)]
    assert begins(rows, nodes(4, down=1)) == ["m0"]
    assert admit(rows, nodes(4, down=1), WIDE, NOW)["op1"].reason == WAITS


def test_it_stops_after_failures_in_a_row_and_names_them() -> None:
    rows = [ended(1, "PermanentFailure"), ended(2, "TransientFailure"), operation(3)]
    verdict = admit(rows, nodes(4), WIDE, NOW)["op3"]
    assert (verdict.admitted, verdict.reason) == (False, ROLLOUT_STOPPED)
    for words in ("n1: no headers", "n2: no headers", "kgpu operations approve m3"):
        assert words in verdict.why


def test_the_end_of_a_failure_is_not_cut_off() -> None:
    said = "driver 570.86.15 could not be loaded: " + "x" * 400 + ": no headers"
    rows = [ended(number, "PermanentFailure", message=said) for number in (1, 2)]
    assert admit([*rows, operation(3)], nodes(4), WIDE, NOW)["op3"].why.count("no headers") == 2


@pytest.mark.parametrize(
    "rows",
    [
        [ended(1, "PermanentFailure"), operation(3)],
        [ended(1, "PermanentFailure"), ended(2, "Succeeded"), ended(4, "PermanentFailure"), operation(3)],
        [ended(1, "PermanentFailure", digest="3"), ended(2, "PermanentFailure", digest="3"), operation(3)],
        [ended(1, "PermanentFailure"), ended(2, "PermanentFailure"), operation(3, evenIfStopped=True)],
        [ended(1, "PermanentFailure"), ended(2, "PermanentFailure"), operation(3, rollout={"stopAfterFailures": 0})],
        [ended(1, "PermanentFailure"), ended(2, "PermanentFailure"), operation(3, rollout={"name": "other"})],
    ],
    ids=["one", "one has succeeded since", "another driver", "a person lets it", "never stops", "another rollout"],
)
def test_it_goes_on(rows: list[Operation]) -> None:
    assert begins(rows, nodes(5)) == ["m3"]


def test_what_was_cancelled_says_nothing() -> None:
    rows = [ended(1, "PermanentFailure"), ended(2, "Cancelled"), ended(3, "PermanentFailure")]
    assert [row.name for row in failed_in_a_row(rows)] == ["m3", "m1"]


@pytest.mark.parametrize("seed", range(50))
def test_no_order_of_beginnings_and_ends_exceeds_the_budget(seed: int) -> None:
    chance = random.Random(seed)
    rollout = {"maxParallel": chance.choice((0, 1, 3)), "maxUnavailable": chance.choice((1, 3, "25%", "50%"))}
    known = nodes(12)
    rows = {number: operation(number, rollout=rollout) for number in range(12)}
    share = rollout["maxUnavailable"]
    limit = share if isinstance(share, int) else 12 * int(share[:-1]) // 100
    for _ in range(60):
        before = _not_up(rows, known)
        for name in begins(list(rows.values()), known):
            rows[int(name[1:])] = operation(int(name[1:]), "Cordoning", rollout=rollout)
        held = {row.node for row in rows.values() if row.begun}
        assert len(held) <= min(limit, rollout["maxParallel"] or 12)
        assert len(_not_up(rows, known)) <= max(limit, len(before))
        number = chance.randrange(12)
        if rows[number].begun:
            rows[number] = ended(number, chance.choice(("Succeeded", "Cancelled")), rollout=rollout)
        name = f"n{chance.randrange(12)}"
        known[name] = TargetNode(name=name, uid=known[name].uid, has_gpus=True, ready=chance.random() < 0.8)


def _not_up(rows: dict[int, Operation], known: dict[str, TargetNode]) -> set[str]:
    held = {row.node for row in rows.values() if row.begun}
    return held | {name for name, node in known.items() if not node.ready}
