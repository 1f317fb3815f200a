"""The role's parts: one word for all, the engine looked at before the spec, failures that stay where they happen."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from kgpu.base.advice import Advice
from kgpu.base.errors import HostError, line_of
from kgpu.base.service import StateSink
from kgpu.host.root import DriverRoot
from kgpu.hw.fake_reader import FakeReader, sample_inventory
from kgpu.hw.simulator import operate
from kgpu.toolkit.role import SPEC_NAME, ToolkitContext, run

SECONDS = 60.0


class Running:
    def __init__(self, root: Path, cdi: Path) -> None:
        version = operate.snapshot(root)["driver_version"]
        self.spec = cdi / SPEC_NAME
        self.told: list[Advice] = []
        self.states: list[tuple[bool, str]] = []
        self.context = {
            "reader": FakeReader(sample_inventory(1, driver_version=version)),
            "root": DriverRoot.at(root),
            "report": self.told.append,
            "cdi_dir": cdi,
            "on_state": lambda ready, reason: self.states.append((ready, line_of(reason))),
        }

    @contextlib.asynccontextmanager
    async def on(self, **parts: Any) -> AsyncIterator[None]:
        task = asyncio.create_task(run(ToolkitContext(**self.context, **parts)))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(SECONDS):
            while not condition():  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.01)


async def test_the_spec_waits_for_the_first_look_at_the_engine(sim_root, tmp_path) -> None:
    role, go = Running(sim_root("hgx-h100", gpus=1), tmp_path), asyncio.Event()

    async def runtime(tell: StateSink, looked: Callable[[], None]) -> None:
        tell(False, "containerd is restarted")
        await go.wait()
        looked()
        tell(False, "containerd does not answer")
        await asyncio.Event().wait()

    async with role.on(runtime=runtime):
        await role.until(lambda: role.states)
        assert not role.spec.exists()
        go.set()
        await role.until(role.spec.exists)
        await role.until(lambda: role.states[-1] == (False, "containerd does not answer"))


async def test_ready_is_when_every_part_is(sim_root, tmp_path) -> None:
    role, go = Running(sim_root("hgx-h100", gpus=1), tmp_path), asyncio.Event()

    async def runtime(tell: StateSink, looked: Callable[[], None]) -> None:
        looked()
        tell(True, "containerd 2.1.4")
        await asyncio.Event().wait()

    async def links(tell: StateSink) -> None:
        await go.wait()
        tell(True, "")
        await asyncio.Event().wait()

    async with role.on(runtime=runtime, parts={"links": links}):
        await role.until(lambda: role.states and role.states[-1] == (False, "not looked at yet: links"))
        go.set()
        await role.until(lambda: role.states[-1] == (True, f"containerd 2.1.4; {role.spec}"))


async def test_a_part_that_fails_starts_again_alone(sim_root, tmp_path) -> None:
    role = Running(sim_root("hgx-h100", gpus=1), tmp_path)
    lives: list[int] = []

    async def nri(tell: StateSink) -> None:
        lives.append(len(lives))
        if len(lives) == 1:
            raise HostError("the socket is broken", "a socket", "mend it")
        tell(True, "NRI")
        await asyncio.Event().wait()

    async with role.on(parts={"nri": nri}):
        await role.until(lambda: any("the socket is broken" in reason for _, reason in role.states))
        await role.until(role.spec.exists)
        await role.until(lambda: role.states[-1] == (True, f"{role.spec}; NRI"))
    assert len(lives) == 2
    assert [one.reason for one in role.told] == ["RoleWaiting"]
