"""Which operations nodes ask for, and what they are told: a table of what is there, and hostile requests."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from kgpu.base.times import stamp_of
from kgpu.formats import mig_request, names
from kgpu.formats.crd.nodeoperation import (
    DrainProgress,
    MigDrain,
    NodeOperationSpec,
    NodeOperationStatus,
    OperationDrain,
    WaitingPod,
)
from kgpu.formats.mig_request import MigLayout, MigProgress, MigRequest
from kgpu.operations.config import MigPolicy
from kgpu.operations.leftovers import KEPT_SECONDS, outdated
from kgpu.operations.mig_requests import MINUTE, PER_MINUTE, MigPlan, mig_plan, operation_name
from kgpu.operations.model import Operation, TargetNode, read_node
from tests.operations.sim_mig import LARGE, annotate, ask, layout, spec, told
from tests.operations.test_mig_kills import MigCluster
from tests.operations.world import Cluster, Engine

NOW = 1_700_000_000.0
LATER = NOW + 3600


def node(key: str = "r1", **more: Any) -> TargetNode:
    wish = mig_request.request(key=key, config="all-1g.10gb", layouts=(layout(),)) if key else None
    return TargetNode(**{"name": "n1", "uid": "u1", "has_gpus": True, "boot_id": "b", "mig_request": wish, **more})


def change(key: str = "r1", phase: str = "Pending", result: str = "", attempt: int = 0, **status: Any) -> Operation:
    name = operation_name("n1", "u1", key, attempt)
    ended = {"completed_at": stamp_of(NOW)} if result else {}
    known: dict[str, Any] = {"phase": phase, "result": result, "phase_since": stamp_of(NOW), "node_uid": "u1", **ended}
    return Operation(
        name=name, uid=name, version="1", created=NOW,
        spec=msgspec.convert({"nodeName": "n1", "nodeUID": "u1", **spec(key)}, NodeOperationSpec),
        status=NodeOperationStatus(**{**known, **status}),
    )  # fmt: skip


def plan(of: TargetNode, *operations: Operation, now: float = LATER, **more: Any) -> MigPlan:
    return mig_plan({of.name: of}, operations, MigPolicy(), now, **more)


def said(found: MigPlan) -> MigProgress:
    (word,) = found.tell
    assert word.progress is not None
    return word.progress


def test_a_request_becomes_one_operation() -> None:
    found = plan(node())
    (made,) = found.create
    assert made.name == operation_name("n1", "u1", "r1")
    assert made.name.startswith("mig-n1-")
    assert made.spec.gpus == ("GPU-1",)
    assert made.spec.mig is not None
    assert (made.spec.mig.request, made.spec.mig.drain, made.spec.mig.release) == ("r1", "gpu", False)
    assert made.spec.mig.layouts[0].devices == {"1g.10gb": 7}
    assert (made.spec.requested_by, made.spec.approved, made.spec.drain.timeout_seconds) == (
        names.MIG_REQUESTER,
        True,
        3600,
    )
    assert (said(found).phase, said(found).operation, said(found).id) == ("Pending", made.name, "r1")


def test_the_policy_says_who_goes_and_how() -> None:
    policy = MigPolicy(drain=MigDrain.NONE, eviction=OperationDrain(timeout_seconds=7, force=True))
    (made,) = mig_plan({"n1": node()}, (), policy, NOW).create
    assert made.spec.mig is not None
    assert (made.spec.mig.drain, made.spec.drain) == ("none", policy.eviction)


@pytest.mark.parametrize(
    ("operation", "phase", "reason"),
    [
        (change(reason="WaitsForBudget", message="it waits"), "Pending", "WaitsForBudget"),
        (change(phase="Acting", reason="Changing"), "Acting", "Changing"),
        (change(phase="Failed", result="TransientFailure", reason="ChangeFailed"), "Failed", "ChangeFailed"),
        (change(phase="Complete", result="Succeeded", reason="MigChanged"), "Complete", "MigChanged"),
        (change(phase="Complete", result="Cancelled", reason="Cancelled"), "Complete", "Cancelled"),
    ],
)
def test_one_that_there_is_is_told_of_and_none_made_again(operation: Operation, phase: str, reason: str) -> None:
    found = plan(node(), operation)
    assert not found.create
    assert (said(found).phase, said(found).reason, said(found).operation) == (phase, reason, operation.name)
    assert not plan(node(mig_progress=said(found), mig_told=True), operation).tell, "only changes are written"


@pytest.mark.parametrize("reason", ["RequestChanged", "Rebooted"])
def test_one_that_was_superseded_may_be_asked_for_again(reason: str) -> None:
    before = change(phase="Complete", result="Superseded", reason=reason)
    (made,) = plan(node(), before).create
    assert made.name == operation_name("n1", "u1", "r1", 1)


def test_attempts_made_in_the_same_second_count_all() -> None:
    """Whichever of these names comes last: one was carried out."""
    rows = [
        change(phase="Complete", result="Superseded", reason="RequestChanged", attempt=number) for number in range(4)
    ]
    for number in range(4):
        done = change(phase="Complete", result="Succeeded", reason="MigChanged", attempt=number)
        assert not plan(node(), *rows[:number], done, *rows[number + 1 :]).create


def test_a_node_has_one_unfinished_change() -> None:
    found = plan(node("r2"), change("r1", "Acting"))
    assert not found.create
    assert (said(found).reason, said(found).id) == ("NodeBusy", "r2")


def test_operations_of_a_node_of_before_do_not_count() -> None:
    former = dataclasses.replace(change(), spec=msgspec.structs.replace(change().spec, node_uid="u0"))
    assert plan(node(), former).create


def test_a_request_whose_record_is_gone_was_carried_out() -> None:
    over = mig_request.progress(key="r1", operation="x", phase="Failed", reason="ChangeFailed", message="why")
    assert plan(node(mig_progress=over, mig_told=True)) == MigPlan()
    assert plan(node("r2", mig_progress=over, mig_told=True)).create
    open_one = dataclasses.replace(node(), mig_progress=msgspec.structs.replace(over, phase="Acting"), mig_told=True)
    assert plan(open_one).create, "its operation was deleted before it was over"
    again = dataclasses.replace(node(), mig_progress=msgspec.structs.replace(over, reason="Rebooted"), mig_told=True)
    assert plan(again).create


def test_the_record_of_what_a_node_still_asks_for_is_kept() -> None:
    done = change(phase="Failed", result="TransientFailure", reason="ChangeFailed")
    late = NOW + KEPT_SECONDS + 1
    assert not outdated((done,), late, {"n1": node()})
    assert outdated((done,), late, {"n1": node("r2")})
    assert outdated((done,), late, {})


def test_a_node_that_is_emptied_is_told_of_whom_it_waits() -> None:
    waiting = WaitingPod(namespace="default", name="web-1", why="budget web-pdb needs 2")
    draining = change(
        phase="Draining", message="its GPUs are being emptied", drain=DrainProgress(total=1, waiting=(waiting,))
    )
    assert said(plan(node(), draining)).message == "its GPUs are being emptied; default/web-1: budget web-pdb needs 2"


@pytest.mark.parametrize(
    "text", ["x" * 3000, "a\nb\t\u202e", "\u00e9" * 700, "  spaces  ", "\U0001f600" * 601, "e\u0301" * 400]
)
@pytest.mark.parametrize("phase", ["Pending", "Draining", "Restoring"])
def test_what_is_told_is_read_back_as_it_is(text: str, phase: str) -> None:
    """Or the operator would write it again and again."""
    waiting = WaitingPod(namespace="default", name="web-1", why=text)
    result = {"result": "Succeeded"} if phase == "Restoring" else {}
    known = change(phase=phase, reason=text, message=text, drain=DrainProgress(total=1, waiting=(waiting,)), **result)
    named = dataclasses.replace(known, name="m" * 253)
    for operation in (known, named):
        word = said(plan(node(), operation))
        annotations = {names.MIG_OPERATION_ANNOTATION: mig_request.encode(word)}
        assert mig_request.read_progress(annotations) == word


def test_the_name_of_an_operation_has_room_for_any_node() -> None:
    (made,) = plan(node(name="n" * 253)).create
    assert len(made.name) <= mig_request.MAX_NAME


def word_of(phase: str, reason: str = "") -> dict[str, Any]:
    return {
        "mig_told": True, "mig_progress": mig_request.progress(key="r1", operation="x", phase=phase, reason=reason),
    }  # fmt: skip


SUPERSEDED = change(phase="Complete", result="Superseded", reason="RequestChanged")


@pytest.mark.parametrize(
    ("of", "operations"),
    [
        (node("", mig_told=True), ()),
        (node("", **word_of("Pending")), ()),
        (node("", **word_of("Acting")), ()),
        (node("", **word_of("Draining")), (SUPERSEDED,)),
        (node("", **word_of("Complete", "Rebooted")), ()),
    ],
)
def test_where_nothing_was_carried_out_the_word_goes_with_the_request(of: TargetNode, operations: Any) -> None:
    (word,) = plan(of, *operations).tell
    assert word.progress is None


def test_the_word_goes_on_to_say_what_becomes_of_a_request_that_was_taken_back() -> None:
    assert plan(node("")) == MigPlan()
    found = plan(
        node("", **word_of("Acting")), change(phase="Failed", result="TransientFailure", reason="ChangeFailed")
    )
    assert (said(found).phase, said(found).reason) == ("Failed", "ChangeFailed")
    assert not plan(node("", mig_told=True, mig_progress=said(found))).tell, "also without its record"


def test_a_node_that_keeps_changing_its_mind_waits() -> None:
    rows = [
        change(f"r{number}", "Complete", "Superseded", reason="RequestChanged", completed_at=stamp_of(NOW + number))
        for number in range(PER_MINUTE)
    ]
    found = plan(node("new"), *rows, now=NOW + 10)
    assert not found.create
    assert said(found).reason == "TooManyRequests"
    assert found.again_at == NOW + MINUTE
    assert plan(node("new"), *rows, now=NOW + 2 * MINUTE).create


async def test_a_node_that_asks_each_second_gets_one_at_a_time_and_none_twice() -> None:
    cluster = MigCluster()
    cluster.node("n1")
    engine = Engine(cluster)
    await engine.start()
    try:
        for number in range(120):
            wish = mig_request.request(key=f"r{number % 7}", config="c", layouts=(layout("GPU-1", LARGE),))
            annotate(cluster, "n1", names.MIG_REQUEST_ANNOTATION, mig_request.encode(wish))
            await engine.run_for(1)
        await engine.run_for(120, step=1)
        assert cluster.most == 1
        rows = cluster.changes()
        done = [row["spec"]["mig"]["request"] for row in rows if row["status"]["result"] != "Superseded"]
        assert len(done) == len(set(done))
        assert len(rows) <= 30, "the records do not pile up"
        mig = cluster.machines["n1"].agent.mig
        assert len(mig.cut) == len(set(mig.cut))
        assert not cluster.order("n1")
    finally:
        await engine.stop()


def _annotated(text: str) -> TargetNode:
    metadata = {"name": "n1", "uid": "u1", "annotations": {names.MIG_REQUEST_ANNOTATION: text}}
    return read_node({"metadata": metadata, "status": {}})


def _wish(**fields: Any) -> str:
    whole = MigRequest(version=1, id="r1", config="c", layouts=(layout(),))
    return mig_request.encode(msgspec.structs.replace(whole, **fields))


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "null", '{"version": 2}',
        _wish(version=2),
        _wish(id=""),
        _wish(id="x" * 65),
        _wish(id="a\nb"),
        _wish(config="x" * 101),
        _wish(layouts=()),
        _wish(layouts=tuple(layout(f"GPU-{number}") for number in range(17))),
        _wish(layouts=(layout(), layout())),
        _wish(layouts=(layout("GPU-1\u202e"),)),
        _wish(layouts=(MigLayout(gpu="GPU-1", enabled=False, devices={"1g.10gb": 1}),)),
        _wish(layouts=(layout("GPU-1", {"1g.10gb": 65}),)),
        _wish(layouts=(layout("GPU-1", {"1g.10gb": -1}),)),
        _wish(layouts=(layout("GPU-1", {f"{number}g.1gb": 1 for number in range(17)}),)),
        _wish(layouts=tuple(layout(f"GPU-{n}", {"p" * 90 + str(m): 1 for m in range(16)}) for n in range(16))),
    ],
)  # fmt: skip
def test_a_hostile_request_is_none(text: str) -> None:
    of = _annotated(text)
    assert of.mig_request is None
    assert plan(of) == MigPlan()


async def test_gpus_of_another_node_are_refused_by_the_agent_and_told() -> None:
    cluster = Cluster()
    cluster.node("n1")
    cluster.machines["n1"].agent.refuses = "this node's driver lists no GPU GPU-of-n2"
    ask(cluster, "n1", "r1", layout("GPU-of-n2"))
    engine = Engine(cluster)
    await engine.start()
    try:
        await engine.run_for(10)
        word = told(cluster)
        assert word is not None
        assert (word.phase, word.reason) == ("Failed", "AgentRefused")
        assert "lists no GPU GPU-of-n2" in word.message
    finally:
        await engine.stop()
