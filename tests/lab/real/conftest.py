"""The real cluster for the tests: one lab for the whole run, and what the tests need to look at it and disturb it.

Where the machine can't carry it the tests are skipped with the reason; with ``KGPU_REQUIRE_REAL=1`` they fail instead.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import pytest

from kgpu.base.errors import LabError
from kgpu.hw.simulator import operate
from kgpu.lab import processes
from kgpu.lab.progress import PlainProgress
from kgpu.lab.real import build, hosttools
from kgpu.lab.real.cluster import RealLab
from kgpu.lab.real.model import NODE_NAME, LabSpec, node_dir
from tests import on_real

T = TypeVar("T")
# Only ends what would never end: a machine that does much else is slow, not wrong.
DEADLINE_S = 300.0
GPU = "nvidia.com/gpu"
PODS = "/api/v1/namespaces/default/pods"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    on_real.mark(items, __file__)


def until(condition: Callable[[], T], what: str, deadline_s: float = DEADLINE_S) -> T:
    """The first true value of ``condition``; the deadline only ends a wait that would never end."""
    found = on_real.looked_for(condition, deadline_s)
    if found is None:
        pytest.fail(f"waited {deadline_s:.0f} s for {what}")
    return found


@dataclass
class Cluster:
    """A lab as the tests use it."""

    lab: RealLab

    def pod(self, name: str, *, command: str, gpus: int = 1, resource: str = GPU) -> None:
        spec = {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "cuda",
                    "image": "nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0",
                    "command": ["sh", "-c", command],
                    "resources": {"limits": {resource: gpus}} if gpus else {},
                }
            ],
        }
        manifest = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": {"test": "yes"}},
            "spec": spec,
        }
        status, answer = self.lab.server("POST", PODS, manifest)
        assert status == 201, answer

    def delete(self, name: str) -> None:
        """At once, as ``kubectl delete pod --force --grace-period=0`` does; a pod that has gone is well."""
        status, answer = self.lab.server("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")
        assert status in {200, 404}, answer

    def logs(self, name: str) -> str:
        """What the pod has printed so far."""
        status, text = self.lab.server("GET", f"{PODS}/{name}/log", accept="application/json, */*")
        assert status == 200, text
        return str(text)

    def pods(self) -> dict[str, Any]:
        found = self.lab.server("GET", f"{PODS}?labelSelector=test%3Dyes")[1]["items"]
        return {item["metadata"]["name"]: item for item in found}

    def phase(self, name: str) -> str:
        status, pod = self.lab.server("GET", f"{PODS}/{name}")
        assert status == 200, pod
        return pod["status"].get("phase", "")

    def wait_phase(self, name: str, phase: str, deadline_s: float = DEADLINE_S) -> None:
        try:
            until(lambda: self.phase(name) == phase, f"pod {name} to be {phase}", deadline_s)
        except BaseException:
            print(self.lab.kubectl("describe", "pod", name))
            print(self.lab.log_tail("kgpu-agent", 40))
            raise

    def gpus(self, resource: str = GPU) -> tuple[str, str]:
        """(Capacity, Allocatable) of the node."""
        status = self.lab.node()["status"]
        return status["capacity"].get(resource, ""), status["allocatable"].get(resource, "")

    def wait_gpus(self, capacity: str, allocatable: str, deadline_s: float = DEADLINE_S) -> None:
        try:
            until(lambda: self.gpus() == (capacity, allocatable), f"{capacity}/{allocatable} GPUs", deadline_s)
        except BaseException:
            print(self.gpus(), self.lab.log_tail("kgpu-agent", 40))
            raise

    def hw(self, *words: str) -> None:
        """``kgpu lab hw WORDS``."""
        command = [sys.executable, "-m", "kgpu", "lab", "hw", *words, "--root", str(self.lab.hw_root)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def device_plugin_dir(self) -> Path:
        return node_dir(self.lab.paths, "/var/lib/kubelet") / "device-plugins"

    def assignments(self) -> dict[str, set[str]]:
        """What the kubelet itself remembers: pod uid -> device ids."""
        raw = json.loads((self.device_plugin_dir() / "kubelet_internal_checkpoint").read_text())
        found: dict[str, set[str]] = {}
        for entry in raw["Data"]["PodDeviceEntries"] or []:
            for ids in entry["DeviceIDs"].values():
                found.setdefault(entry["PodUID"], set()).update(ids)
        return found

    def registrations(self) -> list[float]:
        """When the kubelet took a registration of the GPU resource, as seconds since the epoch, from its own log."""
        return self._kubelet_log('"Got registration request from device plugin with resource"')

    def is_registered(self) -> bool:
        """Whether the kubelet has the plugin of the agent that runs now.

        For a second after an agent was killed, the node's status still has the GPUs that its kubelet would refuse.
        """
        pid, registered = self.lab.agent_pid, self.registrations()
        if not pid or not registered:
            return False
        try:
            since_boot = processes.record(pid).start / os.sysconf("SC_CLK_TCK")
        except OSError:  # ended meanwhile
            return False
        return registered[-1] >= time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot

    def kubelet_log_lines(self) -> int:
        return len((self.lab.paths.logs / "kubelet.log").read_text(errors="replace").splitlines())

    def _kubelet_log(self, text: str) -> list[float]:
        lines = (self.lab.paths.logs / "kubelet.log").read_text(errors="replace").splitlines()
        return [klog_time(line) for line in lines if text in line]

    def clear(self) -> None:
        """No pods of the tests, healthy GPUs, no slices."""
        for name in self.pods():
            self.delete(name)
        until(lambda: not self.pods(), "the pods to go")
        operate.clear(self.lab.hw_root)


def klog_time(line: str) -> float:
    """The time of a log line of Kubernetes, ``I1121 09:48:35.692466 ...``, which leaves the year out."""
    year, text = datetime.now().year, line[1:21]
    stamp = datetime.strptime(f"{year} {text}", "%Y %m%d %H:%M:%S.%f").timestamp()
    if stamp < time.time() + 3600:
        return stamp
    # Of the last hours of the year before.
    return datetime.strptime(f"{year - 1} {text}", "%Y %m%d %H:%M:%S.%f").timestamp()


@pytest.fixture(scope="session")
def real_machine() -> None:
    """The machine can carry a real lab; what is missing is installed where that is possible."""
    try:
        hosttools.require_platform()
        hosttools.ensure_host_tools(PlainProgress())
        build.find_toolchain()
    except LabError as error:
        on_real.unavailable(error.one_line())


@pytest.fixture(scope="session")
def cluster(real_machine: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The lab of the whole run, with eight simulated H100s and the agent."""
    folder = tmp_path_factory.mktemp("lab") / "tests"
    lab = RealLab(LabSpec(name=f"tests-{os.getpid()}"), folder=folder, progress=PlainProgress())
    try:
        lab.up()
        yield Cluster(lab)
    finally:
        lab.down()


@pytest.fixture
def gpus(cluster: Cluster) -> Iterator[Cluster]:
    """The lab with nothing wrong and nothing running; left that way."""
    until(cluster.is_registered, "the agent to register with the kubelet")
    cluster.wait_gpus("8", "8")
    yield cluster
    cluster.clear()
    cluster.wait_gpus("8", "8")


@pytest.fixture
def node_name() -> str:
    return NODE_NAME
