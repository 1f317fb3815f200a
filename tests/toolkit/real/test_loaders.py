"""Programs find the driver's libraries by their bare names in images of every family of distributions, without
LD_LIBRARY_PATH and without a hook that writes the image's loader cache.

The loader looks into the cache first, then into default folders that are compiled into it: those of Debian, of RHEL, and
of a plain build differ, and are what the driver is mounted in.
"""

from __future__ import annotations

import hashlib

import pytest

from tests.toolkit.real import glibc, rootfs
from tests.toolkit.real.conftest import Node

ASKED = ("libcuda.so.1", "libnvidia-ml.so.1", "libcuda.so", "libnvidia-ml.so")
ONE = "nvidia.com/gpu=0"


def found(node: Node, image: str, *words: str) -> dict[str, str]:
    """Library -> the file that the loader took."""
    lines = node.engine.run(image, rootfs.PROBE, *ASKED, devices=[ONE], words=words).lines()
    return dict(line.split(": ", 1) for line in lines)


@pytest.mark.parametrize("image", [rootfs.DEBIAN, rootfs.OLD_DEBIAN, rootfs.DISTROLESS, rootfs.PLAIN, rootfs.LINKED])
def test_the_driver_is_found(node: Node, image: str) -> None:
    assert found(node, image).keys() == set(ASKED)


@pytest.fixture(scope="module")
def digests(node: Node) -> dict[str, str]:
    """Library -> digest of the host's."""
    folder = node.root / "usr/lib/x86_64-linux-gnu"
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in ASKED}


@pytest.mark.parametrize("image", [rootfs.DEBIAN, rootfs.BAKED, rootfs.LINKED])
def test_it_is_the_hosts_driver_also_where_an_image_brings_another(
    node: Node, digests: dict[str, str], image: str
) -> None:
    assert loaded(node, image) == digests


def test_the_same_where_the_c_library_is_built_for_lib64(node: Node, digests: dict[str, str], rhel: str) -> None:
    assert loaded(node, rhel) == loaded(node, rootfs.RHEL_BAKED) == digests


def loaded(node: Node, image: str) -> dict[str, str]:
    """Library -> digest of the file that the loader took, as the container sees it."""
    script = f"{rootfs.PROBE} {' '.join(ASKED)} | sed 's/: / /' | while read name file; do echo $name $(sha256sum $file); done"
    lines = node.engine.run(image, "sh", "-c", script, devices=[ONE]).lines()
    return {line.split()[0]: line.split()[1] for line in lines}


def test_the_driver_is_found_where_the_c_library_is_built_for_lib64(node: Node, rhel: str) -> None:
    assert {path.rpartition("/")[0] for path in found(node, rhel).values()} <= set(glibc.RHEL_FOLDERS)


@pytest.mark.parametrize("image", [rootfs.DEBIAN, rootfs.OLD_DEBIAN, rootfs.PLAIN, rootfs.LINKED])
def test_programs_that_ask_the_loaders_cache_are_told(node: Node, image: str) -> None:
    """Triton takes libcuda from the cache, which no hook has written, or from where its variable says."""
    script = "test -s $TRITON_LIBCUDA_PATH/libcuda.so.1 && test -s $TRITON_LIBCUDA_PATH/libcuda.so && echo there"
    assert node.engine.run(image, "sh", "-c", script, devices=[ONE]).lines() == ["there"]
