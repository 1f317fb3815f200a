"""Programs that see no GPU: whoever runs, Ready or not, is told once, with the cause that the objects show."""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.doctor.model import Level, Report
from kgpu.doctor.plan import diagnose
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.sources.logs import worth_reading
from tests.doctor.example import base, merged

TAKEN = 1767268800.0  # 2026-01-01T12:00:00Z
GPU = {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}}
WORDS = (
    "sh: 1: nvidia-smi: not found",
    "bash: nvidia-smi: command not found",
    "/entrypoint.sh: line 3: nvidia-smi: command not found",
    'exec: "nvidia-smi": executable file not found in $PATH',
    "FileNotFoundError: [Errno 2] No such file or directory: 'nvidia-smi'",
    "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory",
    "OSError: libnvidia-ml.so.1: cannot open shared object file: No such file or directory",
    "pynvml.NVMLError_LibraryNotFound: NVML Shared Library Not Found",
    "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU",
    "RuntimeError: No CUDA GPUs are available",
    "CUDA error: no CUDA-capable device is detected",
)
SOFT = (
    "torch.cuda.is_available() = False",
    "torch.cuda.is_available(): False",
    "CUDA available: False",
    "GPU available: False, used: False",
    "Could not find cuda drivers on your machine, GPU will not be used.",
)


def pod(*, ready: bool = True, node: str = "gpu-1", **container: Any) -> dict[str, Any]:
    main = {"name": "main", "image": "pytorch/pytorch:2.5.1-cuda12.4", **container}
    state = {
        "name": "main",
        "ready": ready,
        "restartCount": 0,
        "state": {"running": {"startedAt": "2026-01-01T11:00:00Z"}},
    }
    return {
        "kind": "Pod", "metadata": {"name": "train", "namespace": "ml", "uid": "u1", "creationTimestamp": "2026-01-01T11:00:00Z"},
        "spec": {"nodeName": node, "containers": [main]},
        "status": {"phase": "Running", "startTime": "2026-01-01T11:00:00Z", "containerStatuses": [state],
                   "conditions": [{"type": "Ready", "status": str(ready), "lastTransitionTime": "2026-01-01T11:00:00Z"}]},
    }  # fmt: skip


def said(*lines: str) -> dict[str, Any]:
    return {
        "kind": "PodLog",
        "metadata": {"name": "train", "namespace": "ml"},
        "container": "main",
        "lines": list(lines),
    }


CPU = {"kind": "Node", "metadata": {"name": "cpu-1"}, "status": {"allocatable": {"cpu": "8"}, "conditions": [{"type": "Ready", "status": "True"}]}}  # fmt: skip


def report(*objects: dict[str, Any]) -> Report:
    return diagnose(Snapshot.of(merged([*base("gpu-node"), CPU, *objects]), taken=TAKEN), strict=True)


@pytest.mark.parametrize("words", [*WORDS, *SOFT])
@pytest.mark.parametrize("ready", [True, False])
def test_who_asks_for_none_is_told_to_ask(words: str, ready: bool) -> None:
    (found,) = (one for one in report(pod(ready=ready), said(words, "and on")).findings if one.level is Level.PROBLEM)
    assert found.id == ("RUN-24" if words.startswith("exec:") and not ready else "QTA-10")
    assert "nvidia.com/gpu: 1" in found.remedy[0]


@pytest.mark.parametrize("words", [*WORDS, *SOFT])
@pytest.mark.parametrize("ready", [True, False])
def test_who_has_asked_is_told_why_none_is_there(words: str, ready: bool) -> None:
    (found,) = report(pod(ready=ready, resources=GPU), said(words, "and on")).findings
    assert found.id == "RUN-24"
    assert "neither the runtime nvidia nor CDI" in found.cause
    assert words in found.evidence[0].value


@pytest.mark.parametrize(
    ("container", "more", "words", "cause"),
    [
        ({"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]}, [], WORDS[0], "NVIDIA_VISIBLE_DEVICES=void takes it away"),
        ({"env": [{"name": "CUDA_VISIBLE_DEVICES", "value": "-1"}]}, [], WORDS[9], "CUDA_VISIBLE_DEVICES=-1 takes it away"),
        ({"env": [{"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute"}]}, [], WORDS[0], "leaves out utility"),
        ({"env": [{"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "utility"}]}, [], WORDS[5], "leaves out compute"),
        ({}, [{"kind": "Pod", "metadata": {"name": "plugin-a", "namespace": "gpu-operator"}, "spec": {"runtimeClassName": "nvidia"}}], WORDS[0], "default runtime"),
        ({"image": "pytorch:cpu"}, [], "AssertionError: Torch not compiled with CUDA enabled", "built without CUDA"),
    ],
)  # fmt: skip
def test_the_cause_is_what_the_objects_show(
    container: dict[str, Any], more: list[dict[str, Any]], words: str, cause: str
) -> None:
    (found,) = report(pod(resources=GPU, **container), said(words), *more).findings
    assert found.id == "RUN-24"
    assert cause in found.cause


def claimed(device_class: str, **container: Any) -> list[dict[str, Any]]:
    """A pod with a claim of a class, by a template."""
    made = pod(**container)
    made["spec"]["resourceClaims"] = [{"name": "device", "resourceClaimTemplateName": "one"}]
    asks = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": device_class}}]}}
    template = {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "one", "namespace": "ml"},
        "spec": {"spec": asks},
    }  # fmt: skip
    return [made, template]


HELD = {"resources": {"claims": [{"name": "device"}]}}


def told(*objects: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one.id, one.cause) for one in report(*objects).findings if one.id in ("QTA-10", "RUN-24")]


def test_a_claim_is_for_the_containers_that_name_it() -> None:
    ((which, cause),) = told(*claimed("gpu.nvidia.com"), said(WORDS[5]))
    assert which == "QTA-10"
    assert "the pod's claim device is for the containers that name it" in cause
    ((which, cause),) = told(*claimed("gpu.nvidia.com", **HELD), said(WORDS[5]))
    assert (which, "has asked for a GPU and sees none" in cause) == ("RUN-24", True)


@pytest.mark.parametrize("device_class", ["dra.net", "rdma-nic", "sriov-network"])
def test_a_claim_for_a_network_card_asks_for_no_gpu(device_class: str) -> None:
    ((which, cause),) = told(*claimed(device_class, **HELD), said(WORDS[5]))
    assert (which, "because it asks for none" in cause) == ("QTA-10", True)


def test_a_claim_of_a_class_that_says_nothing_may_be_for_one() -> None:
    assert [which for which, _ in told(*claimed("premium", **HELD), said(WORDS[5]))] == ["RUN-24"]


def test_a_toolkit_that_is_not_ready_is_the_cause() -> None:
    toolkit = {
        "kind": "Pod", "metadata": {"name": "toolkit-a", "namespace": "gpu-operator", "labels": {"app": "nvidia-container-toolkit-daemonset"}},
        "spec": {"nodeName": "gpu-1", "containers": [{"name": "t", "image": "nvcr.io/nvidia/k8s/container-toolkit:v1.17.0"}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]},
    }  # fmt: skip
    found = next(one for one in report(pod(resources=GPU), said(WORDS[0]), toolkit).findings if one.id == "RUN-24")
    assert "toolkit-a" in found.cause


@pytest.mark.parametrize("words", SOFT)
def test_who_does_without_a_gpu_where_there_is_none_is_well(words: str) -> None:
    assert report(pod(node="cpu-1"), said(words)).findings == ()


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("ready", [True, False])
def test_who_wants_one_on_a_node_without_is_told(words: str, ready: bool) -> None:
    (found,) = report(pod(node="cpu-1", ready=ready), said(words)).findings
    assert found.id == ("RUN-24" if words.startswith("exec:") and not ready else "QTA-10")
    assert found.level is (Level.NOTE if ready else Level.PROBLEM)


@pytest.mark.parametrize(
    "words",
    [
        "The NVIDIA driver on your system is too old (found version 11040).",
        "Failed to initialize NVML: Driver/library version mismatch",
        "cudaGetDeviceCount() Error 804: forward compatibility was attempted on non supported HW",
    ],
)
def test_what_says_more_exactly_why_is_told_alone(words: str) -> None:
    found = report(pod(resources=GPU), said("torch.cuda.is_available(): False", words)).findings
    assert "RUN-24" not in {one.id for root in found for one in root.all()}


def test_the_log_of_who_is_asked_about_is_read() -> None:
    """A pod that runs well by its status, with a GPU or without one."""
    snapshot = Snapshot.of(merged([*base("gpu-node"), pod()]), taken=TAKEN)
    target = snapshot.pods["ml", "train"].subject
    assert ("ml", "train") not in {row[0].key for row in worth_reading(snapshot)}
    assert worth_reading(snapshot, target=target)[0][0].key == ("ml", "train")
