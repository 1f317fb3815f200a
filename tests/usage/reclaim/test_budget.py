"""Budgets count what is on record; two that people bring back within an hour stop a policy for a day."""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.formats.crd.usagepolicy import UsageBudget
from kgpu.usage.reclaim.budget import brake, spent
from kgpu.usage.reclaim.record import ActionState, ReclaimAction, StoredTarget

NOW = 1_000_000.0
TARGET = StoredTarget(
    group="apps", version="v1", plural="deployments", kind="Deployment", namespace="a", name="d", uid="u", way="scale"
)
BUDGET = UsageBudget()


def act(ago: float, **more: Any) -> ReclaimAction:
    fields = {"namespace": "a", "gpus": 1.0, "state": ActionState.DONE, "policy": "p", **more}
    return ReclaimAction(
        id=f"{ago}/{more}", kind="Deployment", name="d", target=TARGET, at=NOW - ago, why="", undo="", **fields
    )


def asked(*actions: ReclaimAction, namespace: str = "a", gpus: float = 1.0, held: float = 1000.0, but: str = "") -> str:
    return spent(actions, BUDGET, namespace=namespace, gpus=gpus, held=held, now=NOW, but=but)


@pytest.mark.parametrize(
    ("actions", "why"),
    [
        ([], ""),
        ([act(30)], "1 a minute"),
        ([act(30, state=ActionState.INTENDED)], "1 a minute"),
        ([act(30, state=ActionState.VOID)], ""),
        ([act(61)], ""),
        ([act(61 + at) for at in range(5)], "5 an hour may be stopped in a"),
        ([act(61 + at, namespace="b") for at in range(5)], ""),
        ([act(3601 + at) for at in range(5)], ""),
        ([act(61, namespace="b", gpus=200.0)], "10% of the held GPUs"),
    ],
)
def test_what_may_be_stopped_now(actions: list[ReclaimAction], why: str) -> None:
    assert why in asked(*actions)
    assert bool(why) == bool(asked(*actions))


def test_one_workload_is_always_allowed_however_large() -> None:
    assert asked(gpus=128, held=128) == ""
    assert "10%" in asked(act(120, gpus=128.0, namespace="b"), gpus=1, held=0)


def test_an_act_does_not_count_against_itself() -> None:
    own = act(10, state=ActionState.INTENDED)
    assert asked(own, but=own.id) == ""


def resumed(ago: float, **more: Any) -> ReclaimAction:
    return act(ago + 600, state=ActionState.RESUMED, ended=NOW - ago, **more)


@pytest.mark.parametrize(
    ("actions", "stops"),
    [
        ([resumed(60)], False),
        ([resumed(60), resumed(3000)], True),
        ([resumed(60), resumed(3700)], False),
        ([resumed(40_000), resumed(41_000)], True),
        ([resumed(90_000), resumed(90_100)], False),
        ([resumed(60), resumed(90, policy="q")], False),
        ([resumed(60), act(90)], False),
    ],
)
def test_the_brake(actions: list[ReclaimAction], stops: bool) -> None:
    assert bool(brake(actions, "p", BUDGET, NOW)) is stops
