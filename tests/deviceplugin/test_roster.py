"""Devices that were seen before keep their place, also across restarts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.deviceplugin import roster
from kgpu.deviceplugin.health import Illness
from kgpu.deviceplugin.roster import PluginMemory, load, merge, save
from kgpu.hw.fake_reader import sample_inventory
from kgpu.hw.port import Accelerator, HardwareFinding, Problem
from tests.deviceplugin.nodes import broken, with_mig

INVENTORY = sample_inventory(4)
NODES = INVENTORY.accelerators


def found(*accelerators: Accelerator):
    return replace(INVENTORY, accelerators=accelerators)


def test_a_gpu_that_vanishes_stays_as_missing() -> None:
    merged, advice = merge(NODES, found(*NODES[:3]))
    assert [gpu.uuid for gpu in merged] == [gpu.uuid for gpu in NODES]
    assert [gpu.usable for gpu in merged] == [True, True, True, False]
    assert merged[3].findings[0].problem is Problem.MISSING
    assert merged[3].device_nodes == NODES[3].device_nodes
    assert advice == []
    back, _ = merge(merged, INVENTORY)
    assert back == NODES


def test_all_gpus_may_vanish_at_once() -> None:
    merged, _ = merge(NODES, found())
    assert len(merged) == 4
    assert not any(gpu.usable for gpu in merged)


@pytest.mark.parametrize("uuid", [NODES[1].uuid, ""])
def test_a_lost_gpu_that_lost_its_facts_gets_them_back(uuid: str) -> None:
    lost = HardwareFinding(subject=uuid, problem=Problem.LOST, what="lost", expected="there", remedy="reset")
    blank = Accelerator(vendor=NODES[1].vendor, index=1, uuid=uuid, name="", findings=(lost,))
    merged, _ = merge(NODES, found(NODES[0], blank, *NODES[2:]))
    assert merged[1] == replace(NODES[1], findings=(lost,))
    assert len(merged) == 4


def test_fresh_facts_win_over_remembered_ones() -> None:
    sliced = with_mig(NODES[0], ("1g.10gb", 7))
    merged, _ = merge(NODES, found(sliced, *NODES[1:]))
    assert merged[0] == sliced
    reset = broken(sliced, Problem.NEEDS_RESET)
    assert merge(NODES, found(reset, *NODES[1:]))[0][0] == reset


def test_a_replaced_gpu_leaves() -> None:
    new = replace(NODES[3], uuid="GPU-new")
    merged, advice = merge(NODES, found(*NODES[:3], new))
    assert [gpu.uuid for gpu in merged] == [*(gpu.uuid for gpu in NODES[:3]), "GPU-new"]
    assert advice[0].reason == "DeviceReplaced"


def test_other_hardware_forgets_everything() -> None:
    others = tuple(replace(gpu, uuid=f"GPU-{gpu.index}", pci_bus_id="") for gpu in NODES[:1])
    merged, advice = merge(NODES, found(*others))
    assert merged == others
    assert advice[0].reason == "DevicesExchanged"


@given(st.lists(st.sets(st.integers(0, 3)), max_size=6))
def test_the_number_of_devices_never_shrinks(readings: list[set[int]]) -> None:
    known: tuple[Accelerator, ...] = NODES
    for reading in readings:
        known, _ = merge(known, found(*(NODES[index] for index in sorted(reading))))
        assert [gpu.uuid for gpu in known] == [gpu.uuid for gpu in NODES]
        assert {gpu.index for gpu in known if gpu.usable} == reading


MEMORY = PluginMemory(
    boot="b1",
    source="driver",
    accelerators=(with_mig(NODES[0], ("1g.10gb", 2)), broken(NODES[1])),
    resources=("nvidia.com/gpu",),
    illnesses=(Illness(gpu_uuid=NODES[0].uuid, code=79, gpu_instance=3, last=5.0, pending=True),),
    config="version: v1",
    mig_strategy="single",
)


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    assert save(tmp_path / "state", MEMORY) is None
    assert load(tmp_path / "state", source="driver", boot="b1") == (MEMORY, [])


def test_another_boot_or_driver_forgets_devices(tmp_path: Path) -> None:
    save(tmp_path, MEMORY)
    rebooted, _ = load(tmp_path, source="driver", boot="b2")
    assert rebooted == PluginMemory(boot="b2", source="driver", config=MEMORY.config, mig_strategy="single")
    elsewhere, _ = load(tmp_path, source="/other/state", boot="b1")
    assert elsewhere.accelerators == ()
    assert elsewhere.resources == MEMORY.resources


def test_no_memory_is_an_empty_one(tmp_path: Path) -> None:
    assert load(tmp_path, source="s", boot="b") == (PluginMemory(boot="b", source="s"), [])


@given(st.one_of(st.binary(max_size=200), st.just(msgspec.json.encode({"version": 1, "accelerators": [{}]}))))
def test_garbage_is_told_and_not_used(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.mktemp("memory")
    (folder / roster.FILE_NAME).write_bytes(content)
    memory, advice = load(folder, source="s", boot="b")
    assert memory == PluginMemory(boot="b", source="s")
    assert [record.reason for record in advice] == ["MemoryUnreadable"]


def test_a_folder_that_can_not_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    advice = save(tmp_path / "file", MEMORY)
    assert advice is not None
    assert advice.reason == "MemoryUnwritable"
