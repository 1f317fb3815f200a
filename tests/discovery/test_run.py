"""The labels role over fakes: publishes, follows, survives; time is virtual."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from kgpu.base.advice import Advice
from kgpu.base.clock import VirtualClock
from kgpu.base.errors import ConfigError, HwError, KubeError, Reason, line_of
from kgpu.discovery.model import LabelSettings, NodeFacts
from kgpu.discovery.publish import MemoryLabelPublisher
from kgpu.discovery.run import LabelsContext, run
from kgpu.formats.config_choice import ConfigText, problem_text
from kgpu.hw.fake_reader import FakeReader, sample_inventory, sample_partitions
from kgpu.hw.port import DriverReleasedError, Problem

pytestmark = pytest.mark.usefixtures("nothing_flushed_on_the_loop")
NO_DRIVER = HwError("the driver is not loaded", "a loaded driver", "load it")
AWAY = KubeError("no answer", "an answer", "wait")
PRODUCT, COUNT, REPLICAS = (f"nvidia.com/gpu.{name}" for name in ("product", "count", "replicas"))


class Config:
    """A configuration source that a test sets."""

    def __init__(self, text: str | None = "") -> None:
        self._current = None if text is None else ConfigText(name="test", text=text)
        self._changed = asyncio.Event()

    def put(self, config: ConfigText) -> None:
        self._current = config
        self._changed.set()

    async def next(self, after: Any) -> ConfigText:
        while self._current is None or self._current == after:
            self._changed.clear()
            await self._changed.wait()
        return self._current


async def at_once(facts: Callable[[LabelSettings], NodeFacts], settings: LabelSettings) -> NodeFacts:
    """Threads do not know virtual time."""
    return facts(settings)


class Role:
    """The role running over fakes, and what it says."""

    def __init__(self, text: str | None = "", *, published: dict[str, str] | None = None) -> None:
        self.reader = FakeReader(sample_inventory(2))
        self.config = Config(text)
        self.publisher = MemoryLabelPublisher(published)
        self.clock = VirtualClock()
        self.advice: list[Advice] = []
        self.states: list[tuple[bool, str]] = []
        self.why = ""
        self.seconds = 1000.0

    def _tell(self, ready: bool, reason: Reason, why: str) -> None:
        self.states.append((ready, line_of(reason)))
        self.why = why

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Role]:
        ctx = LabelsContext(
            reader=self.reader,
            config=self.config,
            publisher=self.publisher,
            report=self.advice.append,
            facts=lambda _settings: NodeFacts(machine="m", vgpu_present=False),
            clock=self.clock,
            env={},
            on_state=self._tell,
            now=lambda: self.seconds,
            beside=at_once,
        )
        task = asyncio.create_task(run(ctx))
        try:
            yield self
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await self.reader.close()

    @property
    def labels(self) -> dict[str, str]:
        return self.publisher.labels or {}

    async def until(self, condition: Callable[[], bool], *, moving: bool = True) -> None:
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0)
                if moving:
                    await self.clock.advance(0.5)

    async def calm(self, seconds: float = 0) -> None:
        """Let everything settle, and that much time pass."""
        for _ in range(50):
            await asyncio.sleep(0)
        await self.clock.advance(seconds)


async def test_publishes_at_once_and_only_changes_after_that() -> None:
    async with Role().running() as role:
        await role.until(lambda: bool(role.labels), moving=False)
        assert role.labels[COUNT] == "2"
        assert role.labels["nvidia.com/gfd.timestamp"] == "1000"
        assert role.states[-1] == (True, "")
        role.seconds = 2000.0
        for _ in range(5):
            await role.calm(60)
        assert len(role.publisher.history) == 1, "equal readings are no news, the timestamp is the configuration's"
        assert role.reader.inventory_calls >= 5


async def test_a_change_of_devices_is_published_without_waiting() -> None:
    async with Role("flags: {migStrategy: mixed}").running() as role:
        await role.until(lambda: bool(role.labels), moving=False)
        gpu = sample_inventory(2).accelerators[0]
        role.reader.set_partitions(gpu.uuid, sample_partitions(gpu))
        await role.until(lambda: "nvidia.com/mig-1g.10gb.count" in role.labels, moving=False)


async def test_a_new_configuration_is_published_without_waiting() -> None:
    async with Role().running() as role:
        await role.until(lambda: bool(role.labels), moving=False)
        role.seconds = 2000.0
        text = "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}"
        role.config.put(ConfigText(name="other", text=text))
        await role.until(lambda: role.labels[REPLICAS] == "4", moving=False)
        assert role.labels["nvidia.com/gfd.timestamp"] == "2000"


@pytest.mark.parametrize(
    "bad",
    [
        ConfigText(name="bad", text="flags: {migStrategi: single}"),
        ConfigText(name="bad", text="{"),
        problem_text("bad", ConfigError("the label names nothing", "a name", "correct it")),
    ],
)
async def test_a_bad_configuration_is_told_and_changes_nothing(bad: ConfigText) -> None:
    async with Role("flags: {migStrategy: single}").running() as role:
        await role.until(lambda: bool(role.labels), moving=False)
        before = dict(role.labels)
        role.config.put(bad)
        await role.until(lambda: any(advice.reason == "ConfigRefused" for advice in role.advice))
        await role.calm(120)
        assert role.labels == before
        assert (role.states[-1][0], role.why) == (True, "ConfigRefused")
        role.config.put(ConfigText(name="good", text="flags: {migStrategy: mixed}"))
        await role.until(lambda: role.labels["nvidia.com/mig.strategy"] == "mixed", moving=False)
        await role.until(lambda: (role.states[-1], role.why) == ((True, ""), ""), moving=False)


async def test_without_a_good_configuration_nothing_is_written() -> None:
    async with Role("nonsense: true", published={"nvidia.com/old": "1"}).running() as role:
        await role.until(lambda: bool(role.states))
        await role.calm(300)
        assert role.labels == {"nvidia.com/old": "1"}
        assert role.states[-1][0] is False


async def test_a_driver_that_goes_away_costs_no_label_and_its_return_is_noticed() -> None:
    async with Role().running() as role:
        await role.until(lambda: bool(role.labels), moving=False)
        before = dict(role.labels)
        role.reader.set_down(NO_DRIVER)
        await role.until(lambda: role.states[-1][0] is False)
        await role.calm(1000)
        assert role.labels == before
        told = [advice for advice in role.advice if advice.reason == "ReadFailed"]
        assert len(told) == 1, "told once, however often it is tried"
        role.reader.set_down(None)
        role.reader.set_inventory(sample_inventory(4))
        await role.until(lambda: role.labels[COUNT] == "4")
        assert role.states[-1] == (True, "")


async def test_a_driver_that_is_released_costs_no_label_and_is_no_failure() -> None:
    async with Role().running() as role:
        await role.until(lambda: bool(role.labels), moving=False)
        before, told = dict(role.labels), len(role.advice)
        role.reader.set_down(DriverReleasedError("a GPU is being reset"))
        await role.until(lambda: "a GPU is being reset" in str(role.states[-1][1]))
        await role.calm(1000)
        assert role.labels == before
        assert (role.states[-1][0], role.advice[told:]) == (True, [])
        role.reader.set_down(None)
        role.reader.set_inventory(sample_inventory(4))
        await role.until(lambda: role.labels[COUNT] == "4")
        assert role.states[-1] == (True, "")


async def test_a_driver_that_comes_late_is_waited_for() -> None:
    role = Role(published={"nvidia.com/gpu.count": "9"})
    role.reader.set_down(NO_DRIVER)
    async with role.running():
        await role.until(lambda: bool(role.states))
        await role.calm(500)
        assert role.labels == {"nvidia.com/gpu.count": "9"}
        role.reader.set_down(None)
        await role.until(lambda: role.labels[COUNT] == "2")


async def test_a_lost_gpu_keeps_its_place_in_the_labels() -> None:
    async with Role().running() as role:
        await role.until(lambda: bool(role.labels), moving=False)
        before = dict(role.labels)
        role.reader.fail(sample_inventory(2).accelerators[1].uuid, Problem.LOST)
        await role.calm(120)
        assert role.labels == before


async def test_labels_of_the_last_life_fill_the_gaps_of_this_one() -> None:
    first = Role()
    async with first.running():
        await first.until(lambda: bool(first.labels))
    second = Role(published=first.labels)
    inventory = sample_inventory(2)
    lost = replace(inventory.accelerators[1], name="", memory_mib=None, compute_capability=None)
    second.reader.set_inventory(replace(inventory, accelerators=(inventory.accelerators[0], lost)))
    async with second.running():
        await second.until(lambda: (True, "") in second.states)
        assert second.labels[COUNT] == "2"


async def test_an_api_server_that_is_away_is_waited_for() -> None:
    role = Role()
    role.publisher.refuse = AWAY
    async with role.running():
        await role.until(lambda: role.states != [] and role.states[-1][0] is False)
        await role.calm(300)
        assert [advice.reason for advice in role.advice] == ["PublishFailed"]
        role.publisher.refuse = None
        await role.until(lambda: role.labels.get(COUNT) == "2")


async def test_labels_that_somebody_removed_come_back() -> None:
    async with Role().running() as role:
        await role.until(lambda: bool(role.labels), moving=False)
        before = dict(role.labels)
        role.publisher.labels = {}
        await role.until(lambda: role.labels == before)
        role.publisher.labels = None
        await role.until(lambda: role.labels == before)


async def test_an_infinite_interval_still_follows_events() -> None:
    async with Role("flags: {gfd: {sleepInterval: infinite}}").running() as role:
        await role.until(lambda: bool(role.labels), moving=False)
        calls = role.reader.inventory_calls
        await role.calm(10_000)
        assert role.reader.inventory_calls == calls
        role.reader.set_inventory(sample_inventory(3))
        await role.until(lambda: role.labels[COUNT] == "3", moving=False)


async def test_standing_advice_are_told_once() -> None:
    role = Role()
    inventory = sample_inventory(2)
    other = replace(inventory.accelerators[1], name="Tesla T4")
    role.reader.set_inventory(replace(inventory, accelerators=(inventory.accelerators[0], other)))
    async with role.running():
        await role.until(lambda: bool(role.labels))
        await role.calm(600)
        assert [advice.reason for advice in role.advice] == ["SeveralModels"]


async def test_slow_files_of_the_node_stop_nobody_else() -> None:
    asked, freed = threading.Event(), threading.Event()

    def slow(_settings: LabelSettings) -> NodeFacts:
        asked.set()
        assert freed.wait(60)
        return NodeFacts(machine="m", vgpu_present=False)

    publisher = MemoryLabelPublisher()
    ctx = LabelsContext(
        reader=FakeReader(sample_inventory(2)), config=Config(), publisher=publisher, report=lambda _: None,
        facts=slow, env={},
    )  # fmt: skip
    task = asyncio.create_task(run(ctx))
    try:
        async with asyncio.timeout(60):
            assert await asyncio.to_thread(asked.wait, 60)
            freed.set()
            while not publisher.labels:  # noqa: ASYNC110 - the fake gives no event
                await asyncio.sleep(0.005)
    finally:
        freed.set()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
