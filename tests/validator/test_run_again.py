"""What is proven outlives restarts of the program and moments without an answer, and idle GPUs are proven again.

Passes are made one by one at times that the test says.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from kgpu.agent.gate import Gate
from kgpu.base.errors import HwError
from kgpu.hw.fake_reader import FakeReader
from kgpu.hw.port import Inventory
from kgpu.validator.checks.plugin import EMPTY_SECONDS, NodeResources
from kgpu.validator.config import GRACE_SECONDS, RECHECK_SECONDS, ValidatorSettings
from kgpu.validator.model import Check, NodeValidation, Status
from kgpu.validator.patience import DIFFERENT_SECONDS
from kgpu.validator.recheck import CONFIRM_SECONDS
from kgpu.validator.run import NodeValidator
from tests.validator.test_run import BROKEN, Node

DOWN = HwError("nvmlInit did not answer", "an answer", "wait")
SEEN = {"utilization_percent": 0.0, "memory_utilization_percent": 0.0, "memory_used_mib": 4.0}
LATER = 1.2 * RECHECK_SECONDS


class SaidClock:
    """The test says what time it is; waiting takes no time but moves it on."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


class SometimesReader(FakeReader):
    """``failing``: how many readings fail from now on."""

    failing = 0

    async def inventory(self) -> Inventory:
        if self.failing:
            self.failing -= 1
            raise DOWN
        return await super().inventory()


class Steps(Node):
    """One node, a validator on it that can be started again, and the gate that its device plugin is behind."""

    def __init__(self, folder) -> None:
        super().__init__(folder)
        self.clock = SaidClock()
        self.readings = {uuid: dict(SEEN) for uuid in self.uuids}
        self.reader = SometimesReader(self.inventory, readings=self.readings)
        self.offered: dict[str, int] = {}
        self.off = ""
        self.settings: dict[str, object] = {}
        self.gate = Gate(self.folder.path, boot=self.boot)
        self.start()

    def start(self) -> None:
        base = super().context()
        settings = replace(base.settings, **self.settings)
        self.validator = NodeValidator(
            replace(
                base,
                clock=self.clock,
                settings=settings,
                offered=lambda: self.offered,
                publisher=None,
                plugin_off=lambda: self.off,
            )
        )

    async def look(self, after: float = 0.0) -> NodeValidation:
        self.clock.now += after
        self.runner.runs.clear()
        await self.validator.look()
        return self.validator.report

    @property
    def open(self) -> bool:
        return self.gate.verdict(self.inventory.driver_version).open

    def cuda(self, uuid: str) -> Status:
        result = self.validator.report.result(Check.CUDA)
        assert result is not None
        return next(one.status for one in result.devices if one.uuid == uuid)


@pytest.fixture
def node(tmp_path) -> Steps:
    return Steps(tmp_path)


async def proven(node: Steps) -> None:
    assert (await node.look()).passed
    assert node.open


# --- a driver that does not answer for a moment ---


@pytest.mark.parametrize("failing", [1, 3, 9])
async def test_readings_that_fail_at_a_start_take_nothing_away(node, failing) -> None:
    await proven(node)
    before = node.folder.read("kgpu-validation.json")
    node.start()
    node.reader.failing = failing
    while node.reader.failing:
        await node.look()
        assert node.open
        assert "cuda-ready" in node.files()
    assert node.folder.read("kgpu-validation.json") == before
    assert (await node.look()).passed


@pytest.mark.parametrize("failing", [1, 3, 9])
async def test_readings_that_fail_while_it_runs_take_nothing_away(node, failing) -> None:
    await proven(node)
    node.reader.failing = failing
    while node.reader.failing:
        await node.look()
        assert node.open
    assert (await node.look()).passed
    assert node.runner.runs == []


async def test_a_driver_that_stays_away_fails_after_the_grace(node) -> None:
    await proven(node)
    node.reader.set_down(DOWN)
    end = node.clock.now + GRACE_SECONDS
    while node.clock.now < end - 3:
        await node.look(1.0)
        assert node.open
    assert (await node.look(GRACE_SECONDS)).result(Check.DRIVER).status is Status.FAILED
    assert not node.open
    node.reader.set_down(None)
    assert (await node.look()).passed
    assert sorted(node.runner.runs) == sorted(node.uuids)  # it may be another one in all but its name


async def test_another_driver_after_a_moment_without_one_starts_from_nothing(node) -> None:
    await proven(node)
    node.start()
    node.reader.failing = 3
    await node.look()
    node.reader.set_inventory(replace(node.inventory, driver_version="999.1"))
    node.runner.outcomes |= dict.fromkeys(node.uuids, BROKEN)
    assert (await node.look()).driver_version == "999.1"
    assert not node.open


async def test_a_driver_that_never_answered_fails_at_once(node) -> None:
    node.reader.set_down(DOWN)
    assert (await node.look()).result(Check.DRIVER).status is Status.FAILED
    assert "driver-not-ready" in node.files()


async def test_after_a_reboot_nothing_holds_even_without_an_answer(node) -> None:
    await proven(node)
    node.boot = "boot-2"
    node.start()
    node.reader.set_down(DOWN)
    await node.look()
    assert "cuda-ready" not in node.files()


async def test_what_the_policy_leaves_out_outlives_a_restart_too(node) -> None:
    node.settings["skip"] = {Check.CUDA: "WITH_WORKLOAD=false leaves it out"}
    node.start()
    await proven(node)
    node.start()
    node.reader.failing = 3
    await node.look()
    assert node.open


async def test_a_restart_tells_nothing_anew(node) -> None:
    await proven(node)
    told = len(node.told)
    node.start()
    await node.look()
    assert node.told[told:] == []


# --- after a restart ---


async def test_a_failure_after_a_restart_has_to_come_twice(node) -> None:
    await proven(node)
    node.start()
    node.runner.outcomes[node.uuids[0]] = BROKEN
    await node.look()
    assert (node.cuda(node.uuids[0]), sorted(node.runner.runs)) == (Status.PASSED, sorted(node.uuids))
    await node.look(CONFIRM_SECONDS)
    assert node.cuda(node.uuids[0]) is Status.FAILED


async def test_a_gpu_that_works_is_not_disturbed_by_a_restart(node) -> None:
    await proven(node)
    node.readings[node.uuids[0]]["utilization_percent"] = 93.0
    node.start()
    await node.look()
    assert node.runner.runs == node.uuids[1:]
    assert node.open
    node.readings[node.uuids[0]]["utilization_percent"] = 0.0
    await node.look()
    assert node.runner.runs == node.uuids[:1]


# --- CUDA again on idle GPUs ---


async def test_an_idle_gpu_that_stops_working_is_noticed(node) -> None:
    await proven(node)
    await node.look(60.0)
    assert node.runner.runs == []
    node.runner.outcomes[node.uuids[1]] = BROKEN
    await node.look(LATER)
    assert sorted(node.runner.runs) == sorted(node.uuids)
    assert node.cuda(node.uuids[1]) is Status.PASSED
    assert node.validator._pause() <= CONFIRM_SECONDS
    report = await node.look(CONFIRM_SECONDS)
    assert node.runner.runs == node.uuids[1:]
    assert (node.cuda(node.uuids[1]), node.open) == (Status.FAILED, True)
    assert report.result(Check.CUDA).ready
    del node.runner.outcomes[node.uuids[1]]
    assert (await node.look(60.0)).passed


async def test_one_failure_between_successes_changes_nothing(node) -> None:
    await proven(node)
    before = node.folder.read("kgpu-validation.json")
    node.runner.outcomes[node.uuids[1]] = BROKEN
    await node.look(LATER)
    del node.runner.outcomes[node.uuids[1]]
    await node.look(CONFIRM_SECONDS)
    assert node.runner.runs == node.uuids[1:]
    assert node.folder.read("kgpu-validation.json") == before


@pytest.mark.parametrize(
    "busy",
    [{"utilization_percent": 1.0}, {"memory_used_mib": 900.0}, {"utilization_percent": None}],
    ids=["it computes", "a program is on it", "nothing tells"],
)
async def test_a_gpu_that_is_not_known_to_be_idle_is_left_alone(node, busy) -> None:
    await proven(node)
    for key, value in busy.items():
        node.readings[node.uuids[0]].pop(key)
        if value is not None:
            node.readings[node.uuids[0]][key] = value
    if busy == {"utilization_percent": None}:
        node.readings[node.uuids[0]].pop("memory_utilization_percent")
    await node.look(LATER)
    assert node.runner.runs == node.uuids[1:]


async def test_readings_that_fail_are_no_reason_to_try(node) -> None:
    await proven(node)

    async def readings(_keys: object = None) -> None:
        raise DOWN

    node.reader.readings = readings
    await node.look(LATER)
    assert node.runner.runs == []


async def test_it_can_be_switched_off(node) -> None:
    node.settings["recheck_seconds"] = 0.0
    node.start()
    await proven(node)
    await node.look(100 * LATER)
    assert node.runner.runs == []


# --- what the plugin offers ---


async def test_the_node_has_to_show_what_the_plugin_offers(node) -> None:
    node.offered = {"nvidia.com/gpu": 2}
    await proven(node)
    node.offered = {"nvidia.com/gpu": 1}
    assert (await node.look()).passed  # the kubelet may be about to write
    assert (await node.look(DIFFERENT_SECONDS - 1)).passed
    found = (await node.look(1.0)).result(Check.PLUGIN)
    assert found.status is Status.WAITING
    assert "nvidia.com/gpu: 2 of 1" in found.trouble.what
    node.api.node = NodeResources(capacity={"nvidia.com/gpu": 2}, allocatable={"nvidia.com/gpu": 1})
    assert (await node.look()).passed


async def test_a_resource_that_the_node_lacks_is_named(node) -> None:
    node.offered = {"nvidia.com/gpu": 2, "nvidia.com/mig-1g.10gb": 7}
    found = (await node.look()).result(Check.PLUGIN)
    assert (found.status, "nvidia.com/mig-1g.10gb: 0 of 7" in found.trouble.what) == (Status.WAITING, True)
    assert (await node.look(200.0)).result(Check.PLUGIN).status is Status.FAILED


def shows(count: int) -> NodeResources:
    """A Node of two GPUs, so many of them allocatable."""
    return NodeResources(capacity={"nvidia.com/gpu": 2}, allocatable={"nvidia.com/gpu": count})


async def test_a_plugin_that_starts_again_is_waited_for_and_told_only_once_it_stays_away(node) -> None:
    await proven(node)
    node.api.node = shows(0)
    seen = [(await node.look(seconds)).result(Check.PLUGIN).status for seconds in (0.0, EMPTY_SECONDS - 1, 1.0)]
    assert seen == [Status.WAITING, Status.WAITING, Status.FAILED]


async def test_a_plugin_that_is_back_has_the_whole_time_the_next_time(node) -> None:
    await proven(node)
    found = []
    for count in (0, 2, 0):
        node.api.node = shows(count)
        found.append((await node.look(EMPTY_SECONDS - 1)).result(Check.PLUGIN).status)
    assert found == [Status.WAITING, Status.PASSED, Status.WAITING]


async def test_where_no_plugin_is_meant_to_run_none_is_missed(node) -> None:
    await proven(node)
    node.api.node = shows(0)
    node.off = 'the node label nvidia.com/gpu.deploy.device-plugin is "false", not "true"'
    report = await node.look(10 * EMPTY_SECONDS)
    said = report.result(Check.PLUGIN)
    assert (report.passed, said.status, node.off in said.evidence[0]) == (True, Status.SKIPPED, True)


async def test_a_plugin_that_is_switched_on_again_has_the_whole_time(node) -> None:
    await proven(node)
    node.api.node = shows(0)
    await node.look()
    node.off = "switched off"
    await node.look(EMPTY_SECONDS)
    node.off = ""
    assert (await node.look()).result(Check.PLUGIN).status is Status.WAITING


def test_the_settings_are_what_is_said_here() -> None:
    made = ValidatorSettings()
    assert (made.grace_seconds, made.recheck_seconds) == (60.0, 600.0)
