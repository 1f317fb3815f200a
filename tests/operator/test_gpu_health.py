"""What a Node's condition says of its GPUs, as the health role writes it and as anybody else may."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.formats import names
from kgpu.health.publish import condition
from kgpu.hw.verdicts import GpuVerdict
from kgpu.operator.gpu_health import Gpus, gpus_of
from kgpu.operator.model import Node, NodeCondition

UUIDS = ["GPU-30e753dd-1243-550c-a492-bf716c823a5d", "GPU-6eb24971-a758-522d-ac65-58ca4f20c726"]


def node(status: str, message: str, reason: str = "x") -> Node:
    return Node(
        name="n",
        conditions={names.GPUS_HEALTHY_CONDITION: NodeCondition(status=status, reason=reason, message=message)},
    )


def said(*rows: GpuVerdict, unreadable: str = "") -> Gpus:
    shown = condition(rows, unreadable=unreadable)
    return gpus_of(node(shown.status, shown.message, shown.reason))


def test_what_the_health_role_writes_is_understood() -> None:
    bad = GpuVerdict(
        uuid=UUIDS[0],
        index=0,
        action="reboot",
        withdraws=True,
        reason="Lost",
        what="GPU is lost. Gone",
        todo="drain the node",
    )
    look = GpuVerdict(uuid=UUIDS[1], index=1, action="inspect", reason="Hot", what="it is hot")
    well = GpuVerdict(uuid="GPU-0c", index=2)
    found = said(bad, look, well)
    assert [(one.what, one.todo, one.works) for one in found.ill] == [
        ("GPU is lost. Gone", "drain the node", False), ("it is hot", "", True),
    ]  # fmt: skip
    assert found.bad == 1
    assert said(well) == Gpus()


def test_many_are_counted() -> None:
    rows = [
        GpuVerdict(uuid=f"GPU-{number:02d}", index=number, action="reboot", withdraws=True, reason="Lost", what="gone", todo="x")
        for number in range(12)
    ]  # fmt: skip
    assert said(*rows).bad == 12


def test_a_driver_that_can_not_be_read_is_told() -> None:
    assert "timeout" in said(unreadable="timeout").unread
    assert gpus_of(Node(name="n")) == Gpus()


@pytest.mark.parametrize("status", ["True", "False", "Unknown", ""])
@given(text=st.text(max_size=80))
def test_any_text_is_read(status: str, text: str) -> None:
    found = gpus_of(node(status, text))
    assert not found.ill or "GPU " in text
    assert found.bad >= len([one for one in found.ill if not one.works])
