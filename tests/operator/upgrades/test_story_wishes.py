"""Wishes that can't be granted, that change midway, or that are forged: a clear state, and no node is left cordoned."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from kgpu.formats import names
from kgpu.formats.crd.nodeoperation import OperationPhase
from kgpu.kube import kinds
from kgpu.kube.port import Object, Resource
from tests.operator.upgrades.live_fleet import NEW, NEWER, OLD, LiveFleet
from tests.operator.upgrades.story import AUTO, running_old, story
from tests.operator.world import SETTINGS

BY_DRIVERS: dict[str, Any] = {"useNvidiaDriverCRD": True}
BEGUN = ("cordon-required", "pod-deletion-required", "pod-restart-required", "validation-required")


@pytest.mark.parametrize(
    ("trouble", "words"), [("unpublished", "not found"), ("too_old", "this GPU is not supported by the")]
)
async def test_a_driver_that_can_not_run_stops_after_two_nodes_and_the_former_one_helps(
    trouble: str, words: str
) -> None:
    one_by_one = {"autoUpgrade": True, "maxParallelUpgrades": 1, "maxUnavailable": 1}
    async with running_old("n1", "n2", "n3", "n4", upgrade=one_by_one) as told:
        fleet = told.fleet
        getattr(fleet, trouble).add(NEW)
        fleet.want(NEW, one_by_one)
        await told.until(lambda: [fleet.state(name) for name in fleet.driven_by].count("upgrade-failed") == 2, "two")
        await told.run_for(300)
        assert (list(fleet.loaded().values()).count(OLD), fleet.cordoned()) == (2, [])
        assert words in fleet.said()
        assert not fleet.ready()
        fleet.want(OLD, one_by_one)
        await told.until(fleet.ready, "the former one is back", 900)
        assert (set(fleet.loaded().values()), fleet.cordoned()) == ({OLD}, [])


@pytest.mark.parametrize("state", BEGUN)
@pytest.mark.parametrize("last", [NEWER, OLD])
async def test_a_wish_that_changes_in_each_phase(state: str, last: str) -> None:
    async with running_old("n1", "n2", "n3") as told:
        fleet = told.fleet
        fleet.train("train", "n1")
        fleet.want(NEW, AUTO)
        seen = False
        for _ in range(600):
            await told.run_for(0.1, step=0.1)
            if seen := any(fleet.state(name) == state for name in fleet.driven_by):
                break
        if not seen:
            pytest.fail(f"no node was ever at {state}: {told.told()}")
        fleet.want(last, AUTO)
        await told.until(fleet.ready, f"driver {last} runs everywhere", 900)
        assert (set(fleet.loaded().values()), fleet.cordoned()) == ({last}, [])


@pytest.mark.parametrize("last", [NEWER, OLD])
async def test_a_wish_that_changes_while_a_node_is_given_back(monkeypatch: pytest.MonkeyPatch, last: str) -> None:
    """That takes less than a look: the wish changes as soon as it is on record."""
    async with running_old("n1", "n2", "n3") as told:
        fleet, apply = told.fleet, told.fleet.apply
        given_back: list[str] = []

        async def applied(resource: Resource, obj: Object, **more: Any) -> Object:
            done = await apply(resource, obj, **more)
            if (obj.get("status") or {}).get("phase") == OperationPhase.RESTORING:
                given_back.append(obj["metadata"]["name"])
                if len(given_back) == 1:
                    fleet.want(last, AUTO)
            return done

        monkeypatch.setattr(fleet, "apply", applied)
        fleet.want(NEW, AUTO)
        await told.until(lambda: given_back, "a node is given back")
        await told.until(fleet.ready, f"driver {last} runs everywhere", 900)
        assert (set(fleet.loaded().values()), fleet.cordoned()) == ({last}, [])


async def test_two_nvidia_drivers_for_one_node_change_nothing_and_are_told() -> None:
    fleet = LiveFleet("n1")
    fleet.want(OLD, **BY_DRIVERS)
    fleet.nvidia_driver("a", OLD, nodeSelector={"kubernetes.io/os": "linux"})
    async with story(fleet) as told:
        await told.until(fleet.ready, "the first one runs")
        fleet.nvidia_driver("b", NEW, nodeSelector={"kubernetes.io/os": "linux"})
        await told.run_for(120)
        assert (fleet.loaded(), fleet.outcomes(), fleet.cordoned()) == ({"n1": OLD}, [], [])
        for name in ("a", "b"):
            assert "ConflictingNodeSelector" in fleet.said(name, kinds.NVIDIA_DRIVERS)


async def test_an_nvidia_driver_that_is_deleted_midway_leaves_no_node_cordoned() -> None:
    fleet = LiveFleet("n1", "n2")
    fleet.want(OLD, **BY_DRIVERS)
    fleet.nvidia_driver("d", OLD, default=True, upgradePolicy=dict(AUTO))
    async with story(fleet) as told:
        await told.until(fleet.ready, "it runs")
        fleet.nvidia_driver("d", NEW, default=True, upgradePolicy=dict(AUTO))
        await told.until(fleet.cordoned, "the upgrade has begun")
        await fleet.delete(kinds.NVIDIA_DRIVERS, "d")
        await told.until(lambda: not fleet.cordoned(), "the nodes are given back", 600)
        await told.run_for(120)
        assert fleet.cordoned() == []
        assert "no driver is meant for it" in fleet.said()
        assert {reason for _, reason in fleet.outcomes()} == {"DriverFailed"}


async def test_kgpu_itself_is_updated_midway() -> None:
    async with running_old("n1", "n2") as told:
        fleet = told.fleet
        fleet.want(NEW, AUTO)
        await told.until(fleet.cordoned, "the upgrade has begun")
        await told.stop()
        await told.start(dataclasses.replace(SETTINGS, image="example.org/kgpu:2"))
        await told.until(fleet.ready, "it goes on")
        assert len(fleet.outcomes()) == 2
        await told.stop()
        await told.start(dataclasses.replace(SETTINGS, image="example.org/kgpu:3"))
        await told.run_for(120)
        assert (len(fleet.outcomes()), fleet.ready()) == (2, True), "an update of kgpu exchanges no driver"


HOSTILE = "\x1b[2J\u202e" + "x" * (1 << 20)


async def test_pods_of_tenants_that_pose_as_drivers_change_nothing() -> None:
    async with running_old("n1") as told:
        fleet = told.fleet
        owner = {"kind": "DaemonSet", "name": "nvidia-driver-daemonset", "uid": "forged", "controller": True}
        posing: dict[str, Any] = {
            "labels": {names.COMPONENT_LABEL: names.DRIVER_COMPONENT, "app": "nvidia-driver-daemonset"},
            "annotations": {names.DRIVER_DIGEST_VERSION: names.THIS_DRIVER_DIGEST_VERSION},
            "ownerReferences": [owner],
        }
        spec = {"containers": [{"name": names.DRIVER_CONTAINER, "image": "evil:1"}]}
        fleet.pod("posing", "n1", metadata=posing, spec=spec)
        await told.run_for(60)
        assert (fleet.outcomes(), fleet.ready()) == ([], True)
        fleet.want(NEW, AUTO)
        await told.until(fleet.ready, "the upgrade is none the worse for it")
        assert "posing" not in {name for name, _ in fleet.deletions}
        assert "posing" in fleet.pods_on("n1")


async def test_texts_of_a_mebibyte_are_cut_and_can_not_drive_a_terminal() -> None:
    refused = (429, HOSTILE, (("DisruptionBudget", HOSTILE),))
    async with running_old("n1") as told:
        fleet = told.fleet
        fleet.train("train", "n1", metadata={"finalizers": [HOSTILE]})
        fleet.budgets["default", "train"] = refused
        fleet.want(NEW, {**AUTO, "podDeletion": {"timeoutSeconds": 30}})
        await told.until(lambda: fleet.state("n1") == "upgrade-failed", "it has failed")
        (operation,) = fleet.operations()
        for text in (operation["status"]["message"], fleet.said()):
            assert len(text) < 1 << 16
            assert "\x1b" not in text
            assert "\\u001b" not in text
        assert fleet.cordoned() == []


async def test_what_people_forge_on_nodes_is_not_believed() -> None:
    async with running_old("n1") as told:
        fleet = told.fleet
        fleet.train("train", "n1")
        for word in ("upgrade-failed", "pod-restart-required", "nonsense"):
            fleet.label("n1", **{names.DRIVER_UPGRADE_STATE_LABEL: word})
            await told.run_for(20)
            assert (fleet.state("n1"), fleet.outcomes(), fleet.evictions) == ("upgrade-done", [], [])
