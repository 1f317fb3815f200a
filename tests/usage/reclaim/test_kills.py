"""The process is killed before and after each write, and a new one goes on: a workload is stopped once or not at all,
never without its warning, and what it had is not lost.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from kgpu.formats import names
from kgpu.kube.kinds import DEPLOYMENTS
from kgpu.kube.port import PODS, Object
from kgpu.lab.embedded.local_api import LocalApi
from kgpu.usage.reclaim.record import ActionState
from tests.usage.reclaim.scene import ADMIN, HOUR, SPACE, START, Scene, core_with_kinds

WRITES = ("apply", "patch", "create", "delete")


class KilledError(BaseException):
    """The process is gone."""


class KillingApi:
    """The API server, for a process that is killed at its ``at``-th write, before or after it arrives."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.writes = 0
        self.at: int | None = None
        self.arrives = False
        self.stops: list[str] = []

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.inner, name)
        if name not in WRITES:
            return method

        async def write(*args: Any, **more: Any) -> Any:
            self.writes += 1
            dies = self.writes == self.at
            if dies and not self.arrives:
                raise KilledError
            answer = await method(*args, **more)
            if more.get("subresource") in {"scale", "eviction"}:
                self.stops.append(str(args[1]["metadata"]["name"] if name == "create" else args[1]))
            if dies:
                raise KilledError
            return answer

        return write


async def story(at: int | None, *, arrives: bool, bare: bool = False) -> tuple[Scene, KillingApi]:
    api = KillingApi(LocalApi(core_with_kinds(), ADMIN, manager="test"))
    scene = await Scene(api).begin()
    await scene.policy(
        notify=[await scene.secret("http://hooks.example.com/a")], reclaim={"grace": "5m", "barePods": bare}
    )
    if bare:
        await scene.pod("lone", annotations={names.IDLE_POLICY: "reclaim"}, idle_since=START - 3 * HOUR)
    else:
        await scene.deployment(pods=2, idle_since=START - 3 * HOUR)
    api.writes, api.at, api.arrives = 0, at, arrives
    for _ in range(10):
        try:
            await scene.round()
        except KilledError:
            scene.again()
        if api.stops and not bare:
            scene.source.all.clear()
    return scene, api


async def writes_of(*, bare: bool) -> int:
    _, api = await story(None, arrives=True, bare=bare)
    assert api.stops
    return api.writes


def told(scene: Scene, word: str) -> int:
    return sum(json.loads(body)["text"].startswith(f"*{word}") for body in scene.webhook.taken)


@pytest.mark.parametrize("arrives", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("bare", [False, True], ids=["deployment", "pod"])
async def test_killed_at_any_write_it_is_stopped_once(bare: bool, arrives: bool) -> None:
    count = await writes_of(bare=bare)
    assert count > 6
    for at in range(1, count + 1):
        scene, api = await story(at, arrives=arrives, bare=bare)
        where = f"killed {'after' if arrives else 'before'} write {at} of {count}"
        assert len(api.stops) == 1, where
        assert 1 <= told(scene, "Will be stopped") <= 2, where
        assert 1 <= told(scene, "Stopped") <= 2, where
        (action,) = [one for one in (await scene.record()).actions if one.state is not ActionState.VOID]
        assert action.state is ActionState.DONE, where
        if not bare:
            assert await scene.replicas() == 0, where
            assert (await scene.annotations())[names.ORIGINAL_REPLICAS] == "2", where
            assert len(await scene.events("Reclaimed")) == 1, where


@pytest.mark.parametrize("arrives", [False, True], ids=["before", "after"])
async def test_used_again_while_no_process_runs_it_is_not_stopped(arrives: bool) -> None:
    """Killed at any write before the act; then somebody uses the GPUs, and a new process comes."""
    for at in range(1, await writes_of(bare=False) + 1):
        api = KillingApi(LocalApi(core_with_kinds(), ADMIN, manager="test"))
        scene = await Scene(api).begin()
        await scene.policy(reclaim={"grace": "5m"})
        await scene.deployment(pods=2, idle_since=START - 3 * HOUR)
        api.writes, api.at, api.arrives = 0, at, arrives
        for _ in range(10):
            try:
                await scene.round()
            except KilledError:
                scene.again()
                for device in scene.source.all:
                    device.idle_since = None
        if api.at is not None and api.at > api.writes:
            return
        deployment: Object = await scene.got(DEPLOYMENTS, "llama", SPACE)
        annotations = deployment["metadata"].get("annotations") or {}
        if not api.stops:
            assert deployment["spec"]["replicas"] == 2
            assert not {names.RECLAIM_AT, names.ORIGINAL_REPLICAS, names.RECLAIM_ACTION} & set(annotations)
        else:
            assert deployment["spec"]["replicas"] == 0
            assert annotations[names.ORIGINAL_REPLICAS] == "2"


async def test_somebody_scales_it_between_the_look_and_the_write() -> None:
    """The write is refused, as it was decided on another version."""
    api = KillingApi(LocalApi(core_with_kinds(), ADMIN, manager="test"))
    scene = await Scene(api).begin()
    await scene.policy(reclaim={"grace": "5m"})
    await scene.deployment(pods=2, idle_since=START - 3 * HOUR)
    inner, scaled = api.inner.patch, list[str]()

    async def patch(resource: Any, name: str, change: Object, **more: Any) -> Any:
        if more.get("subresource") == "scale" and change["spec"]["replicas"] == 0 and not scaled:
            scaled.append(name)
            await inner(DEPLOYMENTS, "llama", {"spec": {"replicas": 5}}, namespace=SPACE)
        return await inner(resource, name, change, **more)

    api.inner.patch = patch
    await scene.rounds(600, every=60)
    assert scaled
    assert await scene.replicas() == 5, "it is warned anew, and has its time again"
    await scene.rounds(600, every=60)
    assert (await scene.annotations())[names.ORIGINAL_REPLICAS] == "5"


async def test_an_evicted_pod_is_evicted_by_its_uid() -> None:
    scene, api = await story(None, arrives=True, bare=True)
    assert api.stops == ["lone"]
    pod = await scene.api.get(PODS, "lone", namespace=SPACE)
    assert pod is None or pod["metadata"].get("deletionTimestamp")
