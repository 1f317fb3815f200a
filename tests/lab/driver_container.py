"""An embedded lab with a node whose driver comes in a container, and what tests ask of it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kgpu.formats.names import GPU_OPERATOR_NAMESPACE, GPU_RESOURCE, ROLES_ANNOTATION
from kgpu.hw.simulator import container_settings
from kgpu.hw.simulator.driver_image import WORDS
from kgpu.lab.common import FIRST_NODE
from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.embedded.model import FirstNode
from kgpu.lab.nodes.runtime import NAMESPACES, detect_mode
from kgpu.lab.port import kubectl as run_kubectl
from kgpu.lab.progress import QuietProgress
from tests.lab import asking

WAIT_S = 180.0
OLD, NEW = "550.54.15", "570.133.20"
DRIVER, MANAGER = "nvidia-driver-ctr", "k8s-driver-manager"
DRIVER_PODS = ("pods", "--namespace", GPU_OPERATOR_NAMESPACE, "--selector", "app.kubernetes.io/component=nvidia-driver")
ON_HOST = "l4-1"
CAUSES = {
    **WORDS,
    "manager": "the driver is in use and can't be unloaded",
    "probe": "the driver's daemons are not ready: nvidia-persistenced is not running",
    "pull": "its container nvidia-driver-ctr can't be started",
}
"""What is told of a driver that fails, by the phase in which it does."""
SOON = {"initialDelaySeconds": 1, "periodSeconds": 1, "failureThreshold": 6}
"""How long a driver is waited for that is loaded and never ready."""
Object = dict[str, Any]
TRAIN = {
    "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "train", "namespace": "default"},
    "spec": {
        "selector": {"matchLabels": {"app": "train"}},
        "template": {
            "metadata": {"labels": {"app": "train"}},
            "spec": {
                "terminationGracePeriodSeconds": 1, "nodeSelector": {"kubernetes.io/hostname": FIRST_NODE},
                "containers": [{
                    "name": "main", "image": "nvidia/cuda:12.4.0-base-ubuntu22.04",
                    "command": ["sh", "-c", "nvidia-smi --query-gpu=driver_version --format=csv,noheader; sleep 10000"],
                    "resources": {"limits": {GPU_RESOURCE: 1}},
                }],
            },
        },
    },
}  # fmt: skip


def driver_lab(folder: Path, *, gpus: int = 2) -> Iterator[EmbeddedLab]:
    """A lab whose operator installs the driver of its first node, which has so many GPUs."""
    if detect_mode(folder) != NAMESPACES:
        pytest.skip("containers have no file systems of their own here")
    first = FirstNode(profile="l4", gpus=gpus, driver="container")
    made = EmbeddedLab("driver", folder / "lab", QuietProgress(), first=first, operator=True)
    try:
        made.up()
        container_settings.change(root(made), takes=0.2)
        yield made
    finally:
        made.down()


def root(lab: EmbeddedLab, name: str = FIRST_NODE) -> Path:
    return lab.nodes / name / "hw"


def get(lab: EmbeddedLab, *words: str) -> Object:
    found: Object = asking.get(lab.kubeconfig, *words)
    return found


def until(lab: EmbeddedLab, condition: Callable[[], bool], what: str, *, within: float = WAIT_S) -> None:
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            shown = run_kubectl(lab, "get", "pods", "--all-namespaces", "--output", "wide")
            logs = lab.kubectl_run("logs", *DRIVER_PODS[1:], "--all-containers", "--prefix").stdout
            pytest.fail(f"not within {within:g} s: {what}\n{shown}\n{logs}")
        time.sleep(0.2)


def node(lab: EmbeddedLab, name: str = FIRST_NODE) -> Object:
    return get(lab, "node", name)


def driver_pod(lab: EmbeddedLab, name: str = FIRST_NODE) -> Object:
    """The node's driver pod that is not being deleted; {} for none."""
    pods = [pod for pod in get(lab, *DRIVER_PODS)["items"] if pod["spec"].get("nodeName") == name]
    return next((pod for pod in pods if "deletionTimestamp" not in pod["metadata"]), {})


def status(pod: Object, container: str) -> Object:
    rows = [row for key in ("initContainerStatuses", "containerStatuses") for row in pod.get("status", {}).get(key, ())]
    return next((row for row in rows if row["name"] == container), {})


def is_up(lab: EmbeddedLab, version: str, name: str = FIRST_NODE, *, gpus: int = 2) -> bool:
    """Whether the node's driver pod is ready with that version, the agent knows it, and all GPUs are offered."""
    now = node(lab, name)
    report = json.loads(now["metadata"]["annotations"].get(ROLES_ANNOTATION) or "{}")
    return (
        bool(status(driver_pod(lab, name), DRIVER).get("ready"))
        and (report.get("driver"), report.get("driverSource")) == (version, "container")
        and now["status"]["allocatable"].get(GPU_RESOURCE) == str(gpus)
    )


def log_of(lab: EmbeddedLab) -> str:
    pod = get(lab, "pods", "--selector", "app=train")["items"]
    names = [one["metadata"]["name"] for one in pod if "deletionTimestamp" not in one["metadata"]]
    return "".join(lab.kubectl_run("logs", name).stdout for name in names)
