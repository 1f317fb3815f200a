"""Pods come and go on simulated nodes while agents are killed at random: is a GPU ever held twice, does one leak?

``python -m bench.churn [--nodes 20 --gpus 8 --pods 200 --seconds 300]`` brings up a throw-away embedded lab with full
nodes. Every few seconds it asks each node's pod-resources API and compares with the API server's pods; in the end
every GPU must be free and allocatable again. A prober of its own process times GETs all the while.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kgpu.base.errors import KubeError
from kgpu.formats.names import GPU_RESOURCE
from kgpu.kube.client import connect
from kgpu.kube.port import NODES, PODS, KubeApi, KubeRefusedError, Object
from kgpu.kubelet.methods import LIST_POD_RESOURCES
from kgpu.kubelet.pb import podresources_v1_pb2 as podresources
from kgpu.kubelet.rpc import RpcClient
from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.nodes import manage
from kgpu.lab.nodes.podresources import FOLDER as POD_RESOURCES

NAMESPACE: Final = "churn"
CONFIG: Final = "version: v1\n"
NAMESPACES: Final = dataclasses.replace(NODES, plural="namespaces", kind="Namespace")
SETTLE_S: Final = 60.0
_TELLS_END_S: Final = 60.0
# How many GPUs a pod asks for, and how often; the mean is 0.8.
GPUS: Final = ((0, 30), (1, 60), (2, 10))
# What a pod runs, and how often: stand-ins, and programs that end by themselves.
IMAGES: Final = (("example.com/server:1", 90), ("nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0", 10))


_ENOUGH_S: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do; times in seconds. ``enough``: GPUs to have seen held at once before it ends; a busy machine takes
    longer for them than ``seconds``.
    """

    nodes: int = 20
    gpus: int = 8
    pods: int = 200
    seconds: float = 300.0
    life: float = 25.0
    kill_every: float = 3.0
    check_every: float = 2.0
    seed: int = 1
    enough: int = 0
    profile: str = "hgx-h100"


@dataclass(slots=True, kw_only=True)
class Result:
    """What was seen. ``problems`` is empty when all is well; times in milliseconds where not said otherwise."""

    problems: list[str] = field(default_factory=list)
    created: int = 0
    deleted: int = 0
    finished: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    killed: int = 0
    checks: int = 0
    most_held: int = 0
    alive: list[int] = field(default_factory=list)
    ready_s: float = 0.0
    gets: list[float] = field(default_factory=list)

    def percentile(self, percent: int) -> float:
        """Of the prober's GETs."""
        return statistics.quantiles(self.gets, n=100, method="inclusive")[percent - 1] if len(self.gets) > 1 else 0.0

    def report(self) -> dict[str, Any]:
        """As data to print."""
        return {
            "problems": self.problems[:20],
            "created": self.created,
            "deleted": self.deleted,
            "ended": dict(self.finished),
            "refused": dict(self.refused),
            "agents_killed": self.killed,
            "checks": self.checks,
            "most_gpus_held": self.most_held,
            "pods_alive_median": statistics.median(self.alive) if self.alive else 0,
            "nodes_ready_s": round(self.ready_s, 1),
            "gets": len(self.gets),
            "get_p50_ms": round(self.percentile(50), 2),
            "get_p99_ms": round(self.percentile(99), 2),
            "get_max_ms": round(max(self.gets, default=0.0), 2),
        }


class Churn:
    """One run against a lab whose nodes are up."""

    def __init__(self, plan: Plan, lab: EmbeddedLab, api: KubeApi, names: list[str]) -> None:
        self.plan = plan
        self.result = Result()
        self._lab = lab
        self._api = api
        self._names = names
        self._random = random.Random(plan.seed)  # noqa: S311 - which pods come and go
        self._due: dict[str, float] = {}
        self._number = 0

    async def run(self) -> Result:
        """Wait for the nodes, churn, drain, check."""
        await self._nodes_ready()
        over = time.monotonic() + self.plan.seconds
        tasks = [asyncio.create_task(work) for work in (self._kills(), self._checks(), self._pods(over))]
        try:
            # Only the pods' task ends by itself: between two requests, so that what was asked for is counted as it was.
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await self._drain()
        return self.result

    # --- before and after ---

    async def _nodes_ready(self) -> None:
        begin = time.monotonic()
        if not await self._until(self._all_allocatable, 30 + 5 * self.plan.nodes):
            raise TimeoutError(f"the nodes did not get ready: {await self._allocatable()}")
        self.result.ready_s = time.monotonic() - begin

    async def _allocatable(self) -> dict[str, str]:
        nodes = (await self._api.list(NODES)).items
        return {one["metadata"]["name"]: one["status"]["allocatable"].get(GPU_RESOURCE, "") for one in nodes}

    async def _all_allocatable(self) -> bool:
        found = await self._allocatable()
        return all(found.get(name) == str(self.plan.gpus) for name in self._names)

    async def _drain(self) -> None:
        """Every pod goes; then nothing may be held anywhere."""
        for name in list(self._due):
            await self._delete(name)
        if not await self._until(self._no_pods, SETTLE_S):
            left = (await self._api.list(PODS, namespace=NAMESPACE)).items
            self._problem(f"{len(left)} pods did not go: {[one['metadata']['name'] for one in left][:5]}")
        if not await self._until(self._all_allocatable, SETTLE_S):
            self._problem(f"not all GPUs are allocatable in the end: {await self._allocatable()}")
        if not await self._until(self._nothing_held, SETTLE_S):
            held = {name: rows for name in self._names if (rows := checkpoint(self._node(name)))}
            self._problem(f"held in the end: {held}")
        for name in self._names:
            for folder in ("c", "pods", "logs"):
                left_over = sorted(path.name for path in (self._node(name) / folder).glob("*"))
                if left_over:
                    self._problem(f"{name}: files of pods that are gone: {folder}: {left_over[:3]}")

    async def _no_pods(self) -> bool:
        return not (await self._api.list(PODS, namespace=NAMESPACE)).items

    async def _nothing_held(self) -> bool:
        return not any(checkpoint(self._node(name)) for name in self._names)

    async def _until(self, condition: Any, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with contextlib.suppress(KubeError):
                if await condition():
                    return True
            await asyncio.sleep(0.25)
        return False

    # --- what happens ---

    async def _pods(self, over: float) -> None:
        """Until it is ``over`` and enough was seen, keep as many pods as the plan says, each for a random time."""
        while time.monotonic() < over or (
            self.result.most_held < self.plan.enough and time.monotonic() < over + _ENOUGH_S
        ):
            now = time.monotonic()
            for name in [name for name, end in self._due.items() if end <= now]:
                await self._delete(name)
            for _ in range(min(8, self.plan.pods - len(self._due))):
                await self._create()
            self.result.alive.append(len(self._due))
            await asyncio.sleep(0.2)

    async def _create(self) -> None:
        self._number += 1
        name = f"p{self._number}"
        gpus, image = self._pick(GPUS), self._pick(IMAGES)
        # Known before it is made: when a neighbouring task fails in between, it is drained like the others.
        self._due[name] = time.monotonic() + self._random.expovariate(1 / self.plan.life)
        await self._api.create(PODS, pod(name, image=image, gpus=gpus))
        self.result.created += 1

    async def _delete(self, name: str) -> None:
        found = await self._api.get(PODS, name, namespace=NAMESPACE)
        phase = ((found or {}).get("status") or {}).get("phase")
        if phase in {"Succeeded", "Failed"} and found is not None:
            self.result.finished[phase] += 1
            if reason := found["status"].get("reason"):
                self.result.refused[f"{reason}: {str(found['status'].get('message'))[:160]}"] += 1
        with contextlib.suppress(KubeRefusedError):
            await self._api.delete(PODS, name, namespace=NAMESPACE)
            self.result.deleted += 1
        self._due.pop(name, None)

    def _pick(self, rows: Iterable[tuple[Any, int]]) -> Any:
        values, weights = zip(*rows, strict=True)
        return self._random.choices(values, weights)[0]

    async def _kills(self) -> None:
        """Agents die without warning; the node starts each anew."""
        while True:
            await asyncio.sleep(self.plan.kill_every)
            name = self._random.choice(self._names)
            with contextlib.suppress(OSError, ValueError):
                os.kill(int((self._node(name) / "agent.pid").read_text()), signal.SIGKILL)
                self.result.killed += 1

    # --- what must hold ---

    async def _checks(self) -> None:
        while True:
            await asyncio.sleep(self.plan.check_every)
            await self.check()

    async def check(self) -> None:
        """No device with two pods; every pod that runs holds exactly what it asked for.

        The node lets go of a pod's devices when its container ends and tells the API after that, on a busy machine long
        after. So a pod with too few is looked at until the API knows of its end.
        """
        before = await self._running()
        held = {name: await pod_resources(self._node(name)) for name in self._names}
        after = await self._running()
        for name, rows in held.items():
            for why in twice(rows) + twice(checkpoint(self._node(name))):
                self._problem(f"{name}: {why}")
        for key, (node, wanted) in before.items():
            if after.get(key) == (node, wanted) and len(held.get(node, {}).get(key, ())) != wanted:
                await self._ends(key, node, wanted)
        self.result.most_held = max(
            self.result.most_held, sum(len(ids) for rows in held.values() for ids in rows.values())
        )
        self.result.checks += 1

    async def _ends(self, key: str, node: str, wanted: int) -> None:
        """Waits until the pod is told to have ended, or holds what it asked for; what does neither is a problem."""
        end = time.monotonic() + _TELLS_END_S
        while (await self._running()).get(key) == (node, wanted):
            found = (await pod_resources(self._node(node))).get(key, ())
            if len(found) == wanted:
                return
            if time.monotonic() > end:
                self._problem(f"{node}: pod {key} runs with {found or None}, it asked for {wanted}")
                return
            await asyncio.sleep(0.2)

    async def _running(self) -> dict[str, tuple[str, int]]:
        """Name of each pod that runs and is not being deleted -> its node and how many GPUs it asked for."""
        pods = (await self._api.list(PODS, namespace=NAMESPACE)).items
        return {
            one["metadata"]["name"]: (one["spec"]["nodeName"], wants(one))
            for one in pods
            if one["status"].get("phase") == "Running" and not one["metadata"].get("deletionTimestamp")
        }

    def _problem(self, text: str) -> None:
        if text not in self.result.problems:
            self.result.problems.append(text)

    def _node(self, name: str) -> Path:
        return self._lab.nodes / name


def pod(name: str, *, image: str, gpus: int) -> Object:
    """A pod that asks for so many GPUs."""
    limits = {GPU_RESOURCE: str(gpus)} if gpus else {}
    container = {"name": "main", "image": image, "resources": {"limits": limits}}
    spec = {"restartPolicy": "Never", "containers": [container], "terminationGracePeriodSeconds": 2}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}


def wants(one: Object) -> int:
    """How many GPUs a pod asks for."""
    return sum(
        int((container.get("resources") or {}).get("limits", {}).get(GPU_RESOURCE, 0))
        for container in one["spec"]["containers"]
    )


async def pod_resources(node: Path) -> dict[str, tuple[str, ...]]:
    """What a node's pod-resources API says: pod's name -> ids of its GPUs. Raises KubeletError."""
    async with RpcClient(node / POD_RESOURCES / "kubelet.sock") as client:
        reply = await client.call(LIST_POD_RESOURCES, podresources.ListPodResourcesRequest(), timeout=10)
    return {
        one.name: tuple(
            device
            for container in one.containers
            for row in container.devices
            if row.resource_name == GPU_RESOURCE
            for device in row.device_ids
        )
        for one in reply.pod_resources
    }


def checkpoint(node: Path) -> dict[str, tuple[str, ...]]:
    """What the node's device manager has written down: pod's uid -> ids; {} when there is nothing yet."""
    try:
        rows = json.loads((node / "dp" / "kubelet_internal_checkpoint").read_bytes())["Data"]["PodDeviceEntries"]
    except FileNotFoundError:
        return {}
    found: dict[str, tuple[str, ...]] = {}
    for row in rows:
        ids = tuple(device for group in row["DeviceIDs"].values() for device in group)
        found[row["PodUID"]] = (*found.get(row["PodUID"], ()), *ids)
    return found


def twice(held: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Every device that more than one holder has, or one twice."""
    holders: dict[str, list[str]] = {}
    for name, ids in held.items():
        for one in ids:
            holders.setdefault(one, []).append(name)
    return [f"{device} is held by {names}" for device, names in holders.items() if len(names) > 1]


def run(plan: Plan, folder: Path, *, name: str = "churn") -> Result:
    """A whole run in a lab of its own below ``folder``."""
    lab = EmbeddedLab(name, folder / "lab")
    lab.up()
    try:
        names = manage.add(lab.folder, plan.profile, plan.nodes, gpus=plan.gpus, name_prefix="n", config=CONFIG)
        manage.start_host(lab.folder, lab.kubeconfig)
        return asyncio.run(_run(plan, lab, names))
    finally:
        manage.stop_host(lab.folder)
        lab.down()


async def _run(plan: Plan, lab: EmbeddedLab, names: list[str]) -> Result:
    api = connect(str(lab.kubeconfig))
    try:
        await api.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        churn = Churn(plan, lab, api, names)
        times = lab.folder / "gets"
        prober = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.prober", str(lab.kubeconfig), str(times)
        )
        try:
            result = await churn.run()
        finally:
            prober.terminate()
            await prober.wait()
        result.gets = [float(line) for line in times.read_text().split()]
        return result
    finally:
        await api.close()


def measure(folder: Path) -> Mapping[str, list[float]]:
    """The figures of one whole run."""
    result = run(Plan(), folder)
    for problem in result.problems:
        sys.stderr.write(f"{problem}\n")
    return {
        "p50": [result.percentile(50)],
        "p99": [result.percentile(99)],
        "wrong": [float(len(result.problems))],
        "ready": [result.ready_s],
    }


def main() -> int:
    """Run and print; 1 when something was wrong."""
    parser = argparse.ArgumentParser(prog="bench.churn", description=__doc__)
    for one in dataclasses.fields(Plan):
        kind = type(one.default)
        parser.add_argument(f"--{one.name.replace('_', '-')}", type=kind, default=one.default)
    plan = Plan(**vars(parser.parse_args()))
    with tempfile.TemporaryDirectory(prefix="kgpu-churn-") as folder:
        result = run(plan, Path(folder))
    sys.stdout.write(json.dumps({"plan": dataclasses.asdict(plan), **result.report()}, indent=2) + "\n")
    return 1 if result.problems else 0


if __name__ == "__main__":
    sys.exit(main())
