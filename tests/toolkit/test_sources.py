"""A spec's sources: what has gone, come or is another file makes the spec anew, and nothing else does."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kgpu.base.inotify import Inotify
from kgpu.host.root import DriverRoot, Tree
from kgpu.hw.fake_reader import sample_inventory
from kgpu.toolkit.sources import PAUSE_SECONDS, SpecSources, follow_sources
from kgpu.toolkit.spec_keeper import make_spec
from tests.host.tree import driver, link, touch

PERSISTENCED = "run/nvidia-persistenced/socket"


@pytest.fixture
def root(tmp_path: Path) -> DriverRoot:
    driver(tmp_path)
    touch(tmp_path, f"/{PERSISTENCED}")
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    link(tmp_path, "/var/run", "/run")
    return DriverRoot.at(tmp_path, driver_host="/run/nvidia/driver")


def sources(root: DriverRoot) -> SpecSources:
    before = SpecSources.snapshot(root)
    made = make_spec(sample_inventory(1, driver_version="550.54.15"), root)
    return before.of_specs([made.spec])


def test_nothing_happened(root: DriverRoot) -> None:
    known = sources(root)
    touch(root.files.here, "/tmp/else", "/run/else", "/usr/lib/else")
    assert not known.changed()
    assert known.changed_daemons() is None


def library_gone(here: Path) -> None:
    (here / "usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15").unlink()


def library_replaced(here: Path) -> None:
    path = here / "usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15"
    path.rename(f"{path}.old")
    path.write_bytes(b"another")


def node_gone(here: Path) -> None:
    (here / "dev/nvidiactl").unlink()


def daemon_gone(here: Path) -> None:
    (here / PERSISTENCED).unlink()


def folder_of_daemon_is_a_link_out(here: Path) -> None:
    (here / PERSISTENCED).unlink()
    (here / PERSISTENCED).parent.rmdir()
    link(here, "/run/nvidia-persistenced", "../../../../../../tmp")


def daemon_begun(here: Path) -> None:
    touch(here, "/run/nvidia-fabricmanager/socket")


def mps_begun(here: Path) -> None:
    (here / "tmp/nvidia-mps").mkdir()


@pytest.mark.parametrize(
    ("happens", "is_daemon"),
    [
        (library_gone, False), (library_replaced, False), (node_gone, False),
        (daemon_gone, True), (folder_of_daemon_is_a_link_out, True), (daemon_begun, True), (mps_begun, True),
    ],
)  # fmt: skip
def test_what_changes_is_seen(root: DriverRoot, happens: Callable[[Path], None], is_daemon: bool) -> None:
    known = sources(root)
    happens(root.files.here)
    assert known.changed()
    assert (known.changed_daemons() is not None) == is_daemon


@pytest.mark.parametrize("happens", [daemon_gone, daemon_begun, mps_begun, library_gone])
def test_what_happens_while_the_spec_is_made_is_seen(root: DriverRoot, happens: Callable[[Path], None]) -> None:
    """Between the look and the writing down."""
    before = SpecSources.snapshot(root)
    made = make_spec(sample_inventory(1, driver_version="550.54.15"), root)
    happens(root.files.here)
    assert before.of_specs([made.spec]).changed()


def test_a_folder_that_is_not_there_is_watched_for_from_above(root: DriverRoot) -> None:
    here = root.files.here
    assert sources(root).folders() == {here / "run/nvidia-persistenced", here / "run", here / "tmp"}
    os.rmdir(here / "tmp")
    assert here in sources(root).folders()


@pytest.mark.parametrize(
    ("host", "path", "inside"),
    [
        ("/", "/usr/lib/x", "/usr/lib/x"),
        ("/run/nvidia/driver", "/run/nvidia/driver/usr/x", "/usr/x"),
        ("/run/nvidia/driver", "/run/nvidia/driverless/x", None),
        ("/run/nvidia/driver", "/opt/hook", None),
    ],
)
def test_a_host_path_inside_the_tree(tmp_path: Path, host: str, path: str, inside: str | None) -> None:
    assert Tree.at(tmp_path, host).from_host(path) == inside


async def test_what_happened_before_the_folders_were_watched_is_seen_and_what_stays_wrong_is_yielded_once(
    tmp_path: Path,
) -> None:
    wrong: list[str] = ["before"]
    async with Inotify() as inotify, asyncio.timeout(30):
        looks = follow_sources(inotify, lambda: {tmp_path}, lambda: tuple(wrong) or None, calm=60.0)
        await anext(looks)
        again = asyncio.ensure_future(anext(looks))
        (tmp_path / "else").touch()  # wakes it, and changes nothing of what is wrong
        await asyncio.sleep(3 * PAUSE_SECONDS)
        assert not again.done()
        wrong.append("more")
        (tmp_path / "another").touch()
        await again
        wrong.clear()
        later = asyncio.ensure_future(anext(looks))
        await asyncio.sleep(2 * PAUSE_SECONDS)
        assert not later.done()
        wrong.extend(("before", "more"))
        (tmp_path / "third").touch()
        await later
        await looks.aclose()


async def test_what_stays_wrong_is_yielded_again_after_a_while(tmp_path: Path) -> None:
    async with Inotify() as inotify, asyncio.timeout(30):
        looks = follow_sources(inotify, lambda: {tmp_path}, lambda: "wrong", calm=0.01)
        await anext(looks)
        await anext(looks)
        await looks.aclose()
