"""A node's own engine files: found below the host's root, written, remembered, and given back by a stranger."""

from __future__ import annotations

import dataclasses
import tempfile
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kgpu.base.errors import HostError
from kgpu.host.engines.model import Engine
from kgpu.kubelet.cri_fake import FakeCriRuntime
from kgpu.toolkit.fake_engines import PLAIN
from kgpu.toolkit.host_engines import HostEngines
from kgpu.toolkit.runtime import EngineKeeper, RuntimeContext
from kgpu.toolkit.settings import toolkit_settings

CONFIG = b"""version = 3  # a comment

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"""
SETTINGS = toolkit_settings({"RUNTIME_RESTART_MODE": "none"})


@pytest.fixture
async def host() -> AsyncIterator[Path]:
    """A host's root; its name is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="kgpu") as name:
        root = Path(name) / "host"
        (root / "etc/containerd").mkdir(parents=True)
        (root / "etc/containerd/config.toml").write_bytes(CONFIG)
        (root / "run/containerd").mkdir(parents=True)
        runtime = await FakeCriRuntime(PLAIN).serve(root / "run/containerd/containerd.sock")
        yield root
        await runtime.close()


def files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted((root / "etc").rglob("*.toml"))}


def left(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def test_found_configured_and_given_back_by_another_process(host: Path, tmp_path: Path) -> None:
    engines = HostEngines(host, tmp_path)
    place = await engines.find(SETTINGS)
    assert place is not None
    assert (place.engine, place.config, place.version) == (Engine.CONTAINERD, "/etc/containerd/config.toml", (2, 1, 4))
    assert engines.pending(place, SETTINGS.wanted())
    outcome = await engines.configure(place, SETTINGS.wanted(), None)
    assert outcome.changed
    assert not outcome.restarted
    assert engines.pending(place, SETTINGS.wanted()) == ()
    text = b"".join(files(host).values()).decode()
    assert all(name in text for name in SETTINGS.handlers)
    assert "# a comment" in text
    tomllib.loads((host / "etc/containerd/config.toml").read_text())
    assert (await HostEngines(host, tmp_path).find(SETTINGS)) == place

    await HostEngines(host, tmp_path).release()
    assert files(host) == {"etc/containerd/config.toml": CONFIG}
    assert left(tmp_path) == []


async def test_the_keeper_says_what_the_running_engine_lacks(host: Path, tmp_path: Path) -> None:
    keeper = EngineKeeper(RuntimeContext(engines=HostEngines(host, tmp_path), settings=SETTINGS, report=lambda _: None))
    look = await keeper.look()
    assert not look.ready
    assert "RUNTIME_RESTART_MODE is none" in look.reason
    assert host / "etc/containerd" in keeper.folders


async def test_no_engine(tmp_path: Path) -> None:
    (tmp_path / "host").mkdir()
    assert await HostEngines(tmp_path / "host", tmp_path).find(SETTINGS) is None


async def test_what_is_told_wins_over_what_is_found(host: Path, tmp_path: Path) -> None:
    told = {
        "CONTAINERD_CONFIG": "/etc/other.toml",
        "CONTAINERD_SOCKET": "/run/other.sock",
        "RUNTIME_DROP_IN_CONFIG": "",
    }
    place = await HostEngines(host, tmp_path).find(toolkit_settings(told))
    assert place is not None
    assert (place.config, place.socket, place.drop_in) == ("/etc/other.toml", "/run/other.sock", "")


async def test_nothing_is_written_where_it_could_not_be_remembered(host: Path, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("no folder")
    engines = HostEngines(host, tmp_path / "state")
    place = await engines.find(SETTINGS)
    assert place is not None
    with pytest.raises(HostError, match="state"):
        await engines.configure(place, SETTINGS.wanted(), None)
    assert files(host) == {"etc/containerd/config.toml": CONFIG}


async def test_docker_has_no_cri_to_be_asked(host: Path, tmp_path: Path) -> None:
    engines = HostEngines(host, tmp_path)
    place = await engines.find(toolkit_settings({"RUNTIME": "docker"}))
    assert place is not None
    assert engines.runtime(place) is None
    assert engines.runtime(dataclasses.replace(place, engine=Engine.CRIO)) is not None
