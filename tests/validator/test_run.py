"""The loop: files, the Node's condition and what is told follow what happens to the node."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import time
from dataclasses import replace

import pytest

from kgpu.base.advice import Advice
from kgpu.base.errors import HwError, KubeError, line_of
from kgpu.host.root import DriverRoot
from kgpu.hw.fake_reader import FakeReader, sample_inventory
from kgpu.hw.port import DriverExchangedError, DriverReleasedError, Problem
from kgpu.validator.checks.plugin import NodeResources
from kgpu.validator.config import ValidatorSettings, skipped_checks
from kgpu.validator.cuda import CudaOutcome, MemoryCuda
from kgpu.validator.files import Folder
from kgpu.validator.model import Check, Status
from kgpu.validator.publish import MemoryNode
from kgpu.validator.run import ValidatorContext, run, validate_once

SECONDS = 60.0
FASTER = 50.0
BROKEN = CudaOutcome(code=719, code_name="CUDA_ERROR_LAUNCH_FAILED", step="cuCtxSynchronize", deadline=5.0)


class HurriedClock:
    """Time that passes faster, so that pauses of seconds are waited for in earnest."""

    def monotonic(self) -> float:
        return time.monotonic() * FASTER

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / FASTER)


class Node:
    """A node's folders with a whole driver, and a validator on it."""

    def __init__(self, folder, count: int = 2) -> None:
        self.root, self.cdi = folder / "root", folder / "cdi"
        self.folder = Folder(folder / "validations")
        self.inventory = sample_inventory(count)
        self.uuids = [gpu.uuid for gpu in self.inventory.accelerators]
        self.reader = FakeReader(self.inventory)
        self.runner = MemoryCuda()
        self.api = MemoryNode(node=NodeResources(capacity={"nvidia.com/gpu": 2}, allocatable={"nvidia.com/gpu": 2}))
        self.told: list[Advice] = []
        self.states: list[tuple[bool, str]] = []
        self.boot = "boot-1"
        for name in ("usr/lib64/libcuda.so.1", "usr/lib64/libnvidia-ml.so.1", "usr/bin/nvidia-smi"):
            self.put(self.root / name, "x")
        for name in ("nvidiactl", "nvidia-uvm", *(f"nvidia{index}" for index in range(count))):
            self.put(self.root / "dev" / name, "")
        self.write_spec()

    def put(self, path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def write_spec(self) -> None:
        devices = [
            {
                "name": str(gpu.index),
                "containerEdits": {"deviceNodes": [{"path": path, "hostPath": f"{self.root}{path}"}]},
            }
            for gpu in self.inventory.accelerators
            for path in gpu.device_nodes
        ]
        self.put(self.cdi / "a.json", json.dumps({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices}))

    def context(self) -> ValidatorContext:
        return ValidatorContext(
            reader=self.reader,
            root=DriverRoot.at(self.root),
            runner=self.runner,
            settings=ValidatorSettings(folder=self.folder.path, cdi_dirs=(self.cdi,), interim_seconds=0.1),
            report=self.told.append,
            node=self.api,
            publisher=self.api,
            clock=HurriedClock(),
            proc=str(self.root),
            sys=str(self.root),
            boot=self.boot,
            on_state=lambda ready, reason: self.states.append((ready, line_of(reason))),
        )

    @contextlib.asynccontextmanager
    async def running(self):
        task = asyncio.create_task(run(self.context()))
        try:
            yield
            assert not task.done(), task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def files(self) -> set[str]:
        with contextlib.suppress(FileNotFoundError):
            return {name for name in os.listdir(self.folder.path) if not name.startswith(".")}
        return set()

    async def until(self, condition) -> None:
        try:
            async with asyncio.timeout(SECONDS):
                while not condition():  # noqa: ASYNC110 - files give no event here
                    await asyncio.sleep(0.005)
        except TimeoutError:
            pytest.fail(f"files {self.files()}, states {self.states[-3:]}, told {[d.one_line() for d in self.told]}")

    def status(self, check: Check) -> Status | None:
        report = self.folder.report()
        result = report.result(check) if report else None
        return result.status if result else None

    async def passed(self) -> None:
        await self.until(lambda: self.files() == {f"{check}-ready" for check in Check} | {"kgpu-validation.json"})


@pytest.fixture
def node(tmp_path) -> Node:
    return Node(tmp_path)


async def test_a_whole_node_passes_and_says_so(node) -> None:
    async with node.running():
        await node.passed()
        await node.until(lambda: node.api.published and node.api.published[-1].status == "True")
    assert sorted(node.runner.runs) == sorted(node.uuids)
    assert node.states[-1] == (True, "Test PASSED on 2 of 2 devices")
    assert b"DRIVER_ROOT_CTR_PATH=" in (node.folder.read("driver-ready") or b"")


async def test_one_gpu_that_fails_cuda_leaves_the_others(node) -> None:
    node.runner.outcomes[node.uuids[1]] = BROKEN
    async with node.running():
        await node.until(lambda: node.status(Check.CUDA) is Status.FAILED)
        assert "cuda-ready" in node.files()
        await node.until(lambda: node.api.published and node.api.published[-1].reason == "CudaDevicesFailed")
        del node.runner.outcomes[node.uuids[1]]
        await node.until(lambda: node.status(Check.CUDA) is Status.PASSED)
    assert node.runner.runs.count(node.uuids[0]) == 1
    assert sum(one.subject == "plugin" for one in node.told) == 1
    assert [one.reason for one in node.told if one.subject == node.uuids[1]] == ["CudaFailed", "ValidationPassed"]


async def test_every_gpu_that_fails_takes_cuda_ready_away(node) -> None:
    node.runner.outcomes |= dict.fromkeys(node.uuids, BROKEN)
    async with node.running():
        await node.until(lambda: "cuda-not-ready" in node.files() and node.status(Check.CUDA) is Status.FAILED)
        reason = (node.folder.read("cuda-not-ready") or b"").decode()
    assert "the kernel failed on the GPU" in reason
    assert "plugin-ready" not in node.files()


async def test_a_gpu_that_hangs_in_cuda_does_not_hold_up_the_others(node) -> None:
    class Stuck(MemoryCuda):
        async def run(self, uuid: str, *, deadline: float) -> CudaOutcome:
            if uuid == node.uuids[1]:
                await asyncio.Event().wait()
            return await super().run(uuid, deadline=deadline)

    node.runner = Stuck()
    async with node.running():
        await node.until(lambda: "cuda-ready" in node.files())
        assert [one.status for one in node.folder.report().result(Check.CUDA).devices] == [
            Status.PASSED,
            Status.WAITING,
        ]


async def test_a_new_driver_version_starts_from_nothing(node) -> None:
    async with node.running():
        await node.passed()
        before = len(node.runner.runs)
        node.reader.set_inventory(replace(node.inventory, driver_version="999.1"))
        await node.until(lambda: (report := node.folder.report()) is not None and report.driver_version == "999.1")
        await node.passed()
    assert len(node.runner.runs) == before + 2


async def test_results_hold_over_a_restart_but_not_over_a_reboot(node) -> None:
    async with node.running():
        await node.passed()
    release = asyncio.Event()

    class Slow(MemoryCuda):
        async def run(self, uuid: str, *, deadline: float) -> CudaOutcome:
            self.runs.append(uuid)
            await release.wait()
            return await super().run(uuid, deadline=deadline)

    node.runner = Slow()
    async with node.running():
        await node.until(lambda: node.runner.runs)
        assert "cuda-ready" in node.files()
    node.runner, node.boot = Slow(), "boot-2"
    async with node.running():
        await node.until(lambda: node.runner.runs)
        assert "cuda-ready" not in node.files()
        release.set()
        await node.passed()


async def test_a_lost_gpu_has_to_prove_itself_again(node) -> None:
    async with node.running():
        await node.passed()
        node.reader.fail(node.uuids[0], Problem.LOST, "fell off the bus")
        await node.until(lambda: node.status(Check.DRIVER) is Status.FAILED)
        assert {"driver-ready", "cuda-ready"} <= node.files()
        node.reader.heal(node.uuids[0])
        await node.until(lambda: node.runner.runs.count(node.uuids[0]) == 2)
        await node.passed()
    assert node.runner.runs.count(node.uuids[1]) == 1


async def test_a_driver_that_goes_takes_everything_with_it_and_comes_back(node) -> None:
    async with node.running():
        await node.passed()
        node.reader.set_down(HwError("no driver", "a driver", "load it"))
        await node.until(lambda: "driver-not-ready" in node.files() and "cuda-ready" not in node.files())
        assert b"no driver" in (node.folder.read("driver-not-ready") or b"")
        node.reader.set_down(None)
        await node.passed()
    assert node.runner.runs.count(node.uuids[0]) == 2


RELEASED = DriverReleasedError("a GPU is being reset")


async def test_a_driver_that_is_released_leaves_all_results_however_long(node) -> None:
    async with node.running():
        await node.passed()
        before = node.states[-1]
        node.reader.set_down(RELEASED)
        for _ in range(3):  # each change of the files is a look
            os.unlink(node.folder.path / "cuda-ready")
            await node.passed()
        assert node.states[-1] == before
        node.reader.set_down(None)
        await node.passed()
    assert node.runner.runs.count(node.uuids[0]) == 1


async def test_a_driver_that_is_exchanged_leaves_no_result_and_the_next_one_is_tried_anew(node) -> None:
    async with node.running():
        await node.passed()
        node.reader.set_down(DriverExchangedError("the driver is exchanged"))
        os.unlink(node.folder.path / "cuda-ready")  # a change of the files is a look
        await node.until(lambda: all(node.status(check) is Status.WAITING for check in Check))
        assert not {"driver-ready", "cuda-ready"} & set(node.files())
        node.reader.set_down(None)
        await node.passed()
    assert node.runner.runs.count(node.uuids[0]) == 2


async def test_a_test_that_the_release_interrupts_is_made_again(node) -> None:
    class Released(MemoryCuda):
        async def run(self, uuid, *, deadline):
            if node.reader._error is not None or not self.runs:
                self.runs.append(uuid)
                node.reader.set_down(RELEASED)
                raise DriverReleasedError("a GPU is being reset")
            return await super().run(uuid, deadline=deadline)

    node.runner, lost = Released(), []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: lost.append(context))
    async with node.running():
        await node.until(lambda: node.runner.runs and node.status(Check.CUDA) is Status.WAITING)
        gc.collect()
        assert lost == [], "each device's test is awaited"
        node.reader.set_down(None)
        await node.passed()


async def test_a_spec_that_comes_late_is_seen(node) -> None:
    (node.cdi / "a.json").unlink()
    async with node.running():
        # Time runs fast here: on a busy machine patience may have ended before anybody looks.
        await node.until(lambda: node.status(Check.TOOLKIT) in {Status.WAITING, Status.FAILED})
        node.write_spec()
        await node.passed()


async def test_a_spec_that_never_comes_becomes_a_failure(node) -> None:
    (node.cdi / "a.json").unlink()
    async with node.running():
        await node.until(lambda: node.status(Check.TOOLKIT) is Status.FAILED)
    assert any(one.reason == "ToolkitFailed" for one in node.told)


async def test_what_the_policy_leaves_out_is_skipped(node) -> None:
    (node.cdi / "a.json").unlink()
    skip = skipped_checks({"cuda.WITH_WORKLOAD": "false"}, toolkit=False)
    report = await validate_once(replace(node.context(), settings=ValidatorSettings(cdi_dirs=(node.cdi,), skip=skip)))
    assert [str(one.status) for one in report.results] == ["passed", "skipped", "skipped", "passed"]
    assert (report.passed, node.runner.runs) == (True, [])


async def test_resources_that_come_late_are_seen(node) -> None:
    node.api.node = NodeResources()
    async with node.running():
        await node.until(lambda: node.status(Check.PLUGIN) in {Status.WAITING, Status.FAILED})
        node.api.node = NodeResources(capacity={"nvidia.com/gpu": 2}, allocatable={"nvidia.com/gpu": 2})
        await node.passed()


async def test_without_an_api_server_the_rest_goes_on(node) -> None:
    node.api.refuse = KubeError("unreachable", "an answer", "wait")
    async with node.running():
        await node.until(lambda: {"cuda-ready", "plugin-not-ready"} <= node.files())
        node.api.refuse = None
        await node.passed()
        await node.until(lambda: node.api.published and node.api.published[-1].status == "True")


async def test_files_that_somebody_removes_are_made_again(node) -> None:
    async with node.running():
        await node.passed()
        (node.folder.path / "toolkit-ready").unlink()
        await node.passed()
    assert len(node.runner.runs) == 2


async def test_looking_changes_nothing(node) -> None:
    seen = []
    report = await validate_once(node.context(), seen.append)
    assert (report.passed, node.files(), node.api.published, node.told) == (True, set(), [], [])
    assert seen[-1] == report
