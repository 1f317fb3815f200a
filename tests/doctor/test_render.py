"""The first line, the order of findings, missing evidence, and the exit code."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kgpu.base.remedy import Remedy
from kgpu.doctor import host_facts
from kgpu.doctor.model import CERTAIN, LIKELY, Finding, Level, Missing, Place, Report, Subject
from kgpu.doctor.plan import diagnose, order
from kgpu.doctor.render import as_text
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.sources import files
from kgpu.doctor.sources.logs import host_gaps
from kgpu.formats import yaml
from tests.doctor.example import FOLDER, load

CLUSTER, NODE, POD = Subject("ClusterPolicy", "p"), Subject("Node", "gpu-1"), Subject("Pod", "train", "ml")
ABSENT = Missing("kernel modules of node gpu-1", "No such file or directory", "kgpu doctor --host", slight=True)
REFUSED = Missing("logs such as of ml/train", "403", "give the right to get pods/log")


def finding(subject: Subject, **more: Any) -> Finding:
    return Finding(**{"id": "X-1", "subject": subject, "cause": f"{subject} is ill", "confidence": CERTAIN, **more})


def report(*findings: Finding, **more: Any) -> Report:
    return Report(findings=findings, **{"looked": {"nodes": 1}, "scope": "Cluster", **more})


def first_line(*findings: Finding) -> str:
    return as_text(report(*findings)).partition("\n")[0]


def test_one_finding_is_its_cause() -> None:
    assert first_line(finding(NODE), finding(POD, level=Level.NOTE)) == "Node gpu-1 is ill"


def test_several_are_counted_by_what_they_are_about() -> None:
    claim, job = Subject("ResourceClaim", "c", "ml"), Subject("Job", "j", "ml")
    rows = [finding(one) for one in (CLUSTER, NODE, POD, replace(POD, name="b"), claim, job, Subject("Cluster"))]
    assert first_line(*rows) == (
        "7 findings: 2 of the cluster, 1 of a node, 1 of a claim, 1 of a workload, 2 of pods. "
        "The first to mend: ClusterPolicy p is ill"
    )


def test_what_many_stand_on_comes_before_one_pod_that_is_as_certain() -> None:
    pod = finding(POD, place=Place.DRIVER)
    node = finding(NODE, place=Place.CLUSTER)
    stack = finding(Subject("Pod", "plugin", "gpu-operator"), place=Place.PLUGIN)
    unsure = finding(NODE, place=Place.HARDWARE, confidence=LIKELY)
    note = finding(NODE, level=Level.NOTE)
    rows = [note, unsure, pod, node, stack]
    assert sorted(rows, key=lambda one: order(one, frozenset({stack.subject}))) == [stack, node, pod, unsure, note]


def test_a_node_comes_before_a_pod_that_is_as_certain_in_a_whole_cluster() -> None:
    pods, node = load(FOLDER / "SCH-08.yaml"), load(FOLDER / "SCH-12.yaml")
    other = json.loads(json.dumps(node.broken).replace('"ml"', '"web"').replace("gpu-1", "gpu-9"))
    found = diagnose(pods.snapshot([*other, *pods.broken]), strict=True).real
    assert [one.confidence for one in found] == sorted((one.confidence for one in found), reverse=True)
    kinds = [one.subject.kind for one in found if one.confidence == CERTAIN]
    assert kinds == sorted(kinds, key=lambda kind: kind == "Pod")


@pytest.mark.parametrize(
    ("made", "code"),
    [
        (report(), 0),
        (report(finding(POD, level=Level.NOTE)), 0),
        (report(finding(POD, level=Level.WAIT)), 1),
        (report(missing=(Missing("why pods are Pending: ml/train", is_verdict=True),)), 2),
        (report(finding(POD), missing=(Missing("why pods are Pending: ml/train", is_verdict=True),)), 1),
        (report(looked={"pods": 1}), 2),
        (report(looked={"hosts": 1}), 0),
    ],
)
def test_the_exit_code_is_the_reports(made: Report, code: int) -> None:
    assert made.exit_code == code
    assert made.data()["exit_code"] == code


def test_what_was_looked_at_is_counted_as_people_count() -> None:
    said = as_text(report(looked={"nodes": 1, "hosts": 1, "other objects": 1, "pods": 2, "logs": 0}, checked=1))
    assert "(Cluster; 1 rule, 1 node, 1 host, 1 other object, 2 pods)" in said


def test_what_would_change_nothing_is_a_number() -> None:
    said = as_text(report(missing=(ABSENT, ABSENT)))
    assert "kernel modules" not in said
    assert "Not looked at: 2 things that are not there, and would not have changed this (-v shows it)." in said
    assert "kernel modules" in as_text(report(missing=(ABSENT,)), verbose=True)
    assert report(missing=(ABSENT,)).data()["missing"][0]["what"] == ABSENT.what


def test_what_failed_is_told_on_a_healthy_cluster_too() -> None:
    said = as_text(report(missing=(ABSENT, REFUSED)))
    assert "logs such as of ml/train (403)" in said
    assert "kernel modules" not in said


@pytest.mark.parametrize("more", [{"stuck": 1}, {"findings": (finding(POD),)}, {"looked": {"pods": 1}}])
def test_where_something_is_wrong_all_of_it_is_told(more: dict[str, Any]) -> None:
    assert "kernel modules of node gpu-1" in as_text(Report(**{"looked": {"nodes": 1}, "missing": (ABSENT,), **more}))


def host(**missing: str) -> dict[str, Any]:
    return {
        "apiVersion": host_facts.API_VERSION, "kind": host_facts.KIND, "metadata": {"name": "gpu-1"}, "node": "gpu-1",
        "toldBy": "agent", "missing": {key.replace("_", " "): why for key, why in missing.items()},
    }  # fmt: skip


def test_only_a_file_that_is_not_there_is_slight() -> None:
    why = "No such file or directory"
    found = Snapshot.of([host(kernel_modules=why, services="Permission denied")])
    assert {gap.what.split(" of ")[0]: gap.slight for gap in host_gaps(found, (), "x")} == {
        "kernel modules": True, "services": False,
    }  # fmt: skip


def test_what_every_machine_has_is_never_slight() -> None:
    why = "No such file or directory"
    given = host(kernel_log=why, PCI_devices=why, processes=why) | {"kernel": "6.8.0"}
    gaps = list(host_gaps(Snapshot.of([given]), (), "x"))
    assert {gap.what.split(" of ")[0] for gap in gaps if not gap.slight} == {"kernel log", "PCI devices", "processes"}


def test_a_host_of_which_nothing_was_seen_is_not_judged() -> None:
    """As in an archive that was made of a wrong root."""
    why = "No such file or directory"
    gone = host(PCI_devices=why, processes=why)
    for given, code in ((gone, 2), (gone | {"kernel": "6.8.0"}, 0), (gone | {"missing": {}}, 0)):
        found = diagnose(Snapshot.of([given]), strict=True)
        assert found.real == ()
        assert found.exit_code == code


def test_an_archive_keeps_what_is_slight(tmp_path: Path) -> None:
    from kgpu.doctor.archive import write

    write(Snapshot.of(load(FOLDER / "SCH-08.yaml").healthy, missing=[ABSENT, REFUSED]), str(tmp_path / "a.tar.gz"))
    found = files.read(str(tmp_path / "a.tar.gz")).missing
    assert [(one.what, one.why, one.slight) for one in found] == [
        (one.what, one.why, one.slight) for one in (ABSENT, REFUSED)
    ]
    # Anybody could have written it there: what to do is the archive's word, and no step.
    assert all(f'"{one.how}"' in read.how for read, one in zip(found, (ABSENT, REFUSED), strict=True))


def test_a_pod_that_does_not_run_counts_as_stuck() -> None:
    example = load(FOLDER / "SCH-08.yaml")
    assert diagnose(example.snapshot(example.broken), strict=True).stuck == 1
    pod = next(one for one in example.broken if one["kind"] == "Pod" and one["metadata"]["name"] == "train")
    ended = {**yaml.load(yaml.dump(pod)), "status": {"phase": "Succeeded"}}
    rest = [one for one in example.broken if one is not pod]
    assert diagnose(example.snapshot([*rest, ended]), strict=True).stuck == 0


def test_sentences_of_what_to_do_are_wrapped_and_commands_keep_their_lines() -> None:
    drain = "kubectl drain gpu-node-1 --ignore-daemonsets --delete-emptydir-data --pod-selector team=research"
    many = Remedy("agree with the owners of {} first", ", ".join(f"ml/train-{number}" for number in range(12)))
    lines = as_text(report(finding(NODE, remedy=(many, Remedy(drain)))), 60).splitlines()
    *prose, command = lines[lines.index("  to do:") + 1 :]
    assert command == f"    {drain}"
    assert len(prose) > 2
    assert all(line.startswith("    ") and len(line) <= 60 for line in prose)
    assert " ".join(line.strip() for line in prose) == many
