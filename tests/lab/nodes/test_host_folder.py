"""What a host leaves outside its nodes, and who may look in: short paths, its record, its log, the folder's mode."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from kgpu.formats.names import NODE_HOST_LABEL
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import NODES, PODS
from kgpu.lab import processes
from kgpu.lab.nodes import host_folder, manage
from kgpu.lab.nodes.host_folder import ShortPaths
from tests.lab.nodes.hosting import hosting as host_of
from tests.lab.nodes.hosting import light, node, ready, write
from tests.lab.nodes.support import until


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def entries(folder: Path) -> list[Path]:
    return list(folder.iterdir())


@pytest.fixture
def deep(folder: Path) -> Path:
    """A lab's folder with a path that is too long for sockets."""
    made = folder / ("long" * 12) / ("path" * 12)
    made.mkdir(parents=True)
    return made


@pytest.fixture
def temporary(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where short paths are made."""
    made = folder / "t"
    made.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(made))
    return made


async def test_secrets_are_for_this_user_alone(folder: Path) -> None:
    manage.add(folder, "cpu", 1)
    assert mode(folder / "nodes") == 0o700
    (folder / "nodes").chmod(0o755)  # as an older version made it
    async with host_of(folder, FakeApi()):
        await until(lambda: mode(folder / "nodes") == 0o700)
    (folder / "nodes").chmod(0o755)
    manage.add(folder, "cpu", 1)
    assert mode(folder / "nodes") == 0o700


async def test_short_paths_go_with_the_host(deep: Path, temporary: Path) -> None:
    api = FakeApi()
    write(deep, light("a"), light("b"))
    async with host_of(deep, api):
        await ready(api, "a", "b")
        (links,) = entries(temporary)
        assert mode(links) == 0o700
        assert {link.resolve().name for link in entries(links)} == {"a", "b"}
    assert entries(temporary) == []


def test_short_paths_of_a_killed_host_go_with_the_lab(deep: Path, temporary: Path) -> None:
    write(deep, light("a"))
    own = deep / "nodes" / "host"
    own.mkdir()
    first = ShortPaths(own).to(deep / "nodes" / "a")
    second = ShortPaths(own).to(deep / "nodes" / "a")  # the next host's
    assert (first.exists(), second.resolve()) == (False, (deep / "nodes" / "a").resolve())
    manage.take_down(deep)
    assert entries(temporary) == []


def test_nothing_but_links_of_a_recorded_folder_is_removed(folder: Path, temporary: Path) -> None:
    (temporary / "kgpu-nodes-x").mkdir()
    (temporary / "kgpu-nodes-x" / "file").touch()
    (temporary / "other").mkdir()
    (temporary / "other" / "link").symlink_to("/")
    for name in ("kgpu-nodes-x", "other", "kgpu-nodes-missing"):
        (folder / "sockets").write_text(f"{temporary / name}\n")
        host_folder.remove_links(folder)
    assert (temporary / "kgpu-nodes-x" / "file").exists()
    assert (temporary / "other" / "link").is_symlink()


async def test_a_node_without_room_for_sockets_keeps_nobody_from_coming(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = ShortPaths.to

    def to(self: ShortPaths, path: Path) -> Path:
        if path.name == "a":
            raise FileExistsError(17, "File exists", str(path))
        return real(self, path)

    monkeypatch.setattr(ShortPaths, "to", to)
    api = FakeApi()
    write(folder, light("a"), light("b"))
    async with host_of(folder, api):
        await ready(api, "b")
    assert node(api, "a") is None


async def test_nodes_whose_folders_went_while_no_host_ran_go_too(folder: Path) -> None:
    api = FakeApi()
    write(folder, light("a"), light("b"))
    async with host_of(folder, api):
        await ready(api, "a", "b")
    stranger = dict(node(api, "b") or {})
    labels = {**stranger["metadata"]["labels"], NODE_HOST_LABEL: "another"}
    await api.create(NODES, {"metadata": {"name": "stranger", "labels": labels}})
    await api.create(NODES, {"metadata": {"name": "real", "labels": {"kubernetes.io/hostname": "real"}}})
    about = {"name": "p", "namespace": "default"}
    await api.create(PODS, {"metadata": about, "spec": {"nodeName": "b", "containers": []}, "status": {}})
    (folder / "nodes" / "b").rename(folder / "elsewhere")
    async with host_of(folder, api):
        await until(lambda: node(api, "b") is None)
        await ready(api, "a")
        await until(lambda: (PODS, "default", "p") not in api._objects)
    assert node(api, "stranger")
    assert node(api, "real")
    assert not (folder / "nodes" / "b").exists()


async def test_a_host_tells_of_itself(folder: Path) -> None:
    write(folder)
    (folder / "nodes").mkdir()
    assert not manage.host_running(folder / "nodes")
    async with host_of(folder, FakeApi()):
        await until(lambda: manage.host_running(folder / "nodes"))
        assert manage.status(folder)["host"] == os.getpid()
        # A record of somebody who is gone does not hide it.
        (folder / "nodes" / "host" / "process.json").write_text('{"pid": 1, "start": 1}')
        found = host_folder.recorded(folder / "nodes" / "host")
        assert found == processes.record(os.getpid())
    assert not manage.host_running(folder / "nodes")  # although this process lives
