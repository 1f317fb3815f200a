"""The manager on its Node: from a label to slices, with the operator and without one, whatever comes in between."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from kgpu.base.errors import HwError
from kgpu.formats import names
from kgpu.formats.mig_config import parse_mig_configs
from kgpu.formats.node_order import ChangeResult, OrderStep
from kgpu.hw.fake_partitioner import WITHOUT_MIG, FakePartitioner
from kgpu.hw.open import NoHardwareError
from kgpu.hw.partitioning import PartitionError
from kgpu.kube.port import NODES
from kgpu.mig.apply import Applying
from kgpu.mig.manager import run as run_module
from kgpu.mig.node_plan import plan_node
from kgpu.mig.survey import survey
from tests.mig.manager.manager_world import FILE, NODE, World


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "RETRY_SECONDS", 0.05)


async def cut(world: World, name: str) -> None:
    """Somebody cuts the GPUs without the manager."""
    entries = parse_mig_configs(FILE).configs[name]
    await Applying(driver=world.driver).node(plan_node([survey(one) for one in world.driver.state.values()], entries))


def no_driver() -> NoHardwareError:
    return NoHardwareError("no accelerator driver was found", "one of: /x", "install the driver")


async def test_a_label_becomes_slices_by_the_operators_hand(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with world.running():
        world.label("sevenths")
        report = await world.said("pending", "MigRequested")
        assert report.config == "sevenths"
        assert world.slices == [0]
        assert await world.operated() == ChangeResult(done=True)
        await world.said("success", "MigApplied")
    assert world.slices == [7]
    assert world.request is None
    assert world.told > 0
    assert world.reasons()[-1] == "MigApplied"
    owners = [entry["manager"] for entry in world.node["metadata"]["managedFields"]]
    assert owners == [names.MIG_FIELD_MANAGER]


async def test_what_an_operation_waits_for_is_told(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with world.running():
        world.label("sevenths")
        await world.until(lambda: world.request)
        world.progress("Draining", "PodDisruptionBudget team/web allows no eviction")
        report = await world.said("pending", "MigChanging")
        assert "PodDisruptionBudget team/web" in report.message


async def test_a_failed_operation_is_failed_until_the_label_is_set_anew(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with world.running():
        world.label("sevenths")
        await world.until(lambda: world.request)
        first = world.request
        world.progress("Failed", "the budget is used up")
        report = await world.said("failed", "MigOperationFailed")
        assert "the budget is used up" in report.message
        assert world.request is None
        assert world.reasons() == ["MigRequested", "MigOperationFailed"]
        world.label(None)
        await world.until(lambda: world.report is None and not world.state)  # nothing is left pending or failed
        world.label("sevenths")
        second = await world.until(lambda: world.request)
        assert first is not None
        assert second.id != first.id


async def test_a_label_that_is_removed_and_set_between_two_looks_is_another_wish(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with world.running():
        world.label("sevenths")
        first = await world.until(lambda: world.request)
        world.label(None)
        world.label("sevenths")
        await world.until(lambda: world.request and world.request.id != first.id)


async def test_a_restart_neither_asks_again_nor_writes(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with world.running():
        world.label("sevenths")
        first = await world.until(lambda: world.request)
        await world.said("pending")
    calls = len(world.api.calls)
    async with world.running():
        await world.until(lambda: world.states and "waits for the operator" in world.states[-1][1])
        assert world.request == first
        assert [call for call in world.api.calls[calls:] if call[0] in {"apply", "patch"}] == []


async def test_a_label_removed_meanwhile_withdraws_the_request(tmp_path: Path) -> None:
    # NVIDIA's manager goes on with an empty name, and fails.
    world = World(tmp_path)
    async with world.running():
        world.label("sevenths")
        await world.until(lambda: world.request)
        world.label(None)
        await world.until(lambda: world.request is None and world.report is None and not world.state)
    assert world.slices == [0]


@pytest.mark.parametrize("text", ["another", "all-1g.5gb"])
async def test_a_config_that_is_not_in_the_file_changes_nothing(tmp_path: Path, text: str) -> None:
    world = World(tmp_path)
    await cut(world, "halves")
    before = world.driver.state.copy()
    async with world.running():
        world.label(text)
        report = await world.said("failed", "MigConfigRefused")
        assert all(words in report.message for words in (text, "expected", "to do", "halves"))
    assert world.driver.state == before
    (told,) = world.advice
    assert (told.severity.notable, bool(told.remedy), told.reason) == (True, True, "MigConfigRefused")


WRONG = """version: v1
mig-configs:
  bogus: [{devices: all, mig-enabled: true, mig-devices: {1g.99gb: 1}}]
  large: [{devices: all, mig-enabled: true, mig-devices: {3g.20gb: 3}}]
  nobody: [{device-filter: "0x233010DE", devices: all, mig-enabled: true, mig-devices: {1g.10gb: 7}}]
"""


@pytest.mark.parametrize(
    ("value", "reason", "words"),
    [
        ("bogus", "MigLayoutRefused", "no MIG profile 1g.99gb"),
        ("large", "MigLayoutRefused", "at most 2 of 3g.20gb"),
        ("nobody", "MigConfigMatchesNothing", "is about no GPU of this node that has MIG"),
    ],
)
@pytest.mark.parametrize("operations", [True, False])
async def test_bad_configs_fail_before_anything_changes(
    tmp_path: Path, value: str, reason: str, words: str, operations: bool
) -> None:
    world = World(tmp_path, config=WRONG, operations=operations)
    await cut(world, "halves")
    before = world.driver.state.copy()
    async with world.running():
        world.label(value)
        report = await world.said("failed", reason)
    assert words in report.message
    assert "; to do: " in report.message
    assert (world.driver.state, world.request) == (before, None)
    assert world.reasons() == [reason]


async def test_two_labels_at_once_fail(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with world.running():
        world.put(labels={names.MIG_CONFIG_LABEL: "sevenths", "nvidia.com/vgpu.config": "x"})
        await world.said("failed", "MigTwoLabels")
        assert world.opened == 0
        world.put(labels={"nvidia.com/vgpu.config": None})
        await world.said("pending", "MigRequested")


async def test_a_changed_file_is_followed(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with world.running():
        world.label("mine")
        await world.said("failed", "MigConfigRefused")
        world.config.with_suffix(".new").write_text(FILE.replace("halves:", "mine:"))
        os.replace(world.config.with_suffix(".new"), world.config)
        await world.said("pending", "MigRequested")


# Adoption


async def test_a_layout_that_is_found_is_adopted(tmp_path: Path) -> None:
    world = World(tmp_path)
    await cut(world, "halves")
    before = world.driver.state.copy()
    await world.operator_labels()
    async with world.running():
        report = await world.said("success", "MigAdopted")
        assert "2 of 3g.20gb" in report.message
        assert "set the label" in report.message
        assert (world.driver.state, world.request) == (before, None)
        assert world.reasons() == ["MigAdopted"]
        await world.operator_labels("sevenths", default="sevenths")  # the policy's default was changed
        assert (await world.operated()).done
        await world.said("success", "MigApplied")
    assert world.slices == [7]


async def test_a_person_who_says_all_disabled_is_obeyed(tmp_path: Path) -> None:
    world = World(tmp_path)
    await cut(world, "halves")
    async with world.running():
        world.label("all-disabled")
        assert (await world.operated()).done
        await world.said("success", "MigApplied")
    assert world.slices == [0]


async def test_the_operators_own_label_says_nothing_of_a_node_without_driver(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.no_driver = no_driver()
    await world.operator_labels()
    async with world.running():
        await world.until(lambda: world.states and "no accelerator driver" in world.states[-1][1])
        assert (world.state, world.report, world.advice) == ("", None, [])
        world.no_driver = None
        await world.said("success", "MigApplied")


# The driver


async def test_a_driver_that_comes_late_is_waited_for(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.no_driver = no_driver()
    async with world.running():
        world.label("sevenths")
        await world.said("pending", "MigDriverMissing")
        world.no_driver = None
        await world.said("pending", "MigRequested")


async def test_a_driver_that_can_not_be_read_fails_until_it_can(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.no_driver = HwError("the driver hangs", "a driver that answers", "reboot the node")
    async with world.running():
        world.label("sevenths")
        report = await world.said("failed", "MigDriverUnreadable")
        assert "the driver hangs" in report.message
        world.no_driver = None
        await world.said("pending", "MigRequested")


async def test_other_vendors_have_no_slices(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.no_driver, world.vendor = no_driver(), "amd"
    async with world.running():
        world.label("sevenths")
        report = await world.said("failed", "MigVendorUnsupported")
        assert "this node's accelerators are of amd" in report.message


async def test_gpus_without_mig_are_as_all_disabled_asks(tmp_path: Path) -> None:
    world = World(tmp_path, WITHOUT_MIG, config=None)
    async with world.running():
        world.label("all-disabled")
        await world.said("success", "MigApplied")
        world.label("all-1g.10gb")
        report = await world.said("failed", "MigConfigRefused")
        assert "no MIG-capable devices" in report.message


async def test_nothing_opens_the_driver_while_it_is_released(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.orders.set({}, "a GPU is reset")
    async with world.running():
        world.label("sevenths")
        await world.api.apply(NODES, {"metadata": {"name": NODE}}, manager="x")
        await asyncio.sleep(0.1)
        assert (world.opened, world.state) == (0, "")
        world.orders.set()
        await world.said("pending", "MigRequested")


# After a reboot, and losses


async def test_layouts_that_a_reboot_has_taken_are_asked_for_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with world.running():
        world.label("sevenths")
        await world.operated()
        await world.said("success")
        first = world.shown_progress
    for uuid, gpu in world.driver.state.items():  # the mode stays, and no instance does
        world.driver.state[uuid] = type(gpu)(**{
            **{name: getattr(gpu, name) for name in gpu.__dataclass_fields__}, "instances": (),
        })  # fmt: skip
    world.boot = "boot-2"
    async with world.running():
        second = await world.until(lambda: world.request)
        assert first is not None
        assert second.id != first.id
        assert (await world.operated("act-2")).done
        await world.said("success")
    assert world.slices == [7]


async def test_nobody_is_offered_a_gpu_whose_slices_a_reboot_has_taken_until_they_are_made_again(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    (uuid,) = world.driver.state
    async with world.running():
        world.label("sevenths")
        await world.operated()
        await world.said("success")
        assert not world.orders.withdrawn
    fresh = FakePartitioner("a100-40gb").state
    world.driver.state.update(zip(world.driver.state, fresh.values(), strict=True))  # MIG is off, as on Hopper
    world.boot = "boot-2"
    async with world.running():
        await world.until(lambda: uuid in world.orders.withdrawn)
        assert "after a reboot" in world.orders.withdrawn[uuid]
        await world.until(lambda: world.request)
        assert uuid in world.orders.withdrawn
        assert (await world.operated("act-2")).done
        await world.said("success")
        assert not world.orders.withdrawn
    assert world.slices == [7]


@pytest.mark.parametrize("end", ["label", "operation", "manager"])
async def test_what_is_not_made_again_is_offered_as_it_is(tmp_path: Path, end: str) -> None:
    world = World(tmp_path)
    (uuid,) = world.driver.state
    async with world.running():
        world.label("sevenths")
        await world.operated()
        await world.said("success")
    await cut(world, "all-disabled")
    world.boot = "boot-2"
    async with world.running():
        await world.until(lambda: world.request)
        assert uuid in world.orders.withdrawn
        if end == "label":
            world.label(None)
            await world.until(lambda: not world.orders.withdrawn)
        elif end == "operation":
            world.progress("Failed", "it was rejected")
            await world.said("failed")
            assert not world.orders.withdrawn
    assert not world.orders.withdrawn


async def test_slices_that_go_with_the_driver_are_asked_for_again_and_others_left(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with world.running():
        world.label("sevenths")
        await world.operated()
        await world.said("success", "MigApplied")
        await cut(world, "halves")
        world.wake()
        report = await world.said("success", "MigChangedByHand")
        assert "2 of 3g.20gb" in report.message
        assert world.request is None
        await cut(world, "all-disabled")
        world.wake()
        assert (await world.operated("act-2")).done
        await world.said("success", "MigApplied")
    assert world.slices == [7]


# Without the operator


async def test_alone_a_label_becomes_slices(tmp_path: Path) -> None:
    world = World(tmp_path, operations=False)
    async with world.running():
        world.label("sevenths")
        await world.said("success", "MigApplied")
    assert world.slices == [7]
    assert world.reasons() == ["MigApplying", "MigApplied"]


async def test_alone_holders_are_named_and_waited_for(tmp_path: Path) -> None:
    world = World(tmp_path, operations=False)
    (uuid,) = world.driver.state
    world.held = {uuid: ("pod team/train-0",)}
    async with world.running():
        world.label("sevenths")
        report = await world.said("failed", "MigGpusInUse")
        assert "pod team/train-0" in report.message
        assert world.slices == [0]
        world.held = {}
        await world.said("success", "MigApplied")
    assert world.slices == [7]


async def test_alone_who_begins_while_gpus_are_being_cut_is_named_and_waited_for(tmp_path: Path) -> None:
    world = World(tmp_path, operations=False)
    (uuid,) = world.driver.state

    def refuse(step: str, _done: bool) -> None:
        if step == "set-mode":
            world.held = {uuid: ("pod team/train-0",)}
            raise PartitionError("the GPU is in use", "a GPU that nobody uses", "end its processes")

    async with world.running():
        world.driver.meddle = refuse
        world.label("sevenths")
        report = await world.said("failed", "MigGpusInUse")
        assert "pod team/train-0" in report.message
        world.driver.meddle, world.held = lambda _step, _done: None, {}
        await world.said("success", "MigApplied")
    assert world.slices == [7]


async def test_alone_every_failure_after_a_success_is_told(tmp_path: Path) -> None:
    # In NVIDIA's manager flags that the first success sets leave clients paused at every later failure.
    world = World(tmp_path, operations=False)
    async with world.running():
        world.label("sevenths")
        await world.said("success", "MigApplied")
        before = world.driver.state.copy()

        def fail(step: str, _done: bool) -> None:
            if step == "create-instance" and len(next(iter(world.driver.state.values())).instances) < 7:
                world.driver.meddle = lambda _step, _done: None
                raise PartitionError("the driver has failed", "no failure", "try again")

        world.driver.meddle = fail
        world.label("halves")
        report = await world.said("failed", "MigChangeFailed")
        assert "the driver has failed" in report.message
        assert "have their former layout" in report.message
        assert world.slices == [7]
        assert [gpu.enabled for gpu in before.values()] == [True]
        world.label(None)
        world.label("halves")
        await world.said("success", "MigApplied")
    assert world.slices == [2]


async def test_only_the_gpus_that_change_are_touched(tmp_path: Path) -> None:
    # mig-parted resets every GPU of the node, and clears those whose mode is right already.
    world = World(tmp_path, "a100-40gb", "a100-40gb", operations=False, config="""version: v1
mig-configs:
  first: [{devices: [0], mig-enabled: true, mig-devices: {1g.5gb: 7}}]
""")  # fmt: skip
    await cut(world, "halves")
    first, second = world.driver.state
    kept = world.driver.state[second]
    world.driver.resets.clear()
    world.driver.use(1, kept.instances[0].id)
    kept = world.driver.state[second]
    async with world.running():
        world.label("first")
        await world.said("success", "MigApplied")
    assert world.slices == [7, 2]
    assert world.driver.state[second] == kept
    assert world.driver.resets == []
    assert first != second


# What others do to the Node, and what is published


async def test_a_state_that_somebody_overwrites_is_put_back_without_a_race(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with world.running():
        world.label("all-disabled")
        await world.said("success")
        writes = len([call for call in world.api.calls if call[0] == "apply"])
        begin = asyncio.get_running_loop().time()
        for _ in range(20):
            world.put(labels={names.MIG_CONFIG_STATE_LABEL: "pending"})
            await asyncio.sleep(0.005)
        rounds = (asyncio.get_running_loop().time() - begin) / run_module.RETRY_SECONDS
        assert len([call for call in world.api.calls if call[0] == "apply"]) <= writes + 1 + rounds
        await world.said("success")


async def test_generated_configs_are_published_where_that_is_allowed(tmp_path: Path) -> None:
    world = World(tmp_path, config=None, operations=False)
    async with world.running():
        world.label("all-1g.5gb")
        await world.said("success")
        published = world.config_map
        assert published is not None
        assert "all-balanced" in parse_mig_configs(published["data"]["config.yaml"]).configs
        assert published["metadata"]["ownerReferences"][0]["uid"] == "uid-1"


async def test_without_the_right_to_publish_all_goes_on(tmp_path: Path) -> None:
    world = World(tmp_path, config=None, operations=False)
    world.api.refuse[("apply", "configmaps")] = 403
    async with world.running():
        world.label("all-1g.5gb")
        await world.said("success")
        assert world.config_map is None


async def test_an_agent_of_the_operator_does_not_ask_for_what_it_may_not(tmp_path: Path) -> None:
    world = World(tmp_path, config=None)
    async with world.running():
        world.label("all-1g.5gb")
        await world.said("pending", "MigRequested")
    assert not [call for call in world.api.calls if "configmaps" in call]


async def test_an_order_is_obeyed_before_anything_else(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with world.running():
        world.label("sevenths")
        world.last = await world.until(lambda: world.request)
    world.order(OrderStep.CHANGE)
    world.label("halves")
    async with world.running():
        result = await world.until(lambda: world.orders.answered("act-1"))
        assert result == ChangeResult(done=True)
        assert world.slices == [7]
        world.order_over()
        await world.until(lambda: world.request and world.request.config == "halves")
        assert (await world.operated("act-2")).done
    assert world.slices == [2]
