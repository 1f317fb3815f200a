"""GPUs as claims in an embedded lab: published by the role ``dra``, allocated, prepared, seen in the pod, given back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kgpu.formats.names import ENV_HW_STATE, ENV_RUN_DIR
from kgpu.hw.simulator import operate
from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.embedded.model import FirstNode
from kgpu.lab.nodes.machine import PLUGINS
from kgpu.lab.nodes.manage import hw_root
from kgpu.lab.progress import QuietProgress
from tests import polling
from tests.lab import asking

pytestmark = pytest.mark.timeout(600)
Object = dict[str, Any]
GPU = "gpu.nvidia.com"
MIG = "mig.nvidia.com"


class DraNode:
    """A lab's only node, or the one of this ``name``; its agent is the role ``dra``, usually with slices that are made
    for claims.
    """

    def __init__(self, lab: EmbeddedLab, folder: Path, *, gates: str = "DynamicMIG=true", name: str = "") -> None:
        self.lab = lab
        self.root = hw_root(lab.folder, name) if name else lab.hardware()[0].root
        self.folder = folder
        node = self.root.parent
        self.words = [
            sys.executable, "-m", "kgpu", "agent", "--roles", "dra,health", "--root", str(self.root),
            "--driver-root", str(self.root), "--kubeconfig", str(lab.kubeconfig), "--node-name", node.name,
            "--state-dir", str(folder / "state"), "--kubelet-socket", str(node / PLUGINS / "kubelet.sock"),
        ]  # fmt: skip
        self.env = {
            **os.environ,
            ENV_HW_STATE: str(self.root / "state"),
            ENV_RUN_DIR: str(folder / "run"),
            "KUBELET_REGISTRAR_DIRECTORY_PATH": str(node / "plugins_registry"),
            "KUBELET_PLUGINS_DIRECTORY_PATH": str(folder / "plugins"),
            "CDI_ROOT": str(node / "cdi"),
            "FEATURE_GATES": gates,
        }
        self.process = self.begin()

    def begin(self) -> subprocess.Popen[bytes]:
        with (self.folder / "agent.log").open("ab") as out:
            return subprocess.Popen(self.words, stdout=out, stderr=out, env=self.env)

    def end(self) -> None:
        self.process.terminate()
        self.process.wait()

    def kill(self) -> None:
        """Kill the agent at once, and start it again."""
        self.process.kill()
        self.process.wait()
        self.process = self.begin()

    def ask(self, path: str) -> Any:
        return asking.read(self.lab.kubeconfig, path)

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """The first answer that is true."""
        found: list[Any] = []
        assert polling.holds(lambda: found.append(condition()) or bool(found[-1]), seconds=60), what  # type: ignore[func-returns-value]
        return found[-1]

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        done = self.lab.kubectl_run(*words, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def apply(self, *objects: Object) -> None:
        self.kubectl("apply", "-f", "-", stdin="\n---\n".join(map(json.dumps, objects)))

    def items(self, kind: str) -> list[Object]:
        found: list[Object] = json.loads(self.kubectl("get", kind, "-o", "json"))["items"]
        return found

    def devices(self) -> list[str]:
        assert self.process.poll() is None, (self.folder / "agent.log").read_text()
        return [device["name"] for one in self.items("resourceslices") for device in one["spec"].get("devices", ())]

    def says(self, pod: str, words: str) -> str:
        assert polling.holds(lambda: words in self.lab.kubectl_run("logs", pod).stdout, seconds=60), self.kubectl(
            "get", "events"
        )
        return self.kubectl("logs", pod)

    def slices(self) -> int:
        return sum(len(gpu["mig"]["devices"]) for gpu in operate.snapshot(self.root)["gpus"])

    def remove(self, *pods: str) -> None:
        self.kubectl("delete", "pod", *pods)
        assert polling.holds(lambda: not self.items("resourceclaims"), seconds=60)


@pytest.fixture(scope="module")
def dra(kubectl: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DraNode]:
    del kubectl
    folder = tmp_path_factory.mktemp("dra")
    lab = EmbeddedLab("dra", folder / "lab", QuietProgress(), first=FirstNode(gpus=2, agent=False))
    made: DraNode | None = None
    try:
        lab.up()
        made = DraNode(lab, folder)
        assert polling.holds(lambda: "gpu-1" in made.devices(), seconds=60)
        made.apply(*(device_class(name, name.partition(".")[0]) for name in (GPU, MIG)))
        yield made
    finally:
        if made is not None:
            made.end()
        lab.down()


def device_class(name: str, kind: str) -> Object:
    cel = f"device.driver == '{GPU}' && device.attributes['{GPU}'].type == '{kind}'"
    spec: Object = {"selectors": [{"cel": {"expression": cel}}]}
    if kind == "gpu":
        spec["extendedResourceName"] = "nvidia.com/gpu"
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}


def template(name: str, of: str, cel: str, count: int = 1) -> Object:
    exactly = {"deviceClassName": of, "count": count, "selectors": [{"cel": {"expression": cel}}]}
    spec = {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}}
    metadata = {"name": name}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": metadata, "spec": spec}


def pod(name: str, *, of: str = "", gpus: int = 0, command: str = "nvidia-smi -L") -> Object:
    container: Object = {
        "name": "c", "image": "busybox", "command": ["sh", "-c", f"{command}; exec sleep 3600"],
        "resources": {"claims": [{"name": "mine"}]} if of else {"limits": {"nvidia.com/gpu": gpus}},
    }  # fmt: skip
    spec: Object = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]}
    if of:
        spec["resourceClaims"] = [{"name": "mine", "resourceClaimTemplateName": of}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def test_a_gpu_by_cel_and_slices_of_the_other_that_are_made_and_go(dra: DraNode) -> None:
    dra.apply(
        template("large", GPU, f"device.capacity['{GPU}'].memory.compareTo(quantity('70Gi')) > 0"),
        template("small", MIG, f"device.attributes['{GPU}'].profile == '1g.10gb'", 2),
        pod("whole", of="large"),
    )
    assert dra.says("whole", "GPU 0:").count("GPU ") == 1
    dra.apply(pod("parts", of="small"))
    assert dra.says("parts", "MIG 1g.10gb").count("MIG 1g.10gb") == 2
    assert dra.slices() == 2

    # Of what is left no GPU is whole.
    dra.apply(pod("late", of="large"))
    words = "0/1 nodes are available: 1 cannot allocate all claims."
    assert polling.holds(lambda: words in dra.kubectl("get", "events"), seconds=60)
    dra.kubectl("delete", "pod", "parts")
    assert dra.says("late", "GPU 0:").count("GPU ") == 1
    dra.remove("whole", "late")
    assert polling.holds(lambda: dra.slices() == 0, seconds=60)


def test_the_resource_that_a_class_offers_is_got_by_a_claim(dra: DraNode) -> None:
    dra.apply(pod("counted", gpus=2))
    assert dra.says("counted", "GPU 1:").count("GPU ") == 2
    (claim,) = dra.items("resourceclaims")
    assert claim["metadata"]["name"].startswith("counted-extended-resources-")
    (found,) = dra.items("pods")
    mappings = found["status"]["extendedResourceClaimStatus"]["requestMappings"]
    asked = {"containerName": "c", "resourceName": "nvidia.com/gpu", "requestName": "container-0-request-0"}
    assert mappings == [asked]
    dra.remove("counted")


def test_a_pods_status_tells_that_its_gpu_has_an_xid(dra: DraNode) -> None:
    def health() -> list[str]:
        (found,) = dra.items("pods")
        rows = found["status"]["containerStatuses"][0].get("allocatedResourcesStatus") or ()
        return [f"{row['name']} {resource['health']}" for row in rows for resource in row["resources"]]

    dra.apply(template("any", GPU, "true"), pod("tells", of="any"))
    dra.says("tells", "GPU 0:")
    assert polling.holds(lambda: health() == ["claim:mine Healthy"], seconds=60), health()
    (claim,) = dra.items("resourceclaims")
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    operate.inject(dra.root, "xid", gpu=int(result["device"].removeprefix("gpu-")), xid=79)
    assert polling.holds(lambda: health() == ["claim:mine Unhealthy"], seconds=60), health()
    dra.remove("tells")
