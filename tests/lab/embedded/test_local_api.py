"""The embedded API in process keeps the promises of the port, as the real one does."""

from __future__ import annotations

import pytest

from kgpu.kube.port import CONFIG_MAPS, PODS, KubeRefusedError, KubeUnreachableError, Resource, Selector
from kgpu.lab.embedded.local_api import LocalApi
from tests.kube.contract import Contract, Place
from tests.lab.embedded.support import ADMIN, make_core


class TestLocal(Contract):
    @pytest.fixture
    def api(self) -> LocalApi:
        return LocalApi(make_core(), ADMIN)

    @pytest.fixture
    def place(self, prefix: str) -> Place:
        return Place("default", prefix)


async def test_an_unknown_kind_is_refused_with_404() -> None:
    api = LocalApi(make_core(), ADMIN)
    with pytest.raises(KubeRefusedError) as caught:
        await api.list(Resource("x.example", "v1", "things", "Thing"))
    assert caught.value.code == 404


async def test_a_version_that_is_forgotten_is_told_with_410() -> None:
    core = make_core()
    api = LocalApi(core, ADMIN)
    listing = await api.list(CONFIG_MAPS)
    await api.create(CONFIG_MAPS, {"metadata": {"name": "a", "namespace": "default"}})
    core.store.expire()
    with pytest.raises(KubeRefusedError) as caught:
        await anext(api.watch(CONFIG_MAPS, listing.resource_version))
    assert caught.value.gone


async def test_a_closed_api_answers_nobody() -> None:
    api = LocalApi(make_core(), ADMIN)
    await api.close()
    with pytest.raises(KubeUnreachableError):
        await api.get(CONFIG_MAPS, "a", namespace="default")


async def test_selector_values_with_commas_reach_the_field() -> None:
    api = LocalApi(make_core(), ADMIN)
    found = await api.list(PODS, selector=Selector(fields=(("spec.nodeName", "a,b=c\\"),)))
    assert found.items == ()
