"""An API server of the embedded lab without nodes, and its kubectl."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.progress import QuietProgress
from kgpu.lab.real import build


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedLab]:
    """Running; its state is shared by the tests, so each uses names of its own."""
    if not build.find_kubectl():
        pytest.skip("no kubectl here")
    lab = EmbeddedLab("crds", tmp_path_factory.mktemp("crds") / "lab", QuietProgress())
    try:
        lab.up()
        yield lab
    finally:
        lab.down()
