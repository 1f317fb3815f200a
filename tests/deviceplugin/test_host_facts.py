"""What the node's /dev has beside the GPUs' own nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgpu.deviceplugin.config import Settings
from kgpu.deviceplugin.host_facts import read_host_facts


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    dev = tmp_path / "dev"
    (dev / "nvidia-caps-imex-channels").mkdir(parents=True)
    (dev / "infiniband").mkdir()
    for name in ("nvidiactl", "nvidia-uvm", "nvidia-fs0", "gdrdrv", "nvidia-caps-imex-channels/channel0"):
        (dev / name).touch()
    return Settings(container_driver_root=str(tmp_path), imex_channel_ids=(0,))


def test_a_simulated_root_has_stand_ins(settings: Settings) -> None:
    facts = read_host_facts(settings, simulated=True)
    assert facts.control_nodes[:2] == ("/dev/nvidiactl", "/dev/nvidia-uvm")
    assert facts.imex_channels == (0,)
    assert facts.gds
    assert facts.mofed
    assert facts.gdrcopy


def test_on_real_hardware_plain_files_are_no_devices(settings: Settings) -> None:
    facts = read_host_facts(settings)
    real = {path for path in facts.control_nodes if Path(path).is_char_device()}
    assert set(facts.control_nodes) == real
    channel = Path("/dev/nvidia-caps-imex-channels/channel0")
    assert facts.imex_channels == ((0,) if channel.exists() else ())


def test_a_character_device_counts(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidiactl").symlink_to("/dev/null")
    assert "/dev/nvidiactl" in read_host_facts(Settings(container_driver_root=str(tmp_path))).control_nodes


def test_a_root_that_is_not_mounted_is_no_trouble(tmp_path: Path) -> None:
    facts = read_host_facts(Settings(container_driver_root=str(tmp_path / "missing")))
    assert not facts.imex_channels
