"""The gate: nothing is offered before it is proven, one failed GPU costs only itself, and it all follows the files."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from kgpu.agent.gate import Gate, GatedReader, GateVerdict, gated, judge
from kgpu.formats.validation_report import CheckTrouble
from kgpu.hw.fake_reader import FakeReader, sample_inventory, sample_partitions
from kgpu.hw.port import EventKind, Problem
from kgpu.validator import plan
from kgpu.validator.files import Folder
from kgpu.validator.model import Check, CheckResult, DeviceResult, NodeValidation, Status, of_devices

SECONDS = 60.0
INVENTORY = sample_inventory(2)
A, B = (gpu.uuid for gpu in INVENTORY.accelerators)
VERSION = INVENTORY.driver_version


def device(uuid: str, status: Status = Status.PASSED) -> DeviceResult:
    trouble = CheckTrouble(what="wrong sums", remedy="replace it") if status is Status.FAILED else None
    return DeviceResult(uuid=uuid, gpu=uuid, name=uuid, status=status, trouble=trouble)


def report(*devices: DeviceResult, **changes: object) -> NodeValidation:
    good = [CheckResult(check=check, status=Status.PASSED) for check in (Check.DRIVER, Check.TOOLKIT)]
    made = NodeValidation(results=(*good, of_devices(Check.CUDA, devices)), boot="boot", driver_version=VERSION)
    return replace(made, **changes)


def verdict(found: NodeValidation | None, **changes: object) -> GateVerdict:
    return judge(found, **{"boot": "boot", "driver_version": VERSION, "folder": "/v", **changes})


@pytest.mark.parametrize(
    ("found", "changes", "word"),
    [
        (None, {}, "no result is in /v"),
        (report(device(A)), {"boot": "later"}, "earlier boot"),
        (report(device(A), boot=""), {"boot": ""}, "the kernel tells no boot id"),
        (report(device(A)), {"driver_version": "999"}, "the driver is 999 now"),
        (report(device(A)), {"ready": False}, "cuda-ready is not in /v"),
        (report(device(A), results=()), {}, "the driver check has not been made"),
        (report(device(A, Status.FAILED)), {}, "wrong sums"),
        (report(device(A, Status.WAITING)), {}, "under way"),
    ],
)
def test_what_keeps_it_closed(found, changes, word) -> None:
    shut = verdict(found, **changes)
    assert (shut.open, word in shut.reason) == (False, True), shut
    assert not any(gpu.usable for gpu in gated(INVENTORY, shut).accelerators)


def test_one_failed_gpu_costs_only_itself() -> None:
    through = gated(INVENTORY, verdict(report(device(A), device(B, Status.FAILED))))
    first, second = through.accelerators
    assert (first, second.usable) == (INVENTORY.accelerators[0], False)
    assert [(one.problem, one.what, one.remedy) for one in second.findings] == [
        (Problem.UNPROVEN, "CUDA fails on it: wrong sums", "replace it")
    ]


def test_a_gpu_that_others_use_exclusively_is_offered() -> None:
    assert gated(INVENTORY, verdict(report(device(A), device(B, Status.SKIPPED)))) == INVENTORY


def test_where_cuda_is_left_out_every_gpu_is_offered() -> None:
    left_out = CheckResult(check=Check.CUDA, status=Status.SKIPPED)
    found = report()
    opened = verdict(replace(found, results=(*found.results[:2], left_out)))
    assert (opened.open, gated(INVENTORY, opened)) == (True, INVENTORY)


def test_a_gpu_that_is_new_waits_for_its_test() -> None:
    (_, second) = gated(INVENTORY, verdict(report(device(A)))).accelerators
    assert (second.usable, "not been tried" in second.findings[0].what) == (False, True)


def test_of_slices_only_the_good_ones_are_offered() -> None:
    gpu = INVENTORY.accelerators[0]
    parts = sample_partitions(gpu, count=3)
    sliced = replace(INVENTORY, accelerators=(replace(gpu, mig_enabled=True, partitions=parts),))
    some = verdict(report(device(parts[0].uuid), device(parts[1].uuid, Status.FAILED)))
    (left,) = gated(sliced, some).accelerators
    assert (left.usable, left.partitions) == (True, parts[:1])
    (none,) = gated(sliced, verdict(report(device(B), device(parts[1].uuid, Status.FAILED)))).accelerators
    assert not none.usable


def test_what_keeps_the_validator_from_running_is_named(tmp_path) -> None:
    why = ['the node label x is "false", not "true"']
    gate = Gate(tmp_path, boot="boot", stopped=lambda: why[0])
    assert gate.verdict(VERSION).reason == f"it does not run on this node: {why[0]}"
    Folder(tmp_path).apply(plan.files_of(report(device(A))))
    assert gate.verdict(VERSION).open  # what it has found before it was stopped holds
    Folder(tmp_path).clear()
    why[0] = ""
    assert "no result is in" in gate.verdict(VERSION).reason


async def test_it_opens_when_the_files_come_and_tells_of_later_changes(tmp_path) -> None:
    folder, reader, said = Folder(tmp_path / "v"), FakeReader(INVENTORY), []
    gate = Gate(folder.path, boot="boot", look_seconds=SECONDS)
    async with asyncio.timeout(SECONDS), gate.following():
        opening = asyncio.create_task(gate.opened(reader, said.append))
        while not said:  # noqa: ASYNC110 - a callback gives no event
            await asyncio.sleep(0.001)
        assert not opening.done()
        folder.apply(plan.files_of(report(device(A), device(B))))
        await opening
        through = GatedReader(reader, gate)
        events = through.events()
        assert all(gpu.usable for gpu in (await through.inventory()).accelerators)
        folder.apply(plan.files_of(report(device(A), device(B, Status.FAILED))))
        assert (await anext(events)).kind is EventKind.INVENTORY
        while (await through.inventory()).accelerators[1].usable:
            await anext(events)
        await through.close()
    assert said[0].startswith("the validator has not passed yet: no result is in")


async def test_events_of_the_hardware_pass_through(tmp_path) -> None:
    reader = FakeReader(INVENTORY)
    through = GatedReader(reader, Gate(tmp_path, boot="boot"))
    events = through.events()
    await through.inventory()
    await asyncio.sleep(0)
    reader.set_inventory(INVENTORY)
    async with asyncio.timeout(SECONDS):
        assert (await anext(events)).kind is EventKind.INVENTORY
    await through.close()


async def test_a_removed_ready_file_closes_it(tmp_path) -> None:
    folder = Folder(tmp_path / "v")
    folder.apply(plan.files_of(report(device(A))))
    gate = Gate(folder.path, boot="boot")
    assert gate.verdict(VERSION).open
    folder.apply({"cuda-ready": None})
    assert not gate.verdict(VERSION).open
