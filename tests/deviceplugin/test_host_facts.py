"""What the node's /dev has beside the GPUs' own nodes."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from kgpu.deviceplugin.config import PluginSettings, resolve
from kgpu.deviceplugin.host_facts import mps_marks, read_host_facts
from kgpu.formats.names import GAUDI_NETWORK_FILE
from kgpu.formats.plugin_config_parse import parse_config


@pytest.fixture
def settings(tmp_path: Path) -> PluginSettings:
    dev = tmp_path / "dev"
    (dev / "nvidia-caps-imex-channels").mkdir(parents=True)
    (dev / "infiniband").mkdir()
    for name in ("nvidiactl", "nvidia-uvm", "nvidia-fs0", "gdrdrv", "nvidia-caps-imex-channels/channel0"):
        (dev / name).touch()
    return PluginSettings(container_driver_root=str(tmp_path), imex_channel_ids=(0,))


def test_a_simulated_root_has_stand_ins(settings: PluginSettings) -> None:
    facts = read_host_facts(settings, vendors=["nvidia"], simulated=True)
    assert facts.control_nodes[:2] == ("/dev/nvidiactl", "/dev/nvidia-uvm")
    assert facts.imex_channels == (0,)
    assert facts.gds
    assert facts.mofed
    assert facts.gdrcopy


def test_on_real_hardware_plain_files_are_no_devices(settings: PluginSettings) -> None:
    facts = read_host_facts(settings, vendors=["nvidia"])
    real = {path for path in facts.control_nodes if Path(path).is_char_device()}
    assert set(facts.control_nodes) == real
    channel = Path("/dev/nvidia-caps-imex-channels/channel0")
    assert facts.imex_channels == ((0,) if channel.exists() else ())


def test_a_character_device_counts(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidiactl").symlink_to("/dev/null")
    assert (
        "/dev/nvidiactl"
        in read_host_facts(PluginSettings(container_driver_root=str(tmp_path)), vendors=["nvidia"]).control_nodes
    )


@pytest.mark.parametrize(("vendor", "found"), [("gaudi", (GAUDI_NETWORK_FILE,)), ("amd", ())])
def test_settings_of_a_vendor_count_where_they_are_files(
    settings: PluginSettings, vendor: str, found: tuple[str, ...]
) -> None:
    file = Path(settings.container_driver_root) / GAUDI_NETWORK_FILE.lstrip("/")
    file.mkdir(parents=True)
    assert read_host_facts(settings, vendors=[vendor]).files == ()
    file.rmdir()
    file.write_text("{}")
    assert read_host_facts(settings, vendors=[vendor]).files == found


def test_a_link_out_of_the_root_is_followed_within_it(settings: PluginSettings) -> None:
    file = Path(settings.container_driver_root) / GAUDI_NETWORK_FILE.lstrip("/")
    file.parent.mkdir(parents=True)
    file.symlink_to("/etc/passwd")
    assert read_host_facts(settings, vendors=["gaudi"]).files == ()


def test_a_root_that_is_not_mounted_is_no_trouble(tmp_path: Path) -> None:
    facts = read_host_facts(PluginSettings(container_driver_root=str(tmp_path / "missing")))
    assert not facts.imex_channels


def mps(root: Path) -> PluginSettings:
    text = "sharing: {mps: {renameByDefault: true, resources: [{name: nvidia.com/gpu, replicas: 4}]}}"
    return resolve(parse_config(text), overrides={}, env={"MPS_ROOT": str(root)})


@pytest.mark.parametrize("kind", ["socket", "pipe"])
def test_an_mps_daemon_counts_while_it_listens(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "nvidia.com" / "gpu.shared" / "pipe"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)  # a socket's path has at most 107 bytes
    if kind == "socket":
        listening = socket.socket(socket.AF_UNIX)
        listening.bind("control")
        listening.listen()
        close = listening.close
    else:
        os.mkfifo("control")
        reader = os.open("control", os.O_RDONLY | os.O_NONBLOCK)
        close = lambda: os.close(reader)  # noqa: E731
    settings = mps(Path(os.path.relpath(tmp_path)))
    assert not read_host_facts(settings).mps_daemons, "it listens before it has its limits"
    assert mps_marks(settings) == ()
    (folder.parent / ".started").touch()
    assert read_host_facts(settings).mps_daemons == {"nvidia.com/gpu.shared"}
    assert len(mps_marks(settings)) == 1
    close()
    assert not read_host_facts(settings).mps_daemons


def test_without_mps_no_daemon_is_looked_for(tmp_path: Path) -> None:
    assert not read_host_facts(PluginSettings(mps_root=str(tmp_path))).mps_daemons
    assert not read_host_facts(mps(tmp_path)).mps_daemons
