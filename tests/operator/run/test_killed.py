"""Killed at any call of an install, a change and an uninstall, the next operator finishes the job.

Each case is killed twice as often as there are phases would need: at the n-th call to the API server, before or after
the call had its effect. Whatever happens, the end is the same as without a kill, nothing is left over, and no label
goes back to a value that it has left.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
from typing import Any

import pytest

from kgpu.base.clock import VirtualClock
from kgpu.formats import names
from kgpu.kube import kinds
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import CONFIG_MAPS, NODES, Change, Object, name_of
from tests.operator.run.support import POLICY, Meddled, Run, cluster, running, silence

POINTS = 100
NODES_COUNT = 4
CHANGED: Object = {**POLICY, "spec": {"driver": {"enabled": True, "version": "580.65.06"}, "gfd": {"enabled": False}}}


def kept(api: FakeApi) -> dict[tuple[str, str], Any]:
    """What the operator is answerable for: its objects and the Nodes' labels, without what differs by chance."""
    found: dict[tuple[str, str], Any] = {}
    for (resource, _, name), stored in api._objects.items():
        obj = copy.deepcopy(stored.obj)
        if resource == NODES:
            found[resource.plural, name] = obj["metadata"].get("labels")
        elif names.LABEL_OPERATOR_STATE in (obj["metadata"].get("labels") or {}):
            for key in ("uid", "resourceVersion"):
                obj["metadata"].pop(key, None)
            found[resource.plural, name] = obj
    return found


def flaps(api: FakeApi, since: int) -> list[str]:
    """Labels of Nodes that have had a value, another one, and then the first again."""
    seen: dict[tuple[str, str], list[str | None]] = {}
    for logged in api._log:
        if logged.resource != NODES or logged.version <= since or logged.change is Change.DELETED:
            continue
        labels = logged.obj["metadata"].get("labels") or {}
        for key in {*labels, *(key for node, key in seen if node == name_of(logged.obj))}:
            history = seen.setdefault((name_of(logged.obj), key), [])
            if not history or history[-1] != labels.get(key):
                history.append(labels.get(key))
    return [f"{node} {key}: {history}" for (node, key), history in seen.items() if len(set(history)) < len(history)]


def objects_made_twice(api: FakeApi, since: int) -> list[str]:
    """Objects of the operator that went and came again."""
    found: dict[tuple[str, str], int] = {}
    for logged in api._log:
        if logged.version > since and logged.change is Change.ADDED and logged.resource in kinds.MANAGED:
            key = logged.resource.plural, name_of(logged.obj)
            found[key] = found.get(key, 0) + 1
    return [f"{plural}/{name}" for (plural, name), count in found.items() if count > 1]


def install(api: FakeApi) -> None:
    api.put(kinds.CLUSTER_POLICIES, POLICY)


def change(api: FakeApi) -> None:
    api.put(kinds.CLUSTER_POLICIES, {**CHANGED, "metadata": {**CHANGED["metadata"], "generation": 2}})


def uninstall(api: FakeApi) -> None:
    key = next(key for key in api._objects if key[0] == kinds.CLUSTER_POLICIES)
    api._drop(kinds.CLUSTER_POLICIES, api._objects[key])


PHASES = {"install": (), "change": (install,), "uninstall": (install, change)}
ACTS = {"install": install, "change": change, "uninstall": uninstall}


async def before(phase: str) -> FakeApi:
    """The cluster as it is when the phase begins."""
    api = cluster(NODES_COUNT, policy=False)
    async with running(api) as run:
        for act in PHASES[phase]:
            act(api)
            await run.settled()
    return api


async def one_phase(phase: str, kill_at: int | None, *, effect: bool) -> tuple[FakeApi, int, int]:
    """The cluster after the phase, how many calls it took, and the version at which it began."""
    api, clock = await before(phase), VirtualClock()
    meddled, count, runs = Meddled(api), 0, list[Run]()
    began = api._version

    def dead() -> bool:
        return kill_at is not None and count > kill_at

    def before_it(_verb: str, _plural: str, _name: str) -> None:
        nonlocal count
        count += 1
        if dead() or (count == kill_at and not effect):
            end_it()

    def after_it(_verb: str, _plural: str, _name: str) -> None:
        if dead() or count == kill_at:
            end_it()

    def end_it() -> None:
        for run in runs:
            run.task.cancel()
        raise silence()

    meddled.before, meddled.after = before_it, after_it
    async with running(meddled, clock=clock, elect=True, identity="first", settle_first=False) as run:
        runs.append(run)
        ACTS[phase](api)
        await run.until(lambda: run.task.done() or run.operator.settled.is_set(), "the end of the operator")
        if not run.task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await run.settled()
    if kill_at is not None:
        async with running(api, clock=clock, elect=True, identity="second", settle_first=False) as run:
            await run.settled()
    return api, count, began


@pytest.mark.parametrize("phase", PHASES)
async def test_killed_at_points_all_over(phase: str) -> None:
    reference, calls, _ = await one_phase(phase, None, effect=False)
    wanted = kept(reference)
    share = POINTS // (2 * len(PHASES)) + 1
    points = sorted({1 + calls * number // share for number in range(share)})
    assert len(points) * 2 * len(PHASES) >= POINTS or len(points) == calls
    for point in points:
        for effect in (False, True):
            api, _, began = await one_phase(phase, point, effect=effect)
            where = f"{phase}, killed at call {point} of {calls}, {'after' if effect else 'before'} its effect"
            assert kept(api) == wanted, where
            assert flaps(api, began) == [], where
            assert objects_made_twice(api, began) == [], where


async def test_an_uninstall_leaves_nothing_of_the_operator() -> None:
    clean = kept(cluster(NODES_COUNT, policy=False))
    api, _, _ = await one_phase("uninstall", None, effect=False)
    assert kept(api) == clean
    assert (await api.list(CONFIG_MAPS)).items == ()
