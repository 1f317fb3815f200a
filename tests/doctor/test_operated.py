"""Over all examples: at a node with an operation at work nobody is told to do by hand what the operation does.

What that is, is worked out here from the words of the steps.
"""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from kgpu.base.remedy import is_command
from kgpu.doctor.model import Finding
from kgpu.doctor.plan import diagnose
from kgpu.doctor.snapshot import Snapshot
from tests.doctor.example import Example, all_examples
from tests.doctor.test_node_operations import cordoned, operation

Object = dict[str, Any]
NAME = "reset-by-kgpu"
COMMANDS = re.compile(
    r"kubectl (?:cordon|drain|uncordon) (\S+)|nvidia-smi .*-r\b|nvidia-smi .*--gpu-reset|systemctl reboot"
)
WORDS = re.compile(r"\b(?:cordon|uncordon|drain|reboot|reset)\b", re.IGNORECASE)


def told(example: Example, *more: Object) -> list[Finding]:
    objects = [*copy.deepcopy(example.broken), *more]
    report = diagnose(Snapshot.of(objects, taken=example.taken, listed=example.listed), strict=True)
    return [each for root in report.findings for each in root.all()]


def at_work(node: str, **more: Any) -> Object:
    """A reset of one of its GPUs, which cordons nothing: so that all else is told as it was."""
    spec = {"type": "GpuReset", "gpus": ["GPU-0b0e"], "approved": True}
    deadline = "9999-01-01T00:00:00Z"
    return operation(
        f"{NAME}-{node}", on=node, uid=f"u-{node}", spec=spec, phase="Draining", phaseDeadline=deadline, **more
    )


def node_of(finding: Finding) -> str:
    if finding.subject.kind == "Node":
        return finding.subject.name
    return finding.nodes[0] if len(finding.nodes) == 1 else ""


def by_hand(finding: Finding, nodes: set[str]) -> list[str]:
    """The steps that meddle with an operation at one of these nodes."""
    found = []
    for step in finding.remedy:
        hit = COMMANDS.search(step)
        place = hit[1] if hit is not None and hit[1] else node_of(finding)
        if place in nodes and (hit is not None or (not is_command(step) and WORDS.search(step))):
            found.append(str(step))
    return found


@pytest.mark.parametrize("example", all_examples(), ids=lambda example: example.name)
def test_what_an_operation_does_is_left_to_it(example: Example) -> None:
    nodes = {str(obj["metadata"]["name"]) for obj in example.broken if obj["kind"] == "Node"}
    before = [finding for finding in told(example) if by_hand(finding, nodes)]
    after = told(example, *map(at_work, sorted(nodes)))
    assert [step for finding in after for step in by_hand(finding, nodes)] == []
    for finding in before:
        same = [each for each in after if (each.id, each.subject) == (finding.id, finding.subject)]
        assert all(any(f"operations show {NAME}-" in step for step in each.remedy) for each in same), finding.id


def test_there_are_examples_that_tell_what_to_do_by_hand() -> None:
    """Or the test above would hold for nothing."""
    rules = {
        finding.id
        for example in all_examples()
        for finding in told(example)
        if by_hand(finding, {str(obj["metadata"]["name"]) for obj in example.broken if obj["kind"] == "Node"})
    }
    assert {"HW-01", "HW-04"} <= rules
    assert len(rules) > 8


def lost(*more: Object, rule: str = "HW-01") -> list[str]:
    """The steps about a GPU that is lost on gpu-1."""
    example = next(one for one in all_examples() if one.name == rule)
    (finding,) = (one for one in told(example, *more) if one.id == rule)
    return [str(step) for step in finding.remedy]


def test_what_shows_how_things_are_stays() -> None:
    steps = lost(at_work("gpu-1"))
    assert steps[:2] == [
        "wait: an operation is at work on GPU GPU-0b0e of node gpu-1; how far it is:",
        f"kgpu operations show {NAME}-gpu-1",
    ]
    assert "kgpu xid 79" in steps


@pytest.mark.parametrize(
    ("more", "left"),
    [
        ({"phase": "Pending"}, False),
        ({"phase": "Complete", "result": "Succeeded"}, False),
        ({"phase": "Restoring"}, True),
    ],
)
def test_only_an_operation_that_is_at_work_counts(more: Object, left: bool) -> None:
    record = at_work("gpu-1")
    record["status"] |= more
    assert any("operations show" in step for step in lost(record)) is left


def test_a_person_who_works_on_the_empty_node_may_reboot_it_and_resumes_the_operation_then() -> None:
    held = operation("m", phase="Acting")
    steps = lost(cordoned(), held, rule="HW-09")
    assert not [step for step in steps if re.match(r"kubectl (cordon|drain|uncordon)", step)]
    assert "kgpu operations resume m" in steps
    assert any("reboot" in step for step in steps)


def test_an_operation_that_should_be_over_is_to_be_looked_at() -> None:
    record = at_work("gpu-1")
    record["status"]["phaseDeadline"] = "2026-01-01T09:00:00Z"
    assert lost(record)[0] == "an operation at GPU GPU-0b0e of node gpu-1 should be over; see why it stays:"
