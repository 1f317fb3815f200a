"""What follows from a lost GPU and what does not; what is over; and what only kgpu's agent tells of a GPU."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest

from kgpu.base.errors import DriverFault
from kgpu.doctor.model import CERTAIN, LIKELY, POSSIBLE, Finding, Level, Report
from kgpu.doctor.plan import diagnose
from kgpu.doctor.snapshot import Snapshot
from kgpu.formats.gpu_remedies import RESET_WHEN_IDLE
from kgpu.formats.gpu_report import ReportedGpu
from kgpu.formats.xid.action import Action
from tests.doctor.example import FOLDER, base, load, merged
from tests.doctor.gpu_words import FIFTH, THIRD, XID_79, gpus_said, saying, with_said

TAKEN = 1767268800.0  # 2026-01-01T12:00:00Z
WELL = gpus_said()
UNREAD = gpus_said(count=0, unreadable="nvml init failed: Driver Not Loaded", fault=DriverFault.NOT_LOADED)
UNREAD_BY_OLDER = UNREAD | {"annotations": {}}
"""Of an agent that says no more than people read."""
NO_DRIVER = {"nvmlError": "nvml init failed: Driver Not Loaded", "nvmlFault": "driver-not-loaded"}
AGENT = {
    "kind": "Pod", "metadata": {"name": "agent-a", "namespace": "g", "labels": {"app": "kgpu-agent"}},
    "spec": {"nodeName": "gpu-1", "containers": [{"name": "agent", "image": "i"}]},
    "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
}  # fmt: skip


def report(*objects: dict[str, Any], bases: tuple[str, ...] = ("gpu-node",)) -> Report:
    below = [one for name in bases for one in base(name)]
    return diagnose(Snapshot.of(copy.deepcopy(merged([*below, *objects])), taken=TAKEN), strict=True)


def roots(found: Report) -> list[str]:
    return [one.id for one in found.findings]


def below(one: Finding) -> list[str]:
    return [each.id for each in one.all()][1:]


def node(can: int = 8, *conditions: dict[str, Any], name: str = "gpu-1", have: int = 8) -> dict[str, Any]:
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110"}
    bare = {
        "kind": "Node",
        "metadata": {"name": name, "labels": {"nvidia.com/gpu.present": "true", "kubernetes.io/hostname": name}},
        "status": {
            "capacity": amounts | {"nvidia.com/gpu": str(have)},
            "allocatable": amounts | {"nvidia.com/gpu": str(can)},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    return with_said(bare, *conditions)


def pod(name: str, gpus: int, at: str = "", **spec: Any) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": gpus}
    found: dict[str, Any] = {
        "kind": "Pod", "metadata": {"name": name, "namespace": "ml", "creationTimestamp": "2026-01-01T10:00:00Z"},
        "spec": {"containers": [{"name": "main", "image": "cuda", "resources": {"limits": limits}}], **spec},
        "status": {"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "lastTransitionTime": "2026-01-01T10:00:00Z"}]},
    }  # fmt: skip
    if at:
        found["spec"]["nodeName"] = at
        found["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    return found


def facts(*log: str, **more: Any) -> dict[str, Any]:
    line = "4,0,600000000,-;NVRM: Xid (PCI:0000:61:00): 79, pid=1, name=a, GPU has fallen off the bus."
    xid = {"code": 79, "pci": "0000:61:00", "action": "reboot", "advice": "reboot it"}
    return {
        "kind": "HostFacts",
        "metadata": {"name": "gpu-1"},
        "kernelLog": [line, *log],
        "xids": [xid],
        "bootTime": TAKEN - 3600,
        **more,
    }


# A lost GPU and pods that wait


def test_a_pod_that_the_lost_gpu_would_take_is_its_consequence() -> None:
    found = report(node(7), pod("all", 7, "gpu-1"), pod("train", 1), facts())
    assert roots(found) == ["HW-01"]
    assert below(found.findings[0]) == ["SCH-03", "SCH-01"]


def test_a_pod_that_would_wait_with_the_gpu_too_is_none_of_it() -> None:
    found = report(node(7), pod("all", 7, "gpu-1"), pod("train", 2), facts())
    assert set(roots(found)) == {"HW-01", "SCH-01"}
    assert below(found.findings[0]) == ["SCH-03"]
    assert not next(one for one in found.findings[0].all() if one.id == "SCH-03").pods


def test_a_pod_that_waits_for_another_node_is_none_of_it() -> None:
    full = [node(7), node(8, name="gpu-2"), pod("all", 7, "gpu-1"), pod("other", 8, "gpu-2")]
    elsewhere = pod("train", 1, nodeSelector={"kubernetes.io/hostname": "gpu-2"})
    found = report(*full, elsewhere, facts())
    assert set(roots(found)) == {"HW-01", "SCH-01"}
    anywhere = report(*full, pod("train", 1), facts())
    assert roots(anywhere) == ["HW-01"]


# The driver is not loaded


def test_an_error_from_before_does_not_hide_that_the_driver_is_not_loaded() -> None:
    found = report(node(0, UNREAD_BY_OLDER), AGENT, facts(toldBy="Pod g/agent-a", **NO_DRIVER))
    assert [(one.id, one.confidence) for one in found.findings] == [("DRV-01", CERTAIN), ("HW-01", POSSIBLE)]
    assert "SCH-03" in below(found.findings[0])
    assert "now the driver can't be read" in found.findings[1].cause


def test_without_the_agent_its_last_word_is_likely() -> None:
    found = report(node(0, UNREAD_BY_OLDER), facts(toldBy="Pod g/agent-a", **NO_DRIVER))
    assert [(one.id, one.confidence) for one in found.findings] == [("DRV-01", LIKELY), ("HW-01", POSSIBLE)]
    alone = report(node(0, UNREAD))
    assert [(one.id, one.confidence) for one in alone.findings] == [("DRV-01", LIKELY)]


@pytest.mark.parametrize(
    "said",
    [UNREAD_BY_OLDER, gpus_said(count=0, unreadable="nvml init failed: Driver Not Loaded")],
    ids=["no report", "no key"],
)
def test_an_older_agent_is_not_read_by_its_words(said: dict[str, Any]) -> None:
    """That its driver can't be read is known by the condition's reason; why, only the node itself or a log can say."""
    assert "DRV-01" not in every(report(node(0, said), AGENT))
    assert "DRV-01" in every(report(node(0, said), AGENT, facts(toldBy="Pod g/agent-a", **NO_DRIVER)))


@pytest.mark.parametrize(
    ("fault", "rules"),
    [
        (DriverFault.NOT_LOADED, {"DRV-01"}),
        (DriverFault.VERSION_MISMATCH, {"DRV-06"}),
        (DriverFault.HUNG, set()),
        (None, set()),
    ],
)
def test_the_key_decides_and_not_the_words(fault: DriverFault | None, rules: set[str]) -> None:
    said = gpus_said(count=0, unreadable="driver not loaded, driver/library version mismatch", fault=fault)
    assert every(report(node(0, said), AGENT)) & {"DRV-01", "DRV-06"} == rules


def every(found: Report) -> set[str]:
    return {each.id for one in found.findings for each in one.all()}


def test_an_error_before_a_later_load_of_the_driver_is_not_certain() -> None:
    line = "4,1,900000000,-;NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64 570.133.20"
    assert report(facts()).findings[0].confidence == CERTAIN
    later = report(facts(line))
    assert [(one.id, one.confidence) for one in later.findings] == [("HW-01", POSSIBLE)]
    assert line in [each.value for each in later.findings[0].evidence]


@pytest.mark.parametrize(("heartbeat", "over"), [("2026-01-01T11:30:00Z", True), ("2026-01-01T11:05:00Z", False)])
def test_what_an_agent_has_said_after_the_error_counts_when_it_is_gone(heartbeat: str, over: bool) -> None:
    """The error came ten minutes after the boot, which was at 11:00."""
    found = report(node(8, WELL | {"lastHeartbeatTime": heartbeat}), facts(toldBy="Pod g/agent-a"))
    assert [(one.id, one.confidence) for one in found.findings] == ([] if over else [("HW-01", LIKELY)])


def test_what_the_node_itself_shows_of_a_gpu_is_not_told_twice() -> None:
    """By the agent's report and by the node's own readings: of that GPU once, of another one beside it."""
    bad = msgspec.structs.replace(XID_79, what="rows can't be remapped", facts=("remapped-rows:failed",))
    rows = [{"index": 3, "uuid": THIRD, "pci": "0000:61:00.0", "readings": {"remapped_rows_failure": 1}}]
    looked = {"kind": "HostFacts", "metadata": {"name": "gpu-1"}, "gpus": rows}
    assert roots(report(saying(node(7), bad), AGENT, looked)) == ["HW-03"]
    other = msgspec.structs.replace(bad, uuid=FIFTH, index=5)
    assert roots(report(saying(node(6), bad, other), AGENT, looked)) == ["HW-03", "HW-03"]


def test_one_gpu_that_is_well_again_does_not_speak_for_another() -> None:
    first_log = facts(toldBy="Pod g/agent-a")
    assert roots(report(saying(node(8)), AGENT, first_log)) == []
    second = {"code": 79, "pci": "0000:9d:00", "action": "reboot"}
    both = facts(
        "NVRM: Xid (PCI:0000:9d:00): 79, pid=1, name=a, GPU has fallen off the bus.",
        xids=[*first_log["xids"], second], toldBy="Pod g/agent-a",
    )  # fmt: skip
    ill = msgspec.structs.replace(XID_79, pci="0000:9d:00.0")
    found = report(saying(node(7), ill), AGENT, both)
    assert [one.id for one in found.findings] == ["HW-01"]
    assert "0000:9d:00" in found.findings[0].cause


def test_a_driver_that_its_pod_still_builds_is_told_by_the_pod() -> None:
    began = {"running": {"startedAt": "2026-01-01T11:55:00Z"}}
    builds = {
        "kind": "Pod", "metadata": {"name": "driver-a", "namespace": "gpu-operator"},
        "status": {"conditions": [{"type": "Ready", "status": "False"}],
                   "containerStatuses": [{"name": "nvidia-driver-ctr", "ready": False, "restartCount": 0, "state": began}]},
    }  # fmt: skip
    found = report(node(0, UNREAD), AGENT, builds, bases=("gpu-node", "operator"))
    assert roots(found)[0] == "DRV-03"
    assert "DRV-01" not in {each.id for one in found.findings for each in one.all()}


# What only the agent tells


def first(name: str) -> Finding:
    one = load(FOLDER / f"{name}.yaml")
    return diagnose(one.snapshot(one.broken), strict=True).findings[0]


def test_the_verdicts_own_remedy_and_evidence_are_given() -> None:
    hot = first("HW-05_told")
    assert hot.remedy[0] == "check fans, air flow and room temperature"
    assert "the GPU is 1 degrees above its limit; its memory is 5 degrees above its limit" in hot.cause
    assert hot.since == "2026-01-01T11:00:00Z"
    asked = first("HW-14_told")
    assert "Xid 62" in asked.cause
    assert "kgpu xid 62" in asked.remedy


def test_each_gpu_has_a_finding_of_its_own() -> None:
    one = load(FOLDER / "HW-03_told.yaml")
    found = diagnose(one.snapshot(one.broken), strict=True)
    assert sorted(roots(found)) == ["HW-03", "HW-06", "HW-10"]
    assert all("GPU 0 " not in each.value for each in found.findings[0].evidence)


def test_an_error_of_a_program_is_a_note() -> None:
    what = "Xid 68: an error of the video processor"
    gpu = ReportedGpu(uuid=FIFTH, index=5, action=Action.RESTART_APP, reason="GPUApplicationError", works=True, what=what,
                      facts=("xid:68",), evidence=(what,))  # fmt: skip
    found = report(saying(node(8), gpu))
    assert [(one.id, one.level) for one in found.findings] == [("HW-08", Level.NOTE)]


@pytest.mark.parametrize("facts", [("xid:94",), ("remapped-rows:pending", "xid:94"), ("xid:48", "xid:94")])
def test_a_contained_error_is_told_with_the_program_that_it_has_ended(facts: tuple[str, ...]) -> None:
    """Whatever the GPU itself needs beside it. After an error that is not contained no program is told to go on."""

    def told(*facts: str) -> list[str]:
        gpu = ReportedGpu(uuid=FIFTH, index=5, action=Action.RESET_GPU, works=True, what="it needs a reset",
                          remedy_key=RESET_WHEN_IDLE, facts=facts, evidence=facts)  # fmt: skip
        return [step for one in report(saying(node(8), gpu)).findings for step in one.remedy]

    program = "restart the program that used the GPU; no reset, no drain: other programs are not hurt"
    assert told(*facts).count(program) == 1
    assert program not in told(*facts, "xid:95")


def test_a_gpu_that_works_does_not_explain_what_is_withdrawn() -> None:
    works = ReportedGpu(uuid=FIFTH, index=5, action=Action.INSPECT, works=True, what="Xid 999: not in the catalogue",
                        facts=("xid:999",))  # fmt: skip
    assert set(roots(report(saying(node(7), works)))) == {"HW-00", "SCH-03"}
    asks = ReportedGpu(uuid=THIRD, index=3, action=Action.RESET_GPU, what="the driver asks for: reset",
                       facts=("recovery-action:recovery",))  # fmt: skip
    found = report(saying(node(7), works, asks))
    assert sorted(roots(found)) == ["HW-00", "HW-14"]
    assert {one.id: below(one) for one in found.findings} == {"HW-00": [], "HW-14": ["SCH-03"]}


def test_evidence_is_about_the_gpu_alone_and_cut_between_words() -> None:
    found = first("HW-04_told")
    long = " ".join(["word"] * 200)
    gpu = ReportedGpu(
        uuid=THIRD, index=3, action=Action.INSPECT, works=True, what=f"Xid 999: {long}", facts=("xid:999",)
    )
    cut = report(saying(node(8), gpu))
    for one in (found, cut.findings[0]):
        for each in one.evidence:
            assert not each.value.endswith("…")
    assert cut.findings[0].evidence[0].value.endswith("word ...")
    assert found.since == "2026-01-01T11:00:00Z", "the condition stays True: since when says nothing"


# Slices that nobody has cut, configurations that nobody uses, a program that ends


def slice_asked(profile: str, product: str, *objects: dict[str, Any]) -> Finding:
    asked = pod("train", 1)
    asked["spec"]["containers"][0]["resources"] = {"limits": {f"nvidia.com/mig-{profile}": 1}}
    labels = {"kind": "Node", "metadata": {"name": "gpu-1", "labels": {"nvidia.com/gpu.product": product}}}
    found = report(asked, labels, *objects)
    assert roots(found) == ["SCH-00"]
    return found.findings[0]


def test_which_gpus_could_be_cut_is_said_and_how() -> None:
    found = slice_asked("1g.10gb", "NVIDIA-A100-SXM4-80GB")
    assert "node gpu-1 (NVIDIA-A100-SXM4-80GB) could be" in found.cause
    assert any("nvidia-smi mig -i INDEX -cgi 1g.10gb -C" in step for step in found.remedy)
    assert any('"strategy":"mixed"' in step for step in found.remedy)
    assert any("ask for nvidia.com/gpu" in step for step in found.remedy)


def test_a_size_that_the_card_does_not_have_is_not_promised() -> None:
    found = slice_asked("1g.5gb", "NVIDIA-A100-SXM4-80GB")
    assert "of 1g.10gb and larger ones, but not into 1g.5gb" in found.cause
    assert not any("nvidia-smi mig" in step for step in found.remedy)


def test_a_card_without_mig_is_not_promised() -> None:
    found = slice_asked("1g.10gb", "NVIDIA-L4")
    assert "no GPU of this cluster can be cut into MIG slices; its GPUs are NVIDIA-L4" in found.cause
    assert not any("nvidia-smi" in step for step in found.remedy)


def test_the_mig_manager_cuts_where_there_is_one() -> None:
    found = slice_asked("1g.10gb", "NVIDIA-A100-SXM4-80GB", *base("mig"))
    assert any(
        "kubectl label node gpu-1 nvidia.com/mig.config=all-1g.10gb --overwrite" in step for step in found.remedy
    )


def test_a_configuration_left_behind_is_no_problem() -> None:
    """Of whoever has gone back to whole GPUs: named and used by nobody, or not named any more."""
    left = load(FOLDER / "TS-03.yaml")
    found = diagnose(left.snapshot(left.broken), strict=True)
    assert [(one.id, one.level) for one in found.findings] == [("TS-03", Level.NOTE)]
    assert found.exit_code == 0
    waits = [*left.broken, pod("all", 8, "gpu-1"), pod("train", 1)]
    again = diagnose(left.snapshot(waits), strict=True)
    assert [(one.id, one.level) for one in again.findings] == [("TS-03", Level.PROBLEM)]

    unnamed = load(FOLDER / "TS-04.yaml")
    assert diagnose(unnamed.snapshot(unnamed.broken), strict=True).findings[0].level is Level.PROBLEM
    for one in unnamed.broken:
        if one["kind"] == "ClusterPolicy":
            one["metadata"]["generation"] = 3
    found = diagnose(unnamed.snapshot(unnamed.broken), strict=True)
    assert [(one.id, one.level) for one in found.findings] == [("SCH-01", Level.PROBLEM), ("TS-04", Level.NOTE)]


def test_sharing_is_not_what_a_pod_lacks_that_fits_no_node_anyway() -> None:
    one = load(FOLDER / "TS-04.yaml")
    for each in one.broken:
        if each["kind"] == "Pod" and each["metadata"]["name"] == "train":
            each["spec"]["nodeSelector"] = {"disk": "fast"}
    assert "TS-04" not in roots(diagnose(one.snapshot(one.broken), strict=True))


def test_a_program_that_has_ended_twice_is_told_with_its_last_words() -> None:
    found = first("POD-00_once")
    assert "exit code 3, 2 restarts so far" in found.cause
    assert 'it said last: "ValueError: no such model: llama-9"' in found.cause
    assert not any("{" in each.value for each in found.evidence)


def test_a_program_that_was_just_started_again_may_come_right() -> None:
    one = load(FOLDER / "POD-00_once.yaml")
    status = next(each["status"] for each in one.broken if each["metadata"]["name"] == "train" and "status" in each)
    status["containerStatuses"][0]["state"] = {"running": {"startedAt": "2026-01-01T10:00:50Z"}}
    found = diagnose(one.snapshot(one.broken), strict=True).findings
    assert [(each.id, each.level) for each in found] == [("POD-00", Level.WAIT)]
    assert found[0].expected


def test_parts_of_a_stack_are_given_time() -> None:
    ended = {"name": "plugin", "ready": False, "restartCount": 1, "state": {"waiting": {"reason": "CrashLoopBackOff"}},
             "lastState": {"terminated": {"exitCode": 1, "finishedAt": "2026-01-01T11:59:50Z"}}}  # fmt: skip
    unready = {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T11:59:50Z"}
    young = {"kind": "Pod", "metadata": {"name": "plugin-a", "namespace": "gpu-operator", "creationTimestamp": "2026-01-01T11:59:40Z"},
             "status": {"conditions": [unready], "containerStatuses": [ended]}}  # fmt: skip
    assert roots(report(young)) == []


# Claims of volumes


def volume(phase: str | None, **spec: Any) -> list[dict[str, Any]]:
    waits = pod("train", 1, volumes=[{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}])
    claim = {"kind": "PersistentVolumeClaim", "metadata": {"name": "data", "namespace": "ml"}, "spec": spec,
             "status": {"phase": phase}}  # fmt: skip
    return [waits, *([claim] if phase else [])]


def told_of_claim(*objects: dict[str, Any]) -> Finding:
    below = [*base("gpu-node"), *objects]
    listed = ["PersistentVolumeClaim", "PersistentVolume", "StorageClass"]
    found = diagnose(Snapshot.of(copy.deepcopy(below), taken=TAKEN, listed=listed), strict=True)
    assert roots(found) == ["SCH-00"]
    return found.findings[0]


FAST = {"kind": "StorageClass", "metadata": {"name": "fast"}, "provisioner": "disks.example.com"}


@pytest.mark.parametrize(
    ("objects", "says"),
    [
        (volume(None), "mounts the volume claim data, and namespace ml has no such claim"),
        ([*volume(None), {"kind": "PersistentVolumeClaim", "metadata": {"name": "data", "namespace": "home"}}],
         "namespace home has one of that name"),
        (volume("Lost", volumeName="pv-1"), "the volume pv-1 of its claim data is gone"),
        ([*volume("Pending", storageClassName="fsat"), FAST], "the storage class fsat, which is not there; did you mean fast?"),
        ([*volume("Pending"), FAST], "names no storage class, and the cluster has no default one"),
        ([*volume("Pending", storageClassName="fast"), FAST], "the provisioner disks.example.com of storage class fast"),
        (volume("Pending", storageClassName=""), "no volume that is free is for it"),
        (volume("Pending", storageClassName="", volumeName="pv-9"), "asks for the volume pv-9"),
    ],
)  # fmt: skip
def test_why_a_claim_keeps_a_pod_waiting(objects: list[dict[str, Any]], says: str) -> None:
    found = told_of_claim(*objects)
    assert says in found.cause
    assert not any("add a node" in step for step in found.remedy)


def test_what_the_provisioner_says_is_quoted() -> None:
    event = {"kind": "Event", "metadata": {"name": "e", "namespace": "ml"}, "type": "Warning", "reason": "ProvisioningFailed",
             "message": "rpc error: quota exceeded in zone b",
             "involvedObject": {"kind": "PersistentVolumeClaim", "name": "data", "namespace": "ml"}}  # fmt: skip
    assert "quota exceeded in zone b" in told_of_claim(*volume("Pending", storageClassName="fast"), FAST, event).cause


def test_a_verdict_from_memory_does_not_hide_it_either() -> None:
    """An agent that was started anew still says what it remembers of a GPU; its facts say that the driver is not there."""
    since = {"lastTransitionTime": "2026-01-01T11:30:00Z"}
    unloaded = {
        "kind": "HostFacts", "metadata": {"name": "gpu-1"}, "toldBy": "Pod g/agent-a", "taken": "2026-01-01T11:50:00Z",
        "nvmlError": "nvml init failed: Driver Not Loaded", "nvmlFault": "driver-not-loaded",
    }  # fmt: skip
    found = report(saying(node(0), XID_79, **since), AGENT, unloaded)
    assert [(one.id, one.confidence) for one in found.findings] == [("DRV-01", CERTAIN), ("HW-01", POSSIBLE)]
    before = report(saying(node(7), XID_79, **since), AGENT, unloaded | {"taken": "2026-01-01T11:20:00Z"})
    assert [(one.id, one.confidence) for one in before.findings] == [("HW-01", CERTAIN)]


def test_what_a_dead_agent_has_said_is_likely() -> None:
    ill = saying(node(7), XID_79)
    assert report(ill, AGENT).findings[0].confidence == CERTAIN
    assert report(ill).findings[0].confidence == LIKELY
    old = saying(node(7), XID_79, lastHeartbeatTime="2026-01-01T11:00:00Z")
    assert report(old, AGENT).findings[0].confidence == LIKELY


def test_every_lost_gpu_is_told_with_its_number_or_without() -> None:
    lost = ReportedGpu(
        uuid=FIFTH, index=5, action=Action.REBOOT, what="handle: GPU is lost (NVML error 15)", facts=("driver:lost",)
    )
    third = msgspec.structs.replace(lost, uuid=THIRD, index=3)
    found = report(saying(node(6), third, lost), AGENT, facts())
    assert [one.id for one in found.findings] == ["HW-01", "HW-01"]
    alone = report(saying(node(7), third), AGENT, facts())
    assert [one.id for one in alone.findings] == ["HW-01"]


@pytest.mark.parametrize(("more", "told"), [(("xid:95",), ["HW-02"]), ((), ["HW-14"])])
def test_an_error_is_over_where_the_agent_does_not_count_it(more: tuple[str, ...], told: list[str]) -> None:
    """The agent read of the driver's wish for a reset before it read of the error."""
    asks = ReportedGpu(uuid=THIRD, index=3, action=Action.RESET_GPU, what="the driver asks for: reset",
                       facts=("recovery-action:recovery", *more))  # fmt: skip
    xid = {"code": 95, "pci": "0000:61:00", "action": "reset_gpu"}
    line = "4,0,600000000,-;NVRM: Xid (PCI:0000:61:00): 95, pid=1, Uncontained ECC error"
    found = report(saying(node(7), asks), AGENT, facts(xids=[xid], kernelLog=[line]))
    assert sorted(one.id for one in found.findings) == told


@pytest.mark.parametrize(("code", "first"), [(95, "HW-02"), (48, "HW-02"), (94, "HW-04"), (63, "HW-04")])
def test_a_row_that_waits_follows_from_an_error_that_ended_programs(code: int, first: str) -> None:
    """Whether or not the host's readings have been written meanwhile."""
    xid = {"code": code, "pci": "0000:61:00", "action": "reset_gpu"}
    line = f"4,0,600000000,-;NVRM: Xid (PCI:0000:61:00): {code}, pid=1, ECC error"
    readings = {"remapped_rows_pending": 1, "remapped_rows_failure": 0}
    gpu = {"index": 3, "uuid": THIRD, "name": "NVIDIA H100 80GB HBM3", "pci": "0000:61:00.0", "readings": readings}
    assert roots(report(facts(xids=[xid], kernelLog=[line], gpus=[gpu])))[0] == first


def test_of_an_agent_of_another_version_the_condition_stands_for_itself() -> None:
    ill = saying(node(7), XID_79)
    older = ill | {"metadata": {key: value for key, value in ill["metadata"].items() if key != "annotations"}}
    found = report(older, AGENT)
    assert roots(found) == ["NODE-00"]
    assert "Xid 79" in found.findings[0].cause
    logged = report(older, AGENT, facts())
    assert "HW-01" in {each.id for one in logged.findings for each in one.all()}


def test_since_is_a_time_of_the_day() -> None:
    assert report(facts()).findings[0].since == "2026-01-01T11:10:00Z"
    unknown = facts(bootTime=None)
    unknown["xids"][0]["first"] = "600.000000"
    assert not report(unknown).findings[0].since


def test_a_gpu_that_has_power_again_is_not_told() -> None:
    xid = {"code": 54, "pci": "0000:61:00", "action": "inspect"}
    line = "4,0,600000000,-;NVRM: Xid (PCI:0000:61:00): 54, pid=1, Auxiliary power is not connected"
    said = facts(xids=[xid], kernelLog=[line])
    assert roots(report(said)) == ["KRN-10"]
    assert roots(report(node(8, WELL), AGENT, said)) == []


def test_shares_that_no_node_uses_are_not_what_a_pod_waits_for_that_wants_more_gpus_than_a_node_has() -> None:
    example = load(FOLDER / "TS-03.yaml")

    def level(asked: int) -> Level:
        limits = {"limits": {"nvidia.com/gpu": str(asked)}}
        pod = {
            "kind": "Pod", "metadata": {"name": "train", "namespace": "ml"},
            "spec": {"containers": [{"name": "c", "image": "i", "resources": limits}]},
            "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False"}]},
        }  # fmt: skip
        holder = copy.deepcopy(pod) | {"metadata": {"name": "holder", "namespace": "ml"}}
        holder["spec"] |= {"nodeName": "gpu-1"}  # type: ignore[operator]
        holder["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "8"}}  # type: ignore[index]
        holder["status"] = {"phase": "Running"}
        found = diagnose(example.snapshot(merged([*example.broken, pod, holder])), strict=True).findings
        return next(one.level for one in found if one.id == "TS-03")

    assert (level(1), level(9)) == (Level.PROBLEM, Level.NOTE)
