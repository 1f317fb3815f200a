"""The specs name exactly what the plugin answers, are written when something changed, and only then."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest

from kgpu.agent import plugin_specs
from kgpu.agent.plugin_specs import PluginSpecs
from kgpu.base.errors import ConfigError, HostError
from kgpu.deviceplugin.allocate import cdi_names
from kgpu.deviceplugin.config import PluginSettings
from kgpu.deviceplugin.model import HostDevices
from kgpu.formats.cdi import parse_spec, qualified_name
from kgpu.hw.port import Accelerator, HardwareFinding, Inventory, Problem
from kgpu.hw.vendor import vendor_of


def gpu(index: int, **values) -> Accelerator:
    nodes = ("/dev/nvidiactl", f"/dev/nvidia{index}")
    return Accelerator(
        vendor="nvidia", index=index, uuid=f"GPU-{index}", name="H100", minor=index, device_nodes=nodes, **values
    )


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "root"
    (root / "dev" / "nvidia-caps-imex-channels").mkdir(parents=True)
    libraries = root / "usr" / "lib" / "x86_64-linux-gnu"
    libraries.mkdir(parents=True)
    for name in ("libcuda.so", "libnvidia-ml.so"):
        (libraries / f"{name}.580.1").write_bytes(b"")
        (libraries / f"{name}.1").symlink_to(f"{name}.580.1")
    for name in ("nvidiactl", "nvidia0", "nvidia1", "nvidia-fs0", "nvidia-caps-imex-channels/channel0"):
        (root / "dev" / name).write_bytes(b"")
    return root


INVENTORY = Inventory(vendor="nvidia", driver_version="580.1", accelerators=(gpu(0), gpu(1)))
CDI = PluginSettings(list_strategies=("cdi-cri",))


def written(folder: Path) -> set[str]:
    specs = [parse_spec(path.read_bytes()) for path in folder.glob("*.json")]
    return {qualified_name(spec.kind, device.name) for spec in specs for device in spec.devices}


@pytest.mark.parametrize("strategy", ["uuid", "index"])
def test_every_name_that_is_answered_can_be_resolved(strategy, root, tmp_path):
    settings = dataclasses.replace(CDI, id_strategy=strategy, imex_channel_ids=(0,), gds_enabled=True)
    PluginSpecs(root, tmp_path / "cdi")(INVENTORY, settings)
    shown = ["0", "1"] if strategy == "index" else ["GPU-0", "GPU-1"]
    host = HostDevices(imex_channels=(0,), gds=True)
    assert written(tmp_path / "cdi") == set(cdi_names(shown, settings, host, vendor_of("nvidia")))


def test_paths_are_the_hosts(root, tmp_path):
    settings = dataclasses.replace(CDI, driver_root="/run/nvidia/driver")
    PluginSpecs(root, tmp_path / "cdi")(INVENTORY, settings)
    (path,) = (tmp_path / "cdi").iterdir()
    text = path.read_text()
    assert str(root) not in text
    assert "/run/nvidia/driver/dev/nvidia0" in text


def test_a_vendor_without_cdi_specs_is_told_so(root, tmp_path, monkeypatch):
    other = dataclasses.replace(vendor_of("nvidia"), name="other", title="Other", cdi_specs=False)
    monkeypatch.setattr(plugin_specs, "vendor_of", lambda _name: other)
    with pytest.raises(ConfigError, match="accelerators of Other"):
        PluginSpecs(root, tmp_path / "cdi")(INVENTORY, CDI)
    assert not (tmp_path / "cdi").exists()


def test_nothing_is_written_twice_and_a_lost_file_comes_back(root, tmp_path):
    write = PluginSpecs(root, tmp_path / "cdi")
    write(INVENTORY, CDI)
    (path,) = (tmp_path / "cdi").iterdir()
    before = path.stat().st_ino
    sick = HardwareFinding(subject="GPU-1", problem=Problem.LOST, what="a", expected="b", remedy="c")
    write(dataclasses.replace(INVENTORY, accelerators=(gpu(0), gpu(1, findings=(sick,)))), CDI)
    assert path.stat().st_ino == before
    path.unlink()
    write(INVENTORY, CDI)
    assert path.is_file()


async def test_daemons_that_begin_and_end_are_told_and_the_spec_follows(root, tmp_path):
    """With a mount of a socket that has gone no container with a GPU would start."""
    write = PluginSpecs(root, tmp_path / "cdi")
    socket = root / "run/nvidia-persistenced/socket"
    write(INVENTORY, CDI)

    def mounted() -> bool:
        (path,) = (tmp_path / "cdi").iterdir()
        return any(
            "nvidia-persistenced" in one.container_path for one in parse_spec(path.read_bytes()).container_edits.mounts
        )

    assert not mounted()
    changes = write.changes()
    async with asyncio.timeout(60):
        for there in (True, False):
            told = asyncio.ensure_future(anext(changes))
            await asyncio.sleep(0)
            if there:
                socket.parent.mkdir(parents=True)
                socket.touch()
            else:
                socket.unlink()
            await told
            write(INVENTORY, CDI)
            assert mounted() is there
    await changes.aclose()


async def test_daemons_are_followed_from_the_first_spec_on(root, tmp_path):
    write = PluginSpecs(root, tmp_path / "cdi")
    changes = write.changes()
    told = asyncio.ensure_future(anext(changes))
    await asyncio.sleep(0.1)
    assert not told.done()
    write(INVENTORY, CDI)
    socket = root / "run/nvidia-fabricmanager/socket"
    socket.parent.mkdir(parents=True, exist_ok=True)
    socket.touch()
    async with asyncio.timeout(60):  # far less than a round in which nothing is heard
        await told
    await changes.aclose()


def test_a_gpu_that_is_new_is_added(root, tmp_path):
    write = PluginSpecs(root, tmp_path / "cdi")
    write(dataclasses.replace(INVENTORY, accelerators=(gpu(0),)), CDI)
    assert len(written(tmp_path / "cdi")) == 1
    write(INVENTORY, CDI)
    assert len(written(tmp_path / "cdi")) == 2


def test_without_a_mig_strategy_a_gpu_in_mig_mode_is_offered_whole(root, tmp_path):
    inventory = dataclasses.replace(INVENTORY, accelerators=(gpu(0, mig_enabled=True), gpu(1)))
    PluginSpecs(root, tmp_path / "cdi")(inventory, CDI)
    assert len(written(tmp_path / "cdi")) == 2


def test_a_folder_that_can_not_be_written_is_said_in_three_parts(root, tmp_path):
    (tmp_path / "cdi").write_text("")
    with pytest.raises(HostError, match="can't be written"):
        PluginSpecs(root, tmp_path / "cdi")(INVENTORY, CDI)
