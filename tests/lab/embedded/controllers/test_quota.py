"""The quota controller keeps ``status.used`` current."""

from __future__ import annotations

from kgpu.kube.port import PODS
from kgpu.lab.embedded.controllers.kinds import DEPLOYMENTS, RESOURCE_QUOTAS

from .conftest import World, until, workload


async def test_what_is_used_follows_the_pods(world: World):
    hard = {"pods": "10", "requests.nvidia.com/gpu": "4"}
    quota = {"metadata": {"name": "q", "namespace": "default"}, "spec": {"hard": hard}}
    await world.api.create(RESOURCE_QUOTAS, quota)
    made = workload(replicas=2)
    made["spec"]["template"]["spec"]["containers"][0]["resources"] = {
        "requests": {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"},
    }  # fmt: skip
    await world.api.create(DEPLOYMENTS, made)

    def used(pods: str, gpus: str):
        status = (world.get(RESOURCE_QUOTAS, "q") or {}).get("status") or {}
        return status.get("hard") == hard and status.get("used") == {"pods": pods, "requests.nvidia.com/gpu": gpus}

    await until(lambda: used("2", "2"), "the use of two pods")
    await world.api.patch(DEPLOYMENTS, "web", {"spec": {"replicas": 1}}, namespace="default")
    await until(lambda: len(world.all(PODS)) == 1 and used("1", "1"), "the use of one pod")
