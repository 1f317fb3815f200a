"""A maintenance of a thousand Nodes at once: how long it takes, what it writes, and does the budget hold?

``python -m bench.maintenance [--nodes 1000]``. An embedded API server and ``kgpu operator run``; each Node has two
pods, which end as soon as they are asked to. Every Node gets a NodeOperation that lasts a second.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.machine import cpu_seconds, memory_of
from bench.measures import KGPU, World
from bench.operator import NAMESPACE, PREFIX, embedded, free_port, make_nodes, page, prepare, start, until_settled
from kgpu.base.errors import KubeError
from kgpu.formats import names
from kgpu.kube.client import Client, connect
from kgpu.kube.kinds import NODE_OPERATIONS
from kgpu.kube.port import EVENTS, NODES, PODS, Change, Object, name_of, namespace_of

PARALLEL: Final = 100
SHARE: Final = 10
PODS_EACH: Final = 2
AT_ONCE: Final = 16
LIMIT_S: Final = 900.0
LOOK_S: Final = 0.25
_WRITES: Final = re.compile(r'^kgpu_node_operation_writes_total\{what="(\w+)"\} (\d+)$', re.MULTILINE)


@dataclass(slots=True)
class Held:
    """Nodes that can't be used now, by the API server's watch, and how many they were at most."""

    now: set[str] = field(default_factory=set)
    most: int = 0

    def saw(self, change: Change, node: Object) -> None:
        """A Node has changed."""
        if change is Change.DELETED or not node["spec"].get("unschedulable"):
            self.now.discard(name_of(node))
        else:
            self.now.add(name_of(node))
        self.most = max(self.most, len(self.now))


def all_nodes(world: World, count: int) -> Mapping[str, list[float]]:
    """Seconds, writes and nodes by the keys of ``bench.run``'s figures; measured once."""
    return {key: [value] for key, value in asyncio.run(measure(world.folder, count)).items()}


async def measure(folder: Path, count: int) -> dict[str, float]:
    """All of it."""
    async with embedded(folder) as kubeconfig:
        api = connect(str(kubeconfig))
        try:
            await prepare(api)
            await make_nodes(api, count, {names.LABEL_GPU_PRESENT: "true"})
            nodes = [f"{PREFIX}{number:05d}" for number in range(count)]
            await _gather(api, [_pod(node, number) for node in nodes for number in range(PODS_EACH)])
            return await _maintain(api, kubeconfig, folder, count)
        finally:
            await api.close()


async def _maintain(api: Client, kubeconfig: Path, folder: Path, count: int) -> dict[str, float]:
    metrics, health = free_port(), free_port()
    budget = json.dumps({"maxParallel": PARALLEL, "maxUnavailable": f"{SHARE}%"})
    command = [
        *KGPU, "operator", "run", "--kubeconfig", str(kubeconfig), "--namespace", NAMESPACE, "--image", "kgpu:bench",
        "--metrics-bind-address", f"127.0.0.1:{metrics}", "--health-probe-bind-address", f"127.0.0.1:{health}",
        "--operations-config", budget,
    ]  # fmt: skip
    process, held = start(command, folder / "operator.log"), Held()
    watches = [asyncio.create_task(work) for work in (_follow(api, held), _kubelets(api))]
    try:
        await until_settled(process, health)
        used, begin = cpu_seconds(process.pid), time.perf_counter()
        await _gather(api, [_operation(f"{PREFIX}{number:05d}") for number in range(count)])
        async with asyncio.timeout(LIMIT_S):
            while not await _all_over(metrics, count):  # noqa: ASYNC110 - another process tells
                await asyncio.sleep(LOOK_S)
        took = time.perf_counter() - begin
        writes = sum(int(number) for _, number in _WRITES.findall(await page(metrics, "/metrics")))
        return {
            "wall": took, "writes": writes / count, "events": await _events(api) / count, "most": float(held.most),
            "cpu": cpu_seconds(process.pid) - used, "rss": memory_of([process.pid]).rss,
            "held": float(len(held.now)),
        }  # fmt: skip
    except BaseException:
        sys.stderr.write((folder / "operator.log").read_text(errors="replace")[-4000:])
        raise
    finally:
        for task in watches:
            task.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
        process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(process.wait, 10)


async def _all_over(port: int, count: int) -> bool:
    """By the operator's own figures: who asked the API server for a thousand records would slow it down."""
    return f'kgpu_node_operations{{type="Maintenance",phase="Complete"}} {count}\n' in await page(port, "/metrics")


async def _events(api: Client) -> int:
    """Events that the engine has written."""
    listing = await api.list(EVENTS, namespace="default")
    return sum((obj.get("source") or {}).get("component") == names.OPERATIONS_COMPONENT for obj in listing.items)


async def _follow(api: Client, held: Held) -> None:
    listing = await api.list(NODES)
    for node in listing.items:
        held.saw(Change.ADDED, node)
    async for event in api.watch(NODES, listing.resource_version):
        if event.change is not Change.BOOKMARK:
            held.saw(event.change, event.object)


async def _kubelets(api: Client) -> None:
    """Pods end as soon as they are asked to."""
    listing = await api.list(PODS)
    async for event in api.watch(PODS, listing.resource_version):
        metadata = event.object["metadata"]
        if event.change is Change.MODIFIED and "deletionTimestamp" in metadata:
            with contextlib.suppress(KubeError):
                await api.delete(PODS, metadata["name"], namespace=metadata["namespace"], grace=0)


async def _gather(api: Client, objects: list[Object]) -> None:
    room = asyncio.Semaphore(AT_ONCE)

    async def make(obj: Object) -> None:
        async with room:
            await api.create(PODS if namespace_of(obj) else NODE_OPERATIONS, obj)

    await asyncio.gather(*(make(obj) for obj in objects))


def _operation(node: str) -> Object:
    spec = {"nodeName": node, "type": "Maintenance", "durationSeconds": 1, "drain": {"force": True}}
    return {"metadata": {"name": f"m-{node}"}, "spec": spec}


def _pod(node: str, number: int) -> Object:
    metadata = {"namespace": NAMESPACE, "name": f"{node}-{number}"}
    spec = {"nodeName": node, "terminationGracePeriodSeconds": 1, "containers": [{"name": "c", "image": "none"}]}
    return {"metadata": metadata, "spec": spec}


def main() -> None:
    """Alone, for one figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kgpu-bench-") as folder:
        sys.stdout.write(json.dumps(asyncio.run(measure(Path(folder), given.nodes)), indent=1) + "\n")


if __name__ == "__main__":
    main()
