"""Advice reads the labels that kgpu itself writes, on simulated machines of every kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from kgpu.advise.model import DraService, Possibility, SharingWay
from kgpu.advise.nodes import gpus_of
from kgpu.advise.plan import kinds
from kgpu.cli.labels import labels
from kgpu.discovery.lines import from_lines

MakeRoot = Callable[..., Path]
SHARED = """
version: v1
sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 10}]}}
"""


def written(root: Path, folder: Path, config: str = "version: v1") -> dict[str, str]:
    file = folder / "config.yaml"
    file.write_text(config)
    result = CliRunner().invoke(labels, ["--root", str(root), "--config-file", str(file)])
    assert result.exit_code == 0, result.output
    return from_lines(result.stdout)


@pytest.mark.parametrize(
    ("profile", "models"),
    [
        ("dgx-1-v100", {"Tesla-V100-SXM2-16GB": ("yes", "no")}),
        ("dgx-1-p100", {"Tesla-P100-SXM2-16GB": ("no", "no")}),
        ("l4", {"NVIDIA-L4": ("yes", "no")}),
        ("a30", {"NVIDIA-A30": ("yes", "yes")}),
        ("hgx-b200", {"NVIDIA-B200": ("yes", "yes")}),
        ("mixed-models", {"NVIDIA-A100-SXM4-80GB": ("yes", "yes"), "NVIDIA-L4": ("yes", "unknown"),
                          "Tesla-T4": ("yes", "no")}),
    ],
)  # fmt: skip
def test_mps_and_mig_on_each_model(
    profile: str, models: dict[str, tuple[str, str]], sim_root: MakeRoot, tmp_path: Path
) -> None:
    node = {"metadata": {"name": "n", "labels": written(sim_root(profile), tmp_path)}, "status": {}}
    found = {
        kind.gpus.product: (str(kind.of(SharingWay.MPS).state), str(kind.of(SharingWay.MIG).state))
        for kind in kinds(gpus_of(node), DraService())
    }
    assert found == models


def test_what_is_shared_now(sim_root: MakeRoot, tmp_path: Path) -> None:
    node = {"metadata": {"name": "n", "labels": written(sim_root("t4"), tmp_path, SHARED)}, "status": {}}
    (kind,) = kinds(gpus_of(node), DraService())
    here = kind.of(SharingWay.TIME_SLICING)
    assert (here.state, here.why, kind.gpus.product) == (
        Possibility.IN_USE, "nvidia.com/gpu by time-slicing, 10 shares each", "Tesla-T4",
    )  # fmt: skip
