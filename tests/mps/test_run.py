"""The loop on a fake driver and a fake reader: what changes which daemon, and what is left in the end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import pytest

from kgpu.base.advice import Advice
from kgpu.base.errors import ConfigError, HwError, Reason, line_of
from kgpu.deviceplugin.source import MemoryConfigSource
from kgpu.formats.config_choice import REFUSED, ConfigText
from kgpu.hw.fake_reader import FakeReader
from kgpu.hw.port import Accelerator, DriverReleasedError, Inventory
from kgpu.mps.driver_fake import FakeMpsDriver
from kgpu.mps.folders import prepare
from kgpu.mps.model import DaemonSpec, MpsOrder, MpsShare, SharedGpu
from kgpu.mps.record import EXCLUSIVE
from kgpu.mps.run import MpsContext, run

GPUS = tuple(Accelerator(vendor="nvidia", index=number, uuid=f"GPU-{number}", name="H100") for number in range(3))


def inventory(*numbers: int) -> Inventory:
    return Inventory(vendor="nvidia", driver_version="550", accelerators=tuple(GPUS[number] for number in numbers))


class CountingReader(FakeReader):
    """Counts how often it was asked."""

    asked = 0

    async def inventory(self) -> Inventory:
        self.asked += 1
        return await super().inventory()


class MpsNode:
    """A configuration's text names the shares: ``a:0,1 b:2`` are two resources."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "mps"
        self.state = folder / "mps.json"
        self.reader = CountingReader(inventory(0, 1, 2))
        self.driver = FakeMpsDriver()
        self.config = MemoryConfigSource("a:0,1")
        self.advice: list[Advice] = []
        self.told: tuple[bool, str, str] = (False, "", "")

    def order(self, config: ConfigText, found: Inventory) -> MpsOrder:
        if config.text == "bad":
            raise ConfigError("it is bad", "a good one", "correct it")
        known = {gpu.index for gpu in found.accelerators}
        shares = []
        for word in config.text.split():
            name, _, numbers = word.partition(":")
            gpus = tuple(
                SharedGpu(uuid=f"GPU-{number}", index=int(number), replicas=2, memory_mib=1000, mig=name == "mig")
                for number in numbers.split(",")
                if int(number) in known
            )
            if gpus:
                shares.append(MpsShare(resource=f"nvidia.com/{name}", gpus=gpus))
        return MpsOrder(root=str(self.root) if config.text else "", shares=tuple(shares))

    def _tell(self, ready: bool, reason: Reason, why: str = "") -> None:
        self.told = (ready, line_of(reason), why)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        context = MpsContext(
            reader=self.reader, config=self.config, order=self.order, driver=self.driver, record=self.state,
            report=self.advice.append, shared_memory=False, on_state=self._tell, reread_seconds=0.05, boot="b",
        )  # fmt: skip
        task = asyncio.create_task(run(context))
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110 - threads
                await asyncio.sleep(0.005)

    def spec(self, name: str, *numbers: int) -> DaemonSpec:
        return DaemonSpec(
            root=str(self.root), resource=f"nvidia.com/{name}", gpus=tuple(f"GPU-{number}" for number in numbers)
        )

    def read_since(self, asked: int) -> bool:
        return self.reader.asked > asked + 1

    def daemon(self, name: str) -> int:
        return self.driver.running(self.spec(name)).daemon

    def files(self) -> list[str]:
        return sorted(str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_file())


@pytest.fixture
def node(tmp_path: Path) -> MpsNode:
    return MpsNode(tmp_path)


async def test_it_serves_and_leaves_nothing(node: MpsNode) -> None:
    async with node.running():
        await node.until(lambda: node.told == (True, "serves nvidia.com/a", ""))
        assert node.files() == [".ready", "nvidia.com/a/.started"]
        assert node.driver.modes == {"GPU-0": EXCLUSIVE, "GPU-1": EXCLUSIVE}
    assert node.driver.modes == {"GPU-0": "DEFAULT", "GPU-1": "DEFAULT"}
    assert node.driver.processes == {}
    assert not node.root.exists()
    assert not node.state.exists()


async def test_a_daemon_that_need_not_change_is_not_touched(node: MpsNode) -> None:
    async with node.running():
        await node.until(lambda: node.told[0])
        pid = node.daemon("a")
        node.config.set("a:0,1 b:2")
        await node.until(lambda: node.told == (True, "serves nvidia.com/a, nvidia.com/b", ""))
        assert node.daemon("a") == pid
        node.config.set("b:2")
        await node.until(lambda: node.told == (True, "serves nvidia.com/b", ""))
        assert node.driver.modes == {"GPU-0": "DEFAULT", "GPU-1": "DEFAULT", "GPU-2": EXCLUSIVE}
        assert node.files() == [".ready", "nvidia.com/b/.started"]


async def test_a_gpu_that_is_lost_takes_the_clients_of_the_other_nowhere(node: MpsNode) -> None:
    async with node.running():
        await node.until(lambda: node.told[0])
        pid = node.daemon("a")
        for found in (inventory(0, 2), inventory(2), inventory(0, 1, 2)):
            node.reader.set_inventory(found)
            asked = node.reader.asked
            await node.until(partial(node.read_since, asked))  # all that the first has led to is done
        assert node.daemon("a") == pid
        assert node.driver.calls.count("start nvidia.com/a") == 1


async def test_a_driver_that_is_released_is_let_go_and_taken_again(node: MpsNode) -> None:
    async with node.running():
        await node.until(lambda: node.told[0])
        calls = len(node.driver.calls)
        node.reader.set_down(DriverReleasedError("a GPU is being reset"))
        await node.until(lambda: node.told[1].startswith("a GPU is being reset"))
        assert node.driver.processes == {}
        assert node.driver.calls[calls:] == ["quit nvidia.com/a"], "nothing asks the driver for a mode"
        node.reader.set_down(None)
        await node.until(lambda: node.told[0])
    assert node.driver.modes == {"GPU-0": "DEFAULT", "GPU-1": "DEFAULT"}


async def test_a_driver_that_can_not_be_read_ends_nothing(node: MpsNode) -> None:
    async with node.running():
        await node.until(lambda: node.told[0])
        node.reader.set_down(HwError("no answer", "one", "wait"))
        await node.until(lambda: node.told[1].startswith("no answer"))
        assert node.daemon("a")
        assert node.files() == [".ready", "nvidia.com/a/.started"]


async def test_a_bad_configuration_leaves_the_last_good_one_in_force(node: MpsNode) -> None:
    async with node.running():
        await node.until(lambda: node.told[0])
        node.config.set("bad")
        await node.until(lambda: node.told[2] == REFUSED)
        assert node.daemon("a")


async def test_what_is_refused_is_told_once_and_the_rest_is_served(node: MpsNode) -> None:
    node.config.set("a:0 mig:1")
    async with node.running():
        await node.until(lambda: node.daemon("a") and node.told[2] == "MpsImpossible")
        await node.until(lambda: (node.root / "nvidia.com/a/.started").exists())
        assert not node.daemon("mig")
        assert "nvidia.com/mig gets no MPS control daemon: the MIG mode of GPU 1 is on" in node.told[1]
    assert [advice.reason for advice in node.advice].count("MpsImpossible") == 1


async def test_what_a_killed_run_has_left_is_taken_away_if_nobody_wants_it_now(node: MpsNode) -> None:
    async with node.running():
        await node.until(lambda: node.told[0])
        left, modes = node.state.read_bytes(), dict(node.driver.modes)
    node.state.write_bytes(left)  # as a kill leaves it
    node.driver.modes = modes
    node.driver.put(node.spec("a", 0, 1))
    prepare(node.spec("a"))
    node.config.set("")
    node.told = (False, "", "")
    async with node.running():
        await node.until(lambda: node.told == (True, "no GPU is shared by MPS", ""))
        assert node.driver.processes == {}
        assert node.driver.modes == {"GPU-0": "DEFAULT", "GPU-1": "DEFAULT"}
        assert not node.state.exists()
        assert not node.root.exists()
