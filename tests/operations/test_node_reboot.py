"""What an act's pod does on a machine: it asks once, in the boot that was to end, and nowhere else."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from kgpu.base.boot import ENV_BOOT_ID
from kgpu.base.errors import HostError
from kgpu.cli.main import main
from kgpu.formats.names import ENV_LAB_CONTAINER, ENV_RUN_DIR, ENV_SIMULATED_REBOOT
from kgpu.operations import act_marks, node_reboot
from kgpu.operations.model import REFUSED
from kgpu.operations.node_reboot import Machine, reboot, this_machine

BOOT = "8a7f3c52-5a53-4a1e-9a53-0e3b6a0d7d11"


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    """A simulated machine's."""
    env = {ENV_RUN_DIR: str(tmp_path / "run"), ENV_SIMULATED_REBOOT: str(tmp_path / "reboot"), ENV_BOOT_ID: BOOT}
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    return env


def test_a_machine_is_asked_once_per_act(env: Mapping[str, str], tmp_path: Path) -> None:
    assert reboot("op-1", BOOT, this_machine(env)) == "this machine is asked to reboot"
    (tmp_path / "reboot").unlink()
    assert reboot("op-1", BOOT, this_machine(env)) == "this machine was asked before"
    assert not (tmp_path / "reboot").exists()
    reboot("op-2", BOOT, this_machine(env))
    assert (tmp_path / "reboot").exists()


@pytest.mark.parametrize("boot", ["another", "", BOOT[:-1], BOOT.upper()])
def test_another_boot_is_not_ended(env: Mapping[str, str], tmp_path: Path, boot: str) -> None:
    assert "has booted since" in reboot("op-1", boot, this_machine(env))
    assert not (tmp_path / "reboot").exists()
    assert not (tmp_path / "run").exists()


def test_a_machine_without_a_boot_id_is_not_rebooted() -> None:
    machine = Machine(boot="", forbids=lambda: False, mark=lambda _: True, ask=lambda: pytest.fail("asked"))
    with pytest.raises(HostError, match="no boot ID"):
        reboot("op-1", "", machine)


def test_a_machines_admin_can_forbid_it(env: Mapping[str, str], tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / node_reboot.NO_REBOOT).touch()
    with pytest.raises(HostError, match="/run/kgpu/no-reboot is there"):
        reboot("op-1", BOOT, this_machine(env))
    assert not (tmp_path / "reboot").exists()


@pytest.mark.parametrize("act", ["", "../x", "a/b", "A", "x" * 101, "-a", "a\n"])
def test_an_id_is_no_path(env: Mapping[str, str], tmp_path: Path, act: str) -> None:
    with pytest.raises(HostError, match="not the ID of an act"):
        reboot(act, BOOT, this_machine(env))
    assert not (tmp_path / "run").exists()


def test_a_mark_that_is_a_link_is_not_followed(env: Mapping[str, str], tmp_path: Path) -> None:
    marks = tmp_path / "run" / act_marks.FOLDER
    marks.mkdir(parents=True)
    (marks / "op-1").symlink_to(tmp_path / "elsewhere")
    assert reboot("op-1", BOOT, this_machine(env)) == "this machine was asked before"
    assert not (tmp_path / "elsewhere").exists()


def test_without_the_hosts_run_nothing_is_asked(env: Mapping[str, str], tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    with pytest.raises(HostError, match="can't be made"):
        reboot("op-1", BOOT, this_machine(env))
    assert not (tmp_path / "reboot").exists()


def test_a_container_of_a_lab_never_reboots_the_real_machine(
    env: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("signalled"))
    inside = {name: value for name, value in env.items() if name != ENV_SIMULATED_REBOOT} | {ENV_LAB_CONTAINER: "c"}
    with pytest.raises(HostError, match="a container of a lab"):
        reboot("op-1", BOOT, this_machine(inside))


@pytest.mark.parametrize(("first", "signals"), [("systemd\n", [(1, signal.SIGRTMIN + 5)]), ("init\n", []), ("", [])])
def test_only_systemd_is_signalled(
    env: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, signals: list[tuple[int, int]]
) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *words: sent.append(words))
    monkeypatch.setattr(node_reboot, "_FIRST_PROCESS", tmp_path / "comm")
    (tmp_path / "comm").write_text(first)
    machine = this_machine({ENV_RUN_DIR: env[ENV_RUN_DIR]})
    if signals:
        reboot("op-1", BOOT, machine)
    else:
        with pytest.raises(HostError, match="takes no order to reboot"):
            reboot("op-1", BOOT, machine)
    assert sent == signals


def test_the_command_tells_a_refusal_by_its_exit_code(
    env: Mapping[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del env
    assert main(["kgpu", "act", "reboot", "--id", "../op-1", "--boot-id", BOOT]) == REFUSED
    assert "not the ID of an act" in capsys.readouterr().err
    assert main(["kgpu", "act", "reboot", "--id", "op-1", "--boot-id", "another"]) == 0
    assert "has booted since" in capsys.readouterr().out
    assert not (tmp_path / "reboot").exists()
    assert main(["kgpu", "act", "reboot", "--id", "op-1", "--boot-id", BOOT]) == 0
    assert (tmp_path / "reboot").exists()
