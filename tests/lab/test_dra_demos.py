"""The sample manifests of NVIDIA's DRA driver, and the cases of Kubernetes' example driver, in an embedded lab."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.embedded.model import FirstNode
from kgpu.lab.progress import QuietProgress
from tests import polling
from tests.dra import demos
from tests.lab.test_dra import GPU, MIG, DraNode, device_class

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def lab(kubectl: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedLab]:
    del kubectl
    folder = tmp_path_factory.mktemp("demos")
    lab = EmbeddedLab("demos", folder / "lab", QuietProgress(), first=FirstNode(profile=str(demos.GPUS), agent=False))
    try:
        lab.up()
        (hardware,) = lab.hardware()
        demos.cut(hardware.root)
        yield lab
    finally:
        lab.down()


@pytest.fixture
def short() -> Iterator[Path]:
    """MPS daemons have sockets, whose paths are to be short."""
    with tempfile.TemporaryDirectory(prefix="kg", ignore_cleanup_errors=True) as name:
        yield Path(name)


@pytest.mark.parametrize("gates", [demos.SHARED, demos.MADE])
def test_demos_run_unchanged(lab: EmbeddedLab, gates: str, short: Path) -> None:
    node = DraNode(lab, short, gates=gates)
    try:
        node.apply(*(device_class(name, name.partition(".")[0]) for name in (GPU, MIG)))
        assert polling.holds(lambda: "gpu-12" in node.devices(), seconds=60)
        for batch in demos.batches(gates, beta=False):
            demos.play(node, batch)
    finally:
        node.end()
