"""What the API server refuses about driver upgrades and rollouts, by the rules of the kind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kgpu.formats.crd.definitions import crds
from kgpu.kube.kinds import CUSTOM_RESOURCE_DEFINITIONS, NODE_OPERATIONS
from kgpu.kube.port import KubeRefusedError, Object, Patch
from kgpu.operations.requests import Word, say
from tests.lab.embedded.support import Whole, whole
from tests.operations.sim_drivers import wanted

ROLLOUT = {"name": "r", "maxParallel": 2, "maxUnavailable": "25%"}
UPGRADE = {"nodeName": "n1", "type": "DriverUpgrade", "driver": wanted(), "rollout": ROLLOUT}


@pytest.fixture
async def embedded(tmp_path: Path) -> AsyncIterator[Whole]:
    async with whole(tmp_path, "controllers") as found:
        for crd in crds():
            await found.api.create(CUSTOM_RESOURCE_DEFINITIONS, crd)
        await found.until(lambda: found.core.kinds.stored("kgpu.dev", "nodeoperations"), "the CRD")
        yield found


async def make(found: Whole, spec: dict[str, Any], name: str = "m") -> Object:
    return await found.api.create(NODE_OPERATIONS, {"metadata": {"name": name}, "spec": spec})


async def change(found: Whole, **spec: Any) -> None:
    await found.api.patch(NODE_OPERATIONS, "m", {"spec": spec}, kind=Patch.MERGE)


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"driver": None}, "a DriverUpgrade needs driver"),
        ({"type": "Reboot"}, "driver is for a DriverUpgrade alone"),
        ({"type": "Maintenance"}, "driver is for a DriverUpgrade alone"),
        ({"gpus": ["GPU-1"]}, "a DriverUpgrade is of the whole node"),
        ({"durationSeconds": 5}, "durationSeconds is for a Maintenance alone"),
        ({"resume": True}, "only a Maintenance or a Replace is resumed"),
        ({"driver": {**wanted(), "digest": ""}}, "spec.driver.digest"),
        ({"driver": {**wanted(), "daemonSet": ""}}, "spec.driver.daemonSet"),
        ({"driver": {"digest": "2"}}, "spec.driver"),
        ({"rollout": {"maxParallel": 1}}, "spec.rollout.name"),
        ({"rollout": {**ROLLOUT, "maxParallel": -1}}, "spec.rollout.maxParallel"),
        ({"rollout": {**ROLLOUT, "maxUnavailable": "a few"}}, "spec.rollout.maxUnavailable"),
        ({"rollout": {**ROLLOUT, "stopAfterFailures": -1}}, "spec.rollout.stopAfterFailures"),
    ],
)
async def test_what_can_not_be_meant_is_refused(embedded: Whole, spec: dict[str, Any], why: str) -> None:
    whole_spec = {key: value for key, value in {**UPGRADE, **spec}.items() if value is not None}
    with pytest.raises(KubeRefusedError) as refused:
        await make(embedded, whole_spec)
    assert why in str(refused.value)


async def test_a_rollout_is_of_any_type_and_has_defaults(embedded: Whole) -> None:
    made = await make(embedded, {"nodeName": "n1", "type": "Maintenance", "rollout": {"name": "r"}})
    assert made["spec"]["rollout"] == {
        "name": "r", "maxParallel": 1, "maxUnavailable": "100%", "stopAfterFailures": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"driver": {"digest": "3"}}, "driver is immutable"),
        ({"driver": {"version": "575.1"}}, "driver is immutable"),
        ({"driver": None}, "driver is immutable"),
        ({"rollout": {"maxParallel": 9}}, "rollout is immutable"),
        ({"rollout": None}, "rollout is immutable"),
    ],
)
async def test_what_was_asked_for_stays(embedded: Whole, spec: dict[str, Any], why: str) -> None:
    await make(embedded, UPGRADE)
    with pytest.raises(KubeRefusedError) as refused:
        await change(embedded, **spec)
    assert why in str(refused.value)


async def test_a_rollout_is_not_joined_later(embedded: Whole) -> None:
    await make(embedded, {key: value for key, value in UPGRADE.items() if key != "rollout"})
    with pytest.raises(KubeRefusedError) as refused:
        await change(embedded, rollout=ROLLOUT)
    assert "rollout is immutable" in str(refused.value)


async def test_that_it_may_begin_although_its_rollout_has_stopped_is_not_taken_back(embedded: Whole) -> None:
    await make(embedded, {**UPGRADE, "approved": False})
    await change(embedded, evenIfStopped=True)
    with pytest.raises(KubeRefusedError) as refused:
        await change(embedded, evenIfStopped=False)
    assert "evenIfStopped can't be taken back" in str(refused.value)


@pytest.mark.parametrize("stopped", [False, True])
async def test_approve_lets_one_begin_of_a_rollout_that_has_stopped_and_says_so_of_no_other(
    embedded: Whole, stopped: bool
) -> None:
    await make(embedded, {**UPGRADE, "approved": stopped})
    if stopped:
        status = {"phase": "Pending", "reason": "RolloutStopped"}
        await embedded.api.patch(NODE_OPERATIONS, "m", {"status": status}, kind=Patch.MERGE, subresource="status")
    await say(embedded.api, "m", Word.APPROVE)
    obj = embedded.get(NODE_OPERATIONS, "m")
    assert obj is not None
    assert obj["spec"]["approved"] is True
    assert bool(obj["spec"].get("evenIfStopped")) is stopped
