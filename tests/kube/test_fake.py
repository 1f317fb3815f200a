"""The in-memory API server keeps the port's promises, and fails on demand."""

from __future__ import annotations

import pytest

from kgpu.kube.fake import FakeApi
from kgpu.kube.port import CONFIG_MAPS, KubeRefusedError, KubeUnreachableError
from tests.kube.contract import Contract, Place, TryingContract


class TestFake(Contract, TryingContract):
    @pytest.fixture
    def api(self) -> FakeApi:
        return FakeApi()

    @pytest.fixture
    def place(self, prefix: str) -> Place:
        return Place("default", prefix)


async def test_history_that_is_forgotten_is_told_with_410() -> None:
    api = FakeApi()
    listing = await api.list(CONFIG_MAPS)
    api.put(CONFIG_MAPS, {"metadata": {"name": "a", "namespace": "n"}})
    api.expire()
    with pytest.raises(KubeRefusedError) as caught:
        await anext(api.watch(CONFIG_MAPS, listing.resource_version))
    assert caught.value.gone


async def test_an_outage_breaks_calls_and_watches() -> None:
    api = FakeApi()
    events = api.watch(CONFIG_MAPS, "0")
    await anext(events)
    api.set_down(True)
    with pytest.raises(KubeUnreachableError):
        await anext(events)
    with pytest.raises(KubeUnreachableError):
        await api.get(CONFIG_MAPS, "a", namespace="n")
    api.set_down(False)
    assert await api.get(CONFIG_MAPS, "a", namespace="n") is None


async def test_single_verbs_can_be_refused() -> None:
    api = FakeApi()
    api.refuse["create", "configmaps"] = 403
    with pytest.raises(KubeRefusedError) as caught:
        await api.create(CONFIG_MAPS, {"metadata": {"name": "a", "namespace": "n"}})
    assert caught.value.code == 403
