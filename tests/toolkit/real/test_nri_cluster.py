"""The NRI plugin in a real cluster: a kubelet that answers while it creates containers, service accounts, Events."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from kgpu.base.errors import LabError
from kgpu.formats.names import CDI_STATIC_DIR
from kgpu.lab.progress import PlainProgress
from kgpu.lab.real import build, hosttools
from kgpu.lab.real.cluster import RealLab
from kgpu.lab.real.model import LabSpec, node_dir
from kgpu.lab.real.namespaces import child_env
from tests.toolkit.real.conftest import unavailable

T = TypeVar("T")
IMAGE = "kgpu.dev/cuda:base"  # its environment asks for all GPUs
ANNOTATION = "nvidia.cdi.k8s.io"
DEADLINE_S = 300.0
GPU = "nvidia.com/gpu"
AGAIN = "could not be looked up within"


def until(condition: Callable[[], T], what: str) -> T:
    """The first true value; the deadline only ends a wait that would never end."""
    end = time.monotonic() + DEADLINE_S
    while not (found := condition()):
        assert time.monotonic() < end, f"waited {DEADLINE_S:.0f} s for {what}"
        time.sleep(0.1)
    return found


@dataclass
class Cluster:
    """A lab with two GPUs, its agent, and the plugin beside."""

    lab: RealLab
    uuids: list[str]
    log: Path

    def pod(
        self, name: str, namespace: str, command: str = "nvidia-smi -L", *, annotations: dict[str, str] | None = None,
        env: dict[str, str] | None = None, gpus: int = 0, account: str = "default",
    ) -> None:  # fmt: skip
        container = {
            "name": "main",
            "image": IMAGE,
            "command": ["sh", "-c", command],
            "env": [{"name": key, "value": value} for key, value in (env or {}).items()],
            "resources": {"limits": {GPU: gpus}} if gpus else {},
        }
        spec = {
            "restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "serviceAccountName": account,
            "containers": [container],
        }  # fmt: skip
        metadata = {"name": name, "namespace": namespace, "annotations": annotations or {}}
        manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        self.lab.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))

    def get(self, name: str, namespace: str) -> Any:
        return json.loads(self.lab.kubectl("get", "pod", name, "-n", namespace, "-o", "json"))

    def output(self, name: str, namespace: str) -> str:
        """What a pod printed until its end."""
        done = {"Succeeded", "Failed"}
        until(
            lambda: self.get(name, namespace)["status"].get("phase") in done, f"{name} to end\n{self.log.read_text()}"
        )
        return self.lab.kubectl("logs", name, "-n", namespace)

    def refusal(self, name: str, namespace: str) -> str:
        """Why a pod's container is not created, as ``kubectl describe pod`` shows it. A look-up that took too long is
        no answer: the kubelet tries again.
        """

        def why() -> str:
            statuses = self.get(name, namespace)["status"].get("containerStatuses", [])
            waiting = statuses[0]["state"].get("waiting", {}) if statuses else {}
            said = waiting.get("message", "") if waiting.get("reason") == "CreateContainerError" else ""
            return "" if AGAIN in said else said

        return until(why, f"{name} to be refused\n{self.log.read_text()}")

    def listed(self, name: str, namespace: str) -> list[str]:
        """The UUIDs that nvidia-smi printed; none where there was no such program."""
        said = self.output(name, namespace)
        return [line.split("UUID: ")[1].rstrip(")") for line in said.splitlines() if "UUID: " in line]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("nri-lab")
    lab = RealLab(LabSpec(name=f"nri-{os.getpid()}", gpus=2), folder=folder / "lab", progress=PlainProgress())
    try:
        hosttools.require_platform()
        hosttools.ensure_host_tools(PlainProgress())
        build.ensure_binaries(PlainProgress())
    except LabError as error:
        unavailable(error.one_line())
    try:
        lab.up()
    except BaseException:
        lab.down()
        raise
    inside = Path(f"/proc/{lab.keeper}/root")
    words = [
        "nri", "--namespace", "gpu-operator", "--allow", "ml", "--allow", "team/trainer",
        "--socket", str(inside / "run/nri/nri.sock"),
        "--pod-resources-socket", str(inside / "var/lib/kubelet/pod-resources/kubelet.sock"),
        "--spec-dir", str(node_dir(lab.paths, CDI_STATIC_DIR)), "--spec-dir", str(inside / "run/cdi"),
        "--kubeconfig", str(lab.kubeconfig), "--root", str(lab.hw_root),
    ]  # fmt: skip
    log = folder / "nri.log"
    with log.open("wb") as out:
        plugin = subprocess.Popen([sys.executable, "-m", "kgpu", *words], env=child_env(), stderr=out)
    try:
        until(lambda: "serving: containerd" in log.read_text(), f"the plugin to serve\n{log.read_text()}")
        for namespace in ("user", "ml", "team"):
            lab.kubectl("create", "namespace", namespace)
            lab.kubectl("create", "serviceaccount", "trainer", "-n", namespace)
        for namespace in ("user", "ml", "team"):
            words = ["get", "serviceaccount", "default", "-n", namespace]
            until(lambda words=words: lab.kubectl_run(*words).returncode == 0, "the default service accounts")
        found = Cluster(lab, [], log)
        found.pod("first", "ml")
        found.uuids = found.listed("first", "ml")
        assert len(set(found.uuids)) == 2
        yield found
    finally:
        plugin.terminate()
        plugin.wait()
        print(log.read_text())
        lab.down()


def test_a_pod_without_a_request_sees_none(cluster: Cluster) -> None:
    cluster.pod("plain", "user", "ls /dev | grep -c nvidia")
    assert cluster.output("plain", "user").strip() == "0"
    cluster.pod("annotated", "user", annotations={ANNOTATION: "nvidia.com/gpu=all"})
    said = cluster.refusal("annotated", "user")
    assert "which pods of namespace user may not have in this way" in said
    assert "request nvidia.com/gpu" in said


def test_what_the_kubelet_gave_stays_its_pods_own(cluster: Cluster) -> None:
    cluster.pod("holder", "user", "nvidia-smi -L; sleep 1000000", gpus=1)
    try:
        until(lambda: "UUID: " in cluster.lab.kubectl_run("logs", "holder", "-n", "user").stdout, "the holder's GPU")
        theirs = cluster.lab.kubectl("logs", "holder", "-n", "user").split("UUID: ")[1].split(")")[0]
        assert theirs in cluster.uuids
        (free,) = set(cluster.uuids) - {theirs}
        cluster.pod("greedy", "ml", env={"NVIDIA_VISIBLE_DEVICES": theirs})
        assert "user/holder" in cluster.refusal("greedy", "ml")
        cluster.pod("rest", "ml", env={"NVIDIA_VISIBLE_DEVICES": "all"})
        assert cluster.listed("rest", "ml") == [free]
    finally:
        cluster.lab.kubectl("delete", "pod", "holder", "-n", "user", "--now")
    cluster.pod("after", "ml", env={"NVIDIA_VISIBLE_DEVICES": "all"})
    assert sorted(cluster.listed("after", "ml")) == sorted(cluster.uuids)


def test_capabilities_and_requirements_of_a_scheduled_pod(cluster: Cluster) -> None:
    look = "nvidia-smi -L; grep -c libcuda.so /proc/self/mountinfo"
    cluster.pod("utility", "user", look, env={"NVIDIA_DRIVER_CAPABILITIES": "utility"}, gpus=1)
    said = cluster.output("utility", "user").splitlines()
    assert "UUID: " in said[0]
    assert said[-1] == "0"
    cluster.pod("newer", "user", look, env={"NVIDIA_REQUIRE_CUDA": "cuda>=99"}, gpus=1)
    assert "is not met here" in cluster.refusal("newer", "user")
    cluster.lab.kubectl("delete", "pod", "newer", "-n", "user", "--now")


def test_a_service_account(cluster: Cluster) -> None:
    wish = {f"{ANNOTATION}/container.main": "nvidia.com/gpu=0"}
    cluster.pod("trainer", "team", annotations=wish, account="trainer")
    assert len(cluster.listed("trainer", "team")) == 1
    cluster.pod("anybody", "team", annotations=wish)
    assert "namespace team may not have" in cluster.refusal("anybody", "team")
    cluster.pod("impostor", "user", annotations=wish, account="trainer")
    assert "namespace user may not have" in cluster.refusal("impostor", "user")
