"""Engines that a SIGHUP does not restart: told at once, and restarted by the next means that does no harm."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from kgpu.base.errors import HostError
from kgpu.host.engines.model import Engine, EngineOffer
from kgpu.host.engines.paths import MountedPaths
from kgpu.toolkit.engine import restart, run
from kgpu.toolkit.engine.fake import FakeEngine
from kgpu.toolkit.engine.programs import ProgramAnswer
from kgpu.toolkit.engine.restart import SignalRestart
from kgpu.toolkit.engine.restart_means import Means, ProcessFacts, next_means
from tests.toolkit.engine.support import containerd_host
from tests.toolkit.engine.test_restart import PLACE, listener

__all__ = ["listener"]

IGNORES = "Name:\tcontainerd\nPPid:\t{parent}\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000000001\n"
UNIT = "0::/system.slice/containerd.service\n"


@pytest.mark.parametrize(
    ("cgroup", "unit"),
    [
        (UNIT, "containerd"),
        ("0::/../../../system.slice/containerd.service", "containerd"),  # as a container sees it
        ("12:pids:/x.slice\n1:name=systemd:/runtime.slice/containerd.service/supervised\n", "containerd"),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/containerd.service", ""),
        ("0::/user.slice/user-0.slice/session-3.scope", ""),
        ("0::/", ""),
        ("", ""),
    ],
)
def test_the_unit_of_a_process(cgroup: str, unit: str) -> None:
    assert ProcessFacts(cgroup=cgroup).unit == unit


@pytest.mark.parametrize(("mask", "ignored"), [("0000000000000001", True), ("fffffffe7ffbfeff", True), ("2", False)])
def test_what_a_process_ignores(mask: str, ignored: bool) -> None:
    facts = ProcessFacts(status=f"SigBlk:\t0\nSigIgn:\t{mask}\nSigCgt:\t1\n")
    assert facts.ignores_hangup is ignored
    assert not ProcessFacts().ignores_hangup


@pytest.mark.parametrize(
    ("cgroup", "parent", "service", "systemd", "means"),
    [
        (UNIT, 1, "containerd", True, Means.SYSTEMD),
        (UNIT, 1, "containerd.service", True, Means.SYSTEMD),
        ("0::/system.slice/k0sworker.service", 77, "k0sworker", True, Means.SYSTEMD),
        # A script that runs at start-up, with nohup: restarted, it would do all else that it does once more.
        ("0::/system.slice/cloud-final.service", 77, "containerd", True, Means.SIGTERM),
        ("0::/system.slice/cloud-final.service", 1, "containerd", True, Means.NONE),
        ("0::/user.slice/user-0.slice/session-3.scope", 1, "containerd", True, Means.NONE),
        (UNIT, 1, "", True, Means.NONE),
        ("0::/", 1, "containerd", False, Means.SIGTERM),  # another init, which starts what ends
        ("", 77, "containerd", False, Means.SIGTERM),
    ],
)
def test_the_next_means(cgroup: str, parent: int, service: str, systemd: bool, means: Means) -> None:
    facts = ProcessFacts(IGNORES.format(parent=parent), cgroup)
    assert next_means(facts, service, systemd=systemd) is means


async def test_one_that_ignores_it_is_told_by_sigterm(listener, tmp_path: Path) -> None:
    process = listener("-HUP")
    reaped = asyncio.create_task(asyncio.to_thread(process.wait))
    said = await SignalRestart(MountedPaths.at(tmp_path)).restart(PLACE)
    assert await reaped == -signal.SIGTERM
    assert said.startswith(f"containerd (process {process.pid}) ignores SIGHUP, ")
    assert said.endswith("; it was sent SIGTERM")


async def test_and_so_is_one_that_goes_on(listener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restart, "HANGUP_SECONDS", 0.1)
    process = listener(str(tmp_path / "told"))
    reaped = asyncio.create_task(asyncio.to_thread(process.wait))
    said = await SignalRestart(MountedPaths.at(tmp_path)).restart(PLACE)
    assert await reaped == -signal.SIGTERM
    assert "has not ended" in said


async def test_one_that_nothing_ends(listener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restart, "TERM_SECONDS", 0.1)
    process = listener("-HUP-TERM")
    with pytest.raises(HostError, match=r"ignores SIGHUP, .* after SIGTERM") as caught:
        await SignalRestart(MountedPaths.at(tmp_path)).restart(PLACE)
    assert "systemctl restart containerd" in caught.value.remedy
    assert process.poll() is None


async def test_docker_is_not_ended_with_its_containers(listener, tmp_path: Path) -> None:
    process = listener("-HUP")
    with pytest.raises(HostError, match="ignores SIGHUP"):
        await SignalRestart(MountedPaths.at(tmp_path)).restart(replace(PLACE, engine=Engine.DOCKER))
    assert process.poll() is None


async def test_its_own_unit_is_restarted(listener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    async def program(paths, words, *, seconds):
        del paths, seconds
        asked.append(tuple(words))
        return ProgramAnswer(0, "")

    monkeypatch.setattr(restart, "run_program", program)
    monkeypatch.setattr(restart, "_facts", lambda _pid: ProcessFacts(IGNORES.format(parent=1), UNIT))
    process = listener("-HUP")
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    said = await SignalRestart(MountedPaths.at(tmp_path)).restart(PLACE)
    assert asked == [("systemctl", "restart", "containerd")]
    assert said.endswith("; systemd has restarted containerd")
    assert process.poll() is None


async def test_what_nobody_would_start_again_is_not_ended(listener, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(restart, "_facts", lambda _pid: ProcessFacts(IGNORES.format(parent=1), "0::/"))
    process = listener("-HUP")
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    with pytest.raises(HostError, match="ignores SIGHUP"):
        await SignalRestart(MountedPaths.at(tmp_path)).restart(PLACE)
    assert process.poll() is None


async def test_the_node_is_told_how_it_was_restarted(tmp_path: Path) -> None:
    host = containerd_host(tmp_path)
    async with FakeEngine(host.local(host.place.socket)) as engine:
        engine.note = "it ignores SIGHUP; it was sent SIGTERM"
        outcome = await run.configure(host.place, EngineOffer(), host.context(engine))
        assert engine.note in outcome.notes
        await run.unconfigure(host.place, host.context(engine))
        engine.broken = lambda: True
        with pytest.raises(HostError, match=r"isn't well .* \(it ignores SIGHUP; it was sent SIGTERM\)"):
            await run.configure(host.place, EngineOffer(), host.context(engine))
