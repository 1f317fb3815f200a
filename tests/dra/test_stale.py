"""Claims that are gone from the API server are unprepared; all others stay, whatever the API server does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kgpu.base.advice import Advice
from kgpu.base.clock import VirtualClock
from kgpu.base.service import end
from kgpu.dra.stale import StaleClaims
from kgpu.kube.fake import FakeApi
from kgpu.lab.nodes.claims import CLAIMS
from tests.dra.node import Node, claim
from tests.dra.test_preparing import LONG, NOTHING, SLICE
from tests.lab.nodes.support import until


class Site:
    """A node with prepared claims, and the API server's."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.api = FakeApi()
        self.told: list[Advice] = []
        self.clock = VirtualClock()

    async def start(self) -> None:
        self.made = await self.node.start()
        self.stale = StaleClaims(
            api=self.api, resource=CLAIMS, preparations=self.made, report=self.told.append, clock=self.clock
        )

    def there(self, name: str, uid: str) -> None:
        metadata = {"name": name, "namespace": "team", "uid": uid}
        self.api.put(CLAIMS, {"apiVersion": CLAIMS.api_version, "kind": "ResourceClaim", "metadata": metadata})


@pytest.fixture
async def site(tmp_path: Path) -> Site:
    made = Site(Node(tmp_path))
    await made.start()
    return made


async def test_a_claim_that_is_gone_is_unprepared_and_told(site: Site) -> None:
    await site.made.prepare(claim("a", "gpu-1", parameters=LONG))
    await site.made.prepare(claim("b", SLICE))
    site.there("claim-b", "b")
    await site.stale.look()
    assert site.node.record_files() == {"b.json"}
    assert site.node.sharing() == NOTHING
    (told,) = site.told
    assert told.subject == "claim team/claim-a"
    assert told.why == "the claim is not there any more"
    assert told.evidence == ("prepared was uid a",)


async def test_another_claim_of_the_name_is_not_this_one(site: Site) -> None:
    await site.made.prepare(claim("a", SLICE))
    site.there("claim-a", "another")
    await site.stale.look()
    assert site.node.record_files() == site.node.slices() == set()
    assert site.told[0].why == "there is another claim of this name now"


async def test_what_can_not_be_asked_for_stays(site: Site) -> None:
    await site.made.prepare(claim("a", "gpu-1"))
    site.api.set_down(True)
    await site.stale.look()
    await site.stale.look()
    assert site.node.record_files() == {"a.json"}
    assert [one.reason for one in site.told] == ["StaleClaim"], "told once"


async def test_what_can_not_be_taken_back_is_tried_again(site: Site) -> None:
    await site.made.prepare(claim("a", "gpu-1", parameters=LONG))
    site.node.gpus.broken = True
    await site.stale.look()
    assert site.node.record_files() == {"a.json"}
    site.node.gpus.broken = False
    await site.stale.look()
    assert site.node.record_files() == set()
    assert site.node.sharing() == NOTHING


async def test_what_a_kill_has_left_of_a_claim_that_is_gone_goes(site: Site) -> None:
    """NVIDIA's driver forgets the names of prepared claims, and finds those that it has begun alone."""
    await site.made.prepare(claim("a", SLICE))
    await site.start()
    await site.stale.look()
    assert site.node.record_files() == site.node.slices() == set()


async def test_it_looks_at_once_and_as_often_as_nvidias_driver(site: Site) -> None:
    await site.made.prepare(claim("a", "gpu-1"))
    task = asyncio.create_task(site.stale.run())
    await until(lambda: len(site.clock.deadlines) == 1)
    assert site.node.record_files() == set()
    await site.made.prepare(claim("b", "gpu-1"))
    await site.clock.advance(599)
    assert site.node.record_files() == {"b.json"}
    await site.clock.advance(1)
    await until(lambda: site.node.record_files() == set())
    await end(task)
