"""A folder of objects and of texts that somebody has saved under any name: a container may have printed those."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from kgpu.base.errors import ConfigError
from kgpu.cli.doctor import xids_in
from kgpu.doctor.model import CERTAIN, Finding
from kgpu.doctor.objects import seconds
from kgpu.doctor.plan import diagnose
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.sources import files, probed

Objects: TypeAlias = tuple[dict[str, Any], ...]

XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=x, GPU has fallen off the bus."
JOURNAL = f"Jan  1 00:00:00 gpu-1 kernel: {XID}\n"
FACTS = json.dumps({"kind": "HostFacts", "metadata": {"name": "gpu-1"}, "kernelLog": [XID]})
LOST = "error creating nvml.Device 0: GPU is lost"
EVENTS = (
    "NAMESPACE     LAST SEEN   TYPE      REASON   OBJECT      MESSAGE\n"
    f"kube-system   1m          Warning   Failed   pod/train   {LOST}\n"
)
NODE = {
    "kind": "Node", "metadata": {"name": "gpu-1", "uid": "n", "labels": {"nvidia.com/gpu.present": "true"}},
    "status": {"allocatable": {"nvidia.com/gpu": "8"}, "capacity": {"nvidia.com/gpu": "8"}},
}  # fmt: skip
POD = {
    "kind": "Pod", "metadata": {"name": "train", "namespace": "ml", "uid": "u"},
    "spec": {"nodeName": "gpu-1", "containers": [{"name": "c"}]}, "status": {"phase": "Running"},
}  # fmt: skip


def found(folder: Path, name: str, text: str, *objects: dict[str, Any]) -> list[Finding]:
    if objects:
        (folder / "all.json").write_text(json.dumps({"kind": "List", "items": objects}))
    (folder / name).write_text(text)
    snapshot = files.read(str(folder)).judged(xids_in)
    return [one for root in diagnose(snapshot, strict=True).findings for one in root.all()]


def drains(findings: list[Finding]) -> bool:
    words = ("kubectl drain", "nvidia-smi -r")
    return any(word in step for one in findings for step in one.remedy for word in words)


@pytest.mark.parametrize("text", [JOURNAL, EVENTS])
def test_a_text_among_objects_drains_no_node(tmp_path: Path, text: str) -> None:
    told = found(tmp_path, "train.txt", text, NODE, POD)
    assert told
    for one in told:
        assert one.confidence < CERTAIN
        assert not any(word in step for step in one.remedy for word in ("drain", "cordon", "reboot", "delete"))
        assert "the text in train.txt says so, which a container may have printed" in one.remedy[0]


def test_what_a_node_says_of_itself_is_not_taken_from_such_a_text(tmp_path: Path) -> None:
    assert found(tmp_path, "train.txt", FACTS, NODE, POD) == []
    assert any("HostFacts in train.txt" in gap.what for gap in files.read(str(tmp_path)).missing)
    assert drains(found(tmp_path, "gpu-1.json", FACTS))  # whoever names it so has collected it


def test_a_forged_object_takes_the_place_of_none(tmp_path: Path) -> None:
    forged = {**NODE, "status": {"allocatable": {"nvidia.com/gpu": "0"}}}
    (tmp_path / "all.json").write_text(json.dumps({"kind": "List", "items": [NODE, POD]}))
    (tmp_path / "zz").write_text(json.dumps({"kind": "List", "items": [forged, {**POD, "metadata": {"name": "new"}}]}))
    read = files.read(str(tmp_path))
    assert read.nodes["gpu-1"].allocatable("nvidia.com/gpu") == 8
    assert [name for _, name in read.pods] == ["new", "train"]


def test_a_text_that_the_user_has_named_and_a_folder_of_texts_alone_count_in_full(tmp_path: Path) -> None:
    (tmp_path / "one").write_text(JOURNAL)
    assert drains(found(tmp_path, "two", JOURNAL))
    alone = diagnose(files.read(str(tmp_path / "one")).judged(xids_in), strict=True).findings
    assert drains(list(alone))


def test_a_kernels_log_by_its_name_counts_in_full(tmp_path: Path) -> None:
    assert drains(found(tmp_path, "dmesg.txt", XID, NODE, POD))


PLUGIN = "nvidia-device-plugin-daemonset-x7k2p"
AGENT = "kgpu-agent-x7k2p"
STACK = {
    "kind": "Pod", "metadata": {"name": PLUGIN, "namespace": "gpu-operator", "uid": "p",
                                "labels": {"app": "nvidia-device-plugin-daemonset"}},
    "spec": {"nodeName": "gpu-1", "containers": [{"name": "c", "securityContext": {"privileged": True}}]},
    "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}],
               "containerStatuses": [{"name": "c", "ready": False, "restartCount": 0, "state": {"running": {}}}]},
}  # fmt: skip
SAID = "E0101 No devices found. Waiting indefinitely."
OF_PLUGIN = f"container c of pod gpu-operator/{PLUGIN}"
OF_TRAIN = "container c of pod ml/train"
SMI_LOST = (
    "Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost.  Reboot the system to recover this GPU\n"
)
REPORT = f"uname: Linux gpu-1 6.8.0-40-generic #40-Ubuntu SMP\nNVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15\n{XID}\n"


FORGED = json.dumps({"kind": "Node", "metadata": {"name": "forged"}})


def marked(whose: str, said: str) -> str:
    return f"==== START logs for {whose} ====\n{said}==== END logs for {whose} ====\n"


def words_of(read: Snapshot, pod: str) -> list[tuple[str, str]]:
    """Lines of a pod's logs that count in full, and those that a container may have printed."""
    rows = [log for (_, name), logs in read.logs.items() if name == pod for log in logs]
    return [("" if not log.said_in else "doubted", line) for log in rows for line in log.lines]


FORMS = {
    "kubectl logs --prefix": f"[pod/{PLUGIN}/c] {SAID}\n",
    "stern": f"{PLUGIN} c {SAID}\n",
    "stern -A": f"gpu-operator {PLUGIN} c {SAID}\n",
    "stern -o json": json.dumps({"message": SAID, "namespace": "gpu-operator", "podName": PLUGIN, "containerName": "c"}),
    "kubectl cluster-info dump": marked(OF_PLUGIN, f"{SAID}\n"),
    "a log of a plugin by its words": f"Starting GRPC server for device plugin\n{SAID}\n",
}  # fmt: skip


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("name", ["train.txt", "train.log", "somebody.log", "ml/train/logs.txt"])
def test_a_log_is_another_pods_only_by_its_name(tmp_path: Path, name: str, text: str) -> None:
    """What the device plugin has said, printed by a tenant."""
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    for one in found(tmp_path, name, text, NODE, POD, STACK):
        for said in one.evidence:
            assert said.file != name or (one.confidence < CERTAIN and said.author != "gpu-operator")
    assert all(doubt for doubt, _ in words_of(files.read(str(tmp_path)), PLUGIN))


@pytest.mark.parametrize("name", [f"gpu_operand_pod_{PLUGIN}.log", f"gpu-operator/{PLUGIN}/logs.txt"])
def test_a_log_of_many_by_the_name_of_its_pod_counts_in_full(tmp_path: Path, name: str) -> None:
    text = FORMS["kubectl cluster-info dump" if name.endswith(".txt") else "kubectl logs --prefix"]
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    told = [one for one in found(tmp_path, name, text, NODE, POD, STACK) if one.id == "DPL-01"]
    assert told
    assert all(one.confidence >= CERTAIN for one in told)


@pytest.mark.parametrize("text", [SMI_LOST, REPORT, XID, JOURNAL], ids=["nvidia-smi", "bug report", "dmesg", "journal"])
def test_what_only_looks_like_a_nodes_own_text_takes_nothing_from_it(tmp_path: Path, text: str) -> None:
    told = found(tmp_path, "train.txt", text, NODE, POD)
    assert told
    assert not any(one.confidence >= CERTAIN for one in told)
    assert not drains(told)


@pytest.mark.parametrize(
    "name", ["nodes/gpu-1/x.txt", "nvidia-bug-report_gpu-1.txt", "gpu-1-nvidia-smi.txt", "kern.log"]
)
def test_a_nodes_own_text_by_its_name_or_place_counts_in_full(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    assert drains(found(tmp_path, name, SMI_LOST if "smi" in name else XID, NODE, POD))


@pytest.mark.parametrize("name", ["dmesg-0", "nvidia-smi-0", "journal-0"])
def test_a_pod_with_the_name_of_such_a_text_prints_none(tmp_path: Path, name: str) -> None:
    pod = {**POD, "metadata": {**POD["metadata"], "name": name}}
    told = found(tmp_path, f"{name}.txt", SMI_LOST if "smi" in name else XID, NODE, pod)
    assert told
    assert not drains(told)
    assert not any(one.confidence >= CERTAIN for one in told)


def test_such_a_text_adds_nothing_to_what_others_tell_of_a_node(tmp_path: Path) -> None:
    (tmp_path / "host.json").write_text(
        json.dumps({"kind": "HostFacts", "metadata": {"name": "gpu-1"}, "cuda": "12.4"})
    )
    assert not drains(found(tmp_path, "train.txt", JOURNAL, NODE, POD))
    read = files.read(str(tmp_path))
    assert (read.hosts["gpu-1"].kernel_log, read.hosts["gpu-1"].said_in) == (None, "")
    assert any("train.txt" in gap.what for gap in read.missing)


PLACES = [
    f"must/namespaces/ml/pods/train/c/c/logs/{name}"
    for name in ("current.log", "previous.insecure.log", "rotated/0.log.20260101-000000", "x.txt")
]
PLACES += [
    f"pods/ml_train_{'0' * 36}/c/{name}" for name in ("0.log", "0.log.20260101-000000", "0.log.20260101-000000.tmp")
]
PLACES += [f"containers/train_ml_c-{'0f' * 32}.log", "logs/ml/train/c.log", "ml/train/logs.txt", "train.log"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("objects", [(NODE, POD, STACK), ()], ids=["objects", "logs alone"])
def test_a_containers_log_in_its_place_is_nothing_else(tmp_path: Path, place: str, objects: Objects) -> None:
    """Whatever it prints: a node's texts, objects, and other pods' logs."""
    if not objects and place in ("train.log", "ml/train/logs.txt"):
        return  # a text alone is what it says
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    whole = [*FORMS.values(), SMI_LOST, REPORT, JOURNAL, EVENTS, FACTS, json.dumps(NODE), f"{line()}\n"]
    if place.endswith("logs.txt"):
        whole = [marked(OF_TRAIN, f"{one}\n") for one in whole]
    for text in whole:
        try:
            told = found(tmp_path, place, text, *objects)
        except ConfigError:  # nothing of it is read
            continue
        read = files.read(str(tmp_path))
        assert not drains([one for one in told if objects or one.confidence >= CERTAIN])
        assert all(host.said_in for host in read.hosts.values())
        assert all(doubt for doubt, _ in words_of(read, PLUGIN))
        assert set(read.nodes) == ({"gpu-1"} if objects else set())


def line() -> str:
    """What kgpu's agent says of a node whose GPU is lost."""
    return probed.line({"node": "gpu-1", "taken": "2026-01-01T00:00:00Z", "kernelLog": [XID]})


OWNER = {"kind": "DaemonSet", "name": "kgpu-agent", "uid": "d", "controller": True}
SEES_HOST = {"containers": [{"name": "c"}], "volumes": [{"name": "v", "hostPath": {"path": "/"}}]}
AGENTS: Objects = (
    {"kind": "DaemonSet", "metadata": {"name": "kgpu-agent", "namespace": "kgpu", "uid": "d"},
     "spec": {"template": {"spec": SEES_HOST}}},
    {"kind": "Pod", "metadata": {"name": AGENT, "namespace": "kgpu", "uid": "a", "ownerReferences": [OWNER]},
     "spec": {"nodeName": "gpu-1", **SEES_HOST}, "status": {"phase": "Running"}},
)  # fmt: skip


@pytest.mark.parametrize(
    "form", ["[pod/{0}/c] {1}\n", "kgpu {0} c {1}\n", "==== START logs for container c of pod kgpu/{0} ====\n{1}\n"]
)
def test_facts_count_only_from_a_log_that_is_the_agents_by_its_name(tmp_path: Path, form: str) -> None:
    text = form.format(AGENT, line())
    assert not drains(found(tmp_path, "train.txt", text, NODE, POD, *AGENTS))
    read = files.read(str(tmp_path))
    assert read.hosts == {}
    assert any("facts in train.txt" in gap.what for gap in read.missing)
    (tmp_path / "train.txt").unlink()
    (tmp_path / f"{AGENT}.log").write_text(f"{line()}\n")
    assert set(files.read(str(tmp_path)).hosts) == {"gpu-1"}


@pytest.mark.parametrize("form", ["{0} c {1}\n", "[pod/{0}/c] {1}\n"])
def test_facts_count_from_no_pod_among_others_in_one_file(tmp_path: Path, form: str) -> None:
    """``stern . > file`` has also what tenants print."""
    (tmp_path / "out.txt").write_text(form.format("train-x7k2p", line()) + form.format(PLUGIN, "hello"))
    read = files.read(str(tmp_path / "out.txt"))
    assert read.hosts == {}
    assert any("has a node's facts" in gap.what for gap in read.missing)


def test_a_name_that_pods_of_two_namespaces_have_tells_nothing(tmp_path: Path) -> None:
    other = {**POD, "metadata": {"name": AGENT, "namespace": "ml", "uid": "o"}}
    assert not drains(found(tmp_path, f"{AGENT}.log", f"{line()}\n", NODE, *AGENTS, other))
    assert files.read(str(tmp_path)).hosts == {}


def test_forged_agents_and_namespaces_of_the_stack_are_none(tmp_path: Path) -> None:
    """Objects in a text that give the tenant's own pods the rights of kgpu's agents."""
    pod = {**POD, "metadata": {**POD["metadata"], "ownerReferences": [OWNER]}}
    mighty = {"kind": "Pod", "metadata": {"name": "m", "namespace": "ml", "uid": "m"}, "spec": SEES_HOST}
    agents = {**AGENTS[0], "metadata": {**AGENTS[0]["metadata"], "namespace": "ml"}}
    policy = {"kind": "ClusterPolicy", "metadata": {"name": "p"}, "status": {"namespace": "ml"}}
    (tmp_path / "zz").write_text(json.dumps({"kind": "List", "items": [mighty, agents, policy]}))
    event = {
        "kind": "Event", "metadata": {"name": "e", "namespace": "ml"}, "reason": "Failed", "message": LOST,
        "involvedObject": {"kind": "Pod", "namespace": "ml", "name": "train"}, "type": "Warning",
    }  # fmt: skip
    told = found(tmp_path, "train.log", f"{line()}\n", NODE, pod, event)
    assert [one for one in told if one.id == "DPL-12"]
    assert not drains(told)
    assert files.read(str(tmp_path)).hosts == {}


def test_a_forged_object_beats_none_by_a_wrong_namespace_or_a_list_within_a_list(tmp_path: Path) -> None:
    forged = {"kind": "Node", "metadata": {"name": "gpu-1", "namespace": "x"}, "status": {"allocatable": {}}}
    text = json.dumps({"kind": "List", "items": [forged, {"kind": "NodeList", "items": [{**forged, "kind": ""}]}]})
    found(tmp_path, "zz", text, NODE, POD)
    assert files.read(str(tmp_path)).nodes["gpu-1"].allocatable("nvidia.com/gpu") == 8


def test_such_a_text_moves_no_clock(tmp_path: Path) -> None:
    late = {"kind": "Pod", "metadata": {"name": "l", "namespace": "ml", "creationTimestamp": "2099-01-01T00:00:00Z"}}
    pod = {**POD, "metadata": {**POD["metadata"], "creationTimestamp": "2026-01-01T00:00:00Z"}}
    found(tmp_path, "zz", json.dumps(late), NODE, pod)
    assert files.read(str(tmp_path)).taken == seconds("2026-01-01T00:00:00Z")


def test_a_kind_that_only_such_a_text_has_is_not_known(tmp_path: Path) -> None:
    forged = {"kind": "DaemonSet", "metadata": {"name": "d", "namespace": "ml"}}
    found(tmp_path, "zz", json.dumps(forged), NODE, POD)
    assert not files.read(str(tmp_path)).knows("DaemonSet")


@pytest.mark.parametrize(
    "said",
    [
        f"==== END logs for {OF_PLUGIN} ====\n",  # the end of what stands before it
        f"==== END logs for {OF_TRAIN} ====\n{FORGED}\n{marked(OF_PLUGIN, SAID)}no end of a line",
    ],
)
def test_in_a_dump_marks_within_a_log_give_no_certain_word_of_another_pod(tmp_path: Path, said: str) -> None:
    """``kubectl cluster-info dump > dump.txt``, which the user has named."""
    objects = json.dumps({"kind": "List", "items": [NODE, POD, STACK]})
    logs = marked(OF_PLUGIN, "well\n") + marked(OF_TRAIN, f"{SAID}\n{line()}\n{said}")
    (tmp_path / "dump.txt").write_text(f"{objects}\n{logs}")
    read = files.read(str(tmp_path / "dump.txt"))
    assert set(read.nodes) == {"gpu-1"}
    assert read.hosts == {}
    assert ("", SAID) not in words_of(read, PLUGIN)
    assert any("marks of other containers' logs" in gap.why for gap in read.missing)
