"""The queries by which workloads are scaled, from ``docs/samples``, have what each pod does on a real Prometheus."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kgpu.formats import yaml
from kgpu.formats.names import ENV_METRICS_PORT
from kgpu.hw.simulator.create import create_root
from tests.monitoring.adapter_rules import AdapterRule, rules
from tests.monitoring.test_prometheus import uuids
from tests.monitoring.world import Kubelet, Node, Prometheus, closing, free_port, rendered, scrape_config, until

KEDA = Path(__file__).parents[2] / "docs" / "samples" / "keda.yaml"
BUSY, IDLE = "serve-a", "serve-b"
SPACE = "default"
JOBS = {"nvidia-dcgm-exporter": "exporter", "kgpu-gpu-usage": "usage"}


@dataclass
class ScaledWorld:
    """One pod works, another holds a GPU and does nothing, and a third of another namespace works."""

    prometheus: Prometheus
    node: Node

    def values(self, query: str) -> dict[str, float]:
        """By pod; "" for a sum."""
        return {one["metric"].get("pod", ""): float(one["value"][1]) for one in self.prometheus.query(query)}


@pytest.fixture(scope="module")
def world(prometheus_bin: Path, sim_libs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScaledWorld]:
    folder = tmp_path_factory.mktemp("scaling")
    root = Path(create_root("hgx-h100", folder / "root", gpus=3, seed="scaling"))
    node = Node("n1", folder, root, free_port(), ("agent", "--roles", "exporter,usage", "--labels-sink", "none"))
    usage = free_port()
    held = {
        (namespace, name, "model"): {"nvidia.com/gpu": (uuid,)}
        for (namespace, name), uuid in zip(((SPACE, BUSY), (SPACE, IDLE), ("other", BUSY)), uuids(root), strict=True)
    }
    with contextlib.ExitStack() as stack:
        (folder / "pod-resources").mkdir()
        kubelet = Kubelet(folder / "pod-resources", held)
        stack.enter_context(closing(kubelet))
        node.env = {
            "DCGM_EXPORTER_KUBERNETES": "true", "DCGM_POD_RESOURCES_KUBELET_SOCKET": str(kubelet.socket),
            "KUBELET_SOCKET": str(folder / "device-plugins" / "kubelet.sock"), ENV_METRICS_PORT: str(usage),
        }  # fmt: skip
        stack.enter_context(closing(node))
        for gpu in ("0", "2"):
            node.hw("load", "--gpu", gpu, "one-thread")
        node.start()
        until("the node serves", node.begun)
        monitors = {one["metadata"]["name"]: one for one in rendered() if one["kind"] == "ServiceMonitor"}
        ports = {"exporter": node.port, "usage": usage}
        jobs: list[Any] = [
            scrape_config(monitors[name], {"n1": (f"127.0.0.1:{ports[of]}", f"kgpu-agent-{of}")})
            for name, of in JOBS.items()
        ]
        prometheus = Prometheus(prometheus_bin / "prometheus", folder, {"scrape_configs": jobs})
        stack.enter_context(closing(prometheus))
        until("Prometheus answers", prometheus.ready)
        yield ScaledWorld(prometheus, node)


@pytest.mark.parametrize("rule", rules().values(), ids=rules())
def test_a_rule_of_the_adapter_has_each_pods_own_use_in_percent(world: ScaledWorld, rule: AdapterRule) -> None:
    """Another namespace's pod of the same name is not counted, and neither is the exporter's own."""
    query = rule.asked(SPACE, (BUSY, IDLE))
    until(f"both pods are in {rule.series}", lambda: set(world.values(query)) == {BUSY, IDLE})
    # A scrape that a busy machine was too late for leaves a gap.
    until("the busy one is above what is scaled at", lambda: 60 < world.values(query).get(BUSY, 0) <= 101)
    until("the idle one does nothing", lambda: world.values(query).get(IDLE) == 0)
    until("no other pod is asked about", lambda: set(world.values(f"count by (pod) ({rule.series})")) == {BUSY, IDLE})


def test_a_rule_answers_for_the_pods_that_are_asked_for_alone() -> None:
    rule = dataclasses.replace(rules()["gpu_utilization"], query="x{<<.LabelMatchers>>} by (<<.GroupBy>>)")
    assert rule.asked("ml", ("a", "b")) == 'x{namespace="ml",pod=~"a|b"} by (pod)'


def test_kedas_query_has_one_value_the_sum_over_the_pods(world: ScaledWorld) -> None:
    (trigger,) = yaml.load(KEDA.read_text())["spec"]["triggers"]
    query = trigger["metadata"]["query"]
    until("the sum is there", lambda: list(world.values(query)) == [""])
    until("it is the busy pod's", lambda: world.values(query).get("") == pytest.approx(100, abs=15))
    gone = query.replace("serve-", "gone-")
    assert world.values(gone) == {}, "what KEDA would count as 0 without ignoreNullValues"


def test_a_pod_is_not_called_idle_while_the_driver_is_silent(world: ScaledWorld) -> None:
    """It has no value then, and a HorizontalPodAutoscaler takes no pod away for one that has none."""
    query = rules()["gpu_busy"].asked(SPACE, (BUSY, IDLE))
    until("the idle one is there", lambda: IDLE in world.values(query))
    world.node.hw("inject", "hang", "--gpu", "1")
    try:
        until("it has no value", lambda: IDLE not in world.values(query))
    finally:
        world.node.hw("clear")
    until("it is back", lambda: IDLE in world.values(query))
