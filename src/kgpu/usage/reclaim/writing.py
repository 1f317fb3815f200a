"""One write each: a deadline on a workload, the memory of what it had, and what stops it or brings it back.

All are merge patches on the version that the decision was based on; the API server refuses them if anything has changed
since. Bare pods go by the operations engine's eviction.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from kgpu.base.times import stamp_of
from kgpu.formats import names
from kgpu.kube.port import KubeApi, Object, version_of
from kgpu.usage.reclaim.owners import StopTarget, StopWay

EvictPod: TypeAlias = Callable[[KubeApi, str, str, str], Awaitable[None]]
"""Evicts a pod by namespace, name and uid; disruption budgets may refuse. Raises KubeError."""
MEMORY: Mapping[str, None] = {names.ORIGINAL_REPLICAS: None, names.RECLAIM_ACTION: None}
DEADLINE: Mapping[str, None] = {names.RECLAIM_AT: None, names.RECLAIM_EPISODE: None}


async def annotate(api: KubeApi, target: StopTarget, annotations: Mapping[str, str | None]) -> Object:
    """Write annotations, None to remove one. Raises KubeError."""
    metadata = {"resourceVersion": version_of(target.obj), "annotations": dict(annotations)}
    return await api.patch(target.resource, target.name, {"metadata": metadata}, namespace=target.namespace)


async def set_deadline(api: KubeApi, target: StopTarget, deadline: float, since: float) -> Object:
    """Write until when it has to be used, and since when it is idle. Raises KubeError."""
    return await annotate(api, target, {names.RECLAIM_AT: stamp_of(deadline), names.RECLAIM_EPISODE: stamp_of(since)})


async def remember(api: KubeApi, target: StopTarget) -> Object:
    """Write what it has now and how it will be stopped: the last thing before the act. Raises KubeError."""
    return await annotate(
        api, target, {names.ORIGINAL_REPLICAS: target.remembered, names.RECLAIM_ACTION: str(target.way)}
    )


async def stop(api: KubeApi, target: StopTarget, now: float, evict: EvictPod) -> None:
    """Stop it. Raises KubeError."""
    if target.way is StopWay.EVICT:
        await evict(api, target.namespace, target.name, str(target.obj["metadata"].get("uid") or ""))
    else:
        await _patch(api, target, target.stop(now))


async def resume(api: KubeApi, target: StopTarget, old: str) -> bool:
    """Bring it back to what it had, and forget that; False where nothing is remembered. One that somebody has started
    since only loses the memory. Raises KubeError.
    """
    change = target.resume(old)
    if change is None:
        return False
    if target.stopped:
        await _patch(api, target, change)
        again = await api.get(target.resource, target.name, namespace=target.namespace)
        if again is None:
            return True
        target = StopTarget(way=target.way, resource=target.resource, obj=again)
    await annotate(api, target, {**MEMORY, **DEADLINE})
    return True


async def _patch(api: KubeApi, target: StopTarget, change: Object) -> None:
    metadata = {**(change.get("metadata") or {}), "resourceVersion": version_of(target.obj)}
    await api.patch(
        target.resource, target.name, {**change, "metadata": metadata}, namespace=target.namespace,
        subresource=target.subresource,
    )  # fmt: skip


def about(target: StopTarget) -> Object:
    """What an Event about it is about."""
    metadata = target.obj["metadata"]
    return {
        "apiVersion": target.resource.api_version, "kind": target.resource.kind, "name": target.name,
        "namespace": target.namespace, "uid": str(metadata.get("uid") or ""),
    }  # fmt: skip
