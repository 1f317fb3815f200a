"""The plugin at work beside a runtime that speaks the real protocol: meeting it, losing it, declining it, answering."""

from __future__ import annotations

import asyncio
import contextlib
import re
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from kgpu.base.advice import Advice
from kgpu.base.clock import VirtualClock
from kgpu.base.errors import HwError, KubeError, KubeletError, Reason, line_of
from kgpu.base.files import write_atomic
from kgpu.formats.cdi import dump_spec
from kgpu.formats.requirements import Fulfillment, parse_requirement
from kgpu.hw.open import open_reader
from kgpu.hw.port import Accelerator, Inventory
from kgpu.hw.simulator.operate import opened
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import PODS
from kgpu.kubelet.nri.fake import FakeNriRuntime
from kgpu.kubelet.nri.model import ContainerAdjustment, RuntimeInfo
from kgpu.kubelet.nri.session import CallRefusedError
from kgpu.kubelet.pod_resources import FakeHoldings
from kgpu.toolkit.nri import run as run_module
from kgpu.toolkit.nri.config import nri_config
from kgpu.toolkit.nri.plan import decide
from kgpu.toolkit.nri.ports import FRESH_SECONDS, FakeAccounts, Gpus, KubeAccounts, gpu_facts
from kgpu.toolkit.nri.run import PLUGIN_NAME, NriContext, run

from . import support_nri as node

DEADLINE_S = 60.0
PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "use-nri.md"


class Driver:
    """A reader of which only the inventory is asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.problem: Exception | None = None
        self.hang = False

    async def inventory(self) -> Inventory:
        self.asked += 1
        if self.hang:
            await asyncio.Event().wait()
        if self.problem is not None:
            raise self.problem
        gpus = tuple(
            Accelerator(vendor="nvidia", index=number, minor=number, uuid=f"GPU-{number}", name="H100",
                        compute_capability=(9, 0))
            for number in range(3)
        )  # fmt: skip
        return Inventory(vendor="nvidia", driver_version="550.54.15", accelerators=gpus, cuda_version=(12, 10))


@dataclass
class World:
    """Everything around the plugin."""

    runtime: FakeNriRuntime
    folder: Path
    driver: Driver = field(default_factory=Driver)
    holdings: FakeHoldings = field(default_factory=FakeHoldings)
    accounts: FakeAccounts = field(default_factory=lambda: FakeAccounts({("team", "p"): "trainer"}))
    advice: list[Advice] = field(default_factory=list)
    states: list[tuple[bool, str]] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def context(self, **more: Any) -> NriContext:
        return NriContext(
            config=nri_config(namespace="gpu-operator", allowed="ml,team/trainer", socket=str(self.runtime.socket)),
            reader=self.driver,  # type: ignore[arg-type]
            holdings=self.holdings,
            accounts=self.accounts,
            report=self.advice.append,
            cdi_dirs=(self.folder / "cdi",),
            wanted=node.wanted,
            on_state=self.on_state,
            **more,
        )

    def on_state(self, ready: bool, reason: Reason) -> None:
        self.states.append((ready, line_of(reason)))
        self.changed.set()

    async def state(self, ready: bool, word: str) -> str:
        """Wait for a state whose reason has the word."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                for was, reason in self.states:
                    if was is ready and word in reason:
                        return reason
                self.changed.clear()
                await self.changed.wait()

    async def create(self, asking, box) -> ContainerAdjustment | None:
        return (await self.runtime.create(asking, box))[0]


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kgpu") as name:
        specs = Path(name) / "cdi"
        specs.mkdir()
        write_atomic(specs / "nvidia.json", dump_spec(node.gpu_spec(), "json"))
        write_atomic(specs / "management.json", dump_spec(node.management_spec(), "json"))
        yield Path(name)


@pytest.fixture
async def world(folder: Path) -> AsyncIterator[World]:
    found = World(FakeNriRuntime(folder / "nri" / "nri.sock"), folder)
    found.runtime.info = replace(found.runtime.info, request_seconds=DEADLINE_S)  # a busy machine may need longer
    yield found
    await found.runtime.stop()


@contextlib.asynccontextmanager
async def plugin(world: World, *, start: bool = True) -> AsyncIterator[None]:
    if start:
        await world.runtime.start()
    task = asyncio.create_task(run(world.context()))
    try:
        if start:
            await world.runtime.has_plugins()
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_it_answers(world: World) -> None:
    async with plugin(world):
        assert world.runtime.plugins == (("10", PLUGIN_NAME),)
        assert "containerd v2.1.4" in await world.state(True, "containerd")
        assert await world.create(node.pod("ml"), node.container("NVIDIA_VISIBLE_DEVICES=0")) == ContainerAdjustment(
            cdi_devices=("nvidia.com/gpu=0",)
        )
        assert await world.create(node.pod(), node.container("PATH=/bin")) is None
        world.holdings.now = (node.holding("GPU-0"),)
        with pytest.raises(CallRefusedError, match="user/other"):
            await world.create(node.pod("ml"), node.container("NVIDIA_VISIBLE_DEVICES=0"))


async def test_nobody_is_asked_about_containers_that_do_not_ask(world: World) -> None:
    world.holdings.problem = KubeletError("asleep", "awake", "wait")
    world.driver.problem = HwError("asleep", "awake", "wait")
    async with plugin(world):
        for box in (node.container(), node.container("NVIDIA_VISIBLE_DEVICES=all"), node.served()):
            assert await world.create(node.pod(), box) is None
    assert (world.holdings.asked, world.driver.asked) == (0, 0)


async def test_a_runtime_that_comes_later_and_comes_again(world: World) -> None:
    async with plugin(world, start=False):
        assert "is not there" in await world.state(False, "nri.sock")
        await world.runtime.start()
        await world.runtime.has_plugins()
        for again in (world.runtime.hang_up, world.runtime.stop):
            await again()
            if again == world.runtime.stop:
                await world.runtime.start()
            await world.runtime.has_plugins()
        assert await world.create(node.pod("ml"), node.container("NVIDIA_VISIBLE_DEVICES=1")) is not None


async def test_what_it_waits_for_is_told_in_the_pages_words(world: World) -> None:
    async with plugin(world, start=False):
        told = await world.state(False, "nri.sock")
    assert f"waiting: {told}".replace(str(world.runtime.socket), "/tmp/nri.sock") in PAGE.read_text()


async def test_what_becomes_of_containers_is_told_in_the_pages_words(world: World, caplog) -> None:
    caplog.set_level("INFO", logger="kgpu.toolkit.nri.run")
    box = replace(node.container("NVIDIA_VISIBLE_DEVICES=all"), name="c")
    one = replace(node.container("NVIDIA_VISIBLE_DEVICES=0"), name="c")
    world.holdings.now = (node.holding("GPU-0", pod="train-0", namespace="default"),)
    async with plugin(world):
        assert await world.create(node.pod("ml", "notebook"), box) is not None
        assert await world.create(node.pod("default", "cuda-image"), box) is None
        with pytest.raises(CallRefusedError):
            await world.create(node.pod("ml", "notebook2"), one)
    told = [*(line.removeprefix("NRI: ") for line in caplog.messages), *(one.one_line() for one in world.advice)]
    block = PAGE.read_text().partition("all of it is in kgpu's log:\n```\n")[2].partition("\n```")[0]
    page = block.replace("\n  ", " ").replace("ml-dev/", "ml/").splitlines()
    assert len(page) == 3
    # The node of the page has other GPUs.
    devices = re.compile(r"(?<= gets ).*(?= as )")
    assert [line for line in page if devices.sub("", line) not in {devices.sub("", said) for said in told}] == []


@pytest.mark.parametrize(
    ("name", "version"), [("containerd", "v2.0.7"), ("containerd", "1.7.29"), ("cri-o", "1.34.1"), ("", "")]
)
async def test_a_runtime_that_would_drop_the_devices(world: World, name: str, version: str) -> None:
    world.runtime.info = RuntimeInfo(name=name, version=version)
    async with plugin(world, start=False):
        await world.state(False, "is not there")
        await world.runtime.start()
        reason = await world.state(False, "can't give containers GPUs")
        assert "containerd 1.7.30" in reason
        (told,) = world.advice
        assert told.reason == "NriUnsupported"
        assert told.severity.notable
        assert world.runtime.connections == 1
        # Only a runtime that was started anew may have become another one.
        await world.runtime.stop()
        world.runtime.info = RuntimeInfo(name="containerd", version="2.2.0")
        await world.runtime.start()
        await world.runtime.has_plugins()
        await world.state(True, "containerd 2.2.0")


async def test_service_accounts_are_looked_up_only_where_they_matter(world: World) -> None:
    box = node.container("NVIDIA_VISIBLE_DEVICES=0")
    async with plugin(world):
        assert await world.create(node.pod("team"), box) is not None
        assert await world.create(node.pod("team", "q"), box) is None
        world.accounts.problem = KubeError("no answer", "an answer", "wait")
        assert await world.create(node.pod("team"), box) is None
        assert await world.create(node.pod("ml"), box) is not None
        with pytest.raises(CallRefusedError, match="may not have"):
            await world.create(node.annotated("nvidia.com/gpu=0", "team"), node.container())


async def test_requirements_and_capabilities(world: World) -> None:
    async with plugin(world):
        assert await world.create(node.pod(), node.given_by_kubelet("NVIDIA_REQUIRE_CUDA=cuda>=12.10")) is None
        with pytest.raises(CallRefusedError, match=r"cuda 12\.10"):
            await world.create(node.pod(), node.given_by_kubelet("NVIDIA_REQUIRE_CUDA=cuda>=12.11"))
        cut = await world.create(node.pod(), node.given_by_kubelet("NVIDIA_DRIVER_CAPABILITIES=utility"))
        assert cut is not None
        assert len(cut.without_mounts) == 3


async def test_requirements_are_judged_beside_the_loop(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image may ask for thousands of them, and every other container would wait meanwhile."""
    threads: list[int] = []

    def judged(*args: Any, **kwargs: Any) -> Any:
        threads.append(threading.get_ident())
        return decide(*args, **kwargs)

    monkeypatch.setattr(run_module, "decide", judged)
    asked = " ".join(["cuda>=12.10"] * 1300)
    async with plugin(world):
        assert await world.create(node.pod(), node.given_by_kubelet(f"NVIDIA_REQUIRE_CUDA={asked}")) is None
    assert threads
    assert threading.get_ident() not in threads


async def test_what_takes_too_long_is_refused_before_the_runtime_gives_up(world: World) -> None:
    world.runtime.info = RuntimeInfo(name="containerd", version="2.1.4", request_seconds=3.0)
    world.driver.hang = True
    async with plugin(world):
        with pytest.raises(CallRefusedError, match="could not be looked up"):
            await world.create(node.pod(), node.given_by_kubelet("NVIDIA_REQUIRE_CUDA=cuda>=12"))
        assert await world.create(node.pod("ml"), node.container("NVIDIA_VISIBLE_DEVICES=0")) is not None


async def test_the_same_is_told_once(world: World) -> None:
    box = node.container("NVIDIA_VISIBLE_DEVICES=all")
    async with plugin(world):
        for _ in range(3):
            assert await world.create(node.pod(), box) is None
            with pytest.raises(CallRefusedError):
                await world.create(node.annotated("nvidia.com/gpu=0"), node.container())
        await world.create(node.pod(name="q"), box)
    said = [(advice.subject, advice.what.rsplit(" is ")[1]) for advice in world.advice]
    assert said == [("user/p", "left as it is"), ("user/p", "refused"), ("user/q", "left as it is")]


async def test_facts_are_kept_for_a_while_and_unknown_without_a_driver() -> None:
    driver, clock = Driver(), VirtualClock()
    gpus = Gpus(driver, clock)  # type: ignore[arg-type]
    by_minor, whole = await gpus.facts()
    assert (by_minor[2].arch, whole.cuda, whole.driver) == ("9.0", "12.10", "550.54.15")
    await gpus.facts()
    assert driver.asked == 1
    await clock.advance(FRESH_SECONDS + 1)
    driver.problem = HwError("gone", "there", "wait")
    unknown, whole = await gpus.facts()
    assert (unknown, whole.cuda) == ({}, "")


@pytest.mark.parametrize(("number", "text"), [(12040, "12.4"), (12090, "12.9"), (12100, "12.10"), (13110, "13.11")])
async def test_cuda_minor_versions_beyond_nine(sim_root: Callable[..., Path], number: int, text: str) -> None:
    """From the driver's number, 1000 * major + 10 * minor, to what requirements compare with."""
    root = sim_root("l4", gpus=1)
    with opened(root) as state:
        state.view.cuda_version = number
    reader = open_reader(driver_root=root)
    try:
        by_minor, whole = gpu_facts(await reader.inventory())
    finally:
        await reader.close()
    assert whole.cuda == text
    assert (by_minor[0].cuda, by_minor[0].brand) == (text, "nvidia")
    assert parse_requirement(f"cuda={text}").verdict(whole) is Fulfillment.MET
    assert parse_requirement(f"cuda>={text}9").verdict(whole) is Fulfillment.UNMET


async def test_an_account_is_that_of_the_very_pod() -> None:
    api = FakeApi()
    pod = api.put(
        PODS,
        {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "team"},
            "spec": {"serviceAccountName": "trainer", "containers": []},
        },
    )  # fmt: skip
    accounts = KubeAccounts(api)
    assert await accounts.account_of("team", "p", pod["metadata"]["uid"]) == "trainer"
    assert await accounts.account_of("team", "p", "another") == ""
    assert await accounts.account_of("team", "q", pod["metadata"]["uid"]) == ""
