"""The embedded lab for the tests: one for the whole run, with a node of eight simulated H100s."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from kgpu.base.errors import LabError
from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.embedded.model import FirstNode
from kgpu.lab.progress import QuietProgress
from kgpu.lab.real import build
from tests.lab.played import Played


@pytest.fixture(scope="session")
def kubectl() -> str:
    """A kubectl; built when Go is there, else the tests that need it are skipped with the reason."""
    try:
        return build.find_kubectl() or _built()
    except LabError as error:
        if os.environ.get("KGPU_REQUIRE_REAL") == "1":
            pytest.fail(str(error))
        pytest.skip(f"no kubectl here: {error.what}")


def _built() -> str:
    build.find_toolchain()
    return build.ensure_kubectl()


@pytest.fixture(scope="session")
def embedded(kubectl: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedLab]:
    """A running embedded lab."""
    lab = EmbeddedLab("tests", tmp_path_factory.mktemp("embedded") / "lab", first=FirstNode())
    try:
        lab.up()
        yield lab
    finally:
        lab.down()


@pytest.fixture(scope="session")
def played() -> Played:
    """Results of this run."""
    return Played()


@pytest.fixture(scope="session")
def helm() -> str:
    """The Helm that the real lab builds."""
    try:
        return build.ensure_helm(QuietProgress())
    except LabError as error:
        pytest.skip(f"no Helm here: {error.one_line()}")
