"""The loop: published at once, again when devices change, standing back for another discovery, failures tried again."""

from __future__ import annotations

import asyncio
import contextlib
import math
from dataclasses import replace

import pytest

from kgpu.base.clock import VirtualClock
from kgpu.base.errors import HostError, KubeError, line_of
from kgpu.discovery.features.model import FeatureSet
from kgpu.discovery.features.plan import plan
from kgpu.discovery.features.publish import MemoryFeatures, SeenFeatures
from kgpu.discovery.features.run import INTERVAL, LOOK, FeaturesContext, run
from kgpu.discovery.features.sources import ReadNode
from kgpu.formats import names

NVIDIA = names.NFD_PCI_NVIDIA[0]
KERNEL = names.NFD_KERNEL_FULL
VERSION = {"kernel.version": {"full": "6.1", "major": "6", "minor": "1"}}
BARE = ReadNode(labels=plan(FeatureSet(attributes=VERSION)))
WITH_A_GPU = ReadNode(
    labels=plan(FeatureSet(attributes=VERSION, instances={"pci.device": [{"class": "0302", "vendor": "10de"}]}))
)


class Node:
    """A node whose hardware the test changes, and the loop on it."""

    def __init__(self, **given) -> None:
        self.facts = BARE
        self.devices = frozenset({"a"})
        self.publisher = MemoryFeatures()
        self.clock = VirtualClock()
        self.states: list[tuple[bool, str]] = []
        self.told: list[str] = []
        self.reads = 0
        self.ctx = FeaturesContext(
            publisher=self.publisher, roots=(), report=lambda one: self.told.append(one.reason), clock=self.clock,
            on_state=lambda ready, reason: self.states.append((ready, line_of(reason))), read=self.read,
            devices=lambda _roots: self.devices, uniform=lambda: 0.5, **given,
        )  # fmt: skip

    def read(self, _roots):
        self.reads += 1
        return self.facts

    @contextlib.asynccontextmanager
    async def running(self):
        task = asyncio.create_task(run(self.ctx))
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def until(self, condition):
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110 - the condition is the loop's work
                await asyncio.sleep(0.001)

    async def asleep(self):
        await self.until(lambda: self.clock.deadlines)

    async def pass_time(self, seconds):
        end = self.clock.monotonic() + seconds
        while self.clock.monotonic() < end:
            await self.asleep()
            await self.clock.advance(min(LOOK, end - self.clock.monotonic()))


async def test_published_at_once_and_not_written_again_without_a_change():
    async with Node().running() as node:
        await node.until(lambda: node.states)
        assert node.publisher.history[0][KERNEL] == "6.1"
        await node.pass_time(INTERVAL)
        await node.until(lambda: node.reads == 2)
        await node.asleep()
        assert len(node.publisher.history) == 1


async def test_a_gpu_that_comes_is_labelled_within_seconds():
    async with Node().running() as node:
        await node.asleep()
        node.facts = WITH_A_GPU
        node.devices |= {"b"}
        await node.pass_time(LOOK)
        await node.until(lambda: len(node.publisher.history) == 2)
        assert node.publisher.history[-1][NVIDIA] == "true"


BOTH = pytest.mark.parametrize("foreign", [True, False], ids=["by the operator", "by the Node"])
OTHER = names.NFD_PREFIX + "cpu-cpuid.AVX"


def beside(foreign: bool, mine: dict[str, str], *others: str) -> Node:
    """A node that another discovery works on, as the operator says or as its labels tell."""
    node = Node(foreign=foreign)
    node.publisher.seen = SeenFeatures(mine=mine, others=frozenset(others), discovery="" if foreign else "nfd-master")
    return node


@BOTH
async def test_beside_another_discovery_no_label_is_added(foreign):
    node = beside(foreign, {})
    async with node.running():
        await node.until(lambda: node.states)
        assert node.publisher.history == []
        assert node.states[-1][0]
        assert node.states[-1][1].startswith("stands back: ")


@BOTH
async def test_a_label_goes_when_the_other_discovery_has_published_it_and_not_before(foreign):
    """A tenant can make what looks like node feature discovery: with the label, every GPU would be gone."""
    node = beside(foreign, {KERNEL: "6.1"})
    async with node.running():
        await node.until(lambda: node.states)
        await node.pass_time(INTERVAL)
        await node.until(lambda: len(node.states) == 2)
        assert node.publisher.history == []
        assert node.publisher.seen.mine == {KERNEL: "6.1"}
        assert node.states[-1][1].endswith("but for 1 that it has not published")
        node.publisher.seen = SeenFeatures(mine={KERNEL: "6.1"}, others=frozenset({KERNEL}), discovery="nfd-master")
        await node.pass_time(INTERVAL)
        await node.until(lambda: node.publisher.history)
        assert node.publisher.history == [{}]


@BOTH
async def test_what_stays_beside_another_discovery_is_kept_true(foreign):
    node = beside(foreign, {KERNEL: "6.0", OTHER: "true"})
    async with node.running():
        await node.until(lambda: node.publisher.history)
        assert node.publisher.history == [{KERNEL: "6.1"}]


async def test_what_a_discovery_that_is_gone_has_left_is_taken_over_on_the_administrators_word():
    node = Node(take_over=True)
    node.facts = WITH_A_GPU
    left = frozenset({KERNEL, OTHER})
    node.publisher.seen = SeenFeatures(others=left | {NVIDIA}, discovery="nfd-master", discovered=left)
    async with node.running():
        await node.until(lambda: node.publisher.history)
        assert node.publisher.history[0][KERNEL] == "6.1"
        assert NVIDIA not in node.publisher.history[0], "somebody has set it by hand"


async def test_a_key_of_somebody_else_is_left_to_them():
    node = Node()
    node.facts = WITH_A_GPU
    node.publisher.seen = SeenFeatures(others=frozenset({NVIDIA}))
    async with node.running():
        await node.until(lambda: node.publisher.history)
        assert NVIDIA not in node.publisher.history[0]
        assert names.NFD_PCI_NVIDIA[1] in node.publisher.history[0]


async def test_a_refusal_is_told_once_and_tried_again():
    node = Node()
    node.publisher.refuse = KubeError("no answer", "an answer", "wait")
    async with node.running():
        await node.pass_time(10)
        assert node.told == ["PublishFailed"]
        assert node.states[-1] == (False, "no answer; expected an answer; to do: wait")
        node.publisher.refuse = None
        await node.pass_time(60)
        assert node.states[-1][0]


class Followed:
    """A Node that is followed: ``vanish`` takes every label away, as somebody with kubectl does."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()
        self.asked = 0
        self.node = Node(lost=self.lost)

    async def lost(self, labels) -> None:
        assert labels == self.node.publisher.seen.mine
        self.asked += 1
        await self.gone.wait()
        self.gone.clear()

    def vanish(self) -> None:
        self.node.publisher.seen = SeenFeatures()
        self.gone.set()


async def test_labels_that_vanish_are_put_back_at_once():
    found = Followed()
    async with found.node.running() as node:
        await node.until(lambda: found.asked == 1)
        before = node.clock.monotonic()
        found.vanish()
        await node.until(lambda: len(node.clock.deadlines) == 1 and not found.gone.is_set())
        await node.clock.advance(1.0)
        await node.until(lambda: found.asked == 2)
        assert (len(node.publisher.history), node.clock.monotonic() - before) == (2, 1.0)


async def test_labels_that_somebody_takes_away_again_and_again_come_back_more_and_more_slowly():
    found = Followed()
    async with found.node.running() as node:
        pauses = []
        for turn in range(1, 6):
            await node.until(lambda turn=turn: found.asked == turn)
            begin = node.clock.monotonic()
            found.vanish()
            while found.asked == turn:
                await node.asleep()
                await node.clock.advance(0.1)
                await asyncio.sleep(0.005)
            pauses.append(node.clock.monotonic() - begin)
        assert pauses[-1] > 4 * pauses[0]


async def test_what_can_not_be_used_of_a_nodes_files_is_told_once():
    note = HostError("features.d/a, line 2: no time", "a time", "correct the line")
    node = Node()
    node.facts = ReadNode(labels=BARE.labels, notes=(note,))
    async with node.running():
        await node.until(lambda: node.states)
        await node.pass_time(2 * INTERVAL)
        assert node.told == ["FeatureFileUnusable"]
        assert node.publisher.history[0][KERNEL] == "6.1"
        node.facts = BARE
        await node.pass_time(2 * INTERVAL)
        node.facts = ReadNode(labels=BARE.labels, notes=(note,))
        await node.pass_time(2 * INTERVAL)
        assert node.told == ["FeatureFileUnusable"] * 2


async def test_the_nodes_own_config_says_how_often_it_is_read():
    node = Node()
    node.facts = replace(BARE, interval=600.0)
    async with node.running():
        await node.until(lambda: node.reads == 1)
        await node.asleep()
        for _ in range(100):  # each look at devices is a sleep of its own
            await node.clock.advance(LOOK)
        assert node.reads == 1
        for _ in range(20):
            await node.clock.advance(LOOK)
        await node.until(lambda: node.reads == 2)
    idle = Node()
    idle.facts = replace(BARE, interval=math.inf)
    async with idle.running():
        await idle.until(lambda: idle.reads == 1)
        await idle.asleep()
        for _ in range(50):
            await idle.clock.advance(LOOK)
        assert idle.reads == 1
        idle.devices = frozenset({"b"})
        await idle.clock.advance(LOOK)
        await idle.until(lambda: idle.reads == 2)


async def test_how_long_a_reading_takes_is_measured():
    seconds = []
    node = Node(measured=seconds.append)
    async with node.running():
        await node.until(lambda: seconds == [0.0])
