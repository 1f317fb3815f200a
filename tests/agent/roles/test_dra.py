"""The role ``dra``: what it waits for before the scheduler hears of a device."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from kgpu.agent.host import ProvenGpus
from kgpu.agent.roles import dra


@dataclass
class Waited:
    """Stands for the publisher, the sockets, the kubelet's word and the role's handle."""

    registered: asyncio.Event = field(default_factory=asyncio.Event)
    known: asyncio.Event = field(default_factory=asyncio.Event)
    proven: asyncio.Event = field(default_factory=asyncio.Event)
    published: asyncio.Event = field(default_factory=asyncio.Event)
    said: asyncio.Queue[str] = field(default_factory=asyncio.Queue)

    async def run(self) -> None:
        self.published.set()

    def waiting(self, reason: str) -> None:
        self.said.put_nowait(reason)

    async def opened(self, waiting: Callable[[str], None]) -> None:
        waiting("the validator has not passed yet")
        await self.proven.wait()


async def test_nothing_is_published_before_kubelet_and_validator_have_said_yes() -> None:
    it = Waited()
    every = cast("Any", it)
    async with asyncio.TaskGroup() as group:
        group.create_task(dra._published(every, every, every, ProvenGpus(every, it.opened), every))
        for word, event in (("driver", it.registered), ("counted", it.known), ("validator", it.proven)):
            assert word in await it.said.get()
            assert not it.published.is_set()
            event.set()
        await it.published.wait()
