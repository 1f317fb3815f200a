"""The controller of ResourceClaims: the story that a real one told, what it does better, and a thousand pods."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from kgpu.kube.port import EVENTS, PODS, KubeRefusedError, Object, Resource, name_of
from kgpu.lab.embedded.controllers.kinds import (
    NAMESPACES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    SERVICE_ACCOUNTS,
)
from kgpu.lab.embedded.controllers.meta import status_of, uid_of
from kgpu.lab.embedded.core import ApiCore
from kgpu.lab.embedded.core.model import ApiUser
from kgpu.lab.embedded.kinds import Kinds
from kgpu.lab.embedded.local_api import LocalApi
from kgpu.lab.embedded.store import ObjectStore
from kgpu.lab.embedded.types.admission import chain
from kgpu.lab.embedded.types.rules import BuiltinRules
from tests import budget

from . import story_claims
from .conftest import controllers
from .story_claims import claim, pod, template

NAMESPACE = "claims-story"


class EmbeddedNamespace:
    """The story's backend on the embedded API with its admission."""

    def __init__(self, api: Any = None) -> None:
        rules = BuiltinRules()
        core = ApiCore(Kinds(), ObjectStore(), lambda _: rules, chain())
        self.api: Any = api or LocalApi(core, ApiUser("admin", ("system:masters",)))

    async def create(self, resource: Resource, obj: Object, subresource: str = "") -> Object:
        body = {**obj, "metadata": {**obj["metadata"], "namespace": NAMESPACE}}
        return dict(await self.api.create(resource, body, subresource=subresource))

    async def patch(self, resource: Resource, name: str, change: Object, subresource: str = "") -> Object:
        return dict(await self.api.patch(resource, name, change, namespace=NAMESPACE, subresource=subresource))

    async def delete(self, resource: Resource, name: str) -> None:
        await self.api.delete(resource, name, namespace=NAMESPACE, grace=0 if resource == PODS else None)

    async def list(self, resource: Resource) -> list[Object]:
        return list((await self.api.list(resource, namespace=NAMESPACE)).items)


@contextlib.asynccontextmanager
async def embedded(wrapped: Callable[[Any], Any] = lambda api: api) -> AsyncIterator[EmbeddedNamespace]:
    """The namespace, with all controllers over ``wrapped`` of the API."""
    backend = EmbeddedNamespace()
    await backend.api.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
    async with controllers(wrapped(backend.api)):

        async def account() -> object:
            return await backend.api.get(SERVICE_ACCOUNTS, "default", namespace=NAMESPACE)

        await story_claims.Teller(backend).until(account, "the pods' account")
        yield backend


async def test_the_story_is_the_real_one_s():
    async with embedded() as backend:
        found = await story_claims.tell(backend)
    assert found == story_claims.said()


async def test_a_claim_that_was_lost_is_made_again():
    """The real controller remembers its own claims for an hour, and does nothing (1.35)."""
    async with embedded() as backend:
        teller = story_claims.Teller(backend)
        await backend.create(RESOURCE_CLAIM_TEMPLATES, template("t"))
        await backend.create(PODS, pod("p", gpu="template/t"))
        first = status_of(await teller.made("p"))["resourceClaimStatuses"][0]["resourceClaimName"]
        await backend.delete(RESOURCE_CLAIMS, first)

        async def another() -> list[Object]:
            there = [name_of(obj) for obj in await backend.list(RESOURCE_CLAIMS)]
            made = status_of(await teller.made("p"))["resourceClaimStatuses"]
            return made if made[0]["resourceClaimName"] != first and made[0]["resourceClaimName"] in there else []

        assert len(await teller.until(another, "another claim")) == 1


class Failing:
    """An API that refuses the first writes of pods' claims."""

    def __init__(self, api: Any, failures: int) -> None:
        self._api = api
        self.left = failures

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)

    async def patch(self, resource: Resource, name: str, change: Object, **options: Any) -> Object:
        if resource == PODS and self.left:
            self.left -= 1
            raise KubeRefusedError("not now", "an API server that works", "wait", code=500)
        return dict(await self._api.patch(resource, name, change, **options))


async def test_a_failure_between_the_two_writes_makes_no_second_claim():
    async with embedded(lambda api: Failing(api, 3)) as backend:
        teller = story_claims.Teller(backend)
        await backend.create(RESOURCE_CLAIM_TEMPLATES, template("t"))
        await backend.create(PODS, pod("p", gpu="template/t"))
        await teller.made("p")
        assert len(await backend.list(RESOURCE_CLAIMS)) == 1
        assert [one["reason"] for one in await backend.list(EVENTS)] == []


async def test_a_new_controller_goes_on_where_another_stopped():
    backend = EmbeddedNamespace()
    await backend.api.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
    await backend.create(SERVICE_ACCOUNTS, {"metadata": {"name": "default"}})
    await backend.create(RESOURCE_CLAIM_TEMPLATES, template("t"))
    made = await backend.create(PODS, pod("p", gpu="template/t"))
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid_of(made), "controller": True}
    about = {
        "name": "p-gpu-first", "ownerReferences": [owner],
        "annotations": {"resource.kubernetes.io/pod-claim-name": "gpu"},
    }  # fmt: skip
    await backend.create(RESOURCE_CLAIMS, {**claim("p-gpu-first"), "metadata": about})
    async with controllers(backend.api):
        done = await story_claims.Teller(backend).made("p")
    assert status_of(done)["resourceClaimStatuses"] == [{"name": "gpu", "resourceClaimName": "p-gpu-first"}]
    assert len(await backend.list(RESOURCE_CLAIMS)) == 1


class Counting:
    """An API that counts what it is asked."""

    def __init__(self, api: Any) -> None:
        self._api = api
        self.reads = 0
        self.writes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)

    async def get(self, resource: Resource, name: str, **options: Any) -> Object | None:
        self.reads += resource in {PODS, RESOURCE_CLAIMS}
        found: Object | None = await self._api.get(resource, name, **options)
        return found

    async def create(self, resource: Resource, obj: Object, **options: Any) -> Object:
        self.writes += resource == RESOURCE_CLAIMS
        return dict(await self._api.create(resource, obj, **options))

    async def patch(self, resource: Resource, name: str, change: Object, **options: Any) -> Object:
        self.writes += resource in {PODS, RESOURCE_CLAIMS}
        return dict(await self._api.patch(resource, name, change, **options))


async def test_many_pods_cost_two_writes_each_and_no_looks():
    pods = budget.count(100, 1000)
    seen: list[Counting] = []

    def counted(api: Any) -> Counting:
        seen.append(Counting(api))
        return seen[0]

    async with embedded(counted) as backend:
        await backend.create(RESOURCE_CLAIM_TEMPLATES, template("t"))
        for number in range(pods):
            await backend.create(PODS, pod(f"p{number}", gpu="template/t"))
        core = backend.api

        async def all_made() -> bool:
            listed = (await core.list(PODS, namespace=NAMESPACE)).items
            return all(status_of(one).get("resourceClaimStatuses") for one in listed)

        teller = story_claims.Teller(backend)
        await teller.until(all_made, "all claims")
        assert (seen[0].writes, seen[0].reads) == (2 * pods, 0)
        for one in await backend.list(PODS):
            await backend.patch(PODS, name_of(one), {"status": {"phase": "Succeeded"}}, "status")

        async def none_left() -> bool:
            return not await backend.list(RESOURCE_CLAIMS)

        await teller.until(none_left, "the claims to go")
        assert (seen[0].writes, seen[0].reads) == (2 * pods, 0)
