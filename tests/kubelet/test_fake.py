"""The fake kubelet behaves as the kubelet's device manager: what it counts, hands out, keeps and forgets."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kgpu.base.errors import KubeletError, UserError
from kgpu.kubelet.convert import decode_allocation
from kgpu.kubelet.device_plugin import DevicePluginServer, register
from kgpu.kubelet.fake import CHECKPOINT, AdmissionError, FakeKubelet
from kgpu.kubelet.model import ContainerAllocation, DeviceState, PreferenceRequest, Registration
from tests.kubelet import followers

NAME = "example.com/dev"


class Logic:
    """Prefers the last ids and refuses one of them."""

    def __init__(self) -> None:
        self.asked: list[PreferenceRequest] = []
        self.refuse = ""
        self.refuse_preference = False
        self.heard = asyncio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a change of the plugin's streams that makes it true."""
        async with asyncio.timeout(60):
            while not condition():
                self.heard.clear()
                await self.heard.wait()

    def allocate(self, ids: Sequence[str]) -> ContainerAllocation:
        if self.refuse in ids:
            raise UserError(f"unknown device: {self.refuse}", "another", "ask again")
        return ContainerAllocation(envs={"IDS": ",".join(ids)})

    def prefer(self, request: PreferenceRequest) -> Sequence[str]:
        self.asked.append(request)
        if self.refuse_preference:
            raise UserError("no preference", "one", "none")
        return sorted(request.available)[-request.size :]


def devices(count: int, *broken: int) -> list[DeviceState]:
    return [DeviceState(id=f"d{number}", healthy=number not in broken) for number in range(count)]


@pytest.fixture
async def pair(folder: Path):
    logic = Logic()
    plugin = DevicePluginServer(
        folder, Registration(resource=NAME, endpoint="dev.sock"), logic, on_stream=logic.heard.set
    )
    async with FakeKubelet(folder) as kubelet:
        plugin.update(devices(4))
        await plugin.start()
        await register(kubelet.socket, plugin.registration)
        await kubelet.wait_for(lambda: kubelet.connected(NAME))
        yield kubelet, plugin, logic
        await plugin.close()


async def test_capacity_counts_all_and_allocatable_the_healthy(pair) -> None:
    kubelet, plugin, _ = pair
    assert (kubelet.capacity(), kubelet.allocatable()) == ({NAME: 4}, {NAME: 4})
    plugin.update(devices(4, 1))
    await kubelet.wait_for(lambda: kubelet.allocatable() == {NAME: 3})
    assert kubelet.capacity() == {NAME: 4}
    plugin.update(devices(2))
    await kubelet.wait_for(lambda: kubelet.capacity() == {NAME: 2})


async def test_a_preference_is_asked_for_only_when_there_is_a_choice(pair) -> None:
    kubelet, _, logic = pair
    answers = await kubelet.admit("a", "c", {NAME: 1})
    assert answers[NAME].envs == {"IDS": "d3"}
    await kubelet.admit("b", "c", {NAME: 3})
    assert len(logic.asked) == 1
    assert kubelet.held()["b", "c"][NAME] == ("d0", "d1", "d2")
    with pytest.raises(AdmissionError, match="Requested: 1, Available: 0"):
        await kubelet.admit("x", "c", {NAME: 1})
    kubelet.release("a")
    assert (await kubelet.admit("x", "c", {NAME: 1}))[NAME].envs == {"IDS": "d3"}


async def test_a_refused_pod_holds_nothing(pair) -> None:
    kubelet, _, logic = pair
    logic.refuse = "d3"
    with pytest.raises(AdmissionError, match=r"UnexpectedAdmissionError.*unknown device: d3"):
        await kubelet.admit("a", "c", {NAME: 1})
    assert kubelet.held() == {}
    logic.refuse, logic.refuse_preference = "", True
    with pytest.raises(AdmissionError, match=r"GetPreferredAllocation rpc failed.*no preference"):
        await kubelet.admit("a", "c", {NAME: 1})
    with pytest.raises(AdmissionError, match="cannot allocate unregistered device"):
        await kubelet.admit("a", "c", {"example.com/other": 1})


async def test_a_container_asked_again_keeps_its_devices(pair) -> None:
    kubelet, _, logic = pair
    first = await kubelet.admit("a", "c", {NAME: 2})
    logic.refuse = "d3"  # which it holds: the plugin is not asked again
    assert await kubelet.admit("a", "c", {NAME: 2}) == first


async def test_a_container_asked_again_loses_devices_that_are_ill_by_now(pair) -> None:
    kubelet, plugin, _ = pair
    await kubelet.admit("a", "c", {NAME: 2})
    plugin.update(devices(4, 3))
    await kubelet.wait_for(lambda: kubelet.allocatable() == {NAME: 3})
    text = "previously allocated devices are no longer healthy; cannot allocate unhealthy devices"
    with pytest.raises(AdmissionError, match=text):
        await kubelet.admit("a", "c", {NAME: 2})
    assert kubelet.held() == {}


async def test_a_container_asked_again_before_its_plugin_is_back_loses_its_devices(pair) -> None:
    kubelet, _, _ = pair
    await kubelet.admit("a", "c", {NAME: 2})
    await kubelet.restart()
    with pytest.raises(AdmissionError, match="cannot allocate unregistered device"):
        await kubelet.admit("a", "c", {NAME: 2})
    assert kubelet.held() == {}


async def test_a_plugin_that_goes_leaves_unhealthy_devices(pair) -> None:
    kubelet, plugin, _ = pair
    await plugin.close()
    await kubelet.wait_for(lambda: kubelet.allocatable() == {NAME: 0})
    assert kubelet.capacity() == {NAME: 4}
    assert not kubelet.connected(NAME)


async def test_restarting_keeps_the_checkpoint_and_empties_the_folder(pair, folder: Path) -> None:
    kubelet, plugin, _ = pair
    await kubelet.admit("a", "c", {NAME: 2})
    (folder / "sub").mkdir()
    held = {key: dict(value) for key, value in kubelet.held().items()}
    await kubelet.restart()
    assert kubelet.held() == held
    assert not plugin.exists
    assert sorted(os.listdir(folder)) == sorted([CHECKPOINT, "kubelet.sock", "sub"])
    assert kubelet.capacity() == {NAME: 0}
    data = json.loads((folder / CHECKPOINT).read_text())["Data"]
    (entry,) = data["PodDeviceEntries"]
    answer = decode_allocation(entry.pop("AllocResp"))
    assert entry == {"PodUID": "a", "ContainerName": "c", "ResourceName": NAME, "DeviceIDs": {"-1": ["d2", "d3"]}}
    assert answer == ContainerAllocation(envs={"IDS": "d2,d3"}) == kubelet.answers("a", "c")[NAME]


async def test_a_broken_checkpoint_starts_empty(folder: Path) -> None:
    (folder / CHECKPOINT).write_text("{")
    async with FakeKubelet(folder) as kubelet:
        assert kubelet.held() == {}


async def test_registering_again_replaces_the_old_plugin(pair, folder: Path) -> None:
    kubelet, plugin, logic = pair
    other = DevicePluginServer(folder, Registration(resource=NAME, endpoint="dev.sock"), logic)
    other.update(devices(9))
    await other.start()
    await register(kubelet.socket, other.registration)
    await kubelet.wait_for(lambda: kubelet.capacity() == {NAME: 9})
    assert not plugin.exists
    await other.close()


async def test_the_end_of_a_plugin_that_was_followed_drops_its_follower(folder: Path) -> None:
    async with FakeKubelet(folder) as kubelet:
        await followers.the_first_one_ends(folder)
        await kubelet.wait_for(lambda: kubelet.allocatable() == {followers.RESOURCE: 0})


async def test_a_wrong_version_is_refused(folder: Path) -> None:
    async with FakeKubelet(folder) as kubelet:
        with pytest.raises(KubeletError, match="v1alpha"):
            await register(kubelet.socket, Registration(resource=NAME, endpoint="x", version="v1alpha"))


async def test_pods_admitted_together_never_share(pair) -> None:
    kubelet, _, _ = pair
    results = await asyncio.gather(
        *(kubelet.admit(f"p{number}", "c", {NAME: 1}) for number in range(6)), return_exceptions=True
    )
    assert sum(isinstance(result, AdmissionError) for result in results) == 2
    held = [device for resources in kubelet.held().values() for ids in resources.values() for device in ids]
    assert sorted(held) == ["d0", "d1", "d2", "d3"]


async def test_streams_and_versions_of_the_plugin(pair) -> None:
    kubelet, plugin, logic = pair
    await logic.until(lambda: plugin.delivered == plugin.version)
    assert plugin.streams == 1
    plugin.update(devices(1))
    await logic.until(lambda: plugin.delivered == plugin.version)
    await kubelet.stop()
    await logic.until(lambda: not plugin.streams)
    assert plugin.delivered == -1


async def test_560_devices_in_one_list(pair) -> None:
    kubelet, plugin, _ = pair
    plugin.update([DeviceState(id=f"GPU-{'0' * 36}::{number}", numa_node=number % 2) for number in range(560)])
    await kubelet.wait_for(lambda: kubelet.allocatable() == {NAME: 560})
    assert [device.numa_node for device in kubelet.devices(NAME)[:3]] == [0, 1, 0]
