"""Containers on a real engine: containerd and runc with images of several distributions, alone and under a kubelet.

Where the machine can't carry it the tests are skipped with the reason; with ``KGPU_REQUIRE_REAL=1`` they fail instead.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from kgpu.base.errors import LabError
from kgpu.base.files import write_atomic
from kgpu.hw.simulator.create import create_root
from kgpu.lab.progress import PlainProgress
from kgpu.lab.real import bootstrap, build, hosttools, images
from kgpu.lab.real.cluster import RealLab
from kgpu.lab.real.model import LabSpec
from kgpu.lab.real.namespaces import child_env
from tests import debian, on_real
from tests.lab.real.conftest import Cluster
from tests.toolkit.real import glibc, rootfs
from tests.toolkit.real.engine import Engine

GLIBC_CACHE = Path.home() / ".cache" / "kgpu" / "tests" / glibc.PACKAGE
PROGRAMS = frozenset({"containerd", "containerd-shim-runc-v2", "ctr", "runc"})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    on_real.mark(items, __file__)


unavailable = partial(on_real.unavailable, what="real engine")


@dataclass(frozen=True, slots=True)
class Node:
    """The engine, and the simulated driver root whose CDI spec it reads."""

    engine: Engine
    root: Path

    def kgpu(self, *words: str) -> str:
        """What ``kgpu WORDS`` prints; fails when it does."""
        done = subprocess.run(
            [sys.executable, "-m", "kgpu", *words], capture_output=True, text=True, check=False, env=child_env()
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def hw(self, *words: str) -> None:
        self.kgpu("lab", "hw", *words, "--root", str(self.root))

    def generate(self, *words: str) -> Path:
        """Write the spec that the engine reads."""
        out = self.engine.specs / "nvidia.yaml"
        self.kgpu("cdi", "generate", "--driver-root", str(self.root), "--output", str(out), *words)
        return out


@pytest.fixture(scope="session")
def probe(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return rootfs.compile_probe(tmp_path_factory.mktemp("probe"))


@pytest.fixture(scope="package")
def node(tmp_path_factory: pytest.TempPathFactory, probe: bytes) -> Iterator[Node]:
    """An engine with the images that this machine can make by itself, and four simulated GPUs."""
    progress = PlainProgress()
    try:
        hosttools.require_platform()
        hosttools.ensure_host_tools(progress)
        bin_dir = build.ensure_binaries(progress, only=PROGRAMS)
        archive = images.oci_archive(
            *rootfs.debian_images(glibc.of_machine(), probe), architecture=images.architecture()
        )
    except LabError as error:
        unavailable(error.one_line())
    folder = tmp_path_factory.mktemp("engine")
    engine = Engine(folder, bin_dir)
    try:
        engine.start()
        write_atomic(folder / "images.tar", archive)
        engine.load(folder / "images.tar")
        node = Node(engine, create_root("hgx-h100", folder / "driver", gpus=4))
        node.generate()
        yield node
    finally:
        engine.stop()


@pytest.fixture(scope="package")
def rhel(node: Node, probe: bytes) -> str:
    """The name of the image whose C library is built for /lib64."""
    try:
        libraries = glibc.of_lib64(GLIBC_CACHE)
    except debian.NotToBeHad as error:
        unavailable(str(error))
    archive = images.oci_archive(*rootfs.rhel_images(libraries, probe), architecture=images.architecture())
    write_atomic(node.engine.folder / "rhel.tar", archive)
    node.engine.load(node.engine.folder / "rhel.tar")
    return rootfs.RHEL


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, probe: bytes) -> Iterator[Cluster]:
    """A real cluster with the agent, eight simulated GPUs and the images of ``rootfs``."""
    progress = PlainProgress()
    try:
        hosttools.require_platform()
        hosttools.ensure_host_tools(progress)
        build.find_toolchain()
        libraries = glibc.of_lib64(GLIBC_CACHE)
    except (LabError, debian.NotToBeHad) as error:
        unavailable(str(error))
    folder = tmp_path_factory.mktemp("toolkit")
    lab = RealLab(LabSpec(name=f"toolkit-{os.getpid()}"), folder=folder / "lab", progress=progress)
    made = [*rootfs.debian_images(glibc.of_machine(), probe), *rootfs.rhel_images(libraries, probe)]
    write_atomic(folder / "images.tar", images.oci_archive(*made, architecture=images.architecture()))
    try:
        lab.up()
        bootstrap.import_archive(lab, folder / "images.tar")
        yield Cluster(lab)
    finally:
        lab.down()
