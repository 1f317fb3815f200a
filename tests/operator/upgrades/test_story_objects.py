"""Nodes that change the object of their driver: from the ClusterPolicy to an NVIDIADriver, back, and from one to another.

Each is an upgrade like any other: pods with GPUs go before the driver's pod does, within the budget, and no node ever has
two driver pods. Who asks for what may change midway, and kgpu may be killed.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from kgpu.formats import names
from kgpu.formats.operands import BY_NAME
from kgpu.kube import kinds
from kgpu.kube.kinds import NODE_OPERATIONS
from tests.operator.upgrades.live_fleet import NEW, NEWER, OLD, LiveFleet
from tests.operator.upgrades.story import AUTO, Story, running_old, story
from tests.operator.world import NAMESPACE

CRD: dict[str, Any] = {"useNvidiaDriverCRD": True}
ONE_BY_ONE: dict[str, Any] = {"autoUpgrade": True, "maxParallelUpgrades": 1, "maxUnavailable": 1}
BY_HAND: dict[str, Any] = {"autoUpgrade": False, "maxParallelUpgrades": 0, "maxUnavailable": "100%"}
NODES = ("n1", "n2", "n3")
BEGUN = ("cordon-required", "pod-deletion-required", "pod-restart-required", "validation-required")


def nvidia_driver(fleet: LiveFleet, name: str, version: str, upgrade: Any = AUTO, **spec: Any) -> None:
    fleet.nvidia_driver(name, version, upgradePolicy=dict(upgrade), **(spec or {"default": True}))


@contextlib.asynccontextmanager
async def driven_by_objects(*nodes: str, upgrade: Any = AUTO) -> AsyncIterator[Story]:
    """A fleet on which ``OLD`` runs, by the NVIDIADriver ``d``."""
    fleet = LiveFleet(*(nodes or NODES))
    fleet.want(OLD, upgrade, **CRD)
    nvidia_driver(fleet, "d", OLD, upgrade)
    async with story(fleet) as told:
        await told.until(fleet.ready, "it runs")
        assert set(fleet.loaded().values()) == {OLD}
        yield told


def to_objects(fleet: LiveFleet, version: str, upgrade: Any = AUTO) -> None:
    nvidia_driver(fleet, "d", version, upgrade)
    fleet.want(OLD, upgrade, **CRD)


def to_policy(fleet: LiveFleet, version: str, upgrade: Any = AUTO) -> None:
    fleet.want(version, upgrade)


REFUSED = (429, "Cannot evict pod", (("DisruptionBudget", "The disruption budget train needs all of them"),))


def train_on_all(fleet: LiveFleet, *, held: bool = False) -> list[str]:
    """Let a pod use each node's GPUs; ``held``: a disruption budget keeps them until ``held_up`` lets them go."""
    for name in fleet.driven_by:
        fleet.train(f"train-{name}", name)
        if held:
            fleet.budgets["default", f"train-{name}"] = REFUSED
    return sorted(f"default/train-{name}" for name in fleet.driven_by)


async def held_up(told: Story, before: str = OLD) -> None:
    """Pods that can't be evicted for a while keep their driver for as long."""
    fleet = told.fleet
    await told.until(fleet.cordoned, "it begins")
    await told.run_for(30)
    assert (fleet.harm, set(fleet.loaded().values()), len(fleet.cordoned())) == ([], {before}, 1)
    fleet.budgets.clear()
    fleet.evictions.clear()


def watched(fleet: LiveFleet, wanted: str, most: int, *, done: Callable[[], bool] | None = None) -> Callable[[], bool]:
    """Whether all is done; what must hold until then is checked on the way."""

    def look() -> bool:
        assert fleet.harm == []
        assert fleet.most_drivers() <= 1
        assert len(fleet.cordoned()) <= most
        others = set(fleet.loaded().values()) - {wanted}
        if not others:
            return (done or fleet.ready)()
        assert not fleet.ready(), fleet.loaded()
        return False

    return look


def owner_of(fleet: LiveFleet, node: str) -> str:
    return str(fleet.object(kinds.NODES, node)["metadata"]["labels"].get(names.LABEL_DRIVER_OWNER, ""))


def has_account(fleet: LiveFleet) -> bool:
    """Whether the account of the ClusterPolicy's driver pods is there."""
    return any(key[1:] == (NAMESPACE, BY_NAME["driver"].account) for key in fleet.keys(kinds.SERVICE_ACCOUNTS))


def rest(fleet: LiveFleet) -> tuple[set[str], set[str], list[str]]:
    """The owners that the driver pods have, what the Nodes still tell of a change, and the cordoned nodes."""
    pods = {fleet.driver_pod(node)["metadata"]["ownerReferences"][0]["name"] for node in fleet.driven_by}
    told = {
        fleet.object(kinds.NODES, name)["metadata"]["annotations"].get(names.NEXT_DRIVER) for name in fleet.driven_by
    }
    return pods, {one for one in told if one}, fleet.cordoned()


@pytest.mark.parametrize("version", [NEW, OLD])
async def test_switched_on_the_objects_take_over_node_by_node(version: str) -> None:
    async with running_old(*NODES, upgrade=ONE_BY_ONE) as told:
        fleet = told.fleet
        trains = train_on_all(fleet, held=True)
        to_objects(fleet, version, ONE_BY_ONE)
        await held_up(told)
        assert has_account(fleet), "pods whose DaemonSet is gone need theirs, as after a reboot"
        moved = lambda: fleet.ready() and len(fleet.outcomes()) == len(NODES)  # noqa: E731
        await told.until(watched(fleet, version, 1, done=moved), "the NVIDIADriver's driver runs everywhere", 900)
        assert sorted(fleet.evictions) == trains
        assert fleet.ready("d", kinds.NVIDIA_DRIVERS)
        pods, left, cordoned = rest(fleet)
        assert (len(pods), left, cordoned) == (1, set(), [])
        assert pods == {name for name in fleet.driver_sets() if "nvidia-gpu-driver" in name}, "the former one is gone"
        assert {owner_of(fleet, node) for node in NODES} == {"d"}
        assert {reason for _, reason in fleet.outcomes()} == {"DriverUpgraded"}
        await told.run_for(30)
        assert not has_account(fleet)


@pytest.mark.parametrize("version", [NEW, OLD])
async def test_switched_off_the_policy_takes_over_node_by_node(version: str) -> None:
    async with driven_by_objects(upgrade=ONE_BY_ONE) as told:
        fleet = told.fleet
        trains = train_on_all(fleet, held=True)
        to_policy(fleet, version, ONE_BY_ONE)
        await held_up(told)
        moved = lambda: fleet.ready() and len(fleet.outcomes()) == len(NODES)  # noqa: E731
        await told.until(watched(fleet, version, 1, done=moved), "the ClusterPolicy's driver runs everywhere", 900)
        assert sorted(fleet.evictions) == trains
        await told.run_for(30)
        assert rest(fleet) == ({"nvidia-driver-daemonset"}, set(), [])
        assert fleet.driver_sets() == ["nvidia-driver-daemonset"]
        assert {owner_of(fleet, node) for node in NODES} == {""}
        assert {reason for _, reason in fleet.outcomes()} == {"DriverUpgraded"}


@pytest.mark.parametrize(("before", "after"), [((OLD, False), ("570", True)), (("550", True), (NEW, False))])
async def test_drivers_of_the_policy_become_precompiled_or_not_node_by_node(
    before: tuple[str, bool], after: tuple[str, bool]
) -> None:
    fleet = LiveFleet(*NODES)
    fleet.want(before[0], ONE_BY_ONE, usePrecompiled=before[1])
    async with story(fleet) as told:
        await told.until(lambda: fleet.ready() and set(fleet.loaded().values()) == {before[0]}, "it runs")
        trains = train_on_all(fleet, held=True)
        fleet.want(after[0], ONE_BY_ONE, usePrecompiled=after[1])
        await held_up(told, before[0])
        await told.until(watched(fleet, after[0], 1), "the other kind of driver runs everywhere", 900)
        assert sorted(fleet.evictions) == trains
        await told.run_for(30)
        (name,) = fleet.driver_sets()
        assert rest(fleet) == ({name}, set(), [])
        assert ("6-8-0-40" in name or "6.8.0-40" in name) == after[1], name
        assert {reason for _, reason in fleet.outcomes()} == {"DriverUpgraded"}


async def test_a_changed_mind_about_precompiled_drivers_leaves_one_kind_everywhere() -> None:
    async with running_old(*NODES, upgrade=ONE_BY_ONE) as told:
        fleet = told.fleet
        fleet.want("570", ONE_BY_ONE, usePrecompiled=True)
        await told.until(lambda: list(fleet.loaded().values()).count("570") == 1, "one has it", 600)
        fleet.want(OLD, ONE_BY_ONE, usePrecompiled=False)
        await told.run_for(1)
        done = lambda: fleet.ready() and set(fleet.loaded().values()) == {OLD}  # noqa: E731
        await told.until(done, "the former one runs everywhere", 300)
        await told.run_for(30)
        assert (fleet.harm, rest(fleet)) == ([], ({"nvidia-driver-daemonset"}, set(), []))
        assert len(fleet.outcomes("n3")) <= 1, "a node that was not reached keeps its driver"


async def test_on_and_off_again() -> None:
    async with running_old(*NODES) as told:
        fleet = told.fleet
        to_objects(fleet, NEW)
        await told.until(watched(fleet, NEW, 3), "on", 600)
        to_policy(fleet, NEWER)
        await told.until(watched(fleet, NEWER, 3), "off", 600)
        to_objects(fleet, NEW)
        await told.until(watched(fleet, NEW, 3), "on again", 600)
        assert len(fleet.outcomes()) == 3 * len(NODES)


async def test_a_node_moves_to_another_object_by_its_labels() -> None:
    fleet = LiveFleet(*NODES)
    fleet.want(OLD, AUTO, **CRD)
    nvidia_driver(fleet, "a", OLD, ONE_BY_ONE)
    nvidia_driver(fleet, "b", NEW, ONE_BY_ONE, nodeSelector={"pool": "b"})
    async with story(fleet) as told:
        await told.until(lambda: fleet.ready() and set(fleet.loaded().values()) == {OLD}, "it runs")
        fleet.train("train", "n2")
        fleet.budgets["default", "train"] = REFUSED
        fleet.label("n2", pool="b")
        await held_up(told)
        done = lambda: fleet.ready() and fleet.loaded()["n2"] == NEW  # noqa: E731

        def look() -> bool:
            assert (fleet.harm, fleet.most_drivers() <= 1) == ([], True)
            assert not (fleet.ready() and fleet.ready("b", kinds.NVIDIA_DRIVERS)) or fleet.loaded()["n2"] == NEW
            return bool(done())

        await told.run_for(1)
        await told.until(look, "it has b's")
        assert (fleet.loaded(), fleet.evictions) == ({"n1": OLD, "n2": NEW, "n3": OLD}, ["default/train"])
        assert [(row["spec"]["nodeName"], row["spec"]["rollout"]["name"]) for row in fleet.operations()] == [
            ("n2", "nvidiadriver-b")
        ]
        fleet.train("again", "n2")
        fleet.label("n2", pool=None)
        await told.run_for(1)
        await told.until(lambda: fleet.ready() and fleet.loaded()["n2"] == OLD, "it is a's again")
        assert fleet.evictions == ["default/train", "default/again"]


async def test_an_object_is_replaced_by_one_of_another_name() -> None:
    async with driven_by_objects(upgrade=ONE_BY_ONE) as told:
        fleet = told.fleet
        trains = train_on_all(fleet)
        nvidia_driver(fleet, "e", NEW, ONE_BY_ONE)
        await told.run_for(60)
        assert set(fleet.loaded().values()) == {OLD}, "two defaults change nothing"
        await fleet.delete(kinds.NVIDIA_DRIVERS, "d")
        await told.until(watched(fleet, NEW, 1), "the other one's driver runs everywhere", 900)
        assert sorted(fleet.evictions) == trains
        assert {owner_of(fleet, node) for node in NODES} == {"e"}


async def test_an_object_that_is_deleted_without_another_one_takes_its_driver_along() -> None:
    async with driven_by_objects("n1") as told:
        fleet = told.fleet
        await fleet.delete(kinds.NVIDIA_DRIVERS, "d")
        await told.until(lambda: not fleet.driver_sets() and not fleet.most_drivers(), "they are gone")
        assert (fleet.outcomes(), fleet.ready()) == ([], False)


@pytest.mark.parametrize("change", [to_objects, to_policy])
async def test_without_auto_upgrade_the_driver_goes_on_until_somebody_approves(change: Any) -> None:
    start = running_old(*NODES, upgrade=BY_HAND) if change is to_objects else driven_by_objects(upgrade=BY_HAND)
    async with start as told:
        fleet = told.fleet
        trains = train_on_all(fleet)
        change(fleet, NEW, BY_HAND)
        await told.until(lambda: len(fleet.operations()) == len(NODES), "operations")
        await told.run_for(120)
        assert (set(fleet.loaded().values()), fleet.evictions, fleet.cordoned()) == ({OLD}, [], [])
        assert not fleet.ready()
        assert "waits for approval" in fleet.said()
        for row in fleet.operations():
            fleet.put(NODE_OPERATIONS, {**row, "spec": {**row["spec"], "approved": True}})
        await told.until(watched(fleet, NEW, 3), "it is exchanged", 600)
        assert sorted(fleet.evictions) == trains


@pytest.mark.parametrize("change", [to_objects, to_policy])
async def test_a_node_that_is_skipped_keeps_the_driver_of_before(change: Any) -> None:
    start = running_old(*NODES) if change is to_objects else driven_by_objects()
    async with start as told:
        fleet = told.fleet
        fleet.train("train", "n1")
        fleet.label("n1", **{names.DRIVER_UPGRADE_SKIP: "true"})
        change(fleet, NEW)
        await told.until(lambda: list(fleet.loaded().values()).count(NEW) == 2, "the others have it", 600)
        await told.run_for(60)
        assert (fleet.loaded()["n1"], fleet.ready(), fleet.evictions) == (OLD, False, [])
        assert names.DRIVER_UPGRADE_SKIP in fleet.said()
        fleet.label("n1", **{names.DRIVER_UPGRADE_SKIP: None})
        await told.until(watched(fleet, NEW, 1), "it has it, too", 600)


@pytest.mark.parametrize("state", BEGUN)
@pytest.mark.parametrize("change", [to_objects, to_policy])
@pytest.mark.parametrize("back", [True, False])
async def test_the_wish_changes_midway(change: Any, state: str, *, back: bool) -> None:
    start = running_old(*NODES) if change is to_objects else driven_by_objects()
    other = to_policy if change is to_objects else to_objects
    async with start as told:
        fleet = told.fleet
        train_on_all(fleet)
        change(fleet, NEW)
        for _ in range(900):
            await told.run_for(0.1, step=0.1)
            if any(fleet.state(name) == state for name in NODES):
                break
        else:
            pytest.fail(f"no node was ever at {state}: {told.told()}")
        wanted = OLD if back else NEWER
        (other if back else change)(fleet, wanted)
        await told.run_for(2)
        await told.until(
            lambda: fleet.ready() and set(fleet.loaded().values()) == {wanted}, f"{wanted} everywhere", 600
        )
        await told.run_for(120)
        assert (fleet.ready(), set(fleet.loaded().values()), rest(fleet)[2]) == (True, {wanted}, [])
        assert rest(fleet)[1] == set()


async def test_a_driver_that_can_not_run_leaves_the_others_with_the_former_one() -> None:
    async with driven_by_objects("n1", "n2", "n3", "n4", upgrade=ONE_BY_ONE) as told:
        fleet = told.fleet
        fleet.unpublished.add(NEW)
        to_policy(fleet, NEW, ONE_BY_ONE)
        await told.until(
            lambda: [fleet.state(name) for name in fleet.driven_by].count("upgrade-failed") == 2, "two", 900
        )
        await told.run_for(120)
        assert (list(fleet.loaded().values()).count(OLD), fleet.cordoned()) == (2, [])
        to_objects(fleet, OLD, ONE_BY_ONE)
        await told.until(lambda: fleet.ready() and set(fleet.loaded().values()) == {OLD}, "back", 900)


async def test_a_label_that_a_person_sets_takes_no_driver_away() -> None:
    async with running_old("n1") as told:
        fleet = told.fleet
        fleet.train("train", "n1")
        for value in ("d", "nonsense"):
            fleet.label("n1", **{names.LABEL_DRIVER_OWNER: value})
            await told.run_for(60)
            assert (fleet.loaded(), fleet.outcomes(), fleet.ready()) == ({"n1": OLD}, [], True)


async def test_a_node_that_nobody_asks_for_keeps_what_is_left_there() -> None:
    async with running_old("n1", "n2") as told:
        fleet = told.fleet
        fleet.train("train", "n2")
        fleet.label("n1", pool="a")
        nvidia_driver(fleet, "d", NEW, nodeSelector={"pool": "a"})
        fleet.want(OLD, AUTO, **CRD)
        await told.until(lambda: fleet.loaded()["n1"] == NEW, "the other has it")
        await told.run_for(60)
        assert (fleet.loaded()["n2"], fleet.evictions, fleet.ready()) == (OLD, [], False)
        assert "no driver is meant for it" in fleet.said()
        nvidia_driver(fleet, "d", NEW, default=True)
        await told.until(watched(fleet, NEW, 2), "it has it, too", 600)


async def test_what_is_left_is_taken_back_by_the_policy_s_daemon_set_and_nothing_is_exchanged() -> None:
    async with running_old("n1", "n2", upgrade=BY_HAND) as told:
        fleet = told.fleet
        train_on_all(fleet)
        to_objects(fleet, NEW, BY_HAND)
        await told.until(lambda: len(fleet.operations()) == 2, "operations")
        to_policy(fleet, OLD, BY_HAND)
        await told.until(fleet.ready, "all is as before")
        await told.run_for(30)
        assert rest(fleet) == ({"nvidia-driver-daemonset"}, set(), [])
        assert (fleet.evictions, fleet.operations(), fleet.ready()) == ([], [], True)
