"""Events and Nodes as hardware errors: what they tell, of the last day, and nothing from what is no such thing."""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.base.times import stamp_of
from kgpu.formats import names
from kgpu.formats.gpu_report import ReportedGpu, encode, report
from kgpu.formats.xid.action import Action
from kgpu.health.model import EvidenceSource, GpuEvidence, HealthVerdict
from kgpu.kube.events import NodeEvents
from kgpu.kube.fake import FakeApi
from kgpu.overview.error_sources import of_event, of_node, slim_event, slim_node

NOW = 1_764_600_000.0
UUID = "GPU-0a1b2c3d-0000-1111-2222-333344445555"


def event(message: str, *, ago: float = 60.0, **more: Any) -> dict[str, Any]:
    at = stamp_of(NOW - ago)
    said = {
        "involvedObject": {"kind": "Node", "name": "a"}, "message": message, "reason": "XidSeen", "count": 2,
        "firstTimestamp": at, "lastTimestamp": at,
    }  # fmt: skip
    return {**said, **more}


def codes(message: str, **more: Any) -> list[str]:
    return [error.code for error in of_event(slim_event(event(message, **more)), NOW)]


def test_what_the_agent_writes_is_understood() -> None:
    facts = tuple(
        GpuEvidence(source=EvidenceSource.XID, key=key, what=f"Xid {key}: it has failed", action=Action.REBOOT)
        for key in ("79", "119")
    )
    verdict = HealthVerdict(gpu=UUID, action=Action.REBOOT, evidence=facts)
    written = NodeEvents(FakeApi(), node="a").event(verdict.advice(f"GPU 3 ({UUID})"), stamp_of(NOW - 60))
    found = list(of_event(slim_event(written), NOW))
    assert [(one.node, one.code, one.uuid, one.index, one.count) for one in found] == [
        ("a", "Xid 79", UUID, 3, 1),
        ("a", "Xid 119", UUID, 3, 1),
    ]
    assert {one.at for one in found} == {stamp_of(NOW - 60)}


@pytest.mark.parametrize(
    ("message", "found"),
    [
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=x", ["Xid 79"]),
        ("GPU 0: Xid 13 in GPU instance 2: a program failed", ["Xid 13"]),
        ("SXid 20034: link", ["SXid 20034"]),
        ("Xid 1234567890123: none", []),
        ("comes after Xid 63 or 64", []),
        ("notXid 79: none", []),
        ("", []),
    ],
)
def test_numbers_are_taken_where_an_error_is_told(message: str, found: list[str]) -> None:
    assert codes(message) == found


def test_an_event_of_health_without_a_number_has_its_reason() -> None:
    said = {"reason": "GPUNeedsReset", "reportingComponent": "kgpu-agent"}
    assert codes("GPU 2: its memory fails", **said) == ["GPUNeedsReset"]
    assert codes("its memory fails", **said) == [], "it names no GPU"
    assert codes("GPU 2: its memory fails", **{**said, "reportingComponent": "other"}) == []
    assert codes("GPU 2 is well", **{**said, "reason": "GPUHealthy"}) == []


@pytest.mark.parametrize("ago", [86_401.0, -3601.0, NOW])
def test_what_is_not_of_the_last_day_is_left_out(ago: float) -> None:
    assert codes("Xid 79: gone", ago=86_000.0) == ["Xid 79"]
    assert codes("Xid 79: gone", ago=ago) == []


@pytest.mark.parametrize(
    "odd",
    [
        {"involvedObject": {"kind": "Pod", "name": "a"}}, {"involvedObject": 3}, {"message": 3},
        {"lastTimestamp": "x", "firstTimestamp": [], "eventTime": None}, {"involvedObject": {"kind": "Node"}},
    ],
)  # fmt: skip
def test_an_odd_event_tells_nothing(odd: dict[str, Any]) -> None:
    said = {**event("Xid 79: gone"), **odd}
    assert list(of_event(slim_event(said), NOW)) == []


@pytest.mark.parametrize("count", [True, -1, "9", 1 << 40, None])
def test_an_odd_count_is_not_known(count: object) -> None:
    (found,) = of_event(slim_event(event("GPU 0: Xid 79: gone", count=count)), NOW)
    assert found.count is None


def test_a_report_tells_of_what_began_within_the_day_and_failed() -> None:
    facts = ("xid:79@2", "sxid:20034", "driver-log:ras", "temperature:high", "recovery-action:reset")
    bad = ReportedGpu(uuid=UUID, index=1, facts=facts, evidence=("one", "two", "three"), since=NOW - 60)
    old = ReportedGpu(uuid="GPU-old", index=2, facts=("xid:48",), since=NOW - 90_000)
    node = {"metadata": {"name": "a", "annotations": {names.GPUS_ANNOTATION: encode(report([bad, old], count=8))}}}
    found = of_node(slim_node(node), NOW)
    assert found is not None
    assert [(one.code, one.uuid, one.index, one.text) for one in found] == [
        ("Xid 79", UUID, 1, "one"),
        ("SXid 20034", UUID, 1, "two"),
        ("driver-log:ras", UUID, 1, "three"),
    ]


@pytest.mark.parametrize("annotations", [None, {}, {names.GPUS_ANNOTATION: "{"}, {names.GPUS_ANNOTATION: 3}])
def test_a_node_without_a_report_is_told_apart(annotations: object) -> None:
    assert of_node(slim_node({"metadata": {"name": "a", "annotations": annotations}}), NOW) is None
