"""The day of the fleet, which takes seconds, is passed once for all tests here."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from kgpu.usage.recording import UsageRecording
from tests.usage.prometheus.fleet import BEGIN_S, Fleet, Member, a_day
from tests.usage.prometheus.scraped import Scrapes

REPLICAS = ({"job": "usage", "replica": "a"}, {"job": "usage", "replica": "b"})
TARGET = {"job": "agents", "namespace": "gpu-operator", "pod": "kgpu-agent-x", "container": "agent", "node": "n2"}


@dataclass
class FleetDay:
    """What was scraped, what agents have recorded themselves, and when."""

    scrapes: Scrapes
    own: UsageRecording
    begin: int
    end: int


@pytest.fixture(scope="session")
def fleet_day(tmp_path_factory: pytest.TempPathFactory) -> FleetDay:
    """Of n1 two replicas of Prometheus have scraped; of n2 one without ``honor_labels``, besides."""
    folder = tmp_path_factory.mktemp("fleet")

    async def passed() -> FleetDay:
        members = {
            "n1": Member(folder / "n1", "n1", targets=REPLICAS),
            "n2": Member(folder / "n2", "n2", targets=(TARGET,), honor=False),
        }
        fleet = Fleet(members)
        await fleet.start()
        await a_day(fleet)
        # Agents write a line every five minutes: until then both know the same.
        return FleetDay(fleet.scrapes, await fleet.recorded(), BEGIN_S + 300, int(fleet.at) - 400)

    return asyncio.run(passed())
