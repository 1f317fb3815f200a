"""What a lab of either kind shows of GPUs that are shared by MPS: configurations, clients in pods, control daemons."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from kgpu.formats.names import DEVICE_PLUGIN_CONFIG_LABEL, ENV_HW_STATE, GPU_RESOURCE
from kgpu.lab.common import CONFIG_MAP
from kgpu.lab.port import Lab, NodeHardware
from tests import on_real
from tests.lab import watched

SHARED: Final = f"{GPU_RESOURCE}.shared"
QUARTER: Final = 81559 // 4
"""MiB of a share of a simulated H100."""
DEADLINE_S: Final = 300.0
_NAMESPACE, _NAME = CONFIG_MAP.split("/")
_IMAGE: Final = "nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0"


def sharing(replicas: int = 4, *, more: str = "", devices: str = '["0"]') -> str:
    """A device plugin's configuration that shares GPUs by MPS, under a name of their own."""
    entry = f"{{name: {GPU_RESOURCE}, replicas: {replicas}, devices: {devices}}}"
    return f"version: v1\nsharing: {{mps: {{renameByDefault: true, resources: [{entry}]}}{more}}}\n"


def counted(allocatable: dict[str, str]) -> dict[str, int]:
    """The GPUs and shares among a node's resources."""
    counts = {name: int(count) for name, count in allocatable.items() if name.startswith(GPU_RESOURCE)}
    return {name: count for name, count in counts.items() if count}  # the kubelet keeps former resources at 0


@dataclass
class MpsLab:
    """A lab whose agent runs the roles deviceplugin and mps, and one of its nodes."""

    lab: Lab
    hardware: NodeHardware

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        done = self.lab.kubectl_run(*words, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @contextlib.contextmanager
    def configured(self, text: str) -> Iterator[None]:
        """The node has this configuration; afterwards the default one, and no pods."""
        try:
            self._write({"tried": text})
            self.kubectl("label", "node", self.hardware.node, "--overwrite", f"{DEVICE_PLUGIN_CONFIG_LABEL}=tried")
            yield
        finally:
            self.kubectl("delete", "pods", "--selector=mps=client", "--grace-period=0", "--force")
            self.kubectl("label", "node", self.hardware.node, f"{DEVICE_PLUGIN_CONFIG_LABEL}-")
            self._write({})

    def _write(self, more: dict[str, str]) -> None:
        config_map = {
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": _NAME, "namespace": _NAMESPACE},
            "data": {"default": "version: v1\n", **more},
        }  # fmt: skip
        self.kubectl("apply", "-f", "-", stdin=json.dumps(config_map))

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """The first true value of a condition."""
        found = on_real.looked_for(condition, DEADLINE_S)
        if found is None:
            shown = self.lab.kubectl_run("get", "pods,events", "--all-namespaces", "--output", "wide").stdout
            pytest.fail(f"not within {DEADLINE_S:g} s: {what}; offered: {self.offered()}\n{shown}")
        return found

    def offered(self) -> dict[str, int]:
        """What pods can have of the node's GPUs."""
        node = json.loads(self.kubectl("get", "node", self.hardware.node, "--output=json"))
        return counted(node["status"].get("allocatable", {}))

    def until_offered(self, **counts: int) -> None:
        """Wait until pods can have so many, and nothing else; ``shared`` for shares, ``whole`` for others."""
        names = {"shared": SHARED, "whole": GPU_RESOURCE}
        wanted = {names[key]: count for key, count in counts.items() if count}
        self.until(lambda: self.offered() == wanted, f"{wanted}")

    def client(self, name: str, *options: str, resource: str = SHARED) -> None:
        """A pod that adds vectors on one device of a resource."""
        container = {
            "name": "cuda", "image": _IMAGE, "command": ["./vectoradd", *options],
            "resources": {"limits": {resource: 1}},
        }  # fmt: skip
        pod = {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"mps": "client"}},
            "spec": {
                "restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container],
                "nodeSelector": {"kubernetes.io/hostname": self.hardware.node},
            },
        }  # fmt: skip
        self.kubectl("apply", "-f", "-", stdin=json.dumps(pod))

    def phase(self, name: str) -> str:
        return self.kubectl("get", "pod", name, "--output=jsonpath={.status.phase}")

    def logs(self, name: str) -> str:
        """What a pod has printed, "" before it runs."""
        return self.lab.kubectl_run("logs", name).stdout

    def events(self, reason: str) -> list[str]:
        """The messages of a node's Events."""
        found = json.loads(
            self.kubectl("get", "events", "--all-namespaces", f"--field-selector=reason={reason}", "--output=json")
        )
        return [event["message"] for event in found["items"]]

    def daemons(self) -> list[int]:
        """PIDs of the node's control daemons."""
        mark = os.fsencode(f"{ENV_HW_STATE}={self.hardware.root}/")
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (process / "cmdline").read_bytes().split(b"\0")
                if os.path.basename(words[0]) != b"nvidia-cuda-mps-control" or b"-d" not in words:
                    continue
                if any(line.startswith(mark) for line in (process / "environ").read_bytes().split(b"\0")):
                    found.append(int(process.name))
        return found


def four_quarters_and_a_whole(mps: MpsLab, *, whole: int) -> None:
    """Four clients have a quarter of one GPU each and get no more; the other GPUs stay as they were."""
    with mps.configured(sharing()):
        mps.until_offered(shared=4, whole=whole - 1)
        mps.client("all", "--memory", "--bytes", "22000000000", resource=GPU_RESOURCE)
        four_quarters(mps)
        mps.until(lambda: mps.phase("all") == "Succeeded", "more than a share of a GPU that is not shared")
        assert not _has_a_quarter(mps, "all")
    mps.until_offered(whole=whole)
    mps.until(lambda: mps.daemons() == [], "the end of the daemon, which another role sees to")


def four_quarters(mps: MpsLab) -> None:
    """Four clients have a quarter of the shared GPU each, and one that asks for more gets an error."""
    for number in range(4):
        mps.client(f"quarter-{number}", "--memory", "--bytes", "19000000000", "--hold", "3600")
    for number in range(4):
        mps.until(partial(_has_a_quarter, mps, f"quarter-{number}"), "a quarter for each")
    mps.kubectl("delete", "pod", "quarter-0", "--grace-period=0", "--force")
    mps.client("greedy", "--bytes", "22000000000")
    mps.until(lambda: mps.phase("greedy") == "Failed", "no more than a share")
    assert "CUDA_ERROR_OUT_OF_MEMORY" in mps.logs("greedy")


def _has_a_quarter(mps: MpsLab, pod: str) -> bool:
    return f"of {QUARTER} MiB" in mps.logs(pod)


def a_killed_daemon_is_back(mps: MpsLab, agent: Callable[[], int], *, whole: int) -> None:
    """Shares are unhealthy while no daemon serves; the loss of the clients is told; new ones work. No restart."""
    with mps.configured(sharing()):
        mps.until_offered(shared=4, whole=whole - 1)
        running = agent()
        mps.client("before", "--memory", "--seconds", "3600")
        mps.until(lambda: _has_a_quarter(mps, "before"), "a client")
        (daemon,) = mps.daemons()
        began = time.monotonic()
        with watched.allocatable(mps.lab, mps.hardware.node) as seen:
            os.kill(daemon, signal.SIGKILL)
            mps.until(lambda: any(SHARED not in counted(now) for now in list(seen)), "no share for new pods")
            print(f"the node offers no share {time.monotonic() - began:.2f} s after the daemon was killed")
        mps.until_offered(shared=4, whole=whole - 1)
        print(f"and all of them again after {time.monotonic() - began:.2f} s")
        mps.until(lambda: mps.phase("before") == "Failed", "the end of the client")
        assert "CUDA_ERROR_MPS_RPC_FAILURE" in mps.logs("before")
        told = mps.until(lambda: mps.events("MpsDaemonLost"), "an Event about the loss")
        assert f"the clients of {SHARED} are lost" in told[0]
        mps.client("after", "--memory")
        mps.until(lambda: mps.phase("after") == "Succeeded", "a new client")
        assert _has_a_quarter(mps, "after")
        assert agent() == running
        assert mps.daemons() not in ([], [daemon])
    mps.until_offered(whole=whole)
    mps.until(lambda: mps.daemons() == [], "the end of the daemon, which another role sees to")
