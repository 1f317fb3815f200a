"""The drivers of a thousand nodes upgraded: the operator's decisions and the engine on a cluster in memory.

``python -m bench.upgrades [--nodes 1000]``. The operator decides once in a simulated second which upgrades to make; the
engine carries them out. Kubelets, agents and drivers are those of the engine's tests, and take no time of their own.
The budget is checked after every write.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from bench.measures import World
from kgpu.base.clock import settle
from kgpu.formats import names
from kgpu.formats.crd.nodeoperation import OperationPhase
from kgpu.kube.kinds import NODE_OPERATIONS
from kgpu.kube.port import NODES, Object, Resource
from kgpu.operations.config import OperationBudget, Share
from kgpu.operations.model import BEGUN
from kgpu.operator.model import UpgradeOperation
from kgpu.operator.nodes import read_node
from kgpu.operator.projections import driver_pods
from kgpu.operator.projections import operation as read_operation
from kgpu.operator.projections import pod as read_pod
from kgpu.operator.upgrade_operations import upgrade_plan
from kgpu.operator.upgrade_rules import UpgradeRules
from kgpu.operator.upgrades import node_upgrades, wanted_driver
from tests.operations.sim_drivers import DAEMON_SET, NAMESPACE, image
from tests.operations.world import Cluster, Engine

PARALLEL: Final = 50
SHARE: Final = 10
LOOK_S: Final = 0.5
LIMIT_S: Final = 4000.0
"""Simulated seconds."""
_DIGEST: Final = "2"
_RULES: Final = UpgradeRules(
    asked_by="ClusterPolicy bench", auto=True, drain={"onlyGpuPods": True, "timeoutSeconds": 300},
    rollout={"name": "bench", "maxParallel": PARALLEL, "maxUnavailable": f"{SHARE}%"},
)  # fmt: skip
_GPU: Final = {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}


class Counted(Cluster):
    """Counts reads, and after each write how many upgrades are under way."""

    def __init__(self) -> None:
        super().__init__()
        self.read_calls = 0
        self.under_way: set[str] = set()
        self.most = 0
        self.cordoned: set[str] = set()
        self.most_cordoned = 0

    async def get(self, resource: Resource, name: str, **more: Any) -> Object | None:
        self.read_calls += 1
        return await super().get(resource, name, **more)

    async def list(self, resource: Resource, **more: Any) -> Any:
        self.read_calls += 1
        return await super().list(resource, **more)

    def put(self, resource: Resource, obj: Object, **more: Any) -> Object:
        return self._seen(resource, super().put(resource, obj, **more))

    async def apply(self, resource: Resource, obj: Object, **more: Any) -> Object:
        return self._seen(resource, await super().apply(resource, obj, **more))

    def _seen(self, resource: Resource, obj: Object) -> Object:
        name = obj["metadata"]["name"]
        if resource == NODE_OPERATIONS:
            _keep(self.under_way, name, held=(obj.get("status") or {}).get("phase") in BEGUN)
            self.most = max(self.most, len(self.under_way))
        elif resource == NODES:
            _keep(self.cordoned, name, held=bool(obj["spec"].get("unschedulable")))
            self.most_cordoned = max(self.most_cordoned, len(self.cordoned))
        return obj

    def operations(self) -> tuple[UpgradeOperation, ...]:
        """As the operator sees them."""
        rows = (each.obj for (kind, _, _), each in self._objects.items() if kind == NODE_OPERATIONS)
        return tuple(read_operation(obj)["upgrade"] for obj in rows)


def _keep(names_of: set[str], name: str, *, held: bool) -> None:
    (names_of.add if held else names_of.discard)(name)


def all_nodes(world: World, count: int) -> Mapping[str, list[float]]:
    """Figures by the keys of ``bench.run``; in a process of its own, so that its memory is its own."""
    del world
    command = [sys.executable, "-m", "bench.upgrades", "--nodes", str(count)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parent.parent)
    return {key: [value] for key, value in json.loads(done.stdout).items()}


class _Operator:
    """The operator's part: what its pure plan says to make is made."""

    def __init__(self, cluster: Counted, nodes: list[str]) -> None:
        self._cluster = cluster
        self._nodes = [read_node(cluster.object(NODES, name)) for name in nodes]
        self.longest = 0.0
        self.made = 0

    def decide(self) -> None:
        daemon_set = _daemon_set()
        wanted = wanted_driver(daemon_set)
        if wanted is None:
            raise ValueError(daemon_set)
        pods, known = driver_pods(map(read_pod, self._cluster.drivers.pods()), time.time()), self._cluster.operations()
        begin = time.perf_counter()
        upgrades = node_upgrades(self._nodes, {DAEMON_SET: daemon_set}, pods, known)
        found = upgrade_plan(upgrades, {DAEMON_SET: _RULES}, known, {DAEMON_SET: wanted})
        self.longest = max(self.longest, time.perf_counter() - begin)
        for obj in found.create:
            self.made += 1
            stamp = "2023-11-14T22:13:20Z"
            self._cluster.put(NODE_OPERATIONS, {**obj, "metadata": {**obj["metadata"], "creationTimestamp": stamp}})


def _daemon_set() -> Object:
    environment = [{"name": names.ENV_DRIVER_CONFIG_DIGEST, "value": _DIGEST}]
    container = {"name": names.DRIVER_CONTAINER, "image": image(_DIGEST), "env": environment}
    metadata = {
        "labels": {names.COMPONENT_LABEL: names.DRIVER_COMPONENT},
        "annotations": {names.DRIVER_DIGEST_VERSION: names.THIS_DRIVER_DIGEST_VERSION},
    }
    spec = {"nodeSelector": {names.LABEL_GPU_PRESENT: "true"}, "containers": [container]}
    return {
        "metadata": {"namespace": NAMESPACE, "name": DAEMON_SET},
        "spec": {"template": {"metadata": metadata, "spec": spec}},
    }


async def measure(count: int) -> dict[str, float]:
    """All of it."""
    cluster = Counted()
    nodes = [f"n{number:05d}" for number in range(count)]
    for name in nodes:
        cluster.node(name)
        cluster.driven(name)
        cluster.pod(f"train-{name}", name, spec=_GPU)
    cluster.drivers.template = _DIGEST
    operator = _Operator(cluster, nodes)
    engine = Engine(cluster, OperationBudget(max_parallel=count, max_unavailable=Share(percent=SHARE)))
    await engine.start()
    reads, busy = cluster.read_calls, 0.0
    longest = 0.0
    while engine.clock.monotonic() < LIMIT_S:
        operator.decide()
        for _ in range(2):
            took = await _timed(lambda: engine.clock.advance(LOOK_S))
            await cluster.kubelets()
            took += await _timed(settle)
            busy, longest = busy + took, max(longest, took)
        if operator.made and all(one.phase == OperationPhase.COMPLETE for one in cluster.operations()):
            break
    seconds = engine.clock.monotonic()
    await engine.stop()
    driven = sum(cluster.drivers.of[name].loaded == _DIGEST for name in nodes)
    return {
        "simulated": seconds, "busy": busy, "longest": longest * 1000, "decision": operator.longest * 1000,
        "writes": cluster.writes / count, "reads": (cluster.read_calls - reads - len(cluster.evictions)) / count,
        "most": float(cluster.most), "cordoned": float(cluster.most_cordoned), "left": float(len(cluster.cordoned)),
        "missing": float(count - driven), "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }  # fmt: skip


async def _timed(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    await work()
    return time.perf_counter() - begin


def main() -> None:
    """Alone, for one figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    sys.stdout.write(json.dumps(asyncio.run(measure(parser.parse_args().nodes)), indent=1) + "\n")


if __name__ == "__main__":
    main()
