"""What kubectl prints for people, kernel logs and lone logs, under any file name: read for what it tells."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import ConfigError
from kgpu.doctor.model import Report
from kgpu.doctor.plan import diagnose
from kgpu.doctor.sources import files, printed
from tests.budget import tries

POD = """\
Name:             train-0
Namespace:        ml
Priority:         0
Node:             gpu-1/10.0.0.5
Start Time:       Mon, 04 May 2026 09:40:00 +0000
Labels:           app=train
                  team=vision
Annotations:      <none>
Status:           Pending
Controlled By:    Job/train
Init Containers:
  fetch:
    Image:          busybox:1.36
    State:          Terminated
      Reason:       Completed
      Exit Code:    0
    Ready:          True
    Restart Count:  0
Containers:
  main:
    Image:         pytorch/pytorch:2.1-cuda12
    Command:
      python
      train.py: x
    State:          Waiting
      Reason:       ImagePullBackOff
    Last State:     Terminated
      Reason:       Error
      Exit Code:    137
      Finished:     Mon, 04 May 2026 09:41:00 +0000
    Ready:          False
    Restart Count:  3
    Limits:
      nvidia.com/gpu:  2
    Requests:
      nvidia.com/gpu:  2
    Environment:
      NCCL_DEBUG:  INFO
Conditions:
  Type              Status
  Initialized       True
  Ready             False
Node-Selectors:              pool=gpus
Events:
  Type     Reason     Age                From               Message
  ----     ------     ----               ----               -------
  Normal   Scheduled  5m                 default-scheduler  Successfully assigned ml/train-0 to gpu-1
  Warning  Failed     61s (x4 over 4m)   kubelet            Failed to pull image "pytorch/pytorch:2.1-cuda12": not found
"""
EVENTS = """\
NAMESPACE   LAST SEEN   TYPE      REASON                   OBJECT                                     MESSAGE
gpu         2m          Warning   FailedCreatePodSandBox   pod/nvidia-device-plugin-daemonset-x7k2p   Failed to create pod sandbox: no runtime for "nvidia" is configured
gpu         3m          Normal    Pulled                   pod/web-1                                  Container image already present
"""
LIST = """\
NAMESPACE   NAME                            READY   STATUS             RESTARTS       AGE
gpu         nvidia-driver-daemonset-abcde   0/1     CrashLoopBackOff   12 (3m ago)    40m
ml          train-0                         1/1     Running            0              3d
ml          done                            0/1     Completed          0              3d
"""
KERNEL = "May  4 09:40:00 gpu-7 kernel: NVRM: Xid (PCI:0000:07:00): 48, pid=1, DBE\n"


def told(path: Path) -> Report:
    return diagnose(files.read(str(path)), strict=True)


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_described_pod_has_what_the_text_has() -> None:
    found = printed.read(POD)
    (pod,) = found.objects
    assert pod["metadata"]["labels"] == {"app": "train", "team": "vision"}
    assert pod["metadata"]["ownerReferences"] == [{"kind": "Job", "name": "train", "controller": True}]
    assert pod["spec"]["nodeName"] == "gpu-1"
    assert pod["spec"]["nodeSelector"] == {"pool": "gpus"}
    (main,) = pod["spec"]["containers"]
    assert main["resources"] == {"limits": {"nvidia.com/gpu": "2"}, "requests": {"nvidia.com/gpu": "2"}}
    assert main["command"] == ["python", "train.py"]
    assert main["env"] == [{"name": "NCCL_DEBUG", "value": "INFO"}]
    (status,) = pod["status"]["containerStatuses"]
    assert status["restartCount"] == 3
    assert status["state"] == {"waiting": {"reason": "ImagePullBackOff"}}
    assert status["lastState"]["terminated"]["exitCode"] == 137
    assert status["lastState"]["terminated"]["finishedAt"] == "2026-05-04T09:41:00Z"
    assert pod["status"]["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 0
    assert [(one.event["reason"], one.first, one.last) for one in found.told] == [
        ("Scheduled", 300, 300),
        ("Failed", 240, 61),
    ]


@pytest.mark.parametrize("name", ["pod.txt", "output", "why does it hang?.md"])
def test_a_described_pod_under_any_name(tmp_path: Path, name: str) -> None:
    report = told(write(tmp_path, name, POD))
    assert [one.id for one in report.findings] == ["IMG-07"]
    assert report.findings[0].evidence[0].object == "Event of Pod ml/train-0"


def test_a_folder_of_texts(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", POD)
    write(tmp_path, "b", EVENTS)
    write(tmp_path, "journal.txt", KERNEL)
    report = told(tmp_path)
    assert {"IMG-07", "RUN-01"} <= {one.id for one in report.findings}
    assert "gpu-7" in files.read(str(tmp_path)).hosts


def test_the_age_of_events_counts_from_the_start_of_the_pod(tmp_path: Path) -> None:
    snapshot = files.read(str(write(tmp_path, "p", POD)))
    (scheduled,) = (one for one in snapshot.all_events() if one.reason == "Scheduled")
    assert scheduled.first == "2026-05-04T09:40:00Z"


def test_an_object_beats_its_description(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", POD)
    write(
        tmp_path,
        "pods.yaml",
        "{apiVersion: v1, kind: Pod, metadata: {name: train-0, namespace: ml}, spec: {nodeName: other}}\n",
    )
    assert files.read(str(tmp_path)).pods["ml", "train-0"].node == "other"


def test_a_list_of_pods_tells_what_fails_and_what_it_does_not_say(tmp_path: Path) -> None:
    report = told(write(tmp_path, "pods.txt", LIST))
    assert report.findings
    assert report.findings[0].subject.name == "nvidia-driver-daemonset-abcde"
    assert any("does not say what they ask for" in one.why for one in report.missing)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (EVENTS, "RUN-01"),
        ("Detected non-NVML platform: could not load NVML library\nError: platform detection failed\n", "DPL-02"),
        ("NVIDIA Software Installer\nCould not resolve Linux kernel version\n", "KRN-01"),
        ("[1.2] NVRM: GPU 0000:07:00.0: RmInitAdapter failed! (0x62:0xffff:2477)\n", "KRN-09"),
    ],
)
def test_standard_input(monkeypatch: pytest.MonkeyPatch, text: str, expected: str) -> None:
    class Typed:
        buffer = io.BytesIO(text.encode())

    monkeypatch.setattr("sys.stdin", Typed())
    assert [one.id for one in diagnose(files.read("-"), strict=True).findings][:1] == [expected]


def test_what_tells_nothing_is_still_refused_or_told(tmp_path: Path) -> None:
    write(tmp_path, "notes.txt", "remember the milk\n")
    with pytest.raises(ConfigError, match="no object of Kubernetes"):
        files.read(str(tmp_path))


@pytest.mark.parametrize(
    ("age", "seconds"), [("5m12s", 312), ("2d3h", 183600), ("61s", 61), ("<unknown>", 0), ("", 0), ("1y1d", 31622400)]
)
def test_ages(age: str, seconds: float) -> None:
    assert printed.seconds(age) == seconds


WORDS = st.text(st.sampled_from("Name: Containers\n  ()x/0-9mshNAMESPACEREADYSTATUTYOBJLGWrnig한\t"), max_size=400)


@tries(150)
@given(
    st.lists(
        st.one_of(
            WORDS, st.sampled_from([POD, EVENTS, LIST, KERNEL, "Containers:\n", "Events:\n", "    State:  Waiting\n"])
        ),
        max_size=6,
    )
)
def test_any_text_is_read(parts: list[str]) -> None:
    found = printed.read("".join(parts))
    for one in (*found.objects, *found.rows):
        assert one["metadata"]["name"]
