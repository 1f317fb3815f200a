"""Orders that change at any moment: what is on the node in the end follows from the last ones alone."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from kgpu.agent.auto import AutoAgent
from kgpu.agent.roles import choose_roles
from kgpu.formats import names
from kgpu.formats.agent_config import AgentConfig, RoleConfig
from tests.budget import count

from .support_auto import LABELS_LABEL, Cluster, eventually, hosted, state

CASES = count(50, 1000)
ALONE = count(20, 500)
PCI = names.NFD_PCI_NVIDIA[0]
TURNS = (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89)
"""Turns of the loop between two changes: an agent that starts takes a few hundred."""


@dataclass
class Orders:
    """What the operator has said last."""

    cluster: Cluster
    alone: bool
    """The process has the role labels alone, as where each operand has a pod of its own."""
    mark: str | None = "true"
    label: str | None = "true"
    enabled: bool = True
    leaving: bool = False

    def tell(self) -> None:
        roles = {"features": RoleConfig(), "labels": RoleConfig(label=LABELS_LABEL, enabled=self.enabled)}
        config = AgentConfig(roles=roles, generation=3, driver_install_dir="/nowhere")
        self.cluster.tell(msgspec.structs.replace(config, leaving=self.leaving))

    def change(self, chance: random.Random) -> str:
        """One of them, or a connection that breaks; returns what was done."""
        what = chance.choice(("mark", "mark", "label", "enabled", "leaving", "watches"))
        if what == "mark":
            self.mark = chance.choice(("true", "leaving", "leaving", None))
            self.cluster.mark(self.mark)
        elif what == "label":
            self.label = chance.choice(("true", None))
            self.cluster.label(**{"gpu-feature-discovery": self.label})
        elif what == "watches":
            self.cluster.api.drop_watches()
        else:
            setattr(self, what, not getattr(self, what))
            self.tell()
        return f"{what}={getattr(self, what, '')}"

    def wanted(self, agent: AutoAgent, folder: Path) -> dict[str, Callable[[], bool]]:
        """What has to be so, by its name."""
        product = lambda: names.LABEL_GPU_PRODUCT in self.cluster.labels  # noqa: E731
        features = lambda: PCI in self.cluster.labels  # noqa: E731
        # Whoever has left, and is then no longer marked, is about to be ended: it stays as it is.
        left = self.leaving or self.mark == "leaving" or (self.mark is None and agent._gone)
        found = {} if self.alone else {"features": (lambda: not features()) if self.leaving else features}
        if left and not self.alone:
            found["left"] = lambda: state(self.cluster, "labels") == ("left", "")
        if left:
            found["no file"] = lambda: not list(folder.glob("state/*"))
        if left or not self.enabled:
            found["no label"] = lambda: not product()
        elif self.label:
            found["labels"] = product
        return found


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A node with a GPU on its PCI bus."""
    device = tmp_path / "host/sys/bus/pci/devices/0000:01:00.0"
    device.mkdir(parents=True)
    (device / "class").write_text("0x030200")
    (device / "vendor").write_text("0x10de")
    return tmp_path / "host"


@pytest.mark.parametrize(("alone", "seed"), [(False, n) for n in range(CASES)] + [(True, n) for n in range(ALONE)])
async def test_the_last_orders_count_whenever_they_come(
    alone: bool, seed: int, cluster: Cluster, tmp_path: Path, host: Path
) -> None:
    chance = random.Random(seed)
    orders = Orders(cluster, alone)
    orders.tell()
    cluster.label(**{"gpu-feature-discovery": "true"})
    cluster.mark("true")
    done = []
    part = {"roles": choose_roles(["labels"]), "only": ("labels",)} if alone else {}
    async with hosted(cluster, tmp_path, host_root=host, **part) as agent:
        if chance.random() < 0.7:
            await eventually(lambda: names.LABEL_GPU_PRODUCT in cluster.labels)
        for _ in range(chance.randint(1, 5)):
            for _ in range(chance.choice(TURNS)):
                await asyncio.sleep(0)
            done.append(orders.change(chance))
        missing: list[str] = []

        def as_wanted() -> bool:
            missing[:] = [name for name, holds in orders.wanted(agent, tmp_path).items() if not holds()]
            return not missing

        for _ in range(2):  # and it stays so
            try:
                await eventually(as_wanted)
            except TimeoutError:
                pytest.fail(f"{missing} after {done}: {cluster.labels}, {cluster.report.roles}")
            await asyncio.sleep(0.05)
