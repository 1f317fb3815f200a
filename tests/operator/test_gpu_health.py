"""What the health role says of a node's GPUs, as it writes it and as anybody else may."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.formats import names
from kgpu.formats.gpu_remedies import REBOOT, words
from kgpu.formats.gpu_report import MAX_GPUS, GpuReport, ReportedGpu, encode, rendered, report
from kgpu.formats.xid.action import Action
from kgpu.operator.gpu_health import NodeGpus, gpus_of
from kgpu.operator.model import ClusterNode
from kgpu.operator.nodes import project, read_node

UUIDS = ["GPU-30e753dd-1243-550c-a492-bf716c823a5d", "GPU-6eb24971-a758-522d-ac65-58ca4f20c726"]
BAD = ReportedGpu(
    uuid=UUIDS[0], index=0, action=Action.REBOOT, reason="Lost", what="GPU is lost. Gone", remedy_key=REBOOT
)


def node(status: str, message: str, reason: str = "x", data: str | None = None) -> ClusterNode:
    """As the operator keeps it."""
    condition = {
        "type": names.GPUS_HEALTHY_CONDITION, "status": status, "reason": reason, "message": message,
    }  # fmt: skip
    annotations = {names.GPUS_ANNOTATION: data} if data is not None else {}
    return read_node(
        project({"metadata": {"name": "n", "annotations": annotations}, "status": {"conditions": [condition]}})
    )


def said(written: GpuReport) -> NodeGpus:
    shown = rendered(written)
    return gpus_of(node(shown.status, shown.message, shown.reason, encode(written)))


def test_what_the_health_role_writes_is_understood() -> None:
    look = ReportedGpu(uuid=UUIDS[1], index=1, action=Action.INSPECT, reason="Hot", what="it is hot", works=True)
    muted = ReportedGpu(uuid="GPU-0b", index=2, reason="GPUMuted", muted="in maintenance")
    found = said(report([muted, look, BAD], count=8))
    assert [(one.what, one.remedy, one.works) for one in found.ill] == [
        ("GPU is lost. Gone", words(REBOOT), False), ("it is hot", "", True),
    ]  # fmt: skip
    assert found.bad == 1
    assert said(report([], count=8)) == NodeGpus()


def test_many_are_counted() -> None:
    rows = [ReportedGpu(uuid=f"GPU-{number:02d}", index=number, action=Action.REBOOT) for number in range(MAX_GPUS + 3)]
    found = said(report(rows, count=len(rows)))
    assert (found.bad, found.more) == (MAX_GPUS + 3, 3)


def test_a_driver_that_can_not_be_read_is_told() -> None:
    assert "timeout" in said(report([], count=0, unreadable="timeout")).unread
    assert gpus_of(ClusterNode(name="n")) == NodeGpus()


@pytest.mark.parametrize("data", [None, "", "{", '{"version":2,"count":1}', '{"version":"1"}', "[" * 5000])
def test_of_an_agent_of_another_version_what_it_tells_people_is_passed_on_whole(data: str | None) -> None:
    shown = rendered(report([BAD], count=8))
    found = gpus_of(node(shown.status, shown.message, shown.reason, data))
    assert (found.ill, found.bad, found.untold) == ((), 1, shown.message)
    assert gpus_of(node("True", "8 of 8 GPUs are well", "GPUsHealthy", data)) == NodeGpus()
    unread = gpus_of(node("Unknown", "the driver can't be read: timeout", "DriverUnreadable", data))
    assert (unread.unread, unread.bad) == ("the driver can't be read: timeout", 0)


@pytest.mark.parametrize("status", ["True", "False", "Unknown", ""])
@given(text=st.text(max_size=80))
def test_any_text_is_read(status: str, text: str) -> None:
    assert gpus_of(node(status, text, data=text)).ill == ()
