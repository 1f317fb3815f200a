"""Nothing is taken down because a policy seems to be gone; only because it certainly is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from kgpu.formats import names
from kgpu.kube import kinds
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import CONFIG_MAPS, Listing, ServedResources
from tests.operator.run.support import (
    MAY_LABEL,
    MAY_LEAD,
    POLICY,
    Meddled,
    Wish,
    cluster,
    deploy,
    labels_of,
    refusal,
    running,
    there,
    writes,
)

NVIDIA = names.NVIDIA_DOMAIN


class Forgetful(Meddled):
    """An API server that lists no custom resources while ``forgets``, and answers lists of policies as told."""

    def __init__(self, api: FakeApi) -> None:
        super().__init__(api)
        self.forgets = False
        self.listing: Callable[[], Listing] | None = None

    async def discover(self) -> ServedResources:
        served: ServedResources = await super().discover()
        if not self.forgets:
            return served
        return dataclasses.replace(served, resources=tuple(one for one in served.resources if one.group != NVIDIA))

    async def list(self, resource, **more):  # type: ignore[no-untyped-def]
        if resource == kinds.CLUSTER_POLICIES and self.listing is not None:
            return self.listing()
        return await super().list(resource, **more)


def too_old(api: FakeApi) -> None:
    """Everybody has to list everything anew."""
    api.put(CONFIG_MAPS, {"metadata": {"name": "unrelated", "namespace": "elsewhere"}})
    api.expire()


def forget(api: FakeApi) -> None:
    """The policy goes without anybody being told."""
    del api._objects[next(key for key in api._objects if key[0] == kinds.CLUSTER_POLICIES)]
    too_old(api)


async def stands(api: FakeApi) -> bool:
    agents = names.AGENT_DAEMON_SET in await there(api, kinds.DAEMON_SETS)
    return agents and names.LABEL_GPU_PRESENT in await labels_of(api, "n0")


@pytest.mark.parametrize("seconds", [1, 600, 7200])
async def test_a_server_that_does_not_list_custom_resources_changes_nothing(seconds: float) -> None:
    api = cluster(2)
    forgetful = Forgetful(api)
    async with running(forgetful) as run:
        since = len(api.calls)
        forgetful.forgets = True
        await run.clock.advance(31)
        await run.clock.advance(seconds)
        assert writes(api, since) == {}
        forgetful.forgets = False
        await run.clock.advance(120)
        assert writes(api, since) == {}


async def test_an_operator_that_starts_beside_such_a_server_waits() -> None:
    api = cluster(2)
    async with running(api):
        pass
    since, forgetful = len(api.calls), Forgetful(api)
    forgetful.forgets = True
    async with running(forgetful, settle_first=False) as run:
        await run.clock.advance(300)
        assert writes(api, since) == {}
        assert "does not serve clusterpolicies" in run.operator.problem
        forgetful.forgets = False
        await run.settled()
        assert run.operator.problem == ""
        assert not any(verb == "delete" for verb, _, _ in api.calls[since:])
        assert await stands(api)


async def test_the_objects_of_a_kind_that_seems_to_be_gone_are_not_pruned() -> None:
    api = cluster(1)
    api.served.add(kinds.SERVICE_MONITORS)
    policy = {**POLICY, "spec": {**POLICY["spec"], "dcgmExporter": {"serviceMonitor": {"enabled": True}}}}
    api.put(kinds.CLUSTER_POLICIES, policy)
    meddled = Forgetful(api)
    async with running(meddled) as run:
        since = len(api.calls)
        api.served.discard(kinds.SERVICE_MONITORS)
        await run.clock.advance(45)
        api.served.add(kinds.SERVICE_MONITORS)
        await run.clock.advance(300)
        assert not any(verb == "delete" for verb, _, _ in api.calls[since:])


async def test_a_list_that_lacks_the_policy_is_not_believed_while_another_has_it() -> None:
    api = cluster(1)
    meddled = Forgetful(api)
    async with running(meddled) as run:
        lies = [Listing((), str(api._version))]
        whole = await api.list(kinds.CLUSTER_POLICIES)

        def listing() -> Listing:
            if lies:
                return lies.pop()
            return dataclasses.replace(whole, items=tuple({**one, "ends": False, "uid": "u"} for one in whole.items))

        meddled.listing = listing
        since = len(api.calls)
        too_old(api)
        await run.until(lambda: "was said to be gone" in run.operator.problem)
        await run.clock.advance(300)
        assert writes(api, since) == {}
        assert await stands(api)


@pytest.mark.parametrize("code", [403, 404, 429, 500, 503])
async def test_without_an_answer_to_the_question_nothing_is_taken_down(code: int) -> None:
    api = cluster(1)
    meddled = Forgetful(api)
    async with running(meddled) as run:

        def refuse(verb: str, plural: str, _name: str) -> None:
            if verb == "list" and plural == "clusterpolicies":
                raise refusal(code)

        meddled.before = refuse
        since = len(api.calls)
        await api.delete(kinds.CLUSTER_POLICIES, "cluster-policy")
        await run.clock.advance(50)
        assert set(writes(api, since)) == {("clusterpolicies", "cluster-policy")}, "the test's own"
        assert run.operator.problem
        meddled.before = lambda *_: None
        await run.settled()
        assert not await stands(api)


async def test_a_policy_that_is_deleted_is_gone_at_once() -> None:
    api = cluster(1)
    async with running(api) as run:
        await api.delete(kinds.CLUSTER_POLICIES, "cluster-policy")
        await run.clock.advance(5)
        await run.settled()
        assert not await stands(api)


async def test_a_policy_that_went_while_nobody_looked_is_gone_too() -> None:
    api = cluster(1)
    async with running(api) as run:
        forget(api)
        await run.until(lambda: ("delete", "daemonsets", names.AGENT_DAEMON_SET) in api.calls)


async def test_a_store_that_has_gone_back_takes_nothing_down() -> None:
    api = cluster(1)
    meddled = Forgetful(api)
    async with running(meddled) as run:
        meddled.listing = lambda: Listing((), "1")
        since = len(api.calls)
        forget(api)
        await run.until(lambda: "older state" in run.operator.problem)
        await run.clock.advance(600)
        assert writes(api, since) == {}
        meddled.listing = None
        api.put(kinds.CLUSTER_POLICIES, POLICY)
        await run.settled()
        assert run.operator.problem == ""
        assert await stands(api)


@pytest.mark.parametrize("code", [429, 500, 503])
async def test_a_foreign_operator_is_seen_although_lists_fail_first(code: int) -> None:
    api = cluster(1)
    deploy(api, "nvidia", "gpu-operator", right=MAY_LEAD, app="gpu-operator")
    api.refuse["list", "deployments"] = code
    async with running(api, settle_first=False) as run:
        await run.clock.advance(60)
        assert writes(api) == {}
        assert any("deployments" in said or "operator" in said for said in run.operator.watching.missing())
        del api.refuse["list", "deployments"]
        await run.settled()
        assert {plural for plural, _ in writes(api)} <= {"clusterpolicies", "events"}
        assert run.operator.last.hold


async def test_what_was_seen_of_another_discovery_stays_known_through_errors() -> None:
    api = cluster(1)
    deploy(api, "nfd", "nfd-master", right=MAY_LABEL, app="nfd")
    wish = Wish()
    async with running(api, planner=wish) as run:
        assert wish.seen[-1].foreign_nfd
        for code in (403, 500):
            api.refuse["list", "deployments"] = api.refuse["watch", "deployments"] = code
            too_old(api)
            await run.clock.advance(60)
            run.operator.watching.news.set()
            await run.settled()
            assert wish.seen[-1].foreign_nfd


async def test_a_missing_right_is_told_and_does_not_stop_the_operator() -> None:
    api = cluster(1)
    api.refuse["list", "deployments"] = 403
    async with running(api) as run:
        assert await stands(api)
        await run.clock.advance(30)
        told = [one for one in run.operator.watching.advice() if one.reason == "MissingRight"]
        assert len(told) == 2
        assert all("list and watch deployments.apps" in one.what for one in told)
        assert sum(1 for verb, plural, _ in api.calls if (verb, plural) == ("create", "events")) == 2
