"""``nvidia-ctk`` by its own name: commands, exit codes, config.toml, device files, and hooks that are handed over."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from typing import Any

import click
import pytest

from kgpu.cli import ctk_system, nvidia_ctk
from kgpu.cli.main import main
from kgpu.formats.toolkit_config import ToolkitConfig, dump_config
from kgpu.host import dev_files
from kgpu.host.dev_files import FakeDevFiles
from kgpu.host.dev_nodes import Numbers
from kgpu.host.toolkit_files import host_defaults
from kgpu.toolkit.hooks import FOLDERS, HELPER

SPEC = {
    "cdiVersion": "0.6.0",
    "kind": "vendor.com/class",
    "devices": [{"name": "x", "containerEdits": {"env": ["A=b"]}}],
}


@pytest.fixture(autouse=True)
def clean(monkeypatch, tmp_path) -> None:
    """No settings of the machine that the tests run on."""
    for name in [name for name in os.environ if "NVIDIA" in name or name in {"DRIVER_ROOT", "DEV_ROOT", "ROOT"}]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NVIDIA_CTK_CONFIG_FILE_PATH", str(tmp_path / "none.toml"))


def ctk(*words: object) -> int:
    return main(["/usr/bin/nvidia-ctk", *(str(word) for word in words)])


def test_help_names_every_command_once(capsys) -> None:
    assert ctk() == 0
    out = capsys.readouterr().out
    assert out.startswith("Usage: nvidia-ctk [OPTIONS]")
    for entry in nvidia_ctk.ENTRIES:
        assert f"\n  {entry.name} " in out
    for group in ("cdi", "system", "runtime"):
        assert ctk(group) == 0
        assert capsys.readouterr().out.startswith(f"Usage: nvidia-ctk {group} ")


@pytest.mark.parametrize(
    "words",
    [["nothing"], ["cdi", "nothing"], ["cdi", "list", "--nothing"], ["config", "--set", "x=1"], ["--config"],
     ["system", "create-device-nodes", "--root", "relative"], ["cdi", "transform", "root", "--input", "/none"],
     ["system", "create-dev-char-symlinks", "--create-all=perhaps"]],
)  # fmt: skip
def test_every_error_is_one_and_explained(words: list[str], capsys) -> None:
    assert ctk(*words) == 1
    said = capsys.readouterr()
    assert said.err.startswith("nvidia-ctk: ")
    assert "\n  to do: " in said.err
    assert main(["kgpu", "nvidia-ctk", *words]) == 1


def test_the_same_under_the_own_name_is_two() -> None:
    assert main(["kgpu", "cdi", "nothing"]) == 2


def test_cdi_list_and_transform(tmp_path, capsys) -> None:
    (tmp_path / "a.json").write_text(json.dumps(SPEC))
    assert ctk("cdi", "list", "--spec-dir", tmp_path) == 0
    assert capsys.readouterr().out == "vendor.com/class=x\n"
    assert ctk("cdi", "transform", "root", "--from", "/a", "--to", "/b", "--input", tmp_path / "a.json") == 0
    assert capsys.readouterr().out.startswith("---\ncdiVersion: ")


def test_quiet_leaves_data_and_errors(tmp_path, capsys) -> None:
    (tmp_path / "a.json").write_text(json.dumps(SPEC))
    (tmp_path / "b.json").write_text("{")
    assert ctk("cdi", "list", "--spec-dir", tmp_path) == 0
    assert "warning: " in capsys.readouterr().err
    assert ctk("--quiet", "--debug", "cdi", "list", "--spec-dir", tmp_path) == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == ("vendor.com/class=x\n", "")
    assert ctk("--quiet", "cdi", "transform", "root", "--input", tmp_path / "b.json") == 1
    assert "to do:" in capsys.readouterr().err


# --- the driver root of config.toml ---


@pytest.fixture
def roots(monkeypatch) -> list[str]:
    """The driver roots that generate was called with."""
    from kgpu.cli import cdi

    seen: list[str] = []

    def settled(given: Mapping[str, Any]) -> str:
        seen.append(given["driver_root"])
        raise click.exceptions.Exit(0)

    monkeypatch.setattr(cdi, "_driver_root", settled)
    return seen


def test_the_driver_root_by_flag_variable_config_and_default(roots, tmp_path, monkeypatch) -> None:
    config = tmp_path / "c.toml"
    config.write_text('[nvidia-container-cli]\nroot = "/of/config"\n')
    assert ctk("cdi", "generate") == 0
    assert ctk("--config", config, "cdi", "generate") == 0
    monkeypatch.setenv("NVIDIA_CTK_CONFIG", str(config))
    assert ctk("cdi", "generate") == 0
    monkeypatch.setenv("NVIDIA_CTK_DRIVER_ROOT", "/of/variable")
    assert ctk("cdi", "generate") == 0
    assert ctk("cdi", "generate", "--driver-root", "/of/flag") == 0
    assert roots == ["/", "/of/config", "/of/config", "/of/variable", "/of/flag"]


def test_a_broken_config_stops_only_who_asked_for_it(roots, tmp_path, monkeypatch, capsys) -> None:
    config = tmp_path / "c.toml"
    config.write_text("wrong = 1\n")
    assert ctk("--config", config, "cdi", "generate") == 1
    assert roots == []
    assert ctk("--config", config, "cdi", "list", "--spec-dir", tmp_path) == 0
    monkeypatch.setenv("NVIDIA_CTK_CONFIG_FILE_PATH", str(config))
    assert ctk("cdi", "generate") == 0
    assert roots == ["/"]
    assert "warning: " in capsys.readouterr().err


# --- config ---


def test_config_prints_defaults_when_there_is_no_file(capsys) -> None:
    default = dump_config(ToolkitConfig(host=host_defaults()))
    for words in (["config"], ["config", "default"], ["config", "create-default"], ["config", "generate-default"]):
        assert ctk(*words) == 0
        assert capsys.readouterr().out == default


def test_config_changes_a_file_in_place(tmp_path, capsys) -> None:
    real = tmp_path / "real.toml"
    real.write_text('[nvidia-container-runtime]\nmode = "legacy"\n')
    real.chmod(0o600)
    link = tmp_path / "config.toml"
    link.symlink_to(real)
    assert ctk("config", "--config-file", link, "--set", "nvidia-container-runtime.mode=cdi", "--in-place") == 0
    assert capsys.readouterr().out == ""
    assert tomllib.loads(real.read_text())["nvidia-container-runtime"]["mode"] == "cdi"
    assert link.is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o600
    before = real.read_bytes()
    assert ctk("config", "-c", link, "-i") == 0
    assert real.read_bytes() == before


def test_config_to_another_file(tmp_path) -> None:
    target = tmp_path / "new/config.toml"
    assert ctk("config", "--set", "disable-require", "--output", target) == 0
    assert tomllib.loads(target.read_text())["disable-require"] is True
    assert stat.S_IMODE(target.stat().st_mode) == 0o644


def test_two_places_to_write_to_are_refused_and_nothing_is_written(tmp_path, capsys) -> None:
    """The replaced program takes both and ignores one."""
    file, target = tmp_path / "config.toml", tmp_path / "out.toml"
    file.write_text("disable-require = true\n")
    assert ctk("config", "-c", file, "--in-place", "--output", target, "--set", "disable-require=false") == 1
    assert "--in-place and --output" in capsys.readouterr().err
    assert file.read_text() == "disable-require = true\n"
    assert not target.exists()


@pytest.mark.parametrize("setting", ["nothing=1", "disable-require=2", "nvidia-container-cli.ldconfig=/sbin/ldconfig"])
def test_a_bad_setting_leaves_the_file(tmp_path, setting: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text("# mine\n")
    assert ctk("config", "-c", file, "-i", "--set", setting) == 1
    assert file.read_text() == "# mine\n"


# --- system ---


@pytest.fixture
def host(monkeypatch) -> FakeDevFiles:
    files = FakeDevFiles()
    monkeypatch.setattr(dev_files, "RealDevFiles", lambda *_: files)
    return files


@pytest.fixture
def driver(tmp_path):
    """A root whose /proc says that a driver runs, with GPUs 3 and 6."""
    root = tmp_path / "driver"
    for minor in (3, 6):
        folder = root / f"proc/driver/nvidia/gpus/0000:0{minor}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Device Minor: \t {minor}\n")
    (root / "proc/driver/nvidia-caps").mkdir()
    (root / "proc/driver/nvidia-caps/mig-minors").write_text("config 1\nmonitor 2\ngpu6/gi1/access 66\n")
    (root / "proc/devices").write_text("Character devices:\n195 nvidia\n508 nvidia-uvm\n511 nvidia-caps\n")
    return root


def test_links_for_the_nodes_that_are_there(host, capsys) -> None:
    host.devices = {"/dev/nvidia3": Numbers(195, 3), "/dev/null": Numbers(1, 3)}
    host.links = {"/dev/char/195:3": "/dev/nvidia9"}
    assert ctk("system", "create-dev-char-symlinks", "--dry-run") == 0
    assert capsys.readouterr().out.startswith("would replace /dev/char/195:3 -> /dev/nvidia3 (stale: ")
    assert host.links == {"/dev/char/195:3": "/dev/nvidia9"}
    assert ctk("system", "create-dev-char-symlinks", "--dry-run=false") == 0
    assert host.links == {"/dev/char/195:3": "/dev/nvidia3"}
    capsys.readouterr()
    assert ctk("system", "create-dev-char-symlinks") == 0
    assert capsys.readouterr().out == ""


def test_links_for_all_that_may_be_have_the_drivers_minors(host, driver, capsys) -> None:
    assert (
        ctk("system", "create-dev-char-symlinks", "--create-all", "--driver-root", driver, "--dev-char-path", "/x/")
        == 0
    )
    assert host.links == {
        "/x/195:3": "/dev/nvidia3", "/x/195:6": "/dev/nvidia6", "/x/195:254": "/dev/nvidia-modeset",
        "/x/195:255": "/dev/nvidiactl", "/x/508:0": "/dev/nvidia-uvm", "/x/508:1": "/dev/nvidia-uvm-tools",
        "/x/511:1": "/dev/nvidia-caps/nvidia-cap1", "/x/511:2": "/dev/nvidia-caps/nvidia-cap2",
        "/x/511:66": "/dev/nvidia-caps/nvidia-cap66",
    }  # fmt: skip
    assert len(capsys.readouterr().out.splitlines()) == 9


def test_the_driver_root_moves_the_nodes_that_are_linked(host, driver, monkeypatch) -> None:
    host.devices = {"/dev/nvidia0": Numbers(195, 0), f"{driver}/dev/nvidia6": Numbers(195, 6)}
    monkeypatch.setenv("NVIDIA_DRIVER_ROOT", str(driver))
    assert ctk("system", "create-dev-char-symlinks") == 0
    assert host.links == {"/dev/char/195:6": f"{driver}/dev/nvidia6"}


def test_control_nodes_first_when_asked(host, driver) -> None:
    host.devices = {"/dev/nvidia-uvm": Numbers(510, 0)}
    assert ctk("system", "create-dev-char-symlinks", "--create-device-nodes", "--driver-root", driver) == 0
    assert host.devices["/dev/nvidia-uvm"] == Numbers(508, 0)
    assert host.links["/dev/char/508:0"] == "/dev/nvidia-uvm"
    assert host.links["/dev/char/195:255"] == "/dev/nvidiactl"


def test_control_nodes_of_a_root(host, driver, capsys) -> None:
    words = ["system", "create-device-nodes", "--control-devices", "--root", driver]
    assert ctk(*words, "--dry-run") == 0
    assert host.devices == {}
    assert f"would create {driver}/dev/nvidiactl c 195:255" in capsys.readouterr().out
    assert ctk(*words) == 0
    assert ctk(*words, "--dev-root", "/") == 0
    assert host.devices[f"{driver}/dev/nvidia-uvm"] == host.devices["/dev/nvidia-uvm"] == Numbers(508, 0)


def test_no_nodes_without_asking_and_none_without_a_driver(host, tmp_path, capsys) -> None:
    assert ctk("system", "create-device-nodes") == 0
    assert "--control-devices" in capsys.readouterr().err
    (tmp_path / "proc/driver").mkdir(parents=True)
    assert ctk("system", "create-device-nodes", "--control-devices", "--root", tmp_path) == 1
    assert "no NVIDIA driver" in capsys.readouterr().err
    # With the modules loaded there would be one.
    again = ("--control-devices", "--root", tmp_path, "--load-kernel-modules", "--dry-run")
    assert ctk("system", "create-device-nodes", *again) == 0
    assert "when the modules are loaded" in capsys.readouterr().err
    assert host.devices == {}


def test_modules_are_loaded_only_when_asked_and_not_in_a_dry_run(host, driver, monkeypatch, capsys) -> None:
    seen: list[str] = []
    monkeypatch.setattr(dev_files, "load_modules", seen.append)
    words = ["system", "create-device-nodes", "--control-devices", "--root", driver]
    assert ctk(*words) == 0
    capsys.readouterr()
    for asked in (words, ["system", "create-dev-char-symlinks", "--driver-root", driver]):
        assert ctk(*asked, "--load-kernel-modules", "--dry-run") == 0
        told = capsys.readouterr().out.splitlines()
        assert told[: len(dev_files.MODULES)] == [
            f"would run chroot {driver} {dev_files.MODPROBE} {module}" for module in dev_files.MODULES
        ]
    assert seen == []
    assert ctk(*words, "--load-kernel-modules") == 0
    assert seen == [str(driver)]


def test_a_refused_change_is_explained(host, driver, monkeypatch, capsys) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted", "/dev/nvidiactl")

    monkeypatch.setattr(host.__class__, "put_node", refuse)
    assert ctk("system", "create-device-nodes", "--control-devices", "--root", driver) == 1
    said = capsys.readouterr().err
    assert "/dev/nvidiactl Operation not permitted" in said
    assert "run it as root" in said


# --- hook and info ---


def test_the_hook_program_is_looked_for_where_generate_finds_it() -> None:
    assert [os.path.split(place) for place in nvidia_ctk.HOOK_PLACES] == [(folder, HELPER) for folder in FOLDERS]


@pytest.mark.parametrize("words", [[], ["brand-new-hook", "--with", "flags"], ["-h2"]])
def test_an_unknown_hook_is_a_warning(words: list[str], capsys, monkeypatch) -> None:
    monkeypatch.setattr(nvidia_ctk, "HOOK_PLACES", ())
    assert ctk("hook", *words) == 0
    assert "warning: " in capsys.readouterr().err


@pytest.mark.parametrize("name", nvidia_ctk.HOOKS)
def test_a_known_hook_without_its_program_fails_the_container(name: str, capsys, monkeypatch) -> None:
    monkeypatch.setattr(nvidia_ctk, "HOOK_PLACES", ("/nowhere/nvidia-cdi-hook",))
    assert ctk("hook", name, "--link", "a::b") == 1
    assert "/nowhere/nvidia-cdi-hook" in capsys.readouterr().err


def test_a_hook_is_handed_over_whole_and_with_nothing_of_the_environment(tmp_path) -> None:
    program = tmp_path / "nvidia-cdi-hook"
    program.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/args\n/usr/bin/env > {tmp_path}/env\ncat > {tmp_path}/in\nexit 7\n'
    )
    program.chmod(0o755)
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    (hostile / "nvidia-cdi-hook").write_text(f"#!/bin/sh\ntouch {tmp_path}/pwned\n")
    (hostile / "nvidia-cdi-hook").chmod(0o755)
    script = tmp_path / "nvidia-ctk"
    script.write_text(
        "import sys\nfrom kgpu.cli import nvidia_ctk\nfrom kgpu.cli.main import main\n"
        f"nvidia_ctk.HOOK_PLACES = ({str(program)!r},)\nsys.exit(main())"
    )
    replaced = subprocess.run(
        [sys.executable, script, "hook", "create-symlinks", "--link", "a::b", "--help"],
        env={"PATH": f"{hostile}:/usr/bin:/bin", "KGPU_SECRET": "x", "NVIDIA_CTK_DEBUG": "true"},
        input='{"bundle": "/b"}', text=True, timeout=300, capture_output=True,
    )  # fmt: skip
    assert replaced.returncode == 7, replaced.stderr
    assert (tmp_path / "args").read_text().split() == ["create-symlinks", "--link", "a::b", "--help"]
    assert (tmp_path / "in").read_text() == '{"bundle": "/b"}'
    env = (tmp_path / "env").read_text()
    assert "NVIDIA_CTK_DEBUG=true" in env
    assert "KGPU_SECRET" not in env
    assert not (tmp_path / "pwned").exists()


def test_hook_explains_itself(capsys) -> None:
    assert ctk("hook", "--help") == 0
    assert capsys.readouterr().out.startswith("Usage: nvidia-ctk hook ")


def test_info_says_what_is_there(capsys) -> None:
    assert ctk("info") == 0
    out = capsys.readouterr().out
    assert "none.toml is not there" in out
    assert "CDI devices:" in out


def test_every_flag_has_its_variables() -> None:
    names = {env for row in ctk_system.LINK_FLAGS for env in row.envs}
    assert names == {
        "DEV_CHAR_PATH", "NVIDIA_DRIVER_ROOT", "DRIVER_ROOT", "CREATE_ALL", "LOAD_KERNEL_MODULES", "CREATE_DEVICE_NODES",
        "DRY_RUN",
    }  # fmt: skip


# --- runtime configure ---


def test_runtime_configure_is_the_engines_own_work(tmp_path, capsys) -> None:
    config = tmp_path / "etc/docker/daemon.json"
    config.parent.mkdir(parents=True)
    config.write_text('{"log-driver": "journald"}\n')
    words = ["runtime", "configure", "--runtime", "docker", "--host-root", tmp_path, "--state-dir", tmp_path / "state"]
    assert ctk(*words, "--dry-run") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["log-driver"] == "journald"
    assert "nvidia" in shown["runtimes"]
    assert config.read_text() == '{"log-driver": "journald"}\n'
    assert ctk(*words) == 0
    assert json.loads(config.read_text()) == shown
    assert ctk("runtime", "configure", "--runtime", "podman") == 1
