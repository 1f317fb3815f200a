"""A thousand light nodes on the real control plane: how long until all offer their GPUs, and what each part costs.

Brings up a lab of its own (``NAME``) and takes it down again. Measured once, whatever ``--runs`` says: it is minutes
of work. Raises ``SkippedError`` where the real lab can't be had at once.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.machine import cpu_seconds, memory_of
from bench.measures import World
from bench.skip import SkippedError
from kgpu.base.errors import LabError
from kgpu.formats.names import GPU_RESOURCE, LABEL_PRODUCT
from kgpu.kube.client import connect
from kgpu.kube.port import NODES, PODS, Change, KubeApi, Object, Resource, name_of, namespace_of
from kgpu.lab.nodes import manage
from kgpu.lab.nodes.feed import ObjectFeed
from kgpu.lab.program_cache import cache_root
from kgpu.lab.progress import QuietProgress
from kgpu.lab.real import build
from kgpu.lab.real.cluster import RealLab
from kgpu.lab.real.components import COMPONENTS
from kgpu.lab.real.model import LabSpec

COUNT: Final = 1000
PODS_COUNT: Final = 200
PROFILE: Final = "hgx-h100"
GPUS: Final = 8
GPU_PRODUCT: Final = GPU_RESOURCE + LABEL_PRODUCT
NAME: Final = "bench"
HOST: Final = "nodes host"
PARTS: Final = ("kube-apiserver", "etcd", "kube-scheduler", "kube-controller-manager", HOST)
READY_LIMIT_S: Final = 600.0
BURST_LIMIT_S: Final = 300.0
REST_S: Final = 30.0
SETTLE_S: Final = 15.0
AT_ONCE: Final = 8
NAMESPACE: Final = "default"
ACCOUNTS: Final = Resource("", "v1", "serviceaccounts", "ServiceAccount")


@dataclass(frozen=True, slots=True)
class Usage:
    """What each part has used so far: CPU seconds, and its PSS in MiB."""

    cpu: Mapping[str, float]
    pss: Mapping[str, float]


def thousand_nodes(_world: World) -> Mapping[str, list[float]]:
    """Seconds, CPU seconds, MiB and percent of a core by the keys of ``bench.run``'s figures. Raises SkippedError."""
    require_real_lab()
    lab = RealLab(LabSpec(name=NAME, agent=False), progress=QuietProgress())
    if lab.running:
        raise SkippedError(f'a lab named "{NAME}" runs here; take it down with `kgpu lab down --name {NAME}`')
    try:
        try:
            lab.up()
        except LabError as error:
            raise SkippedError(f"the real lab does not come up here: {error.one_line()}") from error
        return {key: [value] for key, value in asyncio.run(_measure(lab)).items()}
    finally:
        lab.down()


def require_real_lab() -> None:
    if sys.platform != "linux" or os.geteuid() != 0:
        raise SkippedError("the real control plane needs Linux and root")
    try:
        home = cache_root() / build.cache_key(build.find_toolchain().version) / "bin"
    except LabError as error:
        raise SkippedError(f"the real control plane can't be built here: {error.one_line()}") from error
    if any(not (home / component.name).is_file() for component in COMPONENTS):
        raise SkippedError("the real control plane is not built here yet: `kgpu lab up --real` builds it once")


async def _measure(lab: RealLab) -> dict[str, float]:
    folder = lab.paths.root
    api = connect(str(lab.kubeconfig))
    found: dict[str, float] = {}
    try:
        before = _usage(lab, folder)
        begin = time.perf_counter()
        _, address = manage.place(folder)
        names = set(await asyncio.to_thread(manage.add, folder, PROFILE, COUNT, light=True))
        await asyncio.to_thread(manage.start_host, folder, lab.kubeconfig, address=address)
        await _until(
            api, NODES, lambda node: node["metadata"]["name"] in names and offers_gpus(node), COUNT, READY_LIMIT_S
        )
        found["ready"] = time.perf_counter() - begin
        after = _usage(lab, folder)
        await asyncio.sleep(SETTLE_S)
        resting = _usage(lab, folder)
        await asyncio.sleep(REST_S)
        rested = _usage(lab, folder)
        for part in PARTS:
            found[f"cpu {part}"] = after.cpu[part] - before.cpu.get(part, 0.0)
            found[f"pss {part}"] = rested.pss[part]
            found[f"rest {part}"] = 100 * (rested.cpu[part] - resting.cpu[part]) / REST_S
        found["burst"] = await _burst(api)
    finally:
        await api.close()
    return found


def offers_gpus(node: Object) -> bool:
    """Ready, schedulable, with every GPU allocatable and the labels of feature discovery."""
    status = node.get("status") or {}
    ready = any(one.get("type") == "Ready" and one.get("status") == "True" for one in status.get("conditions") or ())
    return (
        ready
        and not (node.get("spec") or {}).get("taints")
        and (status.get("allocatable") or {}).get(GPU_RESOURCE) == str(GPUS)
        and GPU_PRODUCT in (node["metadata"].get("labels") or {})
    )


async def _burst(api: KubeApi) -> float:
    """Seconds from the first create until all pods run."""
    await _until(api, ACCOUNTS, lambda one: _key(one) == (NAMESPACE, "default"), 1, BURST_LIMIT_S)
    room = asyncio.Semaphore(AT_ONCE)

    async def create(number: int) -> None:
        async with room:
            await api.create(PODS, _pod(f"burst-{number}"))

    begin = time.perf_counter()
    running = asyncio.create_task(_until(api, PODS, _runs, PODS_COUNT, BURST_LIMIT_S))
    await asyncio.gather(*(create(number) for number in range(PODS_COUNT)))
    await running
    return time.perf_counter() - begin


def _key(obj: Object) -> tuple[str, str]:
    return namespace_of(obj), name_of(obj)


def _runs(pod: Object) -> bool:
    return namespace_of(pod) == NAMESPACE and (pod.get("status") or {}).get("phase") == "Running"


def _pod(name: str) -> Object:
    limits = {GPU_RESOURCE: "1"}
    container = {"name": "main", "image": "example.com/training:1", "resources": {"limits": limits}}
    return {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": {"containers": [container]}}


async def _until(api: KubeApi, resource: Resource, good: Callable[[Object], bool], count: int, seconds: float) -> None:
    """Return when ``count`` objects are good. Raises TimeoutError that says how many were."""
    those: set[tuple[str, str]] = set()
    enough = asyncio.Event()

    def changed(change: Change, obj: Object) -> None:
        if change is not Change.DELETED and good(obj):
            those.add(_key(obj))
        else:
            those.discard(_key(obj))
        if len(those) >= count:
            enough.set()

    feed = asyncio.create_task(ObjectFeed(api, resource, changed, keep=_version_only).run())
    try:
        async with asyncio.timeout(seconds):
            await enough.wait()
    except TimeoutError:
        raise TimeoutError(f"{len(those)} of {count} {resource.plural} after {seconds:g} s") from None
    finally:
        feed.cancel()
        await asyncio.gather(feed, return_exceptions=True)


def _version_only(obj: Object) -> Object:
    return {"metadata": {key: obj["metadata"].get(key) for key in ("name", "namespace", "uid", "resourceVersion")}}


def _usage(lab: RealLab, folder: Path) -> Usage:
    pids = {str(one["name"]): int(one["pid"]) for one in lab.processes()}
    pids[HOST] = int(manage.status(folder)["host"])
    there = {part: pids[part] for part in PARTS if pids.get(part)}
    return Usage(
        cpu={part: cpu_seconds(pid) for part, pid in there.items()},
        pss={part: memory_of([pid]).pss for part, pid in there.items()},
    )
