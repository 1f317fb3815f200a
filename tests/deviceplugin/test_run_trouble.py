"""The running plugin when the world is against it: disks, storms, a second plugin, specs that can't be written."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from kgpu.base.errors import HostError
from kgpu.deviceplugin import offer, run
from kgpu.deviceplugin.core import PluginCore
from kgpu.hw.fake_reader import sample_partitions
from kgpu.hw.port import EventKind, HardwareEvent, Inventory
from tests.deviceplugin.nodes import GPU
from tests.deviceplugin.running import GPUS, INVENTORY, Node
from tests.kubelet import followers


async def test_cdi_specs_are_written_before_devices_are_offered(node: Node) -> None:
    written: list[int] = []

    def write(inventory: Inventory, settings: object) -> None:
        del settings
        written.append(len(inventory.accelerators))
        assert node.kubelet.registrations == [] or len(written) > 1

    node.config.set("flags: {plugin: {deviceListStrategy: cdi-cri}}")
    node.start(cdi_writer=write)
    await node.offers(gpu=8)
    assert written[0] == 8
    answers = await node.kubelet.admit("pod", "main", {GPU: 1})
    assert answers[GPU].cdi_devices == (f"k8s.device-plugin.nvidia.com/gpu={GPUS[0].uuid}",)


async def test_specs_are_brought_in_line_as_soon_as_what_they_rest_on_changes(node: Node) -> None:
    """Not at the next reading of the inventory: containers that begin until then would fail."""
    written: list[int] = []
    changed: asyncio.Queue[None] = asyncio.Queue()

    async def changes() -> AsyncIterator[None]:
        while True:
            yield await changed.get()

    node.config.set("flags: {plugin: {deviceListStrategy: cdi-cri}}")
    node.start(
        cdi_writer=lambda inventory, _: written.append(len(inventory.accelerators)), cdi_changes=changes,
        reread_seconds=3600.0,
    )  # fmt: skip
    await node.offers(gpu=8)
    before = len(written)
    changed.put_nowait(None)
    await node.until(lambda: len(written) > before)


async def test_devices_without_a_cdi_spec_are_held_back_until_it_can_be_written(node: Node) -> None:
    broken = [HostError("the CDI spec can't be written", "a writable folder", "mount it")]

    def write(*_: object) -> None:
        if broken:
            raise broken[0]

    node.config.set("flags: {plugin: {deviceListStrategy: cdi-cri}}")
    node.start(cdi_writer=write)
    await node.until(lambda: node.states[-1:] == [(False, broken[0].one_line())])
    assert node.kubelet.registrations == []
    node.reader.report(HardwareEvent(kind=EventKind.INVENTORY))
    await asyncio.sleep(0.05)
    assert node.reasons().count("CdiNotWritten") == 1
    problem = broken.pop()
    node.reader.report(HardwareEvent(kind=EventKind.INVENTORY))
    await node.offers(gpu=8)
    # Later trouble leaves what was offered: the old spec still serves it.
    broken.append(problem)
    node.reader.set_inventory(replace(INVENTORY, driver_version="1.2.3"))
    await node.until(lambda: node.reasons().count("CdiNotWritten") == 2)
    assert node.kubelet.allocatable() == {GPU: 8}


async def test_stopping_leaves_no_socket_behind(node: Node) -> None:
    node.start()
    await node.offers(gpu=8)
    await node.stop()
    assert not (node.folder / "plugins" / "nvidia-gpu.sock").exists()
    with contextlib.suppress(TimeoutError):
        await node.kubelet.wait_for(lambda: node.kubelet.allocatable() == {GPU: 0})
    assert node.kubelet.allocatable() == {GPU: 0}


async def test_of_two_plugins_the_newest_serves_and_the_kubelet_is_left_in_peace(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine what follows takes longer than the first gives way otherwise.
    monkeypatch.setattr(offer, "YIELD", replace(offer.YIELD, first=offer.YIELD.cap))
    other = Node(node.folder / "other")
    other.kubelet = node.kubelet
    node.start()
    await node.offers(gpu=8)
    other.start()
    await node.until(lambda: "NotRegistered" in node.reasons())
    await node.until(lambda: "Registered" in other.reasons())  # the list may still be that of the first
    await node.offers(gpu=8)
    registrations = len(node.kubelet.registrations)
    assert registrations <= 4
    # What wakes both up again and again is no reason to fight again.
    for number in range(20):
        (node.kubelet.folder / f"file-{number}").touch()
        await asyncio.sleep(0.01)
    assert len(node.kubelet.registrations) == registrations
    await other.stop()
    await node.until(lambda: len(node.kubelet.registrations) > registrations)
    await node.offers(gpu=8)


async def test_a_plugin_that_the_kubelet_drops_says_so_and_registers_again(node: Node) -> None:
    """A kubelet lets go of a plugin when the one before it ends, as at every change of layout or version."""
    before = followers.Plugin(node.kubelet.folder, "before", resource=GPU)
    await before.register()
    node.start()
    await node.offers(gpu=8)
    await node.until(lambda: node.states[-1] == (True, ""))
    count = len(node.states)
    await before.server.close()
    await node.until(lambda: len(node.states) >= count + 2)
    assert node.states[count:] == [(False, f"not registered with the kubelet: {GPU}"), (True, "")]
    await node.offers(gpu=8)


async def test_events_in_a_storm_do_not_each_cost_a_reading(node: Node) -> None:
    node.start()
    await node.offers(gpu=8)
    before = node.reader.inventory_calls
    begin = asyncio.get_running_loop().time()
    for _ in range(200):
        node.reader.report(HardwareEvent(kind=EventKind.XID, uuid=GPUS[3].uuid, code=31))
        await asyncio.sleep(0.001)
    took = asyncio.get_running_loop().time() - begin
    assert node.reader.inventory_calls - before <= 2 + took / run.LOOK_PAUSE_SECONDS


async def test_a_slow_disk_delays_no_answer(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    freed = threading.Event()
    saving = threading.Event()

    def slow(*_: Any) -> None:
        saving.set()
        assert freed.wait(300)

    monkeypatch.setattr(run.roster, "save", slow)
    node.start()
    try:
        await node.offers(gpu=8)
        await node.until(saving.is_set)
        node.reader.report(HardwareEvent(kind=EventKind.XID, uuid=GPUS[3].uuid, code=79))
        await node.offers(gpu=7)
        await node.kubelet.admit("pod", "main", {GPU: 2})
    finally:
        freed.set()


async def test_a_save_under_way_at_the_end_does_not_undo_the_last_one(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    freed, saving, save = threading.Event(), threading.Event(), run.roster.save
    ended: list[tuple[str, ...]] = []

    def slow_at_first(*args: Any) -> Any:
        if not saving.is_set():
            saving.set()
            assert freed.wait(300)
        problem = save(*args)
        ended.append(args[1].resources)
        return problem

    monkeypatch.setattr(run.roster, "save", slow_at_first)
    node.start()
    await node.until(saving.is_set)
    await node.offers(gpu=8)  # known after the save began
    assert node.task is not None
    node.task.cancel()
    asyncio.get_running_loop().call_later(0.1, freed.set)
    await node.stop()
    kept = run.roster.load(node.folder / "state", source="driver", boot=run.boot_id())[0]
    assert kept.resources == (GPU,)
    assert ended[-1] == (GPU,)
    assert len(ended) == 2  # nothing is still being written


async def test_a_full_disk_is_told_once_and_tried_again(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "SAVE_RETRY_SECONDS", 0.02)
    (node.folder / "state").write_text("a file where the folder should be")
    node.start()
    await node.until(lambda: "MemoryUnwritable" in node.reasons())
    node.reader.report(HardwareEvent(kind=EventKind.XID, uuid=GPUS[3].uuid, code=79))
    await node.offers(gpu=7)
    (node.folder / "state").unlink()
    await node.until(lambda: (node.folder / "state" / "devices.json").is_file())
    assert node.reasons().count("MemoryUnwritable") == 1


async def test_a_plugin_that_hears_no_events_does_not_go_on_as_if_it_did(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> bool:
        raise RuntimeError("a defect")

    monkeypatch.setattr(PluginCore, "event", broken)
    node.start()
    await node.offers(gpu=8)
    node.reader.report(HardwareEvent(kind=EventKind.XID, uuid=GPUS[3].uuid, code=79))
    assert node.task is not None
    with pytest.raises(ExceptionGroup, match="unhandled"):
        await asyncio.wait_for(node.task, 20)


async def test_new_devices_wait_for_their_cdi_spec_and_the_old_ones_stay(node: Node) -> None:
    full: list[HostError] = []

    def write(_inventory: Inventory, _settings: Any) -> None:
        if full:
            raise full[0]

    node.config.set("flags: {migStrategy: mixed, plugin: {deviceListStrategy: cdi-cri}}")
    node.start(cdi_writer=write)
    await node.offers(gpu=8)
    full.append(HostError("the disk is full", "room", "make some"))
    node.reader.set_partitions(GPUS[0].uuid, sample_partitions(GPUS[0]))
    await node.offers(gpu=7)
    node.reader.report(HardwareEvent(kind=EventKind.XID, uuid=GPUS[1].uuid, code=79))
    await node.offers(gpu=6)
    assert "nvidia.com/mig-1g.10gb" not in node.kubelet.allocatable()
    full.clear()
    node.reader.report(HardwareEvent(kind=EventKind.MIG_CHANGE, uuid=GPUS[0].uuid))
    await node.offers(gpu=6, **{"mig-1g.10gb": 7})
