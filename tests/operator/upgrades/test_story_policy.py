"""``driver.upgradePolicy`` as users of NVIDIA's operator have it: what becomes of it, by operator and engine together."""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.formats import names
from kgpu.kube.port import PODS
from tests.operator.upgrades.live_fleet import NEW, OLD
from tests.operator.upgrades.story import AUTO, running_old

DOCUMENTED: dict[str, Any] = {
    "autoUpgrade": True,
    "maxParallelUpgrades": 1,
    "maxUnavailable": "25%",
    "waitForCompletion": {"timeoutSeconds": 0, "podSelector": ""},
    "podDeletion": {"force": False, "timeoutSeconds": 300, "deleteEmptyDir": False},
    "drain": {"enable": False, "force": False, "podSelector": "", "timeoutSeconds": 300, "deleteEmptyDir": False},
}
"""The values of the replaced operator's documentation."""
EMPTY_DIR = {"volumes": [{"name": "scratch", "emptyDir": {}}]}


async def test_the_documented_values_upgrade_one_node_after_the_other() -> None:
    async with running_old("n1", "n2", "n3", "n4", upgrade=DOCUMENTED) as told:
        fleet, away = told.fleet, [0]
        fleet.train("train", "n1")
        fleet.pod("web", "n1")
        fleet.want(NEW, DOCUMENTED)

        def done() -> bool:
            away.append(len(fleet.cordoned()))
            assert not (fleet.ready() and OLD in fleet.loaded().values())
            return fleet.ready()

        await told.until(done, "every node runs it")
        assert max(away) == 1
        assert (fleet.evictions, fleet.cordoned()) == (["default/train"], [])
        assert {fleet.state(name) for name in fleet.driven_by} == {"upgrade-done"}


@pytest.mark.parametrize(
    ("upgrade", "most"),
    [
        ({"maxParallelUpgrades": 0, "maxUnavailable": "100%"}, 4),
        ({"maxParallelUpgrades": 1000, "maxUnavailable": 1000}, 4),
        ({"maxParallelUpgrades": 0, "maxUnavailable": 3}, 3),
        ({"maxParallelUpgrades": 2, "maxUnavailable": "50%"}, 2),
        ({"maxParallelUpgrades": 0}, 1),
    ],
    ids=str,
)
async def test_how_many_at_a_time(upgrade: dict[str, Any], most: int) -> None:
    rules = {"autoUpgrade": True, **upgrade}
    async with running_old("n1", "n2", "n3", "n4", upgrade=rules) as told:
        fleet, away = told.fleet, [0]
        fleet.want(NEW, rules)

        def done() -> bool:
            away.append(len(fleet.cordoned()))
            return fleet.ready()

        await told.until(done, "every node runs it")
        assert max(away) == most


@pytest.mark.parametrize("share", [0, "0%", "a few", "-1", "101%"])
async def test_a_budget_of_nothing_or_nonsense_upgrades_nothing_and_is_told(share: Any) -> None:
    rules = {**AUTO, "maxUnavailable": share}
    async with running_old("n1", "n2") as told:
        told.fleet.want(NEW, rules)
        await told.run_for(120)
        assert (set(told.fleet.loaded().values()), told.fleet.cordoned()) == ({OLD}, [])
        assert not told.fleet.ready()
        assert f"driver {NEW} is wanted, and {OLD} runs" in told.fleet.said()


@pytest.mark.parametrize(
    ("pod", "deletion"),
    [({"owner": None}, {"force": True}), ({"spec": EMPTY_DIR}, {"deleteEmptyDir": True})],
    ids=["no controller", "emptyDir"],
)
async def test_pods_that_go_only_where_the_policy_says_so(pod: dict[str, Any], deletion: dict[str, Any]) -> None:
    async with running_old("n1") as told:
        fleet = told.fleet
        fleet.train("train", "n1", **pod)
        fleet.want(NEW, AUTO)
        await told.until(lambda: fleet.state("n1") == "upgrade-failed", "it is refused")
        assert (fleet.evictions, fleet.loaded(), fleet.cordoned()) == ([], {"n1": OLD}, [])
        assert "default/train" in fleet.said()
    async with running_old("n1") as told:
        told.fleet.train("train", "n1", **pod)
        told.fleet.want(NEW, {**AUTO, "podDeletion": deletion})
        await told.until(told.fleet.ready, "it goes")
        assert told.fleet.evictions == ["default/train"]


async def test_pods_get_the_time_that_the_policy_says() -> None:
    refused = (429, "Cannot evict pod", (("DisruptionBudget", "The disruption budget web needs 2 healthy pods"),))
    async with running_old("n1") as told:
        fleet = told.fleet
        fleet.train("train", "n1")
        fleet.budgets["default", "train"] = refused
        fleet.want(NEW, {**AUTO, "podDeletion": {"timeoutSeconds": 40}})
        await told.until(fleet.cordoned, "it begins")
        await told.run_for(30)
        assert fleet.cordoned() == ["n1"]
        await told.until(lambda: fleet.state("n1") == "upgrade-failed", "the time is over", 30)
        assert (fleet.loaded(), fleet.cordoned()) == ({"n1": OLD}, [])
        assert "The disruption budget web needs 2 healthy pods" in fleet.said()


async def test_a_drain_takes_the_pods_of_its_selector_and_all_with_gpus() -> None:
    skip = {"labels": {"app": "batch", names.DRIVER_UPGRADE_DRAIN_SKIP: "true"}}
    async with running_old("n1") as told:
        fleet = told.fleet
        fleet.train("train", "n1")
        fleet.pod("batch", "n1", metadata={"labels": {"app": "batch"}})
        fleet.pod("skipped", "n1", metadata=skip)
        fleet.pod("web", "n1", metadata={"labels": {"app": "web"}})
        fleet.want(NEW, {**AUTO, "drain": {"enable": True, "podSelector": "app=batch"}})
        await told.until(fleet.ready, "it is upgraded")
        assert sorted(fleet.evictions) == ["default/batch", "default/train"]


@pytest.mark.parametrize("limit", [0, 20])
async def test_jobs_are_waited_for(limit: int) -> None:
    rules = {**AUTO, "waitForCompletion": {"podSelector": "app=job", "timeoutSeconds": limit}}
    async with running_old("n1") as told:
        fleet = told.fleet
        job = fleet.train("job", "n1", metadata={"labels": {"app": "job"}})
        fleet.want(NEW, rules)
        await told.until(lambda: fleet.state("n1") == "wait-for-jobs-required", "it waits")
        await told.run_for(10)
        assert (fleet.evictions, fleet.loaded()) == ([], {"n1": OLD})
        if not limit:
            await told.run_for(600)
            assert fleet.loaded() == {"n1": OLD}
            fleet.put(PODS, {**job, "status": {"phase": "Succeeded"}})
        await told.until(fleet.ready, "it goes on")


async def test_a_node_with_the_skip_label_keeps_its_driver_until_the_label_goes() -> None:
    async with running_old("n1", "n2") as told:
        fleet = told.fleet
        fleet.label("n1", **{names.DRIVER_UPGRADE_SKIP: "true"})
        fleet.want(NEW, AUTO)
        await told.run_for(120)
        assert fleet.loaded() == {"n1": OLD, "n2": NEW}
        assert names.DRIVER_UPGRADE_SKIP in fleet.said()
        fleet.label("n1", **{names.DRIVER_UPGRADE_SKIP: None})
        await told.until(fleet.ready, "it gets it too")


async def test_a_node_that_a_person_has_cordoned_is_upgraded_and_stays_cordoned() -> None:
    async with running_old("n1", "n2") as told:
        fleet = told.fleet
        fleet.cordon("n1")
        fleet.want(NEW, AUTO)
        await told.until(lambda: set(fleet.loaded().values()) == {NEW}, "both run it")
        await told.until(lambda: fleet.cordoned() == ["n1"], "the other is given back")
        await told.run_for(60)
        assert fleet.cordoned() == ["n1"]


@pytest.mark.parametrize(
    "key",
    ["nvidia.com/gpu-driver-upgrade-requested", "nvidia.com/gpu-driver-upgrade.driver-wait-for-safe-load"],
)
async def test_annotations_are_no_orders(key: str) -> None:
    """Whoever may annotate a Node must not be able to have its pods evicted."""
    async with running_old("n1") as told:
        told.fleet.train("train", "n1")
        told.fleet.annotate("n1", {key: "true"})
        await told.run_for(120)
        assert (told.fleet.outcomes(), told.fleet.evictions, told.fleet.ready()) == ([], [], True)
        told.fleet.want(NEW, AUTO)
        await told.until(told.fleet.ready, "an upgrade is none the worse for it")
