"""What ``--watch`` tells: a line for what is new, and nothing for what only looks different."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from kgpu.doctor.changes import What, as_lines, changes
from kgpu.doctor.model import CERTAIN, LIKELY, Evidence, Finding, Missing, Report, Subject, folded
from kgpu.doctor.plan import diagnose
from tests.budget import sample
from tests.doctor.example import Example, all_examples

NODE, POD = Subject("Node", "gpu-1"), Subject("Pod", "train", "ml")
LOST = Finding(
    id="HW-01", subject=NODE, cause="GPU 3 of node gpu-1 is lost. It fell off the bus.", confidence=CERTAIN,
    remedy=("kubectl drain gpu-1",), evidence=(Evidence(object="Node gpu-1", value="5 minutes"),), nodes=("gpu-1",),
)  # fmt: skip
WAITS = Finding(id="SCH-01", subject=POD, cause="Pod ml/train waits: all are taken", confidence=CERTAIN)


def report(*findings: Finding, missing: tuple[Missing, ...] = ()) -> Report:
    return Report(findings=findings, missing=missing, looked={"nodes": 1})


def told(before: Report | None, after: Report) -> list[tuple[str, str]]:
    return [(one.what.value, one.finding.id) for one in changes(before, after) if one.finding]


def test_the_first_look_is_all_new() -> None:
    assert told(None, report(LOST, WAITS)) == [("appeared", "HW-01"), ("appeared", "SCH-01")]


def test_other_values_and_another_order_are_no_change() -> None:
    later = replace(LOST, evidence=(Evidence(object="Node gpu-1", value="6 minutes"),), expected="4 minutes")
    assert changes(report(LOST, WAITS), report(WAITS, later)) == ()


def test_what_a_person_would_read_differently_is_a_change() -> None:
    for other in (
        replace(LOST, cause="GPU 4 is lost"),
        replace(LOST, confidence=LIKELY),
        replace(LOST, remedy=("kubectl drain gpu-1 --force",)),
        replace(LOST, nodes=("gpu-1", "gpu-2")),
        folded(LOST, (WAITS,)),
    ):
        assert told(report(LOST), report(other)) == [("changed", "HW-01")]


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("ContainerCreating for 31 minutes; FailedMount", "ContainerCreating for 92 minutes; FailedMount"),
        ("it was to add a node 1 minute ago", "it was to add a node 12 minutes ago"),
        ("builds since 5 minutes", "builds since 6 minutes"),
        ("node gpu-1 is 59 minutes old", "node gpu-1 is 61 minutes old"),
        ("held for 9 hours or more", "held for 10 hours or more"),
        ("exit code 1, 1 restart so far", "exit code 1, 2 restarts so far"),
        ("has said Xid 13 100 times", "has said Xid 13 101 times"),
        ("back-off 2m40s restarting failed container", "back-off 5m0s restarting failed container"),
        ("pleg was last seen active 3m12.3s ago", "pleg was last seen active 3m42.8s ago"),
    ],
)
def test_what_only_lasts_is_no_change(earlier: str, later: str) -> None:
    assert changes(report(replace(LOST, cause=earlier)), report(replace(LOST, cause=later))) == ()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("container a: ContainerCreating for 31 minutes", "container b: ContainerCreating for 31 minutes"),
        ("ContainerCreating for 31 minutes", "ContainerCreating for 32 minutes; FailedMount: no such volume"),
        ("exit code 1, 1 restart so far", "exit code 2, 2 restarts so far"),
        ("gives up after 5 minutes", "gives up after 20 minutes"),
        ("scrapes every 1s", "scrapes every 2s"),
        ("has said Xid 13 100 times", "has said Xid 31 100 times"),
        ("2 of 8 GPUs are lost", "3 of 8 GPUs are lost"),
        ("terminates for 3 minutes", "waits for 3 minutes"),
    ],
)
def test_other_numbers_and_words_are_a_change(before: str, after: str) -> None:
    found = changes(report(replace(LOST, cause=before)), report(replace(LOST, cause=after)))
    assert [one.what for one in found] == [What.CHANGED]


@pytest.mark.parametrize("example", sample(all_examples(), "as time goes by"), ids=lambda example: example.name)
def test_as_time_goes_by_nothing_is_said_of_what_stays(example: Example) -> None:
    """Whatever rules say of ages: only what becomes another finding, level or sureness may be told."""
    for objects in (example.broken, example.healthy):
        looks = []
        for seconds in (0, 61, 4000, 8000, 200_000):
            snapshot = example.snapshot(objects)
            snapshot.taken += seconds
            looks.append(diagnose(snapshot, strict=True))
        for before, after in pairwise(looks):
            if shape(before) == shape(after):
                assert changes(before, after) == ()


def shape(made: Report) -> list[tuple[object, ...]]:
    return [(one.id, one.subject, one.level, one.sureness) for root in made.findings for one in root.all()]


def test_what_follows_from_another_now_says_so() -> None:
    found = changes(report(LOST, WAITS), report(folded(LOST, (WAITS,))))
    assert [(one.what, one.finding and one.finding.id) for one in found] == [
        (What.ENDED, "SCH-01"), (What.CHANGED, "HW-01"),
    ]  # fmt: skip
    assert any("it follows from HW-01 Node gpu-1" in line for line in as_lines(found, "T", 100))


def test_two_of_one_rule_about_one_subject_are_two() -> None:
    other = replace(LOST, cause="GPU 5 is lost")
    assert told(report(LOST, other), report(LOST)) == [("ended", "HW-01")]


def test_a_source_that_fails_is_told_and_one_that_is_just_not_there_is_not() -> None:
    refused, absent = Missing("pods' logs", "403"), Missing("kernel modules", "No such file or directory", slight=True)
    found = changes(report(), report(missing=(refused, absent)))
    assert [(one.what, one.gap) for one in found] == [(What.LOST, refused)]
    assert [one.what for one in changes(report(missing=(refused,)), report())] == [What.BACK]
    assert changes(report(missing=(refused,)), report(missing=(replace(refused, why="403 at 10:00"),))) == ()


def test_a_line_has_the_first_sentence_and_new_ones_their_whole_text() -> None:
    lines = list(as_lines(changes(None, report(LOST)), "2026-01-01T10:00:00Z", 100))
    assert lines[0] == "2026-01-01T10:00:00Z appeared ✘ HW-01 Node gpu-1: GPU 3 of node gpu-1 is lost."
    assert "  GPU 3 of node gpu-1 is lost. It fell off the bus." in lines
    assert "    kubectl drain gpu-1" in lines
    assert len(list(as_lines(changes(report(LOST), report()), "T", 100))) == 1
