"""GPUs as claims on a real cluster: its scheduler allocates what the role ``dra`` publishes, its kubelet has it prepared."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kgpu.formats import names
from kgpu.hw.simulator import operate
from kgpu.hw.simulator.create import create_root
from kgpu.hw.simulator.state import DriverState
from kgpu.lab.progress import PlainProgress
from kgpu.lab.real.cluster import RealLab
from kgpu.lab.real.model import NODE_NAME, LabSpec
from tests.budget import count
from tests.dra import demos
from tests.lab.real.conftest import Cluster, until
from tests.lab.real.dra_kills import LISTED, LISTING, Churn

GATES = (
    "DRAPartitionableDevices=true", "DRADeviceTaints=true", "DRAExtendedResource=true", "ResourceHealthStatus=true"
)  # fmt: skip
API_VERSIONS = ("resource.k8s.io/v1beta1",)
CLASSES = """
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu.nvidia.com}
spec:
  extendedResourceName: nvidia.com/gpu
  selectors:
  - cel: {expression: "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'"}
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: mig.nvidia.com}
spec:
  selectors:
  - cel: {expression: "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'mig'"}
"""


class DraLab:
    """A real cluster without an agent, and the role ``dra`` beside its kubelet, which can be killed and started."""

    def __init__(self, cluster: Cluster, log: Path) -> None:
        self.cluster = cluster
        self.lab = cluster.lab
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, gates: str = "", roles: str = "dra") -> None:
        paths = self.lab.paths
        argv = [
            sys.executable, "-m", "kgpu", "agent", "--roles", roles, "--root", str(paths.hw),
            "--kubeconfig", str(self.lab.kubeconfig), "--node-name", NODE_NAME,
            "--state-dir", "/var/lib/kgpu-dra",
        ]  # fmt: skip
        words = [
            "env", f"{names.ENV_HW_STATE}={paths.hw}/state", f"PYTHONPATH={os.environ.get('PYTHONPATH', '')}",
            f"NVIDIA_DRIVER_ROOT={paths.hw}", f"FEATURE_GATES={gates}",
        ]  # fmt: skip
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(self.lab.in_node([*words, *argv]), stdout=out, stderr=out)

    def kill(self) -> None:
        self.until(self._is_killed, "the agent to end")

    def _is_killed(self) -> bool:
        """One that has only just been started may not have its command line yet, and is not hit."""
        assert self.process is not None
        self.lab_shell("pkill -KILL -f 'kgpu agent --roles [d]ra' || true")
        return self.process.poll() is not None

    @property
    def root(self) -> Path:
        return self.lab.hw_root

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        return self.lab.kubectl(*words, stdin=stdin)

    def ask(self, path: str) -> Any:
        status, answer = self.lab.server("GET", path, accept="application/json, */*")
        assert status == 200, answer
        return answer

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        return until(condition, what)

    def lab_shell(self, script: str) -> str:
        return subprocess.run(self.lab.in_node(["sh", "-c", script]), capture_output=True, text=True, check=True).stdout

    def devices(self) -> list[str]:
        """The names of all that is published; fails where nobody publishes any more."""
        assert self.process is not None
        assert self.process.poll() is None, "the agent has ended"
        found = json.loads(self.lab.kubectl("get", "resourceslices", "-o", "json"))["items"]
        return sorted(device["name"] for one in found for device in one["spec"].get("devices") or ())

    def claim(
        self, name: str, *, of: str = "gpu.nvidia.com", count: int = 1, cel: str = "", sharing: Any = None
    ) -> None:
        selectors = [{"cel": {"expression": cel}}] if cel else []
        exactly: dict[str, Any] = {"deviceClassName": of, "count": count, "selectors": selectors}
        manifest: dict[str, Any] = {
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
        }  # fmt: skip
        if sharing is not None:
            parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": sharing}
            config = [{"opaque": {"driver": "gpu.nvidia.com", "parameters": parameters}}]
            manifest["spec"]["devices"]["config"] = config
        self.lab.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))

    def template(self, name: str) -> None:
        """Of claims of one GPU that stay when it is tainted."""
        exactly = {"deviceClassName": "gpu.nvidia.com", "tolerations": [{"operator": "Exists"}]}
        manifest = {
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": name},
            "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}},
        }  # fmt: skip
        self.lab.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))

    def pod(self, name: str, claim: str, *vectors: str, containers: int = 1, made: bool = False) -> None:
        """Containers that list the claim's GPUs, or add vectors on one of them with these options.

        ``made``: ``claim`` is a template's name.
        """
        image = "kgpu.dev/cuda-sample:vectoradd" if vectors else "kgpu.dev/cuda:base"
        command = ["./vectoradd", *vectors] if vectors else ["sh", "-c", LISTING]
        each = [
            {
                "name": f"cuda-{number}", "image": image, "command": command,
                "resources": {"claims": [{"name": "mine"}]},
            }
            for number in range(containers)
        ]  # fmt: skip
        manifest = {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"test": "yes"}},
            "spec": {
                "restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": each,
                "resourceClaims": [{"name": "mine", "resourceClaimTemplateName" if made else "resourceClaimName": claim}],
            },
        }  # fmt: skip
        self.lab.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))

    def health(self, pod: str) -> dict[str, str]:
        """What the kubelet tells of each device of the pod's claims, by its id."""
        (container,) = self.ask(f"/api/v1/namespaces/default/pods/{pod}")["status"]["containerStatuses"]
        rows = container.get("allocatedResourcesStatus") or ()
        return {one["resourceID"]: one["health"] for row in rows for one in row.get("resources") or ()}

    def says(self, pod: str, words: str, *, container: str = "cuda-0") -> str:
        """What the pod has printed, once these words are among it; of GPUs that it lists, all."""

        def said() -> str:
            text = self.lab.kubectl_run("logs", pod, "--container", container).stdout
            return text if words in text and ("UUID: " not in text or LISTED in text) else ""

        return until(said, f"{pod}: {words}")

    def timeslices(self) -> list[int]:
        """Of each GPU, as the simulated driver has it."""
        state = DriverState.open(self.lab.hw_root / "state", writable=False)
        try:
            return [int(state.gpu(index).timeslice) for index in range(8)]
        finally:
            state.close()

    def daemons(self) -> list[str]:
        """PIDs of MPS control daemons on the node."""
        return self.lab_shell("pgrep -f '[n]vidia-cuda-mps-control -d' || true").split()

    def files(self) -> tuple[list[str], list[str]]:
        """Records of claims, and their CDI specs."""
        both = self.lab_shell(
            "ls /var/lib/kubelet/plugins/gpu.nvidia.com/claims 2>/dev/null; echo --; ls /var/run/cdi | grep claim_ || true"
        )
        records, specs = both.split("--\n")
        return records.split(), specs.split()


@pytest.fixture(scope="module")
def dra(real_machine: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DraLab]:
    folder = tmp_path_factory.mktemp("dra")
    lab = RealLab(
        LabSpec(name=f"dra-{os.getpid()}", agent=False, feature_gates=GATES, api_versions=API_VERSIONS),
        folder=folder / "lab",
        progress=PlainProgress(),
    )
    made = DraLab(Cluster(lab), folder / "agent.log")
    try:
        lab.up()
        lab.kubectl("apply", "-f", "-", stdin=CLASSES)
        made.start()
        until(lambda: len(made.devices()) == 8, "eight devices")
        yield made
    except BaseException:
        print(made.log.read_text()[-5000:] if made.log.exists() else "")
        raise
    finally:
        if made.process is not None:
            made.kill()
        lab.down()


def test_a_claim_gets_a_gpu_by_its_attributes_and_memory(dra: DraLab) -> None:
    assert dra.devices() == [f"gpu-{number}" for number in range(8)]
    dra.claim(
        "one",
        cel="device.attributes['gpu.nvidia.com'].productName.contains('H100') && "
        "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('40Gi')) > 0",
    )
    dra.pod("first", "one")
    dra.pod("second", "one")
    said = dra.says("first", "GPU 0:")
    assert said.count("GPU ") == 1
    assert dra.says("second", "GPU 0:") == said
    assert len(dra.files()[0]) == len(dra.files()[1]) == 1


def test_killed_and_started_again_it_gives_back_what_it_had_prepared(dra: DraLab) -> None:
    dra.claim("two", count=2)
    dra.pod("third", "two")
    assert dra.says("third", "GPU 1:").count("GPU ") == 2
    dra.kill()
    dra.lab.kubectl("delete", "pod", "third", "--wait=false")
    dra.start()
    until(lambda: len(dra.files()[0]) == 1, "the claim of the pod that has gone to be unprepared")
    for name in ("first", "second"):
        dra.lab.kubectl("delete", "pod", name, "--wait=false")
    until(lambda: dra.files() == ([], []), "no claim to be prepared")


def test_what_is_wrong_with_parameters_is_told_of_the_pod(dra: DraLab) -> None:
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": {"strategy": "Fabric"}}
    manifest = {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "odd"},
        "spec": {"devices": {
            "requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}],
            "config": [{"opaque": {"driver": "gpu.nvidia.com", "parameters": parameters}}],
        }},
    }  # fmt: skip
    dra.lab.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
    dra.pod("odd", "odd")
    words = "sharing.strategy: unknown strategy Fabric"
    until(lambda: words in dra.lab.kubectl("get", "events", "--field-selector=involvedObject.name=odd"), words)
    dra.lab.kubectl("delete", "pod", "odd", "--wait=false")
    assert dra.files() == ([], [])


def test_slices_that_are_there_are_devices_in_place_of_their_gpu(dra: DraLab) -> None:
    done = dra.lab_shell(
        f"{names.ENV_HW_STATE}={dra.lab.paths.hw}/state {dra.lab.paths.hw}/usr/bin/nvidia-smi -i 7 -mig 1 && "
        f"{names.ENV_HW_STATE}={dra.lab.paths.hw}/state {dra.lab.paths.hw}/usr/bin/nvidia-smi mig -i 7 -cgi 9,9 -C"
    )
    assert "Successfully created" in done
    until(lambda: "gpu-7" not in dra.devices() and len(dra.devices()) == 9, "two slices in place of GPU 7")
    dra.claim("slice", of="mig.nvidia.com", cel="device.attributes['gpu.nvidia.com'].profile == '3g.40gb'")
    dra.pod("sliced", "slice")
    assert "MIG 3g.40gb" in dra.says("sliced", "MIG")
    dra.lab.kubectl("delete", "pod", "sliced", "--wait=false")
    until(lambda: dra.files() == ([], []), "no claim to be prepared")
    assert len(operate.snapshot(dra.lab.hw_root)["gpus"][7]["mig"]["devices"]) == 2


def test_a_pod_that_asks_for_the_resource_gets_a_gpu_by_a_claim(dra: DraLab) -> None:
    container = {
        "name": "cuda-0", "image": "kgpu.dev/cuda:base", "command": ["sh", "-c", LISTING],
        "resources": {"limits": {"nvidia.com/gpu": 2}},
    }  # fmt: skip
    manifest = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "counted", "labels": {"test": "yes"}},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]},
    }  # fmt: skip
    dra.lab.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
    assert dra.says("counted", "GPU 1:").count("GPU ") == 2
    dra.lab.kubectl("delete", "pod", "counted", "--wait=false")
    until(lambda: dra.files() == ([], []), "no claim to be prepared")


def test_the_kubelet_shows_in_pods_how_their_gpus_are(dra: DraLab) -> None:
    dra.kill()
    dra.start(roles="dra,health")
    dra.template("watched")
    dra.pod("watched", "watched", made=True)
    said = dra.says("watched", "GPU 0:")
    until(lambda: list(dra.health("watched").values()) == ["Healthy"], "a healthy GPU in the pod's status")
    gpus = operate.snapshot(dra.root)["gpus"]
    (held,) = (index for index, gpu in enumerate(gpus) if gpu["uuid"] in said)
    operate.inject(dra.root, "lost", gpu=held)
    until(lambda: list(dra.health("watched").values()) == ["Unhealthy"], "an unhealthy GPU in the pod's status")
    assert dra.ask("/api/v1/namespaces/default/pods/watched")["status"]["phase"] == "Running"
    operate.clear(dra.root)
    until(lambda: list(dra.health("watched").values()) == ["Healthy"], "a GPU that is well again")
    dra.lab.kubectl("delete", "pod", "watched", "--wait=false")
    until(lambda: dra.files() == ([], []), "no claim to be prepared")


def test_a_slice_is_made_for_a_claim_and_goes_with_it(dra: DraLab) -> None:
    dra.kill()
    dra.start("DynamicMIG=true")
    until(lambda: len(dra.devices()) > 100, "every slice that can be made")
    dra.claim("made", of="mig.nvidia.com", count=3, cel="device.attributes['gpu.nvidia.com'].profile == '1g.10gb'")
    dra.pod("cut", "made")
    assert dra.says("cut", "MIG 1g.10gb").count("MIG 1g.10gb") == 3
    others = [gpu["mig"]["devices"] for gpu in operate.snapshot(dra.lab.hw_root)["gpus"][:7]]
    assert sum(map(len, others)) == 3
    dra.claim("whole", count=6)
    dra.pod("six", "whole")
    assert dra.says("six", "GPU 5:").count("GPU ") == 6
    for name in ("cut", "six"):
        dra.lab.kubectl("delete", "pod", name, "--wait=false")
    until(lambda: dra.files() == ([], []), "no claim to be prepared")
    assert not any(
        gpu["mig"]["devices"] or gpu["mig"]["enabled"] for gpu in operate.snapshot(dra.lab.hw_root)["gpus"][:7]
    )


def test_killed_at_any_moment_it_holds_nothing_twice_and_leaves_nothing(dra: DraLab) -> None:
    """The driver at a random moment of pods that come and go; with every tenth kill the kubelet restarts, too."""
    kills = count(4, 200)
    churn = Churn(dra.lab, seed=count(1, int(time.time())))
    print(f"seed {churn.seed}")
    dra.kill()
    churn.templates()
    for number in range(kills):
        dra.start("DynamicMIG=true")
        churn.fill()
        churn.pause()
        churn.end(churn.chance.randint(1, 5))
        churn.pause()
        churn.check()
        dra.kill()
        if number % 10 == 0:
            dra.lab.kill("kubelet")
    dra.start("DynamicMIG=true")
    churn.fill()
    churn.settled()
    churn.end(len(churn.alive))
    until(lambda: dra.files() == ([], []), "no claim to be prepared")
    gpus = operate.snapshot(dra.lab.hw_root)["gpus"][:7]
    assert not any(gpu["mig"]["devices"] or gpu["mig"]["enabled"] for gpu in gpus)
    assert churn.most >= 2
    print(f"{churn.made} claims, {kills} kills")


def test_containers_share_a_gpu_as_their_claims_say(dra: DraLab) -> None:
    """By a longer time slice, and by MPS with limits: whoever asks for more than its share gets out of memory."""
    dra.kill()
    dra.start("TimeSlicingSettings=true,MPSSupport=true")
    until(lambda: len(dra.devices()) == 9, "whole GPUs, and the slices of the last one")
    sliced = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
    limits = {"defaultActiveThreadPercentage": 50, "defaultPinnedDeviceMemoryLimit": "10Gi"}
    dra.claim("sliced", sharing=sliced)
    dra.claim("served", sharing={"strategy": "MPS", "mpsConfig": limits})
    dra.pod("turns", "sliced", "--memory", "--hold", "3600", containers=2)
    for container in ("cuda-0", "cuda-1"):
        dra.says("turns", "of 81007 MiB", container=container)
    assert sorted(dra.timeslices()) == [0] * 7 + [3]
    dra.pod("within", "served", "--memory", "--bytes", "9000000000", "--hold", "3600")
    dra.pod("beyond", "served", "--memory", "--bytes", "11000000000")
    dra.says("within", "of 10240 MiB")
    dra.says("beyond", "CUDA_ERROR_OUT_OF_MEMORY")
    daemons = dra.daemons()
    dra.kill()  # what is set for claims stays, and so does their daemon, for the next agent
    dra.start("TimeSlicingSettings=true,MPSSupport=true")
    until(lambda: len(dra.devices()) == 9, "the agent to be back")
    assert len(dra.daemons()) == len(daemons) == 1
    dra.pod("again", "served", "--memory", "--bytes", "9000000000")
    dra.says("again", "of 10240 MiB")
    for name in ("turns", "within", "beyond", "again"):
        dra.lab.kubectl("delete", "pod", name, "--wait=false")
    until(lambda: dra.files() == ([], []), "no claim to be prepared")
    assert dra.timeslices() == [0] * 8
    assert dra.daemons() == []


def test_demos_run_unchanged(dra: DraLab) -> None:
    """The manifests of NVIDIA's driver and the cases of Kubernetes' example driver, on a node with other GPUs."""
    dra.kill()
    create_root(str(demos.GPUS), dra.root, force=True)
    demos.cut(dra.root)
    for gates in (demos.SHARED, demos.MADE):
        dra.start(gates)
        until(lambda: "gpu-12" in dra.devices(), "the devices of the demos' node")
        for batch in demos.batches(gates, beta=True):
            demos.play(dra, batch)
        until(lambda: dra.files() == ([], []), "no claim to be prepared")
        dra.kill()
