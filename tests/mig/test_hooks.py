"""Hooks: in which order they run, with which environment, and what becomes of a change when one fails."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kgpu.base.errors import HostError, UserError
from kgpu.formats.mig_config import MigEntry
from kgpu.formats.mig_hooks import MigHook
from kgpu.hw.fake_partitioner import FakePartitioner
from kgpu.mig.apply import Applying, GpuOutcome
from kgpu.mig.change import HookedChange
from kgpu.mig.hooks import HookRunner
from kgpu.mig.node_plan import plan_node
from kgpu.mig.wanted import LayoutError
from tests.mig.test_apply import OFF, applied, at_call, entry, failure, only

NAMES = ("apply-start", "pre-apply-mode", "pre-apply-config", "apply-exit")


def shell(script: str, **more: Any) -> MigHook:
    return MigHook(command="/bin/sh", args=("-c", script), **more)


class Node:
    """A GPU whose hooks write down how they found it; ``broken`` fails instead."""

    def __init__(self, folder: Path) -> None:
        self.driver = FakePartitioner("h100-80gb")
        self.log = folder / "log"
        self.warned: list[UserError] = []

    def seen(self) -> list[str]:
        return self.log.read_text().split() if self.log.exists() else []

    async def change(
        self, *entries: MigEntry, broken: Sequence[str] = (), mode_only: bool = False, **more: Any
    ) -> tuple[GpuOutcome, ...]:
        hooks = {name: (shell(f"echo {name} >> {self.log}; exit {int(name in broken)}"),) for name in NAMES}
        self.log.unlink(missing_ok=True)
        return await HookedChange(
            applying=Applying(driver=self.driver),
            plan=lambda gpus: plan_node(gpus, entries, mode_only=mode_only),
            hooks=HookRunner(hooks=hooks, variables={}, **more),
            warn=self.warned.append,
        ).run()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def test_which_hooks_run_follows_from_what_changes(node: Node) -> None:
    start, mode, config, end = NAMES
    sevens = entry(**{"1g.10gb": 7})
    await node.change(sevens)
    assert node.seen() == [start, mode, config, end]
    await node.change(sevens)
    assert node.seen() == [start, end], "nothing changes"
    await node.change(entry(**{"3g.40gb": 2}))
    assert node.seen() == [start, config, end]
    await node.change(OFF)
    assert node.seen() == [start, mode, end]
    await node.change(entry())
    assert node.seen() == [start, mode, end], "no slices are wanted"
    await node.change(sevens)
    assert node.seen() == [start, config, end]
    await node.change(OFF, mode_only=True)
    assert node.seen() == [start, mode, end]
    await node.change(sevens, mode_only=True)
    assert (node.seen(), len(only(node.driver).instances)) == ([start, mode, end], 0)


@pytest.mark.parametrize(("broken", "ran"), [("apply-start", 1), ("pre-apply-mode", 3), ("pre-apply-config", 4)])
async def test_one_that_fails_leaves_all_as_it_was(node: Node, broken: str, ran: int) -> None:
    with pytest.raises(HostError, match=f"command 1 of hook {broken} .* has failed with 1: it printed nothing"):
        await node.change(entry(**{"1g.10gb": 7}), broken=[broken])
    assert not only(node.driver).enabled
    seen = node.seen()
    assert (len(seen), seen[-1]) == (ran, broken if broken == "apply-start" else "apply-exit")


async def test_the_last_one_counts_only_if_all_else_is_well(node: Node) -> None:
    with pytest.raises(HostError, match="hook apply-exit"):
        await node.change(entry(**{"1g.10gb": 7}), broken=["apply-exit"])
    assert len(only(node.driver).instances) == 7
    assert node.warned == []
    with pytest.raises(LayoutError):
        await node.change(entry(**{"1g.10gb": 8}), broken=["apply-exit"])
    assert ["apply-exit" in one.what for one in node.warned] == [True]
    node.driver.meddle = at_call(3, False, failure)
    (outcome,) = await node.change(entry(**{"3g.40gb": 2}), broken=["apply-exit"])
    assert outcome.failure is not None
    assert len(node.warned) == 2


async def test_who_is_called_off_runs_the_last_one(node: Node) -> None:
    node.driver.meddle = at_call(3, False, asyncio.CancelledError)
    with pytest.raises(asyncio.CancelledError):
        await node.change(entry(**{"1g.10gb": 7}))
    assert node.seen()[-1] == "apply-exit"
    assert only(node.driver).instances == ()


async def test_what_a_hook_has_ended_no_longer_uses_the_gpu(node: Node) -> None:
    await applied(node.driver, entry(**{"3g.40gb": 2}))
    part = only(node.driver).instances[0].id
    node.driver.use(0, part)
    with pytest.raises(LayoutError, match="from processes that use"):
        await node.change(entry(**{"1g.10gb": 7}))

    def tell(line: str) -> None:
        if "pre-apply-config" in line:
            node.driver.use(0, part, used=False)

    (outcome,) = await node.change(entry(**{"1g.10gb": 7}), tell=tell)
    assert outcome.failure is None


async def test_its_environment_is_its_own_and_the_command_lines(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("A_SECRET", "s3cret")
    told: list[str] = []
    hook = shell("env", env={"MINE": "1", "MIG_PARTED_CONFIG_FILE": "other"}, folder=str(tmp_path))
    runner = HookRunner(
        hooks={"apply-start": (hook, shell("pwd"), MigHook(command="env"))},
        variables={"MIG_PARTED_CONFIG_FILE": "a.yaml", "MIG_PARTED_SKIP_RESET": "false"}, tell=told.append,
    )  # fmt: skip
    await runner.run("apply-start")
    lines = [line.strip() for line in told]
    assert "MINE=1" in lines
    assert f"PWD={tmp_path}" in lines
    assert lines.count("MIG_PARTED_CONFIG_FILE=a.yaml") == 2, "the command line's wins"
    assert lines.count("MIG_PARTED_SKIP_RESET=false") == 2
    assert os.getcwd() in lines
    assert "s3cret" not in "".join(told)


async def test_the_first_that_fails_ends_it_and_its_words_are_told(tmp_path: Path) -> None:
    later = shell(f"touch {tmp_path}/later")
    runner = HookRunner(hooks={"apply-start": (shell("true"), shell("echo no room >&2; exit 7"), later)})
    with pytest.raises(HostError, match=r"command 2 of hook apply-start .* has failed with 7: no room"):
        await runner.run("apply-start")
    assert not (tmp_path / "later").exists()


async def test_one_that_does_not_end_is_ended() -> None:
    runner = HookRunner(hooks={"apply-start": (shell("echo waiting; sleep 1000; true"),)}, seconds=0.5)
    with pytest.raises(HostError, match=r"did not end within 0\.5 s"):
        await runner.run("apply-start")


@pytest.mark.parametrize(
    ("hook", "said"),
    [
        (MigHook(command="no-such-program-anywhere"), "it is in no folder of PATH"),
        (MigHook(command="/nowhere/program"), "/nowhere/program can't be run: No such file"),
        (shell("true", folder="/nowhere"), "can't be run in /nowhere"),
    ],
)
async def test_one_that_can_not_be_run(hook: MigHook, said: str) -> None:
    with pytest.raises(HostError, match=said):
        await HookRunner(hooks={"apply-exit": (hook,)}).run("apply-exit")


async def test_whoever_is_called_off_waits_for_the_command_under_way(tmp_path: Path) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    os.mkfifo(begun)
    os.mkfifo(go)
    script = f"echo > {begun}; read x < {go}; touch {tmp_path}/done"
    work = asyncio.create_task(HookRunner(hooks={"apply-start": (shell(script),)}).run("apply-start"))
    await asyncio.to_thread(begun.read_text)
    work.cancel()
    await asyncio.sleep(0)
    await asyncio.to_thread(go.write_text, "on\n")
    with pytest.raises(asyncio.CancelledError):
        await work
    assert (tmp_path / "done").exists()
