"""Restarting: kubectl's change, that pod and no other, and how far it is."""

from __future__ import annotations

import datetime as dt

import pytest

from kgpu.base.clock import VirtualClock
from kgpu.base.errors import ConfigError, KubeError
from kgpu.kube.fake import FakeApi
from kgpu.kube.kinds import DAEMON_SETS
from kgpu.kube.port import PODS
from kgpu.workloads.find import find
from kgpu.workloads.restart import begin, check, follow, late, parts, remove
from kgpu.workloads.rollout import RESTARTED
from kgpu.workloads.rows import AGENT, workload
from tests.workloads.making import NAMESPACE, PLUGIN, agent, daemon_set, pod, waiting

ROW = workload("device-plugin")
NOW = dt.datetime(2026, 11, 30, tzinfo=dt.UTC)


@pytest.fixture
def api() -> FakeApi:
    found = FakeApi()
    for one in (pod(PLUGIN, "a"), agent("b")):
        found.put(PODS, one)
    found.put(DAEMON_SETS, daemon_set())
    return found


async def test_both_are_restarted_where_a_layout_is_being_changed(api: FakeApi) -> None:
    own, shared = parts(ROW, await find(api, ROW))
    assert (own.row, [one.node for one in own.pods]) == (ROW, ["a"])
    assert (shared.row, [one.node for one in shared.pods]) == (AGENT, ["b"])


async def test_the_template_is_marked_as_kubectl_does_it(api: FakeApi) -> None:
    own, shared = parts(ROW, await find(api, ROW))
    await begin(api, own, NOW)
    found = await api.get(DAEMON_SETS, PLUGIN, namespace=NAMESPACE)
    assert found is not None
    assert found["spec"]["template"]["metadata"]["annotations"] == {RESTARTED: "2026-11-30T00:00:00Z"}
    assert found["spec"]["template"]["metadata"]["labels"] == {"app": PLUGIN}
    with pytest.raises(KubeError, match="there is no DaemonSet gpu-operator/kgpu-agent"):
        await begin(api, shared, NOW)


async def test_what_replaces_nothing_by_itself_is_not_said_to_be_restarted(api: FakeApi) -> None:
    api.put(DAEMON_SETS, daemon_set(strategy="OnDelete"))
    own, _ = parts(ROW, await find(api, ROW))
    with pytest.raises(KubeError, match="OnDelete") as caught:
        await begin(api, own, NOW)
    assert "--node" in caught.value.remedy


async def test_every_change_is_told_until_all_pods_are_new(api: FakeApi) -> None:
    own, _ = parts(ROW, await find(api, ROW))
    clock, told = VirtualClock(), list[int]()
    api.put(DAEMON_SETS, daemon_set(updatedNumberScheduled=0))
    async for now in follow(api, own, clock):
        told.append(now.new)
        api.put(DAEMON_SETS, daemon_set(updatedNumberScheduled=now.new + 1))
        if not now.done:
            import asyncio

            asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(clock.advance(1.0)))
    assert told == [0, 1, 2]


async def test_a_pod_of_the_same_name_that_has_come_since_is_not_deleted(api: FakeApi) -> None:
    (old,) = (await find(api, ROW, node="a")).pods
    again = pod(PLUGIN, "a")
    again["metadata"]["uid"] = "another"
    await api.delete(PODS, old.name, namespace=NAMESPACE, grace=0)
    api.put(PODS, again)
    with pytest.raises(KubeError):
        await remove(api, old)
    assert await api.get(PODS, old.name, namespace=NAMESPACE) is not None


def test_a_driver_is_not_restarted_by_hand() -> None:
    with pytest.raises(ConfigError) as caught:
        check(workload("driver"), "")
    assert "kgpu node upgrade-driver" in caught.value.remedy
    with pytest.raises(ConfigError, match="is not of a node"):
        check(workload("operator"), "a")


async def test_what_is_late_is_named_with_its_state(api: FakeApi) -> None:
    api.put(PODS, pod(PLUGIN, "c", ready=False, statuses=(waiting("CrashLoopBackOff"),)))
    error = late(ROW, (await find(api, ROW)).pods, 300)
    assert "1 pod not ready: c (CrashLoopBackOff)" in error.what
    assert "kgpu logs device-plugin --node c" in error.remedy
