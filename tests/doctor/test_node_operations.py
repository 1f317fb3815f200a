"""What the doctor makes of kgpu's operations: who holds a node, what is in its way, and what a record can't do to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kgpu.doctor import archive
from kgpu.doctor.model import Finding, Level
from kgpu.doctor.node_operations import holding, operations, unreadable
from kgpu.doctor.plan import diagnose
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.sources.files import read
from kgpu.formats import yaml
from tests.doctor.example import all_examples
from tests.doctor.small import TAKEN, node, plugin, pod
from tests.operations.sim_mig import spec as cut

UID = "3f1c2f6e-9a0b-4c44-8f0e-8a2f1d9c7b11"
"""A real one: what looks like a key is hidden elsewhere."""
CORDON = [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]
Object = dict[str, Any]


def cordoned(name: str = "gpu-1", owners: str | None = UID) -> Object:
    made = node(name)
    made["spec"] = {"unschedulable": True, "taints": CORDON}
    if owners is not None:
        made["metadata"]["annotations"] = {"kgpu.dev/cordon": owners}
    return made


def operation(name: str = "m", *, on: str = "gpu-1", uid: str = UID, spec: Any = None, **status: Any) -> Object:
    status = {"phase": "Acting", "startedAt": "2026-01-01T11:00:00Z", "nodeUID": on} | status
    return {
        "apiVersion": "kgpu.dev/v1alpha1", "kind": "NodeOperation", "metadata": {"name": name, "uid": uid},
        "spec": {"nodeName": on, "type": "Maintenance", **(spec or {})}, "status": status,
    }  # fmt: skip


def waits(name: str = "train") -> Object:
    return pod(name, on="", phase="Pending", conditions=[
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": "2026-01-01T11:00:00Z"},
    ])  # fmt: skip


def found(*objects: Object) -> dict[str, Finding]:
    report = diagnose(Snapshot.of(objects, taken=TAKEN), strict=True)
    return {each.id: each for root in report.findings for each in root.all()}


def test_the_operation_that_holds_a_node_is_named_and_nobody_is_told_to_uncordon() -> None:
    told = found(cordoned(), plugin(), waits(), operation(spec={"requestedBy": "jane", "reason": "new fans"}))
    assert set(told) == {"NOP-02"}
    one = told["NOP-02"]
    assert "held by Maintenance m (asked for by jane: new fans), which is Acting" in one.cause
    assert (one.level, one.expected) == (Level.WAIT, "until somebody resumes it")
    assert not [step for step in one.remedy if "uncordon" in step]
    assert "kgpu operations resume m" in one.remedy


@pytest.mark.parametrize(
    ("objects", "held"),
    [
        ((cordoned(), operation()), True),
        ((cordoned(owners=f"other,{UID}"), operation()), True),
        ((cordoned(owners=None), operation()), True),  # as kubectl prints it for people
        ((cordoned(owners="other"), operation()), False),
        ((cordoned(owners=None), operation(before={"unschedulable": True})), False),
        ((node(), operation()), False),
        ((cordoned(), operation(phase="Complete", result="Succeeded")), False),
        ((cordoned(), operation(phase="Pending")), False),
        ((cordoned(), operation(on="gpu-2")), False),
    ],
)
def test_which_operation_holds_a_node(objects: tuple[Object, ...], held: bool) -> None:
    assert bool(holding(Snapshot.of(objects, taken=TAKEN))) is held


def test_a_cordon_of_somebody_else_beside_it_is_told_as_before() -> None:
    told = found(cordoned(), cordoned("gpu-2", owners=None), plugin(), waits(), operation())
    assert "gpu-2" in told["SCH-12"].cause
    assert "gpu-1" not in told["SCH-12"].cause
    assert "gpu-1" in told["NOP-02"].cause


def test_an_operation_beyond_its_limit_is_no_reason_to_wait() -> None:
    late = {"phase": "Restoring", "result": "Succeeded", "phaseDeadline": "2026-01-01T11:30:00Z"}
    told = found(cordoned(), plugin(), waits(), operation(**late))
    assert (told["NOP-02"].level, told["NOP-02"].expected) == (Level.PROBLEM, "")
    assert "should have been over by 2026-01-01T11:30:00Z" in told["NOP-02"].cause
    told = found(cordoned(), plugin(), operation(**late))
    assert told["NOP-01"].level is Level.PROBLEM


def budget(name: str, allowed: int = 0, **labels: str) -> Object:
    return {
        "kind": "PodDisruptionBudget", "metadata": {"name": name, "namespace": "ml"},
        "spec": {"selector": {"matchLabels": labels}}, "status": {"disruptionsAllowed": allowed},
    }  # fmt: skip


def draining(*pods: str) -> Object:
    waiting = [{"namespace": "ml", "name": name, "why": "it waits"} for name in pods]
    return operation(phase="Draining", drain={"total": len(pods), "gone": 0, "waiting": waiting})


def service(name: str = "llm", **metadata: Any) -> Object:
    owner = [{"kind": "StatefulSet", "name": "llm", "controller": True}]
    ready = [{"type": "Ready", "status": "True"}]
    return pod(
        name, gpus=0, conditions=ready, metadata={"labels": {"app": "llm"}, "ownerReferences": owner, **metadata}
    )  # fmt: skip


def test_what_keeps_a_pod_on_a_node_that_is_emptied() -> None:
    def why(*objects: Object) -> str:
        told = found(cordoned(), plugin(), draining("llm"), *objects)
        return told["NOP-05"].cause if "NOP-05" in told else ""

    assert "Pod ml/llm: its PodDisruptionBudget llm allows no disruption now" in why(
        service(), budget("llm", app="llm")
    )
    two = (budget("llm", 1, app="llm"), budget("all", 1))
    assert "the PodDisruptionBudgets all, llm all select it" in why(service(), *two)
    kept = {"deletionTimestamp": "2026-01-01T11:00:00Z", "finalizers": ["example.com/hold"]}
    assert "it has ended and is kept by its finalizer example.com/hold" in why(service(**kept))
    assert why(service(), budget("llm", 1, app="llm")) == ""
    assert why(service(), budget("other", 0, app="web")) == ""
    assert why() == ""


def test_what_keeps_a_pod_on_gpus_that_are_emptied() -> None:
    """An operation on GPUs cordons nothing; what is in its way is told all the same."""
    emptying = draining("llm-0")
    emptying["spec"] |= {"type": "GpuReset", "gpus": ["GPU-1", "GPU-2"]}
    told = found(node(), plugin(), emptying, service("llm-0"), budget("llm", app="llm"))["NOP-05"]
    assert told.cause.startswith("GpuReset m can't empty GPU GPU-1 and 1 more of node gpu-1: Pod ml/llm-0: ")
    assert "its PodDisruptionBudget llm allows no disruption now" in told.cause
    assert "or end the operation, which gives its GPUs back:" in told.remedy
    gone = found(
        node(), plugin(), {**emptying, "status": {"phase": "Complete"}}, service("llm-0"), budget("llm", app="llm")
    )
    assert "NOP-05" not in gone


def test_who_waits_for_a_node_that_is_not_emptied_is_told_below_what_is_in_the_way() -> None:
    objects = (cordoned(), plugin(), draining("llm"), service(), budget("llm", app="llm"), waits())
    (root,) = diagnose(Snapshot.of(objects, taken=TAKEN), strict=True).findings
    assert (root.id, [one.id for one in root.consequences]) == ("NOP-05", ["NOP-02"])


def test_a_failure_is_told_for_a_day_or_until_one_succeeds() -> None:
    def fails(when: str, **more: Any) -> Object:
        result = {"result": "TransientFailure", "reason": "NotWell", "message": "not well"} | more
        return operation(phase="Failed", completedAt=when, **result)

    assert "kgpu operations show m" in found(node(), plugin(), fails("2026-01-01T10:00:00Z"))["NOP-04"].remedy
    assert "NOP-04" not in found(node(), plugin(), fails("2025-12-30T10:00:00Z"))
    later = {"phase": "Complete", "result": "Succeeded", "completedAt": "2026-01-01T11:00:00Z"}
    assert "NOP-04" not in found(
        node(), plugin(), fails("2026-01-01T10:00:00Z"), operation("n", uid="v", **later)
    )  # fmt: skip
    given_up = {**later, "result": "Cancelled"}
    assert "NOP-04" in found(node(), plugin(), fails("2026-01-01T10:00:00Z"), operation("n", uid="v", **given_up))


@pytest.mark.parametrize(
    ("reason", "step"),
    [
        ("ChangeFailed", "the GPUs have their former layout"),
        ("LayoutLost", "have the node rebooted"),
        ("ChangeTimeout", "see the log of the node's MIG manager"),
        ("AgentSilent", "see that the node's agent runs"),
        ("DrainTimeout", "operations.mig.eviction.timeoutSeconds"),
        ("Unheard", ""),
    ],
)
def test_slices_that_could_not_be_made_are_asked_for_by_the_label(reason: str, step: str) -> None:
    status = {"result": "TransientFailure", "reason": reason, "message": "why", "completedAt": "2026-01-01T10:00:00Z"}
    failed = operation(phase="Failed", **status)
    failed["spec"] |= cut()
    told = found(node(), plugin(), failed)["NOP-04"].remedy
    assert step in " ".join(told)
    again = (
        "kubectl label node gpu-1 nvidia.com/mig.config- && kubectl label node gpu-1 nvidia.com/mig.config=all-1g.10gb"
    )
    assert again in told


def test_no_record_breaks_the_doctor() -> None:
    odd = [
        operation("a", phase="Melting"),
        operation("b", spec={"type": "Repaint"}),
        {**operation("c"), "spec": None},
        {**operation("d"), "status": [1]},
        operation("e", phase="Failed", result="TransientFailure", completedAt="never"),
        operation("f", phase="Draining", phaseDeadline="x" * 400, drain={"waiting": [{"namespace": 3}]}),
    ]
    snapshot = Snapshot.of([node(), plugin(), *odd], taken=TAKEN)
    diagnose(snapshot, strict=True)
    assert [record.name for record in operations(snapshot)] == ["e"]
    assert [unknown.obj.name for unknown in unreadable(snapshot)] == ["a", "b", "c", "d", "f"]


def test_an_archive_has_operations_and_the_breaker(tmp_path: Path) -> None:
    breaker = {
        "kind": "ConfigMap", "metadata": {"name": "kgpu-remediation", "namespace": "gpu-operator"},
        "data": {"open": "4 of 9 nodes call", "since": "2026-01-01T11:40:00Z"},
    }  # fmt: skip
    objects = [cordoned(), plugin(), waits(), operation(message="held"), breaker]
    before = Snapshot.of(objects, taken=TAKEN)
    archive.write(before, str(tmp_path / "a.tar.gz"))
    after = diagnose(read(str(tmp_path / "a.tar.gz")), strict=True)
    assert [(one.id, one.cause) for one in after.findings] == [
        (one.id, one.cause) for one in diagnose(before, strict=True).findings
    ]
    assert {one.id for one in after.findings} == {"NOP-02", "NOP-06"}


def test_what_kubectl_has_written_is_read(tmp_path: Path) -> None:
    for name, objects in (("nodes", [cordoned()]), ("nodeoperations", [operation()]), ("pods", [plugin(), waits()])):
        text = yaml.dump(
            {"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", **one} for one in objects]}
        )
        (tmp_path / f"{name}.yaml").write_text(text)
    assert [one.id for one in diagnose(read(str(tmp_path)), strict=True).findings] == ["NOP-02"]


def test_the_page_for_owners_of_pods_says_what_the_doctor_says() -> None:
    (example,) = (one for one in all_examples() if one.name == "NOP-02")
    (told,) = diagnose(example.snapshot(example.broken), strict=True).findings
    page = Path(__file__).parents[2] / "docs/how-to/what-happens-to-my-pod.md"
    assert told.cause in page.read_text().splitlines()


def test_pods_that_fit_elsewhere_do_not_wait_for_a_held_node() -> None:
    told = found(cordoned(), node("gpu-2"), plugin(), waits(), operation())
    assert "NOP-02" not in told
