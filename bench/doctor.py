"""``kgpu doctor`` on 1,000 nodes and 10,000 pods: from a file and on a live API server, and what it takes of memory."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from bench.measures import KGPU, World
from bench.operator import AT_ONCE, embedded
from kgpu.kube import kinds
from kgpu.kube.client import Client, connect
from kgpu.kube.port import EVENTS, NODES, PODS, KubeRefusedError, KubeUnreachableError, Object, Resource

COUNT: Final = 1000
PODS_PER_NODE: Final = 10
WAITING: Final = 200
IMAGES: Final = 25
LIVE_RUNS: Final = 2
TRIES: Final = 5
BEAT: Final = 20.0  # seconds between a node's signs of life
TIME: Final = "2026-01-01T10:00:00Z"


def objects() -> Iterator[Object]:
    """A cluster with a taint that nobody tolerates on a tenth of its nodes, and pods that wait for another product."""
    for number in range(COUNT):
        yield _node(number)
    for number in range(COUNT * PODS_PER_NODE):
        yield _pod(number)
    for number in range(WAITING):
        yield _event(number)


def _node(number: int) -> Object:
    labels = {f"feature.node.kubernetes.io/cpu-cpuid.F{i}": "true" for i in range(40)}
    labels |= {
        "kubernetes.io/hostname": f"gpu-{number}",
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "nvidia.com/gpu.count": "8",
    }
    amounts = {"cpu": "192", "memory": "2097152Mi", "pods": "110", "nvidia.com/gpu": "8"}
    taints = [{"key": "team", "value": "vision", "effect": "NoSchedule"}] if number % 10 == 0 else []
    return {
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": f"gpu-{number}", "labels": labels, "creationTimestamp": TIME},
        "spec": {"taints": taints},
        "status": {
            "capacity": amounts, "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": TIME}],
            "nodeInfo": {
                "kubeletVersion": "v1.35.1", "containerRuntimeVersion": "containerd://2.1.4", "osImage": "Ubuntu 24.04",
                "kernelVersion": "6.8.0-40-generic", "architecture": "amd64",
            },
            "images": [{"names": [f"registry.example.com/team/image-{i}@sha256:{i:064x}"]} for i in range(IMAGES)],
        },
    }  # fmt: skip


def _pod(number: int) -> Object:
    """The last ones wait; of the others eight of ten have a GPU."""
    waits = number >= COUNT * PODS_PER_NODE - WAITING
    gpus = {"nvidia.com/gpu": "1"} if waits or number % 10 < 8 else {}
    spec: dict[str, Any] = {
        "schedulerName": "default-scheduler",
        "containers": [
            {
                "name": "main", "image": "cuda:12.8", "env": [{"name": f"V{i}", "value": str(i)} for i in range(10)],
                "resources": {"limits": gpus, "requests": {"cpu": "2", "memory": "8Gi", **gpus}},
            }
        ],
    }  # fmt: skip
    status: dict[str, Any] = {"phase": "Pending"}
    if waits:
        spec["nodeSelector"] = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": TIME}
    else:
        spec["nodeName"] = f"gpu-{number // PODS_PER_NODE}"
        condition = {"type": "Ready", "status": "True", "lastTransitionTime": TIME}
        state = {"running": {"startedAt": TIME}}
        status = {
            "phase": "Running",
            "containerStatuses": [{"name": "main", "ready": True, "restartCount": 0, "state": state}],
        }
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": f"work-{number}", "namespace": f"team-{number % 20}", "creationTimestamp": TIME},
        "spec": spec, "status": {**status, "conditions": [condition]},
    }  # fmt: skip


def _event(number: int) -> Object:
    pod = COUNT * PODS_PER_NODE - 1 - number
    namespace = f"team-{pod % 20}"
    return {
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"name": f"work-{pod}.1", "namespace": namespace, "creationTimestamp": TIME},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": f"work-{pod}"},
        "type": "Warning", "reason": "FailedScheduling", "message": f"0/{COUNT} nodes are available",
        "firstTimestamp": TIME, "lastTimestamp": TIME, "reportingComponent": "default-scheduler",
    }  # fmt: skip


def from_file(world: World) -> Mapping[str, list[float]]:
    """Seconds and MiB of the whole command."""
    path = world.folder / "cluster.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects())}))
    return _asked([*KGPU, "doctor", "--from", str(path), "-o", "json"], min(world.runs, 3))


def live(world: World) -> Mapping[str, list[float]]:
    """The same of an embedded API server."""
    return asyncio.run(_live(world.folder))


async def _live(folder: Path) -> Mapping[str, list[float]]:
    async with embedded(folder) as kubeconfig:
        api = connect(str(kubeconfig))
        gate = asyncio.Semaphore(AT_ONCE)

        async def make(obj: Object) -> None:
            resource = {"Node": NODES, "Pod": PODS, "Event": EVENTS}[obj["kind"]]
            async with gate:
                await _made(api, resource, obj)
                if "status" in obj:
                    status, name = {"status": obj["status"]}, obj["metadata"]["name"]
                    namespace = obj["metadata"].get("namespace", "")
                    await api.patch(resource, name, status, namespace=namespace, subresource="status")

        command = [*KGPU, "doctor", "--kubeconfig", str(kubeconfig), "-o", "json"]
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(api.close)
            every = list(objects())
            for number in range(20):
                await api.create(kinds.NAMESPACES, {"metadata": {"name": f"team-{number}"}})
            await asyncio.gather(*(make(one) for one in every if one["kind"] == "Node"))
            beating = asyncio.create_task(_beat(api))
            stack.callback(beating.cancel)
            for kind in ("Pod", "Event"):
                await asyncio.gather(*(make(one) for one in every if one["kind"] == kind))
            return await asyncio.to_thread(_asked, command, LIVE_RUNS)


async def _beat(api: Client) -> None:
    """The kubelets' signs of life, without which the cluster would be one of lost nodes after a minute."""
    while True:
        now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": TIME, "lastHeartbeatTime": now}
        for number in range(COUNT):
            with contextlib.suppress(KubeUnreachableError):
                await api.patch(NODES, f"gpu-{number}", {"status": {"conditions": [ready]}}, subresource="status")
            await asyncio.sleep(BEAT / COUNT)


async def _made(api: Client, resource: Resource, obj: Object) -> None:
    """A connection that the server has cut is no reason to give up; what is there already was made by that request."""
    for _ in range(TRIES):
        try:
            await api.create(resource, obj)
            return
        except KubeRefusedError as refused:
            if refused.code == 409:
                return
            raise
        except KubeUnreachableError:
            await asyncio.sleep(0.5)
    raise RuntimeError(f"{obj['kind']} {obj['metadata']['name']} can't be made")


def _asked(command: list[str], runs: int) -> dict[str, list[float]]:
    """Time, CPU time and greatest RSS, each run's; what it says must be the cluster's fault."""
    found: dict[str, list[float]] = {"wall": [], "cpu": [], "rss": []}
    for _ in range(runs):
        begin = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        said = json.loads(process.stdout.read())
        _, status, usage = os.wait4(process.pid, 0)
        found["wall"].append(time.perf_counter() - begin)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 1
        assert said["looked"]["nodes"] >= COUNT
        assert said["looked"]["pods"] >= COUNT * PODS_PER_NODE
        assert any("NVIDIA-A100-SXM4-80GB" in one["cause"] for one in said["findings"])
        found["cpu"].append(usage.ru_utime + usage.ru_stime)
        found["rss"].append(usage.ru_maxrss / 1024)
    return found
