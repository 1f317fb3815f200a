"""A driver root is other people's files, often a container's: nothing in it may make a spec mount the host's own files.

The runtime follows a mount's source as the kernel does, from the host's root; so a link in the driver root that is
absolute or climbs has to be followed inside the root before the spec is written, or left out.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

from kgpu.base.errors import HostError
from kgpu.formats.cdi import ContainerEdits
from kgpu.host.driver.edits import driver_edits, host_edits
from kgpu.host.driver.find import find_driver_files
from kgpu.host.root import DriverRoot
from tests.budget import tries
from tests.host.driver import roots

PLACES = (
    "usr/lib/x86_64-linux-gnu/libcuda.so.570.133.20",
    "usr/lib/x86_64-linux-gnu/libcuda.so.1",
    "usr/lib/x86_64-linux-gnu/libnvidia-encode.so.570.133.20",
    "usr/lib/x86_64-linux-gnu/vdpau",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib",
    "usr/bin/nvidia-smi",
    "usr/bin",
    "usr",
    "lib",
    "usr/lib/firmware/nvidia",
    "usr/lib/firmware/nvidia/570.133.20/gsp_ga10x.bin",
    "run/nvidia-persistenced/socket",
    "run/nvidia-persistenced",
    "run",
    "var/run",
    "tmp/nvidia-mps",
    "etc",
    "etc/vulkan/icd.d/nvidia_icd.json",
    "dev",
    "dev/nvidiactl",
    "dev/nvidia0",
)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A driver root as Ubuntu's packages make it, with all that else is looked for."""
    root = roots.ubuntu(tmp_path_factory.mktemp("driver") / "root")
    roots.nodes(root)
    roots.touch(root, "/run/nvidia-persistenced/socket", "/etc/vulkan/icd.d/nvidia_icd.json", "/tmp/nvidia-mps/control")
    return root


def edits_of(root: Path) -> list[ContainerEdits]:
    found = DriverRoot.at(root)
    files = find_driver_files(found)
    nodes = ContainerEdits(device_nodes=(found.device_node("/dev/nvidia0"),) if found.has_node("/dev/nvidia0") else ())
    return [driver_edits(found, files), host_edits(found, files), nodes]


def outside_of(root: Path, edits: list[ContainerEdits]) -> list[str]:
    """Sources that the kernel would take from elsewhere."""
    real = os.path.realpath(root)
    sources = [mount.host_path for one in edits for mount in one.mounts]
    sources += [node.host_path or node.path for one in edits for node in one.device_nodes]
    assert sources
    return [path for path in sources if not os.path.realpath(path).startswith(f"{real}/")]


def test_an_honest_root_stays_inside(driver: Path) -> None:
    assert outside_of(driver, edits_of(driver)) == []


@given(
    moved=st.lists(st.tuples(st.sampled_from(PLACES), st.sampled_from(["absolute", "climbing", "inside"])), max_size=3)
)
@example(moved=[("usr/lib/x86_64-linux-gnu/libcuda.so.570.133.20", "absolute")])
@example(moved=[("usr/bin/nvidia-smi", "absolute")])
@example(moved=[("usr", "climbing")])
@example(moved=[("dev", "absolute")])
@example(moved=[("dev/nvidia0", "absolute")])
@example(moved=[("run/nvidia-persistenced", "absolute")])
@tries(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_link_in_a_driver_root_leads_a_mount_out_of_it(
    driver: Path, tmp_path_factory: pytest.TempPathFactory, moved: list[tuple[str, str]]
) -> None:
    folder = tmp_path_factory.mktemp("moved")
    try:
        root, host = folder / "root", folder / "host"
        shutil.copytree(driver, root, symlinks=True)
        # The host has everything that the root has, so that a link that leads there finds something.
        shutil.copytree(driver, host, symlinks=True)
        for place, how in moved:
            relink(root, host, place, how)
        try:
            edits = edits_of(root)
        except HostError:
            return
        assert outside_of(root, edits) == []
    finally:
        shutil.rmtree(folder)


def relink(root: Path, host: Path, place: str, how: str) -> None:
    """Put a link to the host's file or folder in the root's place."""
    path = root / place
    if not os.path.lexists(path) or os.path.realpath(path.parent) != str(path.parent):
        return
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
    targets: dict[str, Callable[[], str]] = {
        "absolute": lambda: str(host / place),
        "climbing": lambda: os.path.relpath(host / place, path.parent),
        "inside": lambda: f"/{place}.elsewhere",
    }
    path.symlink_to(targets[how]())
