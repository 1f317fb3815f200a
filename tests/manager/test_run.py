"""The manager and its controllers: who fails begins anew alone, and who loses the lead ends with all others."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Collection, Coroutine, Mapping, Sequence
from typing import Any, Final

from kgpu.base.clock import BootClock, VirtualClock, settle
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import CONFIG_MAPS, LEASES, KubeApi
from kgpu.manager.run import ManagerProcess, Options

NAMESPACE: Final = "gpu-operator"


class Counting:
    """A controller that writes a ConfigMap of its name every second, and fails as often as it is told."""

    def __init__(self, name: str, clock: VirtualClock) -> None:
        self.name = name
        self.clock = clock
        self.terms = self.fails = self.ends = 0
        self.failures: list[str] = []
        self.unread: tuple[str, ...] = ()

    async def watch(self) -> None:
        await asyncio.Event().wait()

    def missing(self) -> Collection[str]:
        return self.unread

    def term(self, api: KubeApi) -> Sequence[Coroutine[Any, Any, None]]:
        self.terms += 1
        return (self._write(api),)

    async def _write(self, api: KubeApi) -> None:
        while True:
            if self.fails:
                self.fails -= 1
                raise RuntimeError(f"{self.name} broke")
            data = {"metadata": {"name": self.name, "namespace": NAMESPACE}, "data": {"term": str(self.terms)}}
            await api.apply(CONFIG_MAPS, data, manager="test")
            await self.clock.sleep(1.0)

    def ended(self) -> None:
        self.ends += 1

    def failed(self, error: Exception) -> None:
        self.failures.append(str(error))

    def metrics(self) -> str:
        return f"{self.name}_terms {self.terms}\n"

    def status(self) -> Mapping[str, object]:
        return {self.name: self.terms}


@contextlib.asynccontextmanager
async def managed(
    api: FakeApi, clock: VirtualClock, *names: str
) -> AsyncIterator[tuple[ManagerProcess, list[Counting]]]:
    controllers = [Counting(name, clock) for name in names]
    manager = ManagerProcess(api, controllers, Options(lease_namespace=NAMESPACE, identity="me"), clock=clock)
    task = asyncio.create_task(manager.run())
    try:
        yield manager, controllers
    finally:
        manager.stop.set()
        await clock.advance(3)
        await task
        await settle()


async def test_who_fails_begins_anew_and_the_others_go_on() -> None:
    api, clock = FakeApi(), VirtualClock()
    async with managed(api, clock, "a", "b") as (_, (one, other)):
        await clock.advance(2)
        one.fails = 3
        await clock.advance(10)
        assert (one.terms, other.terms, one.failures) == (4, 1, ["a broke"] * 3)
        found = await api.get(CONFIG_MAPS, "a", namespace=NAMESPACE)
        assert found is not None
        assert found["data"] == {"term": "4"}


async def test_a_lost_lead_ends_the_term_of_all() -> None:
    api, clock = FakeApi(), VirtualClock()
    async with managed(api, clock, "a", "b") as (manager, controllers):
        await clock.advance(2)
        assert manager.lead.leads
        (lease,) = (await api.list(LEASES)).items
        await api.patch(LEASES, lease["metadata"]["name"], {"spec": {"holderIdentity": "x"}}, namespace=NAMESPACE)
        await clock.advance(3)
        assert ([one.ends for one in controllers], manager.lead.leads) == ([1, 1], False)
        before = len(api.calls)
        await clock.advance(5)
        assert [call for call in api.calls[before:] if call[0] == "apply"] == []


async def test_a_defect_in_the_renewal_ends_a_term_and_not_the_process() -> None:
    api, clock = FakeApi(), VirtualClock()
    async with managed(api, clock, "a") as (manager, (one,)):
        await clock.advance(1)
        renew = manager.lead._renew

        async def broken() -> None:
            raise RuntimeError("renewal broke")

        manager.lead._renew = broken  # type: ignore[method-assign]
        (lease,) = (await api.list(LEASES)).items
        await api.patch(LEASES, lease["metadata"]["name"], {"spec": {"holderIdentity": "x"}}, namespace=NAMESPACE)
        await clock.advance(60)
        manager.lead._renew = renew  # type: ignore[method-assign]
        await clock.advance(10)
        assert one.terms > 1
        assert manager.lead.leads


async def test_work_that_can_not_begin_is_a_failure_too() -> None:
    api, clock = FakeApi(), VirtualClock()
    async with managed(api, clock, "a") as (_, (one,)):
        begin = one.term

        def broken(api: KubeApi) -> Sequence[Coroutine[Any, Any, None]]:
            raise RuntimeError("it can't begin")

        one.term = broken  # type: ignore[method-assign]
        one.fails = 1
        await clock.advance(5)
        one.term = begin  # type: ignore[method-assign]
        await clock.advance(2)
        assert "it can't begin" in one.failures
        assert one.ends == len(one.failures)


async def test_pages_are_of_all_controllers() -> None:
    clock = VirtualClock()
    async with managed(FakeApi(), clock, "a", "b") as (manager, (one, other)):
        await clock.advance(1)
        assert manager._metrics().body == "a_terms 1\nb_terms 1\n"
        document = json.loads(manager._statusz().body)
        assert (document["leads"], document["a"], document["b"]) == (True, 1, 1)
        assert manager._readyz().status == 200
        other.unread = ("nodes",)
        assert (manager._readyz().status, manager._readyz().body) == (503, "[-] not read yet: nodes\n")
        assert one.missing() == ()


def test_the_lead_runs_out_while_the_machine_is_suspended() -> None:
    assert isinstance(ManagerProcess(FakeApi(), [], Options(lease_namespace=NAMESPACE)).lead._clock, BootClock)
