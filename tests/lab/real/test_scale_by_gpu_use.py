"""A Deployment gets more pods and fewer by what its pods' GPUs do: the page's commands, the real adapter and controller.

The adapter is built for this alone, and a HorizontalPodAutoscaler looks every fifteen seconds: `make test-deep` has it.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kgpu.cli.doctor import look
from kgpu.formats import yaml
from tests.budget import DEEP
from tests.lab.real.conftest import Cluster, until
from tests.lab.real.metrics_adapter import Metrics, served

pytestmark = pytest.mark.skipif(not DEEP, reason="builds prometheus-adapter, and takes minutes: make test-deep")
Object = dict[str, Any]
ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "how-to" / "scale-workloads.md"
SAMPLE = ROOT / "docs" / "samples" / "hpa.yaml"
METRIC = "gpu_utilization"
HPA = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers/serve"


@pytest.fixture
def metrics(gpus: Cluster, tmp_path: Path) -> Iterator[Metrics]:
    with served(gpus.lab, tmp_path) as found:
        try:
            yield found
        finally:
            gpus.lab.kubectl("delete", "--filename", str(SAMPLE), "--ignore-not-found", "--wait")


def commands() -> list[str]:
    """Those of the page's section that go to the cluster."""
    section = PAGE.read_text().split("\n## ")[1]
    lines = "\n".join(re.findall(r"^```sh\n(.*?)^```", section, re.DOTALL | re.MULTILINE)).splitlines()
    return [line for line in lines if line.startswith("kubectl ")]


def run(lab: Any, command: str) -> str:
    """A command as a shell runs it, from the repository's root."""
    shell = f"kubectl() {{ '{lab.kubectl_program}' --kubeconfig '{lab.kubeconfig}' \"$@\"; }}; {command}"
    done = subprocess.run(["sh", "-c", shell], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def replicas(lab: Any) -> int:
    return int((lab.ask(HPA) or {"status": {}})["status"].get("desiredReplicas", 0))


def current(lab: Any) -> str:
    """The average that the controller has seen, "" for none."""
    for one in (lab.ask(HPA) or {"status": {}})["status"].get("currentMetrics") or ():
        return str(one.get("pods", {}).get("current", {}).get("averageValue", ""))
    return ""


def gpu_of(cluster: Cluster, pod: str, metrics: Metrics) -> str:
    """The number of the GPU that a pod holds."""
    until(lambda: metrics.prometheus.query(f'DCGM_FI_DEV_GPU_UTIL{{pod="{pod}"}}'), f"the GPU of {pod}")
    (series,) = metrics.prometheus.query(f'DCGM_FI_DEV_GPU_UTIL{{pod="{pod}"}}')
    return str(series["metric"]["gpu"])


def load(cluster: Cluster, gpu: str, *words: str) -> None:
    cluster.hw("load", "--gpu", gpu, *words)


def explained(cluster: Cluster, metrics: Metrics) -> str:
    """What is shown where nothing is scaled."""
    return f"{metrics.of_pods(METRIC)}\n{cluster.lab.kubectl('describe', 'hpa', 'serve')}"


@pytest.fixture
def scaler(gpus: Cluster) -> Iterator[Cluster]:
    """The sample, where nobody serves the metric that it asks for."""
    gpus.lab.kubectl("apply", "--filename", str(SAMPLE))
    try:
        yield gpus
    finally:
        gpus.lab.kubectl("delete", "--filename", str(SAMPLE), "--wait")


def test_without_the_adapter_the_doctor_says_that_nobody_serves_the_metric(scaler: Cluster) -> None:
    def causes() -> list[str]:
        report = asyncio.run(look(None, "", str(scaler.lab.kubeconfig), ""))
        return [one.cause for one in report.findings if one.id == "ASC-06"]

    condition = "ScalingActive"
    until(lambda: any(one["type"] == condition for one in conditions(scaler.lab)), "the controller to look")
    until(causes, "the doctor to see that")
    assert causes() == [f"HorizontalPodAutoscaler default/serve does not scale: nobody serves the metric {METRIC}"]


def conditions(lab: Any) -> list[Object]:
    return (lab.ask(HPA) or {"status": {}})["status"].get("conditions") or []


def test_a_deployment_grows_and_shrinks_by_what_its_own_gpus_do(gpus: Cluster, metrics: Metrics) -> None:
    apply, *looks = commands()
    run(gpus.lab, apply)
    until(lambda: len(metrics.of_pods(METRIC)) == 1, "the first pod to have a figure")
    (first,) = metrics.of_pods(METRIC)
    own = gpu_of(gpus, first, metrics)
    # What others do counts for nothing.
    for other in range(8):
        if str(other) != own:
            load(gpus, str(other), "one-thread")
    try:
        until(lambda: current(gpus.lab) == "0", "the controller to see an idle GPU")
        assert replicas(gpus.lab) == 1
        # 100 percent on one GPU are 50 on each of two, where the second does nothing.
        for other in range(8):
            if str(other) != own:
                load(gpus, str(other), "--end")
        load(gpus, own, "one-thread")
        until(lambda: replicas(gpus.lab) == 2, "the second pod")
        until(lambda: len(metrics.of_pods(METRIC)) == 2, "both pods to have figures")
        until(lambda: 40 <= float(current(gpus.lab) or 0) <= 60, "the average of both")
        assert replicas(gpus.lab) == 2
        assert metrics.of_pods(METRIC)[first] in {"100", "99", "98"}
        for look in looks:
            assert "serve" in run(gpus.lab, look)
        # Nobody waits five minutes here.
        behavior = {"spec": {"behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}}}}
        gpus.lab.kubectl("patch", "hpa", "serve", "--type=merge", "--patch", yaml.dump(behavior))
        load(gpus, own, "--end")
        until(lambda: replicas(gpus.lab) == 1, "the second pod to go")
    except BaseException:
        print(explained(gpus, metrics))
        raise
