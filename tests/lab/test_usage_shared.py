"""What is recorded of GPUs that are not one pod's alone, in an operated embedded lab: replicas, MIG slices, a DRA claim."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from kgpu.base.errors import UserError
from kgpu.formats.names import ALLOCATION_LABEL, GPU_OPERATOR_NAMESPACE
from kgpu.formats.usage import HolderSharing, RecordedGpu, RecordedHolder
from kgpu.hw.simulator import mig
from kgpu.kube.client import connect
from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.embedded.model import FirstNode
from kgpu.lab.nodes import manage
from kgpu.lab.port import kubectl as run_kubectl
from kgpu.lab.progress import QuietProgress
from kgpu.usage.agents import UsageAgents
from kgpu.usage.history import recorded_in
from tests import polling
from tools import lab_operator

pytestmark = pytest.mark.timeout(900)
WAIT_S = 300.0
CLAIMS = "hgx-h100-1"
SHARED = """
apiVersion: v1
kind: ConfigMap
metadata: {name: shared, namespace: gpu-operator}
data:
  any: |
    version: v1
    sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: one, namespace: default}
spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]}}
"""
WORKS, WAITS = ("pytorch/pytorch", "gpu-load"), ("nvidia/cuda", "sleep, infinity")
POD = """
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: default}
spec:
  terminationGracePeriodSeconds: 1
  resourceClaims: [%s]
  containers: [{name: main, image: %s, command: [%s], resources: {%s}}]
"""
CLAIM = "{name: gpu, resourceClaimName: one}"
PODS = (
    POD % ("replica-works", "", *WORKS, "limits: {nvidia.com/gpu: 1}"),
    POD % ("replica-waits", "", *WAITS, "limits: {nvidia.com/gpu: 1}"),
    POD % ("slice-works", "", *WORKS, "limits: {nvidia.com/mig-3g.40gb: 1}"),
    POD % ("claim-works", CLAIM, *WORKS, "claims: [{name: gpu}]"),
    POD % ("claim-waits", CLAIM, *WAITS, "claims: [{name: gpu}]"),
)
NAMES = frozenset({"replica-works", "replica-waits", "slice-works", "claim-works", "claim-waits"})


@pytest.fixture(scope="module")
def lab(helm: str, kubectl: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedLab]:
    """A node with a GPU that two pods share and one that is cut, and a node whose GPU goes to claims."""
    del kubectl
    folder = tmp_path_factory.mktemp("usage-shared") / "lab"
    made = EmbeddedLab("usage-shared", folder, QuietProgress(), first=FirstNode(gpus=2), operator=True)
    try:
        made.up()
        (hardware,) = made.hardware()
        mig.partition(hardware.root, 1, ["3g.40gb", "1g.10gb"])
        manage.add_to_running(folder, "hgx-h100", gpus=1)
        assert polling.holds(lambda: made.kubectl_run("get", "node", CLAIMS).returncode == 0, seconds=WAIT_S, pause=0.5)
        run_kubectl(made, "label", "node", CLAIMS, f"{ALLOCATION_LABEL}=dra")
        run_kubectl(made, "apply", "--filename", "-", stdin=SHARED)
        values = ("usage.enabled=true", "dra.enabled=true", "mig.strategy=mixed", "devicePlugin.config.name=shared",
                  "devicePlugin.config.default=any", "usage.history.enabled=false")  # fmt: skip
        objects = lab_operator.made(helm, *values, kinds=("resource.k8s.io/v1/DeviceClass",))
        run_kubectl(made, "apply", "--server-side", "--force-conflicts", "--filename", "-", stdin=objects)
        run_kubectl(made, "apply", "--filename", "-", stdin="---".join(PODS))
        yield made
    finally:
        made.down()


async def lines(lab: EmbeddedLab) -> list[RecordedGpu]:
    """All that the agents have written."""
    api = connect(str(lab.kubeconfig))
    try:
        return (await recorded_in(UsageAgents(api, namespace=GPU_OPERATOR_NAMESPACE, direct=False))).devices
    except UserError:  # nothing yet
        return []
    finally:
        await api.close()


def holders(found: list[RecordedGpu]) -> dict[str, RecordedHolder]:
    """By pod, as they were recorded last."""
    return {holder.pod: holder for line in found for holder in line.holders}


@pytest.fixture(scope="module")
def recorded(lab: EmbeddedLab) -> list[RecordedGpu]:
    """The lines once all pods have run for a while, and have gone."""

    def running() -> bool:
        done = lab.kubectl_run("get", "pods", "--output", "jsonpath={.items[*].status.phase}")
        return done.stdout.split() == ["Running"] * len(PODS)

    def seen() -> bool:
        """Whether the agents have looked while all of them ran: they know what those did that work."""
        text = "".join(
            lab.kubectl_run("get", "--raw", f"/api/v1/namespaces/{GPU_OPERATOR_NAMESPACE}/pods/{pod}:9410/proxy/metrics").stdout
            for pod in lab.kubectl_run(
                "-n", GPU_OPERATOR_NAMESPACE, "get", "pods", "-l", "app=kgpu-agent", "-o", "jsonpath={.items[*].metadata.name}"
            ).stdout.split()
        )  # fmt: skip
        busy = [line for line in text.splitlines() if line.startswith("kgpu_usage_busy_seconds_total{")]
        return all(
            any(f'pod="{name}"' in line and float(line.split()[-1]) > 5 for line in busy)
            for name in NAMES
            if "works" in name
        )

    evidence = lambda: lab.kubectl_run("get", "pods,resourceclaims", "-A").stdout + lab.log_tail("server", 20)  # noqa: E731
    assert polling.holds(running, seconds=WAIT_S, pause=1.0), evidence()
    assert polling.holds(seen, seconds=WAIT_S, pause=2.0), evidence()
    run_kubectl(lab, "delete", "pods", "--all", "--namespace", "default", "--wait=false")
    found: list[RecordedGpu] = []

    def written() -> bool:
        found[:] = asyncio.run(lines(lab))
        return holders(found).keys() >= NAMES

    assert polling.holds(written, seconds=WAIT_S, pause=2.0), holders(found).keys()
    return found


def test_who_had_which_part_and_by_which_right(recorded: list[RecordedGpu]) -> None:
    by_pod = holders(recorded)
    rights = {name: (one.sharing, one.replicas, one.units, one.claim) for name, one in by_pod.items() if name in NAMES}
    assert rights == {
        "replica-works": (HolderSharing.TIME_SLICING, 2, 1, ""),
        "replica-waits": (HolderSharing.TIME_SLICING, 2, 1, ""),
        "slice-works": (HolderSharing.WHOLE, 1, 1, ""),
        "claim-works": (HolderSharing.CLAIM, 1, 1, "default/one"),
        "claim-waits": (HolderSharing.CLAIM, 1, 1, "default/one"),
    }
    (cut,) = {line.device for line in recorded if line.partitions}
    (parts,) = {frozenset(part.profile for part in line.partitions) for line in recorded if line.device == cut}
    assert parts == {"3g.40gb", "1g.10gb"}
    assert by_pod["slice-works"].partition
    for works in ("replica-works", "slice-works", "claim-works"):
        assert by_pod[works].busy_us, works
    assert not by_pod["replica-waits"].busy_us, "what its neighbour does is not its work"


def test_all_of_each_gpus_time_is_in_its_states(recorded: list[RecordedGpu]) -> None:
    last = {line.device: line for line in recorded}
    first = {line.device: line for line in reversed(recorded)}
    assert len(last) == 3
    for device, line in last.items():
        passed = line.uptime_us - first[device].uptime_us
        assert sum(line.states_us.values()) == passed
        for part in line.partitions:
            assert sum(part.states_us.values()) == passed, part.profile


def test_the_rows_sum_to_the_whole(lab: EmbeddedLab, recorded: list[RecordedGpu]) -> None:
    def usage(*words: str) -> Any:
        command = (
            sys.executable,
            "-m",
            "kgpu",
            "usage",
            "--kubeconfig",
            str(lab.kubeconfig),
            "--output",
            "json",
            *words,
        )
        return json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=WAIT_S).stdout)

    del recorded
    for by in ("owner", "node", "product"):
        found = usage("--by", by)
        assert sum(row["gpu_hours"] for row in found["rows"]) == pytest.approx(found["total"]["gpu_hours"], abs=1e-4)
        assert sum(row["cost"] for row in found["rows"]) == pytest.approx(found["total"]["cost"], abs=1e-5)
    rows = {row["name"].removeprefix("default/Pod/"): row for row in usage("--by", "owner")["rows"]}
    both = (rows["replica-works"], rows["replica-waits"])
    assert sum(row["gpu_hours"] for row in both) == pytest.approx(max(row["held_hours"] for row in both), abs=5e-3)
    assert rows["slice-works"]["gpu_hours"] == pytest.approx(rows["slice-works"]["held_hours"] / 2, abs=1e-3)
    claims = (rows["claim-works"], rows["claim-waits"])
    assert sum(row["gpu_hours"] for row in claims) == pytest.approx(max(row["held_hours"] for row in claims), abs=5e-3)
